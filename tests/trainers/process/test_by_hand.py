"""A process reward model's step against one written by hand in float64: one rollout at a time, AdamW."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rewardsmith.trainers.process.process_model import OutcomeBatch
from tests.trainers.process.process_cases import ByHand, Model, batch_of, group, padded, relative, update_sizes
from tests.trainers.world import distance, weights

# One group with fractions, one that failed in part, one that is all right, one that is all wrong.
GROUPS = [
    group(0, [1.0, 0.25, 0.0]),
    group(1, [0.0, None, 1.0, 0.5]),
    group(2, [1.0, 1.0]),
    group(3, [0.0, 0.0, 0.0]),
]
BATCH = batch_of(GROUPS)
ROWS = range(12)
LABELLED = [i for i in ROWS if i != 4]
OUTCOMES = [1.0, 0.25, 0.0, 0.0, math.nan, 1.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0]
GROUP_OF = [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3]


def siblings(i: int) -> list[int]:
    return [j for j in LABELLED if GROUP_OF[j] == GROUP_OF[i]]


def cross_entropy(logit: Tensor, i: int, before: Sequence[float], *, offset: bool = False) -> Tensor:
    if offset:
        right, n = sum(OUTCOMES[j] for j in siblings(i)), len(siblings(i))
        logit = logit + math.log((right + 0.5) / (n - right + 0.5))
    return -OUTCOMES[i] * logsigmoid(logit) - (1 - OUTCOMES[i]) * logsigmoid(-logit)


def with_offset(logit: Tensor, i: int, before: Sequence[float]) -> Tensor:
    return cross_entropy(logit, i, before, offset=True)


def pairwise(logit: Tensor, i: int, before: Sequence[float]) -> Tensor:
    """Against the mean of those on the other side, as they were before the update."""
    above = OUTCOMES[i] > 0
    others = [j for j in siblings(i) if (OUTCOMES[j] < OUTCOMES[i] if above else OUTCOMES[j] > OUTCOMES[i])]
    rival = mean(before[j] for j in others) if others else 0.0
    return -logsigmoid((logit - rival) * (1 if above else -1))


def best_of_n(rank: Sequence[float], i: int) -> float:
    n = len(siblings(i))
    return float(n * (sum(rank[j] <= rank[i] for j in siblings(i)) / n) ** (n - 1))


def by_outcome(logit: Tensor, i: int, before: Sequence[float]) -> Tensor:
    return best_of_n(OUTCOMES, i) * pairwise(logit, i, before)


def by_reward(logit: Tensor, i: int, before: Sequence[float]) -> Tensor:
    return best_of_n(before, i) * pairwise(logit, i, before)


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "cross-entropy": ({}, cross_entropy),
    "group-mean": ({"offset": "group-mean"}, with_offset),
    "pairwise": ({"loss": "pairwise"}, pairwise),
    "best-of-n-outcome": ({"loss": "best-of-n-outcome"}, by_outcome),
    "best-of-n-reward": ({"loss": "best-of-n-reward"}, by_reward),
}


class Learned:
    """What the equations make of a batch: rewards as each rollout first went through the model, and losses."""

    def __init__(self, loss: Any, size: int, epochs: int, optimizer: dict[str, float]) -> None:
        self.hand = ByHand(**optimizer)
        self.before = self.hand.all_rewards(BATCH)
        sums = [float(row.sum()) for row in self.before]
        self.first: list[Tensor] = []
        self.losses: list[float] = []
        for epoch in range(epochs):
            for rows in [ROWS] if size == len(ROWS) else [ROWS[:7], ROWS[7:]]:  # whole groups, at least `size` rows
                if not epoch:
                    self.first += self.hand.all_rewards(BATCH, rows)
                each = [loss(self.hand.rewards(BATCH, i).sum(), i, sums) for i in rows if i in LABELLED]
                self.losses += [float(one.detach()) for one in each]
                self.hand.step(torch.stack(each).mean())
        self.after = self.hand.all_rewards(BATCH)


@cache
def learned(loss: Any, size: int, *, epochs: int = 1, **optimizer: float) -> Learned:
    """Return it from the cache: it takes a second."""
    return Learned(loss, size, epochs, optimizer)


def same(found_BT: Tensor, expected: Sequence[Tensor], batch: OutcomeBatch = BATCH) -> bool:
    return torch.allclose(found_BT.double(), padded(expected, batch.mask_BT.shape[1]), rtol=0, atol=2e-5)


def start() -> dict[str, Tensor]:
    return ByHand().weights()


@pytest.mark.parametrize("case", CASES)
def test_rewards_loss_gradient_and_weights_are_what_the_equations_say(case: str, tmp_path: Path) -> None:
    learn, loss = CASES[case]
    optimizer = {"weight_decay": 0.1, "clip_norm": 0.2}
    model = Model(tmp_path, update="reverse", learn=learn, optimizer=optimizer)
    found = model.score_and_learn(BATCH)
    expected = learned(loss, len(ROWS), clip=0.2, decay=0.1)
    assert same(found.rewards_BT, expected.before)
    assert found.rewards_BT.abs().sum() > 1  # the reference is another model
    assert found.loss == pytest.approx(mean(expected.losses), rel=1e-5)
    assert relative(model.gradients[0], expected.hand.gradients[0]) < 1e-4
    assert found.grad_norms == pytest.approx(expected.hand.norms, rel=1e-4)
    assert found.grad_norms[0] > 0.2  # it is clipped
    moved = relative(expected.hand.weights(), start())
    assert relative(weights(model.engine), expected.hand.weights()) < 0.01 * moved


# ---- what is scored when ---------------------------------------------------------------------------------------------


def test_none_scores_and_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    model = Model(tmp_path, update="none", learn={"mini_batch": 5})
    before = weights(model.engine)
    found = model.score_and_learn(BATCH, measure=True)
    assert same(found.rewards_BT, ByHand().all_rewards(BATCH))
    assert distance(weights(model.engine), before) == 0
    assert (found.loss, found.after_B, list(found.grad_norms)) == (None, None, [])


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("update", ["after", "before", "reverse"])
def test_which_model_scores_a_mini_batch(update: str, epochs: int, tmp_path: Path) -> None:
    """After, reverse: that of as many optimizer steps as there were mini-batches before it. Before: the last one."""
    model = Model(tmp_path, update=update, learn={"mini_batch": 5, "epochs": epochs})
    found = model.score_and_learn(BATCH)
    expected = learned(cross_entropy, 5, epochs=epochs)
    assert len(found.grad_norms) == 2 * epochs
    rewards = expected.after if update == "before" else expected.first
    assert same(found.rewards_BT, rewards)
    assert not same(padded(expected.after, BATCH.mask_BT.shape[1]), expected.first)
    assert not same(padded(expected.before, BATCH.mask_BT.shape[1]), expected.first)
    assert same(found.rewards_BT[:7], (rewards if update == "before" else expected.before)[:7], BATCH)
    assert found.loss == pytest.approx(mean(expected.losses), rel=1e-4)
    fresh = expected.before if update == "reverse" else expected.first
    assert found.fresh_B.tolist() == pytest.approx([float(row.sum()) for row in fresh], abs=1e-4)
    assert relative(weights(model.engine), expected.hand.weights()) < 0.02 * relative(expected.hand.weights(), start())


@pytest.mark.parametrize("update", ["after", "before", "reverse"])
def test_the_accuracy_on_fresh_rollouts_is_from_before_they_are_learned_from(update: str, tmp_path: Path) -> None:
    """With one mini-batch nothing is learned before all are scored; a large rate makes the difference clear."""
    learn, optimizer = {"epochs": 8}, {"lr": 3e-3}
    found = Model(tmp_path, update=update, learn=learn, optimizer=optimizer).score_and_learn(BATCH, measure=True)
    untouched = Model(tmp_path, update="none").score_and_learn(BATCH)
    assert torch.allclose(found.fresh_B, untouched.fresh_B, atol=1e-5)
    fresh, after = (won / count for won, count in (BATCH.wins(x) for x in (found.fresh_B, found.after_B)))
    assert after > fresh + 0.1


def test_replayed_rollouts_are_learned_from_and_never_scored(tmp_path: Path) -> None:
    replayed = batch_of(GROUPS[:2], GROUPS[2:])
    assert replayed.fresh == 7
    model, whole = Model(tmp_path), Model(tmp_path)
    found, all_fresh = model.score_and_learn(replayed, measure=True), whole.score_and_learn(BATCH, measure=True)
    assert found.rewards_BT.shape == replayed.mask_BT[:7].shape
    assert torch.allclose(found.rewards_BT, all_fresh.rewards_BT[:7], atol=1e-6)
    assert len(found.fresh_B) == len(found.after_B) == 7
    assert found.loss == pytest.approx(all_fresh.loss, rel=1e-5)
    assert distance(weights(model.engine), weights(whole.engine)) < 1e-4


def test_replayed_rollouts_are_shared_out_among_the_mini_batches(tmp_path: Path) -> None:
    """Two or three old ones to each optimizer step: it must not learn from old ones alone."""
    model = Model(tmp_path, learn={"mini_batch": 3})
    rows = update_sizes(model.engine)
    model.score_and_learn(batch_of(GROUPS[:2], GROUPS[2:]))
    assert rows == [3 + 3, 4 + 2]
