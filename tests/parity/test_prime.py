"""PRIME has no release to install: its formulas, written here as plain loops over Python floats, are the peer.

P is the authors' code, V verl's recipe. Where we follow the paper instead of the code, both are tested.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream, credit, rloo
from rewardsmith.algorithms.implicit import (
    gather_steps,
    implicit_rewards,
    normalise_by_return,
    outcome_cross_entropy,
    pairwise_accuracy,
    pairwise_loss,
    smooth,
)
from rewardsmith.algorithms.sequences import last_token
from tests.parity.load import assert_near, assert_near_where, leaf

Rows = list[list[float]]

BETA, SIZE = 0.05, 4
LENGTHS = [5, 2, 7, 1, 3, 6, 4, 7]  # two groups of four consecutive responses
OUTCOMES = [1.0, 0.0, 0.5, 0.0, 0.25, 1.0, 1.0, 0.0]
GROUPS_B = torch.tensor([9] * SIZE + [2] * SIZE)
MASK_BT = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
_RNG = np.random.default_rng(5)
LOGPROBS_BT, REFERENCE_BT, REWARDS_BT = (torch.from_numpy(_RNG.normal(0, 3, MASK_BT.shape)) for _ in range(3))
OUTCOMES_B = torch.tensor(OUTCOMES, dtype=torch.float64)


def _rows(values_BT: Tensor) -> Rows:
    """Return each response as a list of its own tokens."""
    return [row[:length] for row, length in zip(values_BT.tolist(), LENGTHS, strict=True)]


def _padded(rows: Rows) -> Tensor:
    return torch.tensor([row + [0.0] * (7 - len(row)) for row in rows], dtype=torch.float64)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _discounted(rewards: list[float], gamma: float) -> list[float]:
    total, result = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        result.append(total)
    return result[::-1]


def _siblings(i: int) -> range:
    return range(i // SIZE * SIZE, i // SIZE * SIZE + SIZE)


def _whitened(rows: Rows) -> Rows:
    tokens = [x for row in rows for x in row]
    mean = sum(tokens) / len(tokens)
    variance = sum((x - mean) ** 2 for x in tokens) / (len(tokens) - 1)
    return [[(x - mean) / math.sqrt(variance + 1e-8) for x in row] for row in rows]


def _streams(process_gamma: float, outcome_gamma: float) -> list[Stream]:
    end_BT = last_token(MASK_BT)
    return [
        Stream("process", REWARDS_BT, support_BT=MASK_BT, discount=process_gamma),
        Stream("outcome", torch.where(end_BT, OUTCOMES_B[:, None], 0), support_BT=end_BT, discount=outcome_gamma),
    ]


def _outcome_rows() -> Rows:
    return [[0.0] * (length - 1) + [outcome] for length, outcome in zip(LENGTHS, OUTCOMES, strict=True)]


@pytest.mark.parametrize("whiten", [True, False])  # whitening hides a common factor such as n/(n-1)
@pytest.mark.parametrize(("process_gamma", "outcome_gamma"), [(1.0, 1.0), (0.9, 1.0), (0.95, 0.8)])
def test_advantage_of_the_authors_code(process_gamma: float, outcome_gamma: float, whiten: bool) -> None:
    """P: r·n/(n-1) - S/(n-1) on the tokens that carry a reward, S the sum of the rows' means; returns; whitening."""
    total = [[0.0] * length for length in LENGTHS]
    for rows, carries_all, gamma in (
        (_rows(REWARDS_BT), True, process_gamma),
        (_outcome_rows(), False, outcome_gamma),
    ):
        means = [sum(row) / len(row) if carries_all else row[-1] for row in rows]
        for i, row in enumerate(rows):
            group_sum = sum(means[j] for j in _siblings(i))
            centred = [(r * SIZE - group_sum) / (SIZE - 1) for r in row]
            if not carries_all:
                centred[:-1] = [0.0] * (len(row) - 1)
            for t, value in enumerate(_discounted(centred, gamma)):
                total[i][t] += value
    actual_BT = credit(
        _streams(process_gamma, outcome_gamma),
        MASK_BT,
        GROUPS_B,
        estimator=partial(rloo, leave_one_out="prime"),
        combine="after",
        whiten=whiten,
    )
    assert_near_where(MASK_BT, actual_BT, _padded(_whitened(total) if whiten else total))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_advantage_of_the_paper(gamma: float) -> None:
    """Equation 5: Σ_{s≥t} γ^{s-t} [r_s - mean_{j≠i} r̄_j] + o_i - mean_{j≠i} o_j, not whitened."""
    rewards = _rows(REWARDS_BT)
    expected: Rows = []
    for i, row in enumerate(rewards):
        others = [j for j in _siblings(i) if j != i]
        baseline = sum(sum(rewards[j]) / len(rewards[j]) for j in others) / len(others)
        outcome = OUTCOMES[i] - sum(OUTCOMES[j] for j in others) / len(others)
        expected.append(
            [sum(gamma ** (s - t) * (row[s] - baseline) for s in range(t, len(row))) + outcome for t in range(len(row))]
        )
    actual_BT = credit(_streams(gamma, 1.0), MASK_BT, GROUPS_B, estimator=rloo, combine="after")
    assert_near_where(MASK_BT, actual_BT, _padded(expected))


