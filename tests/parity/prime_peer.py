"""PRIME has no release to install: its formulas, written here as plain loops over Python floats, are the peer.

P is the authors' code, V verl's recipe. Both need the responses of a prompt side by side and all groups of one size.
Ours get the same responses shuffled, with NaN behind the mask and ids that are only names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import Tensor

Rows = list[list[float]]

BETA = 0.05
SEEDS = range(10)


@dataclass(frozen=True)
class Draw:
    """A random ragged batch, in the order of the peers.

    Attributes:
        size: responses to each prompt.
        logprobs: of the reward model, for each token of each response.
        reference: of the reference model.
        outcomes: in [0, 1], one for each response.
        order: the peers' number of each of our rows.
    """

    size: int
    logprobs: Rows
    reference: Rows
    outcomes: list[float]
    order: list[int]

    @property
    def ratios(self) -> Rows:
        """The raw q = log π_φ - log π_ref."""
        pairs = zip(self.logprobs, self.reference, strict=True)
        return [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]

    @property
    def outcome_rows(self) -> Rows:
        """The outcomes on the last tokens."""
        pairs = zip(self.logprobs, self.outcomes, strict=True)
        return [[0.0] * (len(row) - 1) + [outcome] for row, outcome in pairs]

    @property
    def groups(self) -> list[range]:
        """The responses to each prompt."""
        return [range(start, start + self.size) for start in range(0, len(self.outcomes), self.size)]

    def siblings(self, i: int) -> range:
        """Return all responses to the prompt of response i, itself included."""
        return self.groups[i // self.size]

    # ---- the same for ours -------------------------------------------------------------------------------------------

    @cached_property
    def mask_BT(self) -> Tensor:
        lengths_B = torch.tensor([len(self.logprobs[i]) for i in self.order])
        return torch.arange(int(lengths_B.max()) + 2) < lengths_B[:, None]

    @cached_property
    def groups_B(self) -> Tensor:
        return torch.tensor([7 - 3 * (i // self.size) for i in self.order])

    @property
    def outcomes_B(self) -> Tensor:
        return self.column(self.outcomes)

    def column(self, values: list[float]) -> Tensor:
        """Return one number per response as ours take it, float64 [B]."""
        return torch.tensor([values[i] for i in self.order], dtype=torch.float64)

    def tensor(self, rows: Rows) -> Tensor:
        """Return numbers per token as ours take them, float64 [B, T], NaN behind the mask."""
        width = self.mask_BT.shape[1]
        padded = [rows[i] + [math.nan] * (width - len(rows[i])) for i in self.order]
        return torch.tensor(padded, dtype=torch.float64)

    def assert_rows(self, actual_BT: Tensor, expected: Rows) -> None:
        """Compare ours with the peer's numbers per token; behind the mask ours are zero."""
        assert not actual_BT[~self.mask_BT].any()
        found = actual_BT[self.mask_BT].tolist()
        assert found == pytest.approx([x for i in self.order for x in expected[i]], rel=1e-8, abs=1e-9)

    def assert_column(self, actual_B: Tensor, expected: list[float]) -> None:
        """Compare ours with the peer's numbers per response."""
        assert actual_B.tolist() == pytest.approx([expected[i] for i in self.order], rel=1e-8, abs=1e-9)


def drawn(seed: int) -> Draw:
    """Draw one to four groups of two to six responses with one to twelve tokens; outcomes are whole or fractions."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    rows = size * int(rng.integers(1, 5))
    lengths = rng.integers(1, 13, rows)
    steps = 1 if seed % 2 else 4  # right or wrong, or a share of four tests
    logprobs, reference = ([(-rng.exponential(2.0, length)).tolist() for length in lengths] for _ in range(2))
    return Draw(
        size, logprobs, reference, (rng.integers(0, steps + 1, rows) / steps).tolist(), rng.permutation(rows).tolist()
    )


# ---- rewards -------------------------------------------------------------------------------------------------------


def scaled(rows: Rows, factor: float) -> Rows:
    """V's rewards are β q, P's are q itself."""
    return [[factor * x for x in row] for row in rows]


def without_last(rows: Rows) -> Rows:
    """V's tokens: all but the last, on which the outcome sits."""
    return [[*row[:-1], 0.0] for row in rows]


