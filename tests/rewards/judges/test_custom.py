"""A judge with a prompt of your own: where the prompt comes from, how the reply is parsed, and a user's hooks."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.base import CannotScore, Halt, score
from rewardsmith.rewards.judges.custom import CustomJudge
from rewardsmith.rewards.pool import shared
from tests.rewards.judges.scripted_judges import connected, group, judge, make, outcomes

HOOKS = "tests.rewards.judges.hooks"
OWN = {"prompt": "{{response}}"}
STARS = {"postprocess": f"{HOOKS}:stars"}


def prompt_of(question: ChatRequest) -> list[tuple[str, str]]:
    assert not isinstance(question.prompt, str)
    return [(message.role, message.content) for message in question.prompt]


# ---- the prompt ------------------------------------------------------------------------------------------------------


def test_the_built_in_prompt() -> None:
    scores, model = judge(CustomJudge, ["It is right.\nScore: 4"], group("42"), lowest=1.0, highest=5.0)
    assert outcomes(scores) == [0.75]
    assert scores[0].feedback == "It is right.\nScore: 4"
    assert "```\n42\n```" in model.seen[0]
    assert "from 1 to 5, where 5 is the best" in model.seen[0]


PROMPT = (
    "{{question}}|{{response}}|{{final}}|{{answer}}|{{reference}}|{{source}}|{{level}}|{{topic}}|{{lowest}}-{{highest}}"
)


def test_every_placeholder() -> None:
    rollouts = group("<think>?</think>It is \\boxed{41}.", level=3, extra_info={"topic": "products"})
    _, model = judge(CustomJudge, ["Score: 1"], rollouts, prompt=PROMPT, quoting="verbatim")
    seen = "How much is 6 · 7?|< think>?< /think>It is \\boxed{41}.|It is \\boxed{41}.|41|42|tests|3|products|0-10"
    assert prompt_of(model.asked[0]) == [("user", seen)]


def test_an_unknown_placeholder_is_reported_with_its_file_and_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "a-long-name" / ("x" * 90) / "mine.txt"
    file.parent.mkdir(parents=True)
    file.write_text("{{response}} {{topc}}")
    reward, _ = connected(CustomJudge, [], template=str(file))
    info: dict[str, object] = {"level": 3, "deep": {"a": 1}, "extra_info": {"topic": "products"}}
    with pytest.raises(CannotScore) as caught:
        asyncio.run(reward.score(group("42", **info)))
    message = str(caught.value)
    assert all(part in message for part in (f'template = "{file}"', 'Did you mean "topic"?', "Known: answer, final,"))


def test_the_prompt_of_a_column() -> None:
    turns = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "{response}?"}]
    for column, seen in (
        ("Is {response} right? {{response}}", [("user", "Is ```\n42\n``` right? ```\n42\n```")]),
        (turns, [("system", "Judge."), ("user", "```\n42\n```?")]),
    ):
        scores, model = judge(CustomJudge, ["Score: 5"], group("42", rm_prompt=column), prompt_field="rm_prompt")
        assert prompt_of(model.asked[0]) == seen
        assert outcomes(scores) == [0.5]
    column, text = 'Rate {"a": {response}} \\1 {{CRITERIA}}', "4{response}2 \\g<0> <|im_end|>"
    bare = {"prompt_field": "rm_prompt", "quoting": "verbatim"}
    _, model = judge(CustomJudge, ["Score: 5"], group(text, rm_prompt=column), **bare)
    assert prompt_of(model.asked[0]) == [("user", 'Rate {"a": 4{response}2 \\g<0> < |im_end|>} \\1 {{CRITERIA}}')]

    for unusable in (None, [{"role": "user"}], "Is it right?"):
        reward, model = connected(CustomJudge, [], prompt_field="rm_prompt")
        with pytest.raises(CannotScore, match=r"no 'rm_prompt'|has no {response}"):
            asyncio.run(reward.score(group("42", rm_prompt=unusable)))
        assert model.asked == []


def test_settings_that_cannot_be_used() -> None:
    for settings, message in (
        ({"prompt": "a", "template": "judge"}, "template and prompt are given: a judge has one prompt"),
        ({"template": "no such file"}, 'template = "no such file" cannot be read'),
        ({"prompt": "Is {{respons}} right?"}, "prompt has none of {{response}}"),
        ({"prompt": "Is {response} right?"}, "prompt has {response}, .* write {{response}}"),
        ({"prompt": "Is {answer} right?"}, "prompt has none of {{response}}"),
        ({"preprocess": f"{HOOKS}:mesages"}, 'Did you mean "messages"'),
        ({"postprocess": f"{HOOKS}:NO_FUNCTION"}, "postprocess = .* is not a function"),
        ({"lowest": 5.0, "highest": 5.0}, "highest = 5 must be above lowest = 5"),
        ({"lowest": -1.0}, "parses numbers from 0 to"),
        ({"highest": 1e6}, "highest = 1000000"),
        # what the built-in prompt does not demand
        ({"read": "boolean"}, 'demands a line `Score: X`: read = "boolean" needs a template of your own'),
        ({"marker": "Rating"}, 'marker = "Rating" needs a template'),
        ({"extract": ["boxed"]}, "has no effect with a prompt without {{answer}}"),
    ):
        with pytest.raises(UserError, match=message.replace("{", r"\{").replace("}", r"\}")):
            make(CustomJudge, **settings)


def test_equal_prompts_are_sent_once() -> None:
    texts = [f"<think>{i}</think>So \\boxed{{{4 + i // 6}}}." for i in range(8)]
    scores, model = judge(
        CustomJudge, lambda q: f"Score: {q.prompt[0].content}", group(*texts), prompt="{{answer}}", quoting="verbatim"
    )
    assert outcomes(scores) == pytest.approx([0.4] * 6 + [0.5] * 2)
    assert model.seen == ["4", "5"]
    _, model = judge(CustomJudge, lambda q: "Score: 5", group("a", "b", "c"), preprocess=f"{HOOKS}:no_role")
    assert model.seen == ["chat"]


# ---- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reply", "value"),
    [
        ({}, "Score: 7", 0.7),
        ({}, "**Final Score:** 7/10", 0.7),
        ({}, "Score: 7/20", 0.35),
        ({}, "Score: 11", "invalid"),
        ({}, "7", "unparsable"),
        ({"marker": "Rating"}, "Score: 9\nRating: 7", 0.7),
        ({"lowest": 1.0, "highest": 5.0}, "Score: 4", 0.75),
        ({"lowest": 1.0, "highest": 5.0}, "Score: 4/5", 0.75),
        ({"lowest": 1.0, "highest": 5.0}, "Score: 4/10", "invalid"),
        ({"lowest": 1.0, "highest": 5.0}, "Score: 0", "invalid"),
        ({"scale": False}, "Score: 7", 7.0),
        ({"read": "number"}, "I say\n\n**7**", 0.7),
        ({"read": "number"}, "7 of 10", "unparsable"),
        ({"read": "number", "lowest": -1.0, "highest": 1.0}, "-1", 0.0),
        ({"read": "number", "lowest": -1.0, "highest": 1.0, "scale": False}, "-0.5", -0.5),
        ({"read": "number", "lowest": -1.0, "highest": 1.0}, "2", "invalid"),
        ({"read": "boolean"}, "Answer: yes", 1.0),
        ({"read": "boolean"}, "not true", 0.0),
        ({"read": "json"}, '```json\n{"score": 7}\n```', 0.7),
        ({"read": "json", "key": "a.b", "highest": 2.0}, '{"a": {"b": 1}}', 0.5),
        ({"read": "json"}, '{"score": NaN}', "unparsable"),
        ({"read": "json"}, '{"score": -1}', "invalid"),
    ],
)
def test_how_the_reply_is_parsed(settings: dict[str, object], reply: str, value: float | str) -> None:
    scores, _ = judge(CustomJudge, [reply], group("42"), request={"tries": 1}, **OWN, **settings)
    assert outcomes(scores) == [value if isinstance(value, str) else pytest.approx(value)]


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_preprocess() -> None:
    rollouts = group("a", "a", "b", "c", "d", "e", "f")
    scores, model = judge(CustomJudge, lambda q: "Score: 5", rollouts, preprocess=f"{HOOKS}:messages")
    assert outcomes(scores) == [0.5, 0.5, 0.5, "invalid", "crashed", "crashed", "crashed"]
    assert [prompt_of(question) for question in model.asked] == [
        [("system", "Be strict."), ("user", "first")],
        [("user", "second")],
        [("user", "third")],
    ]
    assert "preprocess has no prompt for this rollout" in str(scores[3].failure)
    assert "preprocess returned an invalid prompt" in str(scores[4].failure)
    scores, _ = judge(CustomJudge, ["Score: 5"], group("a", "b"), preprocess=f"{HOOKS}:no_unicode")
    assert outcomes(scores) == ["crashed", 0.5]  # it fails alone


def test_hooks_that_do_not_end() -> None:
    """A preprocess fails its group, a postprocess its rollout alone."""
    for hook in ("hanging_messages", "blocking_messages"):
        reward, model = connected(CustomJudge, [], preprocess=f"{HOOKS}:{hook}", deadline=0.2)
        with pytest.raises(CannotScore, match=r"preprocess .* within 0\.2 s \(deadline\)") as caught:
            asyncio.run(reward.score(group("a", "b")))
        assert (caught.value.kind, model.asked) == ("timeout", [])
    replies = ["fine", "hang and die", "good"]
    for hook, kinds in (
        ("blocking_for_some", [0.5, "timeout", 0.5]),
        ("dying", [0.5, "crashed", 0.5]),
        ("hanging", ["timeout"] * 3),
    ):
        scores, _ = judge(CustomJudge, replies, group("a", "b", "c"), postprocess=f"{HOOKS}:{hook}", deadline=0.3)
        assert outcomes(scores) == kinds
        assert "fine" in scores[0].feedback


def test_hooks_that_wait_for_a_worker_are_not_too_late() -> None:
    shared(1)  # four calls of 0.2 s, one after the other
    try:
        hook = {**OWN, "postprocess": f"{HOOKS}:slow_to_read", "request": {"deadline": 0.5}}
        scores, _ = judge(CustomJudge, lambda q: "x", group(*"abcd"), **hook)
        assert outcomes(scores) == [0.5] * 4
    finally:
        shared(2)


def test_a_worker_keeps_one_event_loop_for_its_hooks() -> None:
    scores, _ = judge(CustomJudge, ["a", "b", "c"], group("a", "b", "c"), postprocess=f"{HOOKS}:keeps_a_loop")
    assert outcomes(scores) == [1.0] * 3


CTRL_C = """
import asyncio, os, signal
from tests.rewards.judges.scripted_judges import connected, group
from rewardsmith.rewards.judges.custom import CustomJudge
reward, _ = connected(CustomJudge, [], preprocess="tests.rewards.judges.hooks:blocking_messages", deadline=600.0)
async def main():
    asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), signal.SIGINT)
    await reward.score(group("a"))
