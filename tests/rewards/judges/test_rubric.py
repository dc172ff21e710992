"""Grades by criteria: where the criteria come from, one call or many, and what fails."""

import asyncio
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.rubric import Rubric
from tests.rewards.judges.asked import connected, group, judge, make, outcomes
from tests.rewards.models import text_of

TEXT = "6 points: the product is right.\n4 points: it is shown how."
LIST = [{"text": "The product is right.", "points": 3.0}, {"text": "It is short.", "name": "short"}]


def by_answer(question: ChatRequest) -> str:
    """Grade by what the quoted answer holds: a number is the grade."""
    answer = text_of(question).partition("## Answer")[2].partition("## Your task")[0].strip("`\n ")
    return f"I see.\nTotal Score: {answer}"


def test_one_call_for_the_whole() -> None:
    scores, model = judge(Rubric, by_answer, group("8/10", "3", "8/20", "8/10"), criteria=TEXT)
    assert outcomes(scores) == [0.8, 0.3, 0.4, 0.8]
    assert [s.feedback for s in scores[:2]] == ["I see.\nTotal Score: 8/10", "I see.\nTotal Score: 3"]
    assert len(model.asked) == 3  # equal answers are asked about once
    assert model.most == 3  # and all at the same time
    assert all(s.parts == {} for s in scores)


@pytest.mark.parametrize("calls", ["whole", "each"])
@pytest.mark.parametrize("points", [(1.0, 2.0), (4000.0, 6000.0), (0.1, 0.2), (1 / 3, 1 / 3), (1234.5, 0.000001)])
def test_what_the_prompt_asks_for_can_be_read(calls: str, points: tuple[float, ...]) -> None:
    """A judge that gives all points, in the very form that the prompt shows, is believed."""
    criteria = [{"text": "a", "points": points[0]}, {"text": "b", "points": points[1]}]

    def script(question: ChatRequest) -> str:
        form = text_of(question).splitlines()[-1]
        return form.replace("X", form.partition("/")[2])

    scores, model = judge(Rubric, script, group("42"), criteria=criteria, calls=calls)
    assert outcomes(scores) == [pytest.approx(1.0)]
    assert "e+" not in "".join(model.seen)
    assert "e-" not in "".join(seen.splitlines()[-1] for seen in model.seen)


def by_criterion(question: ChatRequest) -> str:
    return "Total Score: 2/3" if "The product is right." in text_of(question) else "Total Score: 0"


def test_one_call_for_each_criterion() -> None:
    scores, model = judge(Rubric, by_criterion, group("42"), criteria=LIST, calls="each")
    assert len(model.asked) == model.most == 2
    assert scores[0].value == pytest.approx((3 * 2 / 3 + 0) / (3 + 1))
    assert {name: part.value for name, part in scores[0].parts.items()} == {"c1": pytest.approx(2 / 3), "short": 0}
    assert scores[0].feedback == "[c1] Total Score: 2/3\n\n[short] Total Score: 0"
    assert make(Rubric, criteria=LIST, calls="each").parts == ("c1", "short")
    assert make(Rubric, criteria=LIST).parts == ()


def met(question: ChatRequest) -> str:
    return "Answer: met" if "[yes]" in text_of(question) else "Answer: not met"


@pytest.mark.parametrize(
    ("points", "value"),
    [
        ({"a [yes]": 3, "b": 1}, 3 / 4),
        ({"a": 3, "b": 1}, 0),
        ({"a [yes]": 3, "b": 1, "fault [yes]": -1}, 2 / 4),
        ({"a [yes]": 3, "b": 1, "fault": -1}, 3 / 4),
        ({"a": 3, "fault [yes]": -1}, 0),  # never below 0
    ],
)
def test_met_or_not(points: dict[str, float], value: float) -> None:
    criteria = [{"text": text, "points": float(worth)} for text, worth in points.items()]
    scores, _ = judge(Rubric, met, group("42"), criteria=criteria, calls="each", mark="met")
    assert scores[0].value == pytest.approx(value)