def on_last(rows: Rows) -> Rows:
    """P's granularity "whole": the sum on the last token."""
    return [[0.0] * (len(row) - 1) + [sum(row)] for row in rows]


def returns(rewards: list[float], gamma: float) -> list[float]:
    """The sum from each token on, backwards; with λ for γ it is V's smoothing."""
    total, result = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        result.append(total)
    return result[::-1]


def batch_norm(rows: Rows) -> Rows:
    """Divide by the largest absolute return."""
    largest = max(abs(value) for row in rows for value in returns(row, 1.0))
    return scaled(rows, 1 / (largest + 1e-6))


# ---- what the reward model learns by -------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cross_entropy(logit: float, outcome: float) -> float:
    """A sigmoid first, then logarithms that end at -100."""
    p = sigmoid(logit)
    right, wrong = (max(-100.0, math.log(x)) if x > 0 else -100.0 for x in (p, 1 - p))
    return -outcome * right - (1 - outcome) * wrong


def pairwise(draw: Draw, sums: list[float], voters: list[int], i: int) -> tuple[float, float]:
    """V's `dpo` of response i, and its slope in the sum of i; the sums of the others are constants."""
    own, positive = draw.outcomes[i], draw.outcomes[i] > 0
    siblings = [j for j in draw.siblings(i) if j in voters]
    others = [sums[j] for j in siblings if (draw.outcomes[j] < own if positive else draw.outcomes[j] > own)]
    sign = 1 if positive else -1
    z = sign * (sums[i] - (sum(others) / len(others) if others else 0.0))
    return -math.log(sigmoid(z)), -sign * (1 - sigmoid(z))


def best_of_n(draw: Draw, ranks: list[float], voters: list[int], i: int) -> float:
    """V's weight of response i in `bon_acc` (ranks are outcomes) and `bon_rm` (ranks are sums)."""
    siblings = [j for j in draw.siblings(i) if j in voters]
    share = sum(ranks[j] <= ranks[i] for j in siblings) / len(siblings)
    return len(siblings) * share ** (len(siblings) - 1)


def dpo_accuracy(draw: Draw, sums: list[float]) -> list[float]:
    """The share of pairs in the right order for each group, weighted by the outcomes' difference; 0.5 without any."""
    shares = []
    for group in draw.groups:
        won = possible = 0.0
        for i in group:
            for j in range(i + 1, group.stop):
                difference = draw.outcomes[i] - draw.outcomes[j]
                possible += abs(difference)
                won += abs(difference) * ((sums[i] - sums[j]) * difference > 0)
        shares.append(won / possible if possible else 0.5)
    return shares


# ---- credit --------------------------------------------------------------------------------------------------------


def masked_rloo(draw: Draw, rows: Rows, *, carries: str) -> Rows:
    """P and V: r·n/(n-1) - S/(n-1) on the tokens that carry, S the sum over the group of the rows' means on these."""
    means = [sum(row) / len(row) if carries == "all" else row[-1] for row in rows]
    result, n = [], draw.size
    for i, row in enumerate(rows):
        total = sum(means[j] for j in draw.siblings(i))
        centred = [r * n / (n - 1) - total / (n - 1) for r in row]
        result.append(centred if carries == "all" else [0.0] * (len(row) - 1) + centred[-1:])
    return result


def added(*sources: Rows) -> Rows:
    return [[sum(values) for values in zip(*rows, strict=True)] for rows in zip(*sources, strict=True)]


def whitened(rows: Rows) -> Rows:
    """Mean 0 and unbiased variance 1 over all tokens of the batch."""
    tokens = [x for row in rows for x in row]
    mean = sum(tokens) / len(tokens)
    variance = sum((x - mean) ** 2 for x in tokens) / (len(tokens) - 1)
    return [[(x - mean) / math.sqrt(variance + 1e-8) for x in row] for row in rows]
