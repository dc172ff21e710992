"""Ragged batches for the tests: prefix masks, gaps, empty rows, groups of any size in any order, NaN behind the mask.

Sizes are drawn by hypothesis; the rest comes from a seed. Everything behind a mask is NaN, so a function that reads
there fails whichever test it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.advantages import RewardTensors

GROUP_IDS = (-7, 0, 3, 10**12)


class _Rows:
    """What a batch of either kind can do: every field is a tensor with one row per rollout, or None."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Any:
        """Return the batch with every tensor changed."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return replace(self, **{name: None if x is None else change(x) for name, x in pairs})  # type: ignore[type-var]

    def take(self, rows: list[int] | Tensor) -> Any:
        """Return the batch of these rows, in this order."""
        return self.map(lambda x: x[rows])

    def to(self, dtype: torch.dtype) -> Any:
        return self.map(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def padded(self, columns: int) -> Any:
        """Return the batch with more masked columns on the right; they hold NaN."""

        def pad(x: Tensor) -> Tensor:
            if x.dim() == 1:
                return x
            fill = x.new_full((len(x), columns), torch.nan if x.is_floating_point() else False)
            return torch.cat([x, fill], dim=1)

        return self.map(pad)

    def strided(self) -> Any:
        """Return the same numbers in tensors that are not contiguous."""
        return self.map(lambda x: torch.stack([x, x], dim=-1)[..., 0])


@dataclass(frozen=True)
class Batch(_Rows):
    """What an advantage estimator is given."""

    rewards_BT: Tensor
    mask_BT: Tensor
    groups_B: Tensor
    values_BT: Tensor
    support_BT: Tensor | None = None

    def estimate(self, estimator: Callable[..., Tensor], **settings: Any) -> Tensor:
        return estimator(
            RewardTensors(self.rewards_BT, self.mask_BT, self.groups_B, self.values_BT, self.support_BT), **settings
        )


@dataclass(frozen=True)
class LossInput(_Rows):
    """What a policy loss is given."""

    logprobs_BT: Tensor
    old_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor

    def losses(self, loss: Callable[..., tuple[Tensor, dict[str, Tensor]]], **settings: Any) -> Tensor:
        return loss(self.logprobs_BT, self.old_BT, self.advantages_BT, self.mask_BT, **settings)[0]


def hidden(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the values with NaN behind the mask."""
    return torch.where(mask_BT, values_BT, torch.nan)


def outcome_batch(
    rewards: list[float], lengths: list[int], groups: list[int], dtype: torch.dtype = torch.float64
) -> Batch:
    """Return one row per reward, which sits on the last of `lengths` tokens; length 0 is a failed rollout."""
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    rewards_BT = torch.zeros(mask_BT.shape, dtype=dtype)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        if length:
            rewards_BT[row, length - 1] = reward
    rewards_BT = hidden(rewards_BT, mask_BT)
    return Batch(rewards_BT, mask_BT, torch.tensor(groups), hidden(torch.zeros_like(rewards_BT), mask_BT))


class Source:
    """Random tensors from one seed: normal, or halves of small integers, among which ties are frequent."""

    def __init__(self, seed: int, halves: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.halves = halves

    def floats(self, *shape: int) -> Tensor:
        if self.halves:
            return self.integers(-2, 3, *shape).double() / 2
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def mask(self, rows: int, width: int, gaps: bool) -> Tensor:
        """Return prefixes of random length, 0 included; with `gaps` also holes and leading padding."""
        prefix_BT = torch.arange(width) < self.integers(0, width + 1, rows, 1)
        return prefix_BT & (self.integers(0, 3, rows, width) > 0) if gaps else prefix_BT


SOURCES = st.builds(Source, st.integers(0, 2**32 - 1), st.booleans())


@st.composite
def masks(draw: st.DrawFn, min_rows: int = 1) -> Tensor:
    return draw(SOURCES).mask(draw(st.integers(min_rows, 7)), draw(st.integers(1, 6)), draw(st.booleans()))


@st.composite
def batches(draw: st.DrawFn, outcome: bool | None = None, min_rows: int = 1) -> Batch:
    """Draw a batch; `outcome` None draws either kind. The reward of an outcome is spread over its row."""
    mask_BT, source = draw(masks(min_rows)), draw(SOURCES)
    shape = tuple(mask_BT.shape)
    groups_B = torch.tensor(GROUP_IDS)[source.integers(0, len(GROUP_IDS), shape[0])]
    rewards_BT, values_BT = hidden(source.floats(*shape), mask_BT), hidden(source.floats(*shape), mask_BT)
    outcome = draw(st.booleans()) if outcome is None else outcome
    return Batch(rewards_BT, mask_BT, groups_B, values_BT, None if outcome else source.integers(0, 2, *shape) > 0)


@st.composite
def loss_inputs(draw: st.DrawFn) -> LossInput:
    """Draw log-probabilities on both sides of every clip range."""
    mask_BT, source = draw(masks()), draw(SOURCES)
    shape = tuple(mask_BT.shape)
    old_BT = -source.floats(*shape).abs() - 0.1
    logprobs_BT = old_BT + source.floats(*shape) * draw(st.sampled_from([1e-4, 0.3, 2.0]))
    advantages_BT = source.floats(*shape)
    return LossInput(hidden(logprobs_BT, mask_BT), hidden(old_BT, mask_BT), hidden(advantages_BT, mask_BT), mask_BT)


def counted(mask_BT: Tensor, row: int) -> list[int]:
    """Return the columns of a row that count, in order."""
    return [t for t in range(mask_BT.shape[1]) if mask_BT[row, t]]


def assert_close(actual: Tensor, expected: Tensor | list[Any] | float, tolerance: float = 1e-10) -> None:
    """Assert equality up to `tolerance`, relative or absolute; dtypes may differ, NaN never passes."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, rtol=tolerance, atol=tolerance)