def test_implicit_rewards_and_their_gradient() -> None:
    """V: β (log π_φ - log π_ref) at every response token; the gradient stays out of the reference."""
    logprobs_BT, reference_BT = leaf(LOGPROBS_BT), leaf(REFERENCE_BT)
    rewards_BT = implicit_rewards(logprobs_BT, reference_BT, MASK_BT, beta=BETA)
    pairs = zip(_rows(LOGPROBS_BT), _rows(REFERENCE_BT), strict=True)
    assert_near(rewards_BT, _padded([[BETA * (a - b) for a, b in zip(*pair, strict=True)] for pair in pairs]))
    rewards_BT.sum().backward()
    assert_near(logprobs_BT.grad, BETA * MASK_BT.double())
    assert reference_BT.grad is None


def test_whole_granularity_puts_the_sum_on_the_last_token() -> None:
    rewards_BT, support_BT = gather_steps(REWARDS_BT, MASK_BT)
    assert_near(rewards_BT, _padded([[0.0] * (len(row) - 1) + [sum(row)] for row in _rows(REWARDS_BT)]))
    assert support_BT.sum(-1).tolist() == [1] * len(LENGTHS)


def test_smoothing() -> None:
    """V's λ: r_t ← Σ_k λ^k r_{t+k}."""
    assert_near(smooth(REWARDS_BT, MASK_BT, lam=0.3), _padded([_discounted(row, 0.3) for row in _rows(REWARDS_BT)]))


def test_batch_norm_divides_by_the_largest_return() -> None:
    rows = _rows(REWARDS_BT)
    largest = max(abs(value) for row in rows for value in _discounted(row, 1.0))
    expected_BT = _padded([[r / (largest + 1e-6) for r in row] for row in rows])
    assert_near(normalise_by_return(REWARDS_BT, MASK_BT), expected_BT)


def _sums() -> list[float]:
    return [sum(row) for row in _rows(REWARDS_BT)]


def test_cross_entropy() -> None:
    """Mean of -o log σ(q) - (1-o) log(1-σ(q)) with fractional outcomes; its gradient is (σ(q) - o)/B at every token."""
    rewards_BT = leaf(REWARDS_BT)
    loss = outcome_cross_entropy(rewards_BT, MASK_BT, OUTCOMES_B).mean()
    terms = [
        -o * math.log(_sigmoid(q)) - (1 - o) * math.log(1 - _sigmoid(q)) for q, o in zip(_sums(), OUTCOMES, strict=True)
    ]
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-10)
    loss.backward()
    slopes = [(_sigmoid(q) - o) / len(OUTCOMES) for q, o in zip(_sums(), OUTCOMES, strict=True)]
    assert_near(rewards_BT.grad, _padded([[s] * length for s, length in zip(slopes, LENGTHS, strict=True)]))


def _pairwise(i: int, sums: list[float]) -> tuple[float, float]:
    """Return V's loss of response i and its slope in q_i; the others' sums are constants."""
    positive = OUTCOMES[i] > 0
    others = [sums[j] for j in _siblings(i) if (OUTCOMES[j] < OUTCOMES[i] if positive else OUTCOMES[j] > OUTCOMES[i])]
    sign = 1 if positive else -1
    z = sign * (sums[i] - (sum(others) / len(others) if others else 0.0))
    return -math.log(_sigmoid(z)), -sign * (1 - _sigmoid(z))


@pytest.mark.parametrize(
    ("name", "weighting"), [("dpo", "none"), ("bon_acc", "best-of-n-outcome"), ("bon_rm", "best-of-n-reward")]
)
def test_pairwise_losses(name: str, weighting: str) -> None:
    """`dpo` is a mean; `bon_*` are sums weighted by n · (share of siblings that are not better)^(n-1)."""
    sums = _sums()
    ranks = {"dpo": None, "bon_acc": OUTCOMES, "bon_rm": sums}[name]
    rewards_BT = leaf(REWARDS_BT)
    losses_B = pairwise_loss(rewards_BT, MASK_BT, OUTCOMES_B, GROUPS_B, weighting=weighting)
    loss = losses_B.mean() if name == "dpo" else losses_B.sum()
    total, slopes = 0.0, []
    for i in range(len(sums)):
        weight = 1 / len(sums)
        if ranks is not None:
            share = sum(ranks[j] <= ranks[i] for j in _siblings(i)) / SIZE
            weight = SIZE * share ** (SIZE - 1)
        value, slope = _pairwise(i, sums)
        total += weight * value
        slopes.append(weight * slope)
    assert loss.item() == pytest.approx(total, rel=1e-10)
    loss.backward()
    assert_near(rewards_BT.grad, _padded([[s] * length for s, length in zip(slopes, LENGTHS, strict=True)]))


def test_pairwise_accuracy() -> None:
    """`dpo_acc`: pairs of a group ordered as their outcomes, weighted by the outcomes' difference, mean over groups."""
    sums, shares = _sums(), []
    for start in (0, SIZE):
        won = possible = 0.0
        for i in range(start, start + SIZE):
            for j in range(i + 1, start + SIZE):
                difference = OUTCOMES[i] - OUTCOMES[j]
                possible += abs(difference)
                won += abs(difference) * ((sums[i] - sums[j]) * difference > 0)
        shares.append(won / possible)
    actual = pairwise_accuracy(torch.tensor(sums, dtype=torch.float64), OUTCOMES_B, MASK_BT.any(-1), GROUPS_B)
    assert 0 < min(shares) < max(shares) < 1
    assert actual.item() == pytest.approx(sum(shares) / 2, rel=1e-12)