asyncio.run(main())
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_program_whose_hook_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, timeout=300, check=False)
    assert "KeyboardInterrupt" in ended.stderr  # well before the deadline of 600 s


def test_a_hook_may_halt_the_run() -> None:
    reward, model = connected(CustomJudge, ["*", "*"], postprocess=f"{HOOKS}:halting")
    with pytest.raises(Halt, match="not the one that was meant"):
        asyncio.run(score(reward, group("a", "b")))
    assert len(model.asked) <= 2  # nothing is sent again


def test_a_broken_preprocess_fails_the_group() -> None:
    for hook, message in (
        ("too_few", "TypeError: preprocess returned 1 prompts for 2 rollouts"),
        ("broken", r"KeyError: 'no such column' \(hooks.py:"),
    ):
        reward, model = connected(CustomJudge, [], preprocess=f"{HOOKS}:{hook}")
        with pytest.raises(CannotScore, match=message) as caught:
            asyncio.run(reward.score(group("a", "b")))
        assert caught.value.kind == "crashed"
        assert model.asked == []


def test_postprocess() -> None:
    scores, model = judge(CustomJudge, ["**", "*", "hm"], group("a", "b", "c"), postprocess=f"{HOOKS}:stars")
    assert outcomes(scores) == [0.2, 0.1, "crashed"]
    assert scores[0].feedback == "**"
    assert "KeyError: 'hm' (hooks.py:" in str(scores[2].failure)
    assert len(model.asked) == 3


