"""Rows of tokens packed under a token budget, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import Packed
from rewardsmith.engines.protocol import Row


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Split rows into batches of at most `budget` tokens; a longer row has a batch of its own.

    Rows of like length come together, longest first, so that attention, which alone is padded, wastes little; and a
    batch that does not fit the memory fails at once and not after an hour.
    """
    batches: list[list[int]] = []
    room = 0
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[row] > room:
            batches.append([])
            room = max(budget, lengths[row])
        batches[-1].append(row)
        room -= lengths[row]
    return batches


@dataclass(frozen=True)
class Pack:
    """Rows laid end to end, ready for one forward pass.

    Attributes:
        rows: which rows of the batch these are, int64 [b].
        tokens_1N: the input tokens.
        plan: which of them see which.
        at_M: the input positions that predict the answer tokens, over all rows.
        targets_M: the answer tokens.
        mask_bT: True where the padded form has an answer token.
    """

    rows: Tensor
    tokens_1N: Tensor
    plan: Packed
    at_M: Tensor
    targets_M: Tensor
    mask_bT: Tensor

    @cached_property
    def positions_1N(self) -> Tensor:
        """The position of each input token in its own row."""
        return self.plan.positions_N[None]

    def padded(self, values_M: Tensor) -> Tensor:
        """Return numbers per answer token as [b, T], zero where there is none; gradients flow through."""
        return values_M.new_zeros(self.mask_bT.shape).masked_scatter(self.mask_bT, values_M)


def pack(rows: Sequence[Row], chosen: Sequence[int], width: int, device: torch.device) -> Pack:
    """Lay the chosen rows end to end.

    Args:
        rows: all rows of the batch.
        chosen: which of them.
        width: T of the padded form.
        device: of the tensors.
    """
    mine = [rows[i] for i in chosen]
    lengths = [len(row) for row in mine]
    tokens = np.concatenate(
        [np.concatenate([row.prompt, row.response])[:n] for row, n in zip(mine, lengths, strict=True)]
    )
    starts = np.cumsum([0, *lengths[:-1]])
    at = [s + len(r.prompt) - 1 + np.arange(len(r.response)) for s, r in zip(starts, mine, strict=True)]
    answers = np.array([len(row.response) for row in mine])
    return Pack(
        rows=torch.tensor(list(chosen), device=device),
        tokens_1N=_ids(tokens, device)[None],
        plan=Packed(lengths, device),
        at_M=_ids(np.concatenate(at), device),
        targets_M=_ids(np.concatenate([row.response for row in mine]), device),
        mask_bT=torch.from_numpy(np.arange(width)[None] < answers[:, None]).to(device),
    )


def _ids(numbers: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64)).to(device)
