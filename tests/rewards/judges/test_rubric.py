"""Grades by criteria, and the verifier: what the judge sees, how its reply is parsed, and what fails."""

import asyncio
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.graders import Rubric, Verifier
from tests.rewards.judges.scripted_judges import connected, group, judge, make, outcomes
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
    assert len(model.asked) == 3  # equal answers are judged once
    assert model.most == 3  # and all at the same time
    assert all(s.parts == {} for s in scores)


@pytest.mark.parametrize("calls", ["whole", "each"])
@pytest.mark.parametrize("points", [(4000.0, 6000.0), (0.1, 0.2), (1 / 3, 1 / 3), (1234.5, 0.000001)])
def test_a_grade_in_the_form_that_the_prompt_shows_can_be_parsed(calls: str, points: tuple[float, ...]) -> None:
    def script(question: ChatRequest) -> str:
        form = text_of(question).splitlines()[-1]
        return form.replace("X", form.partition("/")[2])

    criteria = [{"text": "a", "points": points[0]}, {"text": "b", "points": points[1]}]
    scores, model = judge(Rubric, script, group("42"), criteria=criteria, calls=calls)
    assert outcomes(scores) == [pytest.approx(1.0)]
    assert "e+" not in "".join(model.seen)


def by_criterion(question: ChatRequest) -> str:
    return "Total Score: 2/3" if "The product is right." in text_of(question) else "Total Score: 0"


def test_one_call_for_each_criterion() -> None:
    (score,), model = judge(Rubric, by_criterion, group("42"), criteria=LIST, calls="each")
    assert len(model.asked) == model.most == 2
    assert score.value == pytest.approx((3 * 2 / 3 + 0) / (3 + 1))
    assert {name: part.value for name, part in score.parts.items()} == {"c1": pytest.approx(2 / 3), "short": 0}
    assert score.feedback == "[c1] Total Score: 2/3\n\n[short] Total Score: 0"
    # criteria of a prompt have no parts: another prompt has other criteria, and metrics keep one schema
    (score,), _ = judge(Rubric, by_criterion, group("42", criteria=["The product is right.", "x"]), calls="each")
    assert (score.parts, score.feedback) == ({}, "[c1] Total Score: 2/3\n\n[c2] Total Score: 0")


def test_met_or_not_with_faults() -> None:
    for points, value in (
        ({"a [yes]": 3, "b": 1}, 3 / 4),
        ({"a [yes]": 3, "b": 1, "fault [yes]": -1}, 2 / 4),
        ({"a [yes]": 3, "b": 1, "fault": -1}, 3 / 4),
        ({"a": 3, "fault [yes]": -1}, 0),  # never below 0
    ):
        criteria = [{"text": text, "points": float(worth)} for text, worth in points.items()]

        def met(question: ChatRequest) -> str:
            return "Answer: met" if "[yes]" in text_of(question) else "Answer: not met"

        (score,), _ = judge(Rubric, met, group("42"), criteria=criteria, calls="each", mark="met")
        assert score.value == pytest.approx(value)


def test_one_criterion_without_a_verdict_fails_its_rollout_alone() -> None:
    def script(question: ChatRequest) -> str:
        return "hm" if "It is short." in text_of(question) and "bad" in text_of(question) else by_criterion(question)

    scores, _ = judge(Rubric, script, group("bad", "good"), criteria=LIST, calls="each", request={"tries": 2})
    assert outcomes(scores) == ["unparsable", 0.5]
    assert scores[0].failure.attempts == 2
    assert outcomes(list(scores[0].parts.values())) == [pytest.approx(2 / 3), "unparsable"]


# ---- criteria --------------------------------------------------------------------------------------------------------


def test_where_criteria_are_found() -> None:
    listed = [{"text": "a", "points": 2}, {"criterion": "b", "weight": 3}, "c"]
    for info, settings, seen in (
        ({"extra_info": {"criteria": TEXT}}, {}, TEXT),
        ({"rubric": TEXT}, {"field": "rubric"}, TEXT),
        ({"criteria": "theirs"}, {"criteria": "ours"}, "ours"),
        ({"criteria": listed}, {}, "1. (points: 2) a\n2. (points: 3) b\n3. (points: 1) c"),
    ):
        scores, model = judge(Rubric, ["Total Score: 50%"], group("42", **info), **settings)
        assert outcomes(scores) == [0.5]
        assert f"```\n{seen}\n```" in model.seen[0]


