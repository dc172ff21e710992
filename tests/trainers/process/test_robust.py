"""What must not go wrong: odd answers, settings at chance, models that fall apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.implicit_settings import TrustSettings
from rewardsmith.trainers.process.part import ProcessPart
from tests.trainers.process.made import Model, batch_of, group
from tests.trainers.world import new_engine


def test_an_answer_may_have_more_steps_than_tokens() -> None:
    """Its text is hostile: one token may hold several separators."""
    scored = group(0, [1.0, 0.0])
    odd = replace(scored.group.rollouts[0], text="a;b;c;d;e", tokens=[20, 21], logprobs=[-1.0, -1.0], ends=[4, 9])
    scored = replace(scored, group=replace(scored.group, rollouts=[odd, scored.group.rollouts[1]]))
    batch = batch_of([scored])
    part = ProcessPart(Implicit(model="prm", granularity="step", separator=";"), new_engine(), None, steps=1)
    steps_BT = part._steps_of([scored], batch.mask_BT)
    assert steps_BT[0, :2].tolist() == [0, 1]
    assert int(steps_BT.max()) < batch.mask_BT.shape[1]


def test_a_gate_that_chance_would_open_is_no_default() -> None:
    assert (TrustSettings().lowest, TrustSettings(by="gate").lowest, TrustSettings(floor=0.55).lowest) == (
        0.5,
        0.6,
        0.55,
    )


def test_a_model_that_was_trained_before_may_begin_with_the_trust_that_it_earned() -> None:
    def part(**trust: float) -> ProcessPart:
        return ProcessPart(Implicit(model="prm", trust=TrustSettings(**trust)), new_engine(), None, steps=1)

    assert part().trust == 0
    assert part(start=0.9).trust == pytest.approx(0.8)


def test_an_update_that_breaks_the_weights_is_told_before_anything_is_saved(tmp_path: Path) -> None:
    model = Model(tmp_path, optimizer={"lr": 1e38, "clip_norm": 1e9})
    with pytest.raises(ValueError, match="not finite"):
        model.appraise(batch_of([group(0, [1.0, 0.0, 0.5])]))
    assert not model.engine.is_finite


def test_siblings_are_scored_by_one_model(tmp_path: Path) -> None:
    """Rollouts of a group that are the same get the same reward, however small the mini-batches are."""
    scored = group(0, [1.0, 0.0, 1.0, 0.0])
    twins = [replace(scored.group.rollouts[0]) for _ in range(4)]
    batch = batch_of([replace(scored, group=replace(scored.group, rollouts=twins)), group(1, [1.0, 0.0])])
    found = Model(tmp_path, learn={"mini_batch": 1}, optimizer={"lr": 1e-2}).appraise(batch)
    sums = found.rewards_BT[:4].sum(-1)
    assert torch.allclose(sums, sums[:1].expand(4), atol=1e-6)
    assert np.isfinite(sums.tolist()).all()