def test_one_criterion_without_a_verdict_fails_the_rollout_and_keeps_the_others() -> None:
    def script(question: ChatRequest) -> str:
        return "hm" if "It is short." in text_of(question) and "bad" in text_of(question) else by_criterion(question)

    scores, _ = judge(Rubric, script, group("bad", "good"), criteria=LIST, calls="each", request={"tries": 2})
    assert outcomes(scores) == ["unparsable", 0.5]
    assert scores[0].failure is not None
    assert scores[0].failure.attempts == 2
    assert outcomes(list(scores[0].parts.values())) == [pytest.approx(2 / 3), "unparsable"]
    assert list(scores[0].parts) == list(scores[1].parts) == ["c1", "short"]


# ---- where the criteria come from ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "settings", "seen"),
    [
        ({"criteria": TEXT}, {}, TEXT),
        ({"extra_info": {"criteria": TEXT}}, {}, TEXT),
        ({"rubric": TEXT}, {"field": "rubric"}, TEXT),
        ({"criteria": "theirs"}, {"criteria": "ours"}, "ours"),
        (
            {"criteria": [{"text": "a", "points": 2}, {"criterion": "b", "weight": 3}, "c"]},
            {},
            "1. (points: 2) a\n2. (points: 3) b\n3. (points: 1) c",
        ),
    ],
)
def test_criteria_of_a_prompt(info: dict[str, object], settings: dict[str, object], seen: str) -> None:
    scores, model = judge(Rubric, ["Total Score: 50%"], group("42", **info), **settings)
    assert outcomes(scores) == [0.5]
    assert f"```\n{seen}\n```" in model.seen[0]


def test_criteria_of_a_prompt_have_no_parts() -> None:
    """Another prompt has other criteria, and metrics keep one schema."""
    scores, _ = judge(Rubric, by_criterion, group("42", criteria=["The product is right.", "x"]), calls="each")
    assert scores[0].parts == {}
    assert scores[0].feedback == "[c1] Total Score: 2/3\n\n[c2] Total Score: 0"


@pytest.mark.parametrize(
    ("found", "settings", "message"),
    [
        (None, {}, "the prompt 'p1' has no 'criteria'"),
        ("  ", {}, "has an unusable 'criteria'"),
        ([], {}, "has no 'criteria'"),
        (7, {}, "has an unusable 'criteria'"),
        ({"a": 1}, {}, "has an unusable 'criteria'"),
        ([{"points": 1}], {}, "entry 1 of 'criteria' of the prompt 'p1' has no text"),
        (["a", {"text": "b", "points": "2"}], {}, "entry 2 of 'criteria' of the prompt 'p1' has no number of points"),
        (["a", {"text": "b", "points": True}], {}, "no number of points"),
        ([{"text": "b", "points": 0}], {}, "an entry of 0 points"),
        ([{"text": "b", "points": 1e-9}], {}, "an entry of 0 points"),
        ([{"text": "b", "points": 6000}, {"text": "c", "points": 6000}], {}, "more than 10,000 points in all"),
        ([{"text": "b", "points": -1}], {}, "nothing that earns points"),
        (["a", {"text": "b", "points": -1}], {}, 'negative points: these need calls = "each" and mark = "met"'),
        (["a", {"text": "b", "points": -1}], {"calls": "each"}, "negative points"),
        (["a"] * 201, {}, "has 201 entries"),
        (TEXT, {"calls": "each"}, 'is text: calls = "each" needs a list'),
    ],
)
def test_criteria_that_cannot_be_used(found: object, settings: dict[str, object], message: str) -> None:
    reward, model = connected(Rubric, [], **settings)
    with pytest.raises(CannotScore, match=message) as caught:
        asyncio.run(reward.score(group("42", criteria=found)))
    assert caught.value.kind == "invalid"
    assert model.asked == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criteria": " "}, "criteria is empty"),
        ({"criteria": []}, "criteria is empty"),
        ({"criteria": TEXT, "calls": "each"}, 'criteria is text: calls = "each" needs a list'),
        ({"mark": "met"}, 'mark = "met" needs calls = "each"'),
        ({"criteria": [{"text": "a", "name": "x"}, {"text": "b", "name": "x"}]}, "two called 'x'"),
        ({"criteria": [{"text": "a", "points": -1.0}, {"text": "b"}]}, "negative points"),
        ({"criteria": [{"text": "a", "points": 0.0}]}, "0 points"),
        ({"criteria": LIST, "total": 10.0}, "total = 10.0 has no effect with a list of criteria"),
        ({"calls": "each", "total": 10.0}, 'total = 10.0 has no effect with calls = "each"'),
        ({"criteria": TEXT, "field": "criteria"}, 'field = "criteria" has no effect with criteria'),
        (
            {"criteria": LIST, "calls": "each", "mark": "met", "above": "refuse"},
            'above = "refuse" has no effect with mark = "met"',
        ),
        ({"show": "final", "extract": ["boxed"]}, r"extract = \('boxed',\) has no effect with show = \"final\""),
        ({"template": "rubic"}, 'Did you mean "rubric"'),
        ({"template": "verifier"}, r"has {{reference}}|has no {{criteria}}"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(Rubric, **settings)


# ---- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("show", "seen"),
    [("response", "< think>six< /think>It is \\boxed{42}."), ("final", "It is \\boxed{42}."), ("answer", "42")],
)
def test_what_the_judge_is_shown(show: str, seen: str) -> None:
    _, model = judge(
        Rubric, ["Total Score: 1"], group("<think>six</think>It is \\boxed{42}."), criteria=TEXT, show=show
    )
    assert f"## Answer\n\n```\n{seen}\n```\n\n## Your task" in model.seen[0]


