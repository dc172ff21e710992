"""Process rewards against the truth about steps, from rollouts and rewards per token."""

import numpy as np
import pytest

from rewardsmith.config import Choice, Chosen
from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.trainers.process.process_rewards import step_metrics
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup

TRUTH: Chosen = Choice("step truth", "rewardsmith.rewards.step_rewards:STEP_TRUTHS", inputs=2).choose("arithmetic")
PROMPT = Arithmetic().prompt("7+5-3")
FOREIGN = Prompt("other", [Message("user", "Who?")])

SOUND = "7+5=12;12-3=9;#9"
FIRST = "7+5=13;13-3=10;#10"
SECOND = "7+5=12;12-3=8;#8"


def rollout(text: str) -> Rollout:
    ends = [*range(1, len(text) + 1), len(text)]
    return Rollout(text, tokens=list(range(len(ends))), ends=ends)


def rewards(text: str, *steps: float) -> np.ndarray:
    """Return a reward for each token: what a step adds up to is spread over its tokens, the last step has the end."""
    lengths = [len(step) + 1 for step in text.split(";")]
    return np.concatenate([np.full(n, total / n) for n, total in zip(lengths, steps, strict=True)]).astype(np.float32)


def test_rewards_add_up_by_step_and_are_compared_with_the_truth() -> None:
    group = RolloutGroup(PROMPT, [rollout(SOUND), rollout(FIRST), rollout(SECOND)])
    # The first of the wrong answers is found out; in the second one the conclusion is suspected instead.
    values = [rewards(SOUND, 0.5, 0.3, 0.2), rewards(FIRST, -0.6, 0.4, 0.1), rewards(SECOND, 0.2, -0.1, -0.2)]
    found = step_metrics([group], [values], TRUTH)
    x = np.array([0.5, 0.3, 0.2, -0.6, 0.4, 0.1, 0.2, -0.1, -0.2])
    y = np.array([1.0, 1, 1, 0, 1, 1, 1, 0, 1])
    assert found == pytest.approx(
        {
            "found": 1 / 2,
            "chance": 1 / 3,
            "correlation": np.corrcoef(x, y)[0, 1],
            "auc": np.mean([[a > b for b in x[y == 0]] for a in x[y == 1]]),
            "judged": 3,
        }
    )


def test_what_cannot_be_judged_is_left_out() -> None:
    nothing = np.zeros(2, dtype=np.float32)
    loose = Rollout(SOUND, tokens=[1, 2])  # does not say where its tokens end
    wide = Rollout(SOUND, tokens=[1, 2], ends=[3, len(SOUND)])  # a step without a token of its own
    groups = [RolloutGroup(FOREIGN, [wide]), RolloutGroup(PROMPT, [loose, wide, Rollout("")])]
    values = [[nothing], [nothing, nothing, nothing[:0]]]
    assert step_metrics(groups, values, TRUTH) == {}
    judged = RolloutGroup(PROMPT, [rollout(SOUND)])
    found = step_metrics([*groups, judged], [*values, [rewards(SOUND, 1, 2, 3)]], TRUTH)
    assert found == {"judged": 1.0}  # without a wrong step there is nothing to find
    assert step_metrics([], [], TRUTH) == {}
