"""A reward for each step from a world that knows which are right."""

import asyncio
from typing import Any

import numpy as np
import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.errors import RecipeError
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.step_rewards import Steps
from rewardsmith.text.steps import JudgedStep

PROMPT = Arithmetic().prompt("7+5-3")
SOUND = "7+5=12;12-3=9;#9"


def reward(**settings: Any) -> Steps:
    return make_reward({"type": "steps", "truth": "arithmetic", **settings}).reward


def rollout(text: str, *, ended: bool = True) -> Rollout:
    """One token for each character, and one that ends the answer."""
    ends = [*range(1, len(text) + 1), *[len(text)] * ended]
    return Rollout(text, tokens=list(range(1, len(ends) + 1)), ends=ends)


def scored(*rollouts: Rollout, prompt: Prompt = PROMPT, **settings: Any) -> tuple[Score, ...]:
    return asyncio.run(reward(**settings).score(RolloutGroup(prompt, rollouts)))


def placed(score: Score) -> dict[int, float]:
    """Return the rewards by the number of their token."""
    assert score.token_values is not None
    assert score.token_support is not None
    assert not score.token_values[~score.token_support].any()
    return {int(i): float(score.token_values[i]) for i in np.flatnonzero(score.token_support)}


def test_a_sound_answer_has_the_right_reward_at_the_end_of_each_step() -> None:
    (score,) = scored(rollout(SOUND))
    assert score.value == 1.0
    assert placed(score) == {6: 1.0, 13: 1.0, len(SOUND): 1.0}  # the conclusion's is on the token that ends it
    assert score.feedback == ""


CASES = [
    ("7+5=13;13-3=10;#10", 2 / 3, {6: -1.0, 14: 2.0, 18: 2.0}, "wrong of 3: step 1 (7+5=13;)"),
    ("7+5=12;12-3=8;#9", 1 / 3, {6: 2.0, 13: -1.0, 16: -1.0}, "wrong of 3: step 2 (12-3=8;), step 3 (#9)"),
    ("7+5=12", 1 / 2, {5: 2.0, 6: -1.0}, "wrong of 2: step 2 (missing)"),  # it ended too early
    ("", 0.0, {0: -1.0}, "wrong of 1: step 1 (missing)"),
]


@pytest.mark.parametrize(("text", "share", "rewards", "feedback"), CASES)
def test_right_and_wrong_steps(text: str, share: float, rewards: dict[int, float], feedback: str) -> None:
    (score,) = scored(rollout(text), right=2.0, wrong=-1.0)
    assert score.value == pytest.approx(2.0 * share - 1.0 * (1 - share))
    assert placed(score) == rewards
    assert score.feedback == feedback


def test_an_answer_that_was_cut_off_has_the_missing_rest_on_its_last_token() -> None:
    (score,) = scored(rollout("7+5=12;12-", ended=False), right=1.0, wrong=-1.0)
    assert placed(score) == {6: 1.0, 8: -1.0, 9: -1.0}


def test_a_token_over_several_steps_has_the_rewards_of_all() -> None:
    one = Rollout(SOUND, tokens=[1, 2, 3], ends=[2, len(SOUND), len(SOUND)])
    (score,) = scored(one, right=2.0)
    # The second step has no token of its own: it ends in the second token, whose last character is the conclusion's.
    assert score.token_values.sum() == 3 * 2.0
    assert placed(score) == {0: 2.0, 1: 2.0, 2: 2.0}
    (alone,) = scored(Rollout(SOUND, tokens=[1], ends=[len(SOUND)]), right=2.0)
    assert placed(alone) == {0: 6.0}
    assert alone.value == 2.0


def test_text_alone_has_a_value_alone() -> None:
    (score,) = scored(Rollout("7+5=13;13-3=10;#10"))
    assert score.value == pytest.approx(2 / 3)
    assert score.token_values is None


def test_tokens_without_their_places_are_a_failure_of_their_rollout_alone() -> None:
    bad, good = scored(Rollout(SOUND, tokens=[1, 2]), rollout(SOUND))
    assert bad.failure is not None
    assert bad.failure.kind == "invalid"
    assert "generate with ends=True" in bad.failure.detail
    assert good.value == 1.0
    assert Steps.reads_ends


def test_a_prompt_of_another_world_is_refused_before_the_first_step() -> None:
    foreign = Prompt("p", [Message("user", "Who?")])
    with pytest.raises(CannotScore, match=r"the step truth arithmetic knows nothing of it: info\.problem"):
        reward().require(foreign)
    (score,) = scored(rollout("x"), prompt=foreign)
    assert score.failure is not None
    assert score.failure.kind == "invalid"
    reward().require(PROMPT)


def lines(prompt: Prompt, text: str, *, word: str = "good") -> list[JudgedStep]:
    """A user's own truth: a line with the word is right."""
    if "raise" in text:
        raise RuntimeError("broken")
    if "order" in text:
        return [JudgedStep(2, 3, True), JudgedStep(0, 1, True)]
    if "far" in text:
        return [JudgedStep(0, 99, True)]
    at, found = 0, []
    for line in text.splitlines(keepends=True):
        found.append(JudgedStep(at, at + len(line), word in line))
        at += len(line)
    return found


def test_a_truth_of_ones_own_with_settings() -> None:
    own = "tests.rewards.test_steps:lines"
    texts = ["fine\nbad\n", "raise", "order", "far", ""]
    truth = {"type": own, "word": "fine"}
    scores = scored(*map(rollout, texts), truth=truth, wrong=0.25)
    assert [score.value for score in scores] == [(1 + 0.25) / 2, None, None, None, 0.25]
    assert placed(scores[0]) == {4: 1.0, 9: 0.25}
    kinds = [(score.failure.kind, score.failure.detail) for score in scores[1:4]]
    assert kinds[0][0] == "crashed"
    assert "RuntimeError: broken" in kinds[0][1]
    assert kinds[1] == kinds[2] == ("invalid", f"the steps of the step truth {own} do not lie in order")
    assert placed(scores[4]) == {0: 0.25}  # no steps
    assert scores[4].feedback == "there are no steps"


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"truth": "arithmetik"}, "arithmetic"), ({}, "truth"), ({"truth": "arithmetic", "right": "high"}, "right")],
)
def test_mistakes_in_the_table_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make_reward({"type": "steps", **settings})


def test_as_a_part_of_a_sum_it_is_a_stream_of_its_own() -> None:
    parts = {"answer": {"type": "rule", "rule": "arithmetic"}, "process": {"type": "steps", "truth": "arithmetic"}}
    whole = make_reward({"type": "sum", "parts": parts})
    (score,) = asyncio.run(whole.score(RolloutGroup(PROMPT, [rollout("7+5=13;13-3=10;#10")])))
    assert score.parts["answer"].value == 0.0
    assert score.parts["process"].value == pytest.approx(2 / 3)
    assert score.parts["process"].token_values is not None
