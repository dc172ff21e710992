"""What must not go wrong: odd answers, settings at chance, models that fall apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rewardsmith.config import Chosen, Settings
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.text.steps import JudgedStep
from rewardsmith.trainers.process.process_rewards import ProcessPart, step_metrics
from rewardsmith.types import Prompt
from tests.trainers.process.made import Model, batch_of, group
from tests.trainers.world import new_engine


def test_an_answer_may_have_more_steps_than_tokens() -> None:
    """Its text is hostile: one token may hold several separators."""
    scored = group(0, [1.0, 0.0])
    odd = replace(scored.group.rollouts[0], text="a;b;c;d;e", tokens=[20, 21], logprobs=[-1.0, -1.0], ends=[4, 9])
    scored = replace(scored, group=replace(scored.group, rollouts=[odd, scored.group.rollouts[1]]))
    batch = batch_of([scored])
    part = ProcessPart(Implicit(model="prm", granularity="step", separator=";"), new_engine(), None, steps=1)
    mask_BT = batch.mask_BT.numpy()
    values_BT, support_BT = part.settings.place(mask_BT * 1.0, mask_BT, part._steps_of([scored], mask_BT))
    assert (values_BT[0, :2].tolist(), support_BT[0, :2].tolist()) == ([1.0, 1.0], [True, True])


def test_an_update_that_breaks_the_weights_is_told_before_anything_is_saved(tmp_path: Path) -> None:
    model = Model(tmp_path, optimizer={"lr": 1e38, "clip_norm": 1e9})
    with pytest.raises(ValueError, match="not finite"):
        model.score_and_learn(batch_of([group(0, [1.0, 0.0, 0.5])]))
    assert not model.engine.is_finite


def test_siblings_are_scored_by_one_model(tmp_path: Path) -> None:
    """Rollouts of a group that are the same get the same reward, however small the mini-batches are."""
    scored = group(0, [1.0, 0.0, 1.0, 0.0])
    twins = [replace(scored.group.rollouts[0]) for _ in range(4)]
    batch = batch_of([replace(scored, group=replace(scored.group, rollouts=twins)), group(1, [1.0, 0.0])])
    found = Model(tmp_path, learn={"mini_batch": 1}, optimizer={"lr": 1e-2}).score_and_learn(batch)
    sums = found.rewards_BT[:4].sum(-1)
    assert torch.allclose(sums, sums[:1].expand(4), atol=1e-6)
    assert np.isfinite(sums.tolist()).all()


def failing_truth(prompt: Prompt, text: str) -> list[JudgedStep]:
    raise KeyError("no such thing")


def late_truth(prompt: Prompt, text: str) -> list[JudgedStep]:
    return [JudgedStep(0, len(text) + 1, True)]


@pytest.mark.parametrize("truth", [failing_truth, late_truth])
def test_a_truth_that_fails_measures_nothing_and_stops_nothing(truth: Any) -> None:
    groups = [group(0, [1.0, 0.0]).group]
    values = [[np.zeros(len(rollout.tokens), np.float32) for rollout in groups[0].rollouts]]
    assert step_metrics(groups, values, Chosen("own", truth, Settings())) == {}