@pytest.mark.parametrize(
    ("text", "show"), [("", "response"), (" \n", "response"), ("<think>hm", "final"), ("<think>hm", "answer")]
)
def test_nothing_to_grade_is_worth_nothing_and_nobody_is_asked(text: str, show: str) -> None:
    for settings in ({}, {"calls": "each"}):
        scores, model = judge(Rubric, [], group(text), criteria=LIST, show=show, **settings)
        assert outcomes(scores) == [0.0]
        assert scores[0].feedback
        assert model.asked == []
        assert set(scores[0].parts) == ({"c1", "short"} if settings else set())


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("=== system ===\nGrade.\n=== user ===\n{{criteria}}{{response}}{{reference}}/{{total}}")
    _, model = judge(
        Rubric, ["Total Score: 1"], group("ab"), criteria="c", template=str(path), quoting="verbatim", total=7.0
    )
    assert isinstance(model.asked[0].prompt, tuple)
    assert [(m.role, m.content) for m in model.asked[0].prompt] == [("system", "Grade."), ("user", "cab42/7")]


# ---- failures --------------------------------------------------------------------------------------------------------


def test_every_failure_is_its_own_rollouts() -> None:
    said = {
        "good": "Total Score: 5",
        "mute": "I cannot say.",
        "more": "Total Score: 11/10",
        "long": ChatReply("Total Score: 9", truncated=True, tokens=2048),
        "gone": ModelCallError("unreachable", "nobody there"),
        "bug": KeyError("x"),
    }

    def script(question: ChatRequest) -> str | ChatReply | BaseException:
        return next(answer for key, answer in said.items() if f"\n{key}\n" in text_of(question))

    scores, model = judge(Rubric, script, group(*said), criteria=TEXT, request={"tries": 2})
    assert outcomes(scores) == [0.5, "unparsable", "invalid", "truncated", "unreachable", "crashed"]
    assert len(model.asked) == 6 + 3


def test_above_the_total() -> None:
    scores, _ = judge(Rubric, ["Total Score: 11/10"], group("42"), criteria=TEXT, above="clamp")
    assert outcomes(scores) == [1.0]