def test_a_reply_that_postprocess_refuses_is_requested_again() -> None:
    for hook, value in (("stars_or_again", 0.1), ("again", 1.0)):
        for replies, outcome in ((["hm", "*"], value), (["hm"] * 3, "unparsable")):
            scores, model = judge(CustomJudge, replies, group("a"), postprocess=f"{HOOKS}:{hook}")
            assert outcomes(scores) == [outcome]
            assert len(model.asked) == len(replies)


def test_what_a_postprocess_returns() -> None:
    (score,), _ = judge(CustomJudge, ["<think>how many?</think>***"], group("a"), postprocess=f"{HOOKS}:slow_stars")
    assert (score.value, score.feedback) == (0.3, "3 stars")  # a coroutine function, with its own feedback
    for hook, kind, message in (
        ("nothing", "crashed", "postprocess returned None: it must return a number"),
        ("words", "crashed", "postprocess returned '0.5': it must return a number"),
        ("endless", "invalid", "not finite: postprocess returned inf"),
        ("leaving", "crashed", "SystemExit: the score is * (hooks.py:"),
    ):
        (score,), _ = judge(CustomJudge, ["*"] * 3, group("a"), postprocess=f"{HOOKS}:{hook}")
        assert score.failure.kind == kind
        assert message in str(score.failure)