def test_criteria_that_cannot_be_used() -> None:
    for found, settings, message in (
        (None, {}, "the prompt 'p1' has no 'criteria' that is text, or a list"),
        ([{"points": 1}], {}, "entry 1 of 'criteria' of the prompt 'p1' has no text"),
        (["a", {"text": "b", "points": True}], {}, "entry 2 .* no number of points"),
        ([{"text": "b", "points": 1e-9}], {}, "an entry of 0 points"),
        (["a", {"text": "b", "points": -1}], {"calls": "each"}, 'negative points, .* mark = "met"'),
        (TEXT, {"calls": "each"}, 'is text: calls = "each" needs a list'),
    ):
        reward, model = connected(Rubric, [], **settings)
        with pytest.raises(CannotScore, match=message) as caught:
            asyncio.run(reward.score(group("42", criteria=found)))
        assert (caught.value.kind, model.asked) == ("invalid", [])


def test_settings_that_cannot_be_used() -> None:
    for settings, message in (
        ({"criteria": " "}, "the reward has no 'criteria' that is text"),
        ({"criteria": TEXT, "calls": "each"}, "needs a list"),
        ({"mark": "met"}, 'mark = "met" needs calls = "each"'),
        ({"criteria": [{"text": "a", "name": "x"}, {"text": "b", "name": "x"}]}, "two of the same name: x"),
        ({"criteria": [{"text": "a", "points": -1.0}, {"text": "b"}]}, "negative points"),
        ({"show": "final", "extract": ["boxed"]}, 'extract = .* has no effect with show = "final"'),
        ({"template": "rubic"}, 'Did you mean "rubric"'),
        ({"template": "verifier"}, "has no {{criteria}}"),
    ):
        with pytest.raises(UserError, match=message):
            make(Rubric, **settings)


# ---- what is shown, and failures -------------------------------------------------------------------------------------


def test_what_the_judge_is_shown(tmp_path: Path) -> None:
    text = "<think>six</think>It is \\boxed{42}."
    for show, seen in (("response", text.replace("<", "< ")), ("final", "It is \\boxed{42}."), ("answer", "42")):
        _, model = judge(Rubric, ["Total Score: 1"], group(text), criteria=TEXT, show=show)
        assert f"## Answer\n\n```\n{seen}\n```\n\n## Your task" in model.seen[0]
    path = tmp_path / "mine.txt"
    path.write_text("=== system ===\nGrade.\n=== user ===\n{{criteria}}{{response}}{{reference}}/{{total}}")
    own = {"criteria": "c", "template": str(path), "quoting": "verbatim", "total": 7.0}
    _, model = judge(Rubric, ["Total Score: 1"], group("ab"), **own)
    assert [(m.role, m.content) for m in model.asked[0].prompt] == [("system", "Grade."), ("user", "cab42/7")]


@pytest.mark.parametrize(("text", "show"), [(" \n", "response"), ("<think>hm", "final"), ("<think>hm", "answer")])
def test_a_response_without_an_answer_is_worth_0_without_a_call(text: str, show: str) -> None:
    for kind, settings in ((Rubric, {"criteria": LIST}), (Rubric, {"criteria": LIST, "calls": "each"}), (Verifier, {})):
        (score,), model = judge(kind, [], group(text), show=show, **settings)
        assert (score.value, model.asked) == (0.0, [])
        assert score.feedback
        assert set(score.parts) == ({"c1", "short"} if "calls" in settings else set())


def test_every_failure_is_that_of_its_own_rollout() -> None:
    replies = {
        "good": "Total Score: 5",
        "mute": "I cannot say.",
        "more": "Total Score: 11/10",
        "long": ChatReply("Total Score: 9", truncated=True, tokens=2048),
        "gone": ModelCallError("unreachable", "nobody there"),
        "bug": KeyError("x"),
    }

    def script(question: ChatRequest) -> str | ChatReply | BaseException:
        return next(answer for key, answer in replies.items() if f"\n{key}\n" in text_of(question))

    scores, model = judge(Rubric, script, group(*replies), criteria=TEXT, request={"tries": 2})
    assert outcomes(scores) == [0.5, "unparsable", "invalid", "truncated", "unreachable", "crashed"]
    assert len(model.asked) == 6 + 3
    scores, _ = judge(Rubric, ["Total Score: 11/10"], group("42"), criteria=TEXT, above="clamp")
    assert outcomes(scores) == [1.0]


# ---- the verifier ----------------------------------------------------------------------------------------------------


