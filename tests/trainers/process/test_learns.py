"""A process reward model learns from outcomes alone which answers are right, and which of their tokens decide."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError
from rewardsmith.text.steps import JudgedStep
from rewardsmith.trainers.process.process_rewards import agreement, step_metrics
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.process.process_cases import SKIPPED, Model, ProcessWorld, alone, batch_of, group, implicit
from tests.trainers.world import new_engine, steps, wait

TOKENS = {c: int(new_engine().encode_text(c)[0]) for c in "0123456789"}


def answers(count: int, seed: int) -> list[ScoredGroup]:
    """Return groups of random numbers of four digits; one is right if its third digit is 7 or 8."""
    rng = np.random.default_rng(seed)
    groups = []
    for i in range(count):
        texts = ["".join(rng.choice(list("0123456789"), 4)) for _ in range(8)]
        rollouts = [Rollout(text, [TOKENS[c] for c in text], [-2.3] * 4) for text in texts]
        right = [Score(float(text[2] in "78")) for text in texts]
        scores = [Score(s.value, parts={"answer": s, "process": SKIPPED}) for s in right]
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
    won, count = fixed.wins(model.process.score_only(fixed).fresh_B)
    assert count > 30
    assert won / count > 0.95
    found = model.process.score_only(fresh)
    metrics = agreement(found.fresh_B, fresh)
    assert metrics["accuracy_fresh"] > 0.95
    there_is_one = np.mean([any(score.value for score in scored.scores) for scored in answers(16, 1)])
    assert metrics["best_of_n"] > 0.95 * there_is_one > 2 * metrics["outcome"]
    assert metrics["logit_right"] > metrics["logit_wrong"] + 1
    # What sets right and wrong apart lies where that is decided, or after it.
    right = fresh.outcomes_B > 0
    gaps = (found.rewards_BT[right].mean(0) - found.rewards_BT[~right].mean(0)).abs()
    assert float(gaps[2]) > 5 * float(gaps[:2].max())


# ---- what is measured ------------------------------------------------------------------------------------------------


def halves(prompt: Prompt, text: str) -> list[JudgedStep]:
    """Know that the first half of every answer is right, and the rest wrong."""
    half = len(text) // 2
    return [JudgedStep(0, half, True), JudgedStep(half, len(text), False)]


def test_steps_are_measured_by_the_original_rewards_whatever_becomes_of_them(tmp_path: Path) -> None:
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


def failing_truth(prompt: Prompt, text: str) -> list[JudgedStep]:
    raise KeyError("no such thing")


def truth_beyond_the_text(prompt: Prompt, text: str) -> list[JudgedStep]:
    return [JudgedStep(0, len(text) + 1, True)]


@pytest.mark.parametrize("truth", [failing_truth, truth_beyond_the_text])
def test_a_truth_that_fails_measures_nothing_and_stops_nothing(truth: Any) -> None:
    groups = [group(0, [1.0, 0.0]).group]
    values = [[np.zeros(len(rollout.tokens), np.float32) for rollout in groups[0].rollouts]]
    assert step_metrics(groups, values, Chosen("own", truth, Settings())) == {}


# ---- the validation of a stage that trains the model alone -----------------------------------------------------------

VALIDATION = {"data": "held_out", "every": 1, "prompts": 6, "rollouts_per_prompt": 2}
OTHER = {"reference_model": "other"}


class Mixed:
    """Two prompts of 14 tokens for each one of 4, the markers of who speaks included."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        for i in range(1000):
            yield Prompt(f"m{i}", [Message("user", "1+2+3+4+5+6?" if i % 3 else "1?")], answer="")


def world_with_reference(folder: Path, max_length: int) -> ProcessWorld:
    """Return a world with prompts of two lengths, and a reference that reads less than the policy."""
    world = ProcessWorld(folder, sources={"held_out": Mixed()})
    world.engine("other").model.config.max_position_embeddings = max_length
    return world


def validated(world: ProcessWorld) -> list[str]:
    return [record.scored.group.prompt.id for record in world.records if record.kind == "validation"]


@pytest.mark.parametrize("limit", ["reference", "setting"])
def test_prompts_that_are_too_long_are_left_out_of_the_validation_and_counted(limit: str, tmp_path: Path) -> None:
    world = world_with_reference(tmp_path, 15 if limit == "reference" else 99)
    short = {"max_prompt_tokens": 5} if limit == "setting" else {}
    train = {"sampling": {"max_tokens": 6}, **short}
    trainer = alone(world, implicit(**OTHER), validation=VALIDATION, data="held_out", **train)
    metrics = wait(trainer.begin()).metrics
    assert metrics["validation/overlong_prompts"] == 4
    assert validated(world) == ["m0", "m3"]
    again = wait(trainer.step(1))
    assert again.halt is None
    assert again.metrics["validation/overlong_prompts"] == 4


def test_a_validation_without_a_prompt_that_fits_is_refused(tmp_path: Path) -> None:
    trainer = alone(world_with_reference(tmp_path, 9), implicit(**OTHER), validation=VALIDATION)
    with pytest.raises(UserError, match=r"data.held_out has at most 3 tokens: raise max_prompt_tokens"):
        wait(trainer.begin())


def test_the_best_step_is_that_of_the_first_part_that_learns(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "answer": "tests.trainers.process.process_cases:AnyDigit",
        "fixed": implicit(outcome="answer", model="third", update="none", **OTHER),
        "process": implicit(outcome="answer"),
    }
    world = ProcessWorld(tmp_path, {"third": {"copy_of": "policy"}})
    trainer = alone(world, reward={"type": "sum", "parts": parts}, validation=VALIDATION)
    assert trainer.best_by == "validation/process/accuracy_fresh"
    assert trainer.best_by in wait(trainer.begin()).metrics
