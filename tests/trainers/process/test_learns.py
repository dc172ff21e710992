"""A process reward model learns from outcomes alone which answers are right, and which of their tokens decide."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.text.steps import JudgedStep
from rewardsmith.trainers.process.process_rewards import agreement
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.process.made import UNASKED, Model, ProcessWorld, alone, batch_of, implicit
from tests.trainers.world import new_engine, steps

TOKENS = {c: int(new_engine().encode_text(c)[0]) for c in "0123456789"}


def answers(count: int, seed: int) -> list[ScoredGroup]:
    """Return groups of random numbers of four digits; one is right if its third digit is 7 or 8."""
    rng = np.random.default_rng(seed)
    groups = []
    for i in range(count):
        texts = ["".join(rng.choice(list("0123456789"), 4)) for _ in range(8)]
        rollouts = [Rollout(text, [TOKENS[c] for c in text], [-2.3] * 4) for text in texts]
        right = [Score(float(text[2] in "78")) for text in texts]
        scores = [Score(s.value, parts={"answer": s, "process": UNASKED}) for s in right]
        prompt = Prompt(f"p{seed}-{i}", [Message("user", f"{rng.integers(100)}?")], answer="")
        groups.append(ScoredGroup(RolloutGroup(prompt, rollouts), scores))
    return groups


@pytest.mark.parametrize(("update", "learn"), [("after", {}), ("reverse", {"loss": "pairwise"})])
def test_fixed_rollouts_are_learned_and_so_is_the_rule_behind_them(
    update: str, learn: dict[str, Any], tmp_path: Path
) -> None:
    model = Model(tmp_path, update=update, learn={"mini_batch": 128} | learn, optimizer={"lr": 2e-3})
    model.process.reference._other = model.engine.copy(name="start")  # type: ignore[union-attr]
    fixed, fresh = batch_of(answers(48, 0)), batch_of(answers(16, 1))
    losses = [model.score_and_learn(fixed).loss for _ in range(12)]
    assert losses[-1] < losses[0] / 2
    won, count = fixed.wins(model.process.score_only(fixed, None).fresh_B)
    assert count > 30
    assert won / count > 0.95
    found = model.process.score_only(fresh, None)
    told = agreement(found.fresh_B, fresh)
    assert told["accuracy_fresh"] > 0.95
    there_is_one = np.mean([any(score.value for score in scored.scores) for scored in answers(16, 1)])
    assert told["best_of_n"] > 0.95 * there_is_one > 2 * told["outcome"]
    assert told["logit_right"] > told["logit_wrong"] + 1
    # What sets right and wrong apart lies where that is decided, or after it.
    right = fresh.outcomes_B > 0
    gaps = (found.rewards_BT[right].mean(0) - found.rewards_BT[~right].mean(0)).abs()
    assert float(gaps[2]) > 5 * float(gaps[:2].max())


# ---- what is measured ------------------------------------------------------------------------------------------------


def halves(prompt: Prompt, text: str) -> list[JudgedStep]:
    """Know that the first half of every answer is right, and the rest wrong."""
    half = len(text) // 2
    return [JudgedStep(0, half, True), JudgedStep(half, len(text), False)]


def test_steps_are_measured_by_the_plain_rewards_whatever_becomes_of_them(tmp_path: Path) -> None:
    """Normalised, smoothed or moved to the end of the answer: the agreement is that of the log-ratios."""
    found = []
    for changes in ({}, {"granularity": "whole", "normalise": "none"}, {"smooth": 0.9}):
        truth = "tests.trainers.process.test_learns:halves"
        process = implicit(truth=truth, reference_model="other", **changes)
        (metrics,) = steps(alone(ProcessWorld(tmp_path), process), 1)
        found.append({name: value for name, value in metrics.items() if name.startswith("learned/process/steps/")})
    assert found[0] == found[1] == found[2]
    assert found[0]["learned/process/steps/judged"] > 8
    assert found[0]["learned/process/steps/chance"] == 0.5