def test_verdicts_of_a_verifier() -> None:
    for reply, value in (
        ("Both are 42.\n\nAnswer: True", 1.0),
        ("<think>Is it true? Yes.</think>\n\nAnswer: False", 0.0),
        ("False, although one may think that it is true.", 0.0),
        ("Answer: equivalent", 1.0),
        ("Answer: not equivalent", 0.0),
        ("Answer: incorrect", 0.0),
        ("I think that true is the right word here", "unparsable"),
        ("Answer: True\nAnswer: False", "unparsable"),
        (ModelCallError("timeout", "slow"), "timeout"),
    ):
        scores, _ = judge(Verifier, [reply, "True"], group("42", "43"), request={"tries": 1})
        assert outcomes(scores) == [value, 1.0]


def test_what_a_verifier_is_shown() -> None:
    texts = ["It is \\boxed{42}.", "So \\boxed{42}", "The answer is 42.", "#### 7", "42"]
    seen = "## Model's answer\n\n```\n42\n"
    scores, model = judge(Verifier, lambda q: str(seen in text_of(q)), group(*texts, answer=["42", 42.5]))
    assert outcomes(scores) == [1, 1, 1, 0, 1]
    assert len(model.asked) == 2  # equal answers are judged once
    assert "## Reference answer\n\n```\n42\nor: 42.5\n```" in model.seen[0]
    _, model = judge(Verifier, ["True"], group(texts[0]), show="response")
    assert f"## Model's answer\n\n```\n{texts[0]}\n```" in model.seen[0]
    with pytest.raises(UserError, match=r'extract = .* has no effect with show = "response"'):
        make(Verifier, show="response", extract=["boxed"])
    with pytest.raises(UserError, match='template = "rubric" has'):
        make(Verifier, template="rubric")


# ---- kinds of faults ----------------------------------------------------------------------------------------------


def test_a_judge_may_name_the_fault_that_weighs_most() -> None:
    def script(question: ChatRequest) -> str:
        assert "- miracle-steps: a right result appears" in text_of(question)
        answer = text_of(question).partition("## Answer")[2].partition("## Your task")[0].strip("`\n ")
        return f"I see.\nFault: {answer}\nTotal Score: 4/10"

    names = {
        "miracle-steps": "miracle-steps",
        "**Miracle Steps**": "miracle-steps",
        "inductive over-generalization": "over-generalisation",
        "Other": "other",
        "none": "",
        "Nonsense": "",
    }
    scores, _ = judge(Rubric, script, group(*names), criteria=TEXT, template="rubric_faults")
    assert outcomes(scores) == [0.4] * len(names)
    assert [score.label for score in scores] == list(names.values())


def test_the_label_of_votes_is_the_most_frequent_one() -> None:
    replies = iter(["miracle-steps", "coincidence", "coincidence"])
    script = lambda question: f"Fault: {next(replies)}\nTotal Score: 4/10"  # noqa: E731
    settings = {"votes": 3, "request": {"temperature": 0.7}}
    (score,), _ = judge(Rubric, script, group("x"), criteria=TEXT, **settings)
    assert (score.value, score.label) == (pytest.approx(0.4), "coincidence")


def test_of_single_criteria_the_one_that_cost_most_names_the_fault() -> None:
    criteria = [
        {"text": "The product is right.", "points": 3.0, "name": "Wrong_Product"},
        {"text": "It is short.", "name": "long"},
        {"text": "A step is missing.", "points": -2.0, "name": "miracle-steps"},
    ]
    fates = {"all": (3, 1, 0), "fault": (3, 0, 1), "product": (0, 1, 1), "short": (3, 0, 0)}

    def script(question: ChatRequest) -> str:
        text = text_of(question)
        fate = next(fates[name] for name in fates if f"\n{name}\n" in text)
        return "yes" if fate[next(i for i, one in enumerate(criteria) if one["text"] in text)] else "no"

    scores, _ = judge(Rubric, script, group(*fates), criteria=criteria, calls="each", mark="met")
    assert [score.label for score in scores] == ["", "miracle-steps", "wrong-product", "long"]


def test_written_rubrics_say_which_fault_a_criterion_looks_for() -> None:
    written = {"criteria": ["The product is right.", "x"], "criteria_made_by": {"checks": [["coincidence", "x"], []]}}
    script = lambda question: f"Total Score: {int('is right' not in text_of(question))}"  # noqa: E731
    (score,), _ = judge(Rubric, script, group("42", **written), calls="each")
    assert (score.value, score.label) == (0.5, "coincidence")
    for odd in (None, {"checks": [["coincidence"]]}, {"checks": [["<b>"], 3]}, {"checks": "ab"}, [1]):
        (score,), _ = judge(
            Rubric, script, group("42", criteria=written["criteria"], criteria_made_by=odd), calls="each"
        )
        assert score.label == ""
