"""Rows of tokens packed under a token budget, without padding; a prompt that rows share is there once."""

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

PADDED = 4
"""Attention may see this many times the budget, padding and shared prompts counted in."""


def micro_batches(rows: Sequence[Row], budget: int, most: int | None = None) -> list[list[int]]:
    """Split rows into batches that put at most `budget` tokens through the model; a longer row has one of its own.

    Rows with the same prompt come together, since they share it. Groups of like length come together, longest first, so
    that attention, which alone is padded, wastes little, and never more than `PADDED` allows; and a batch that does not
    fit the memory fails at once and not after an hour. `most` limits the rows of a batch too.
    """
    longest: dict[bytes, int] = {}
    keys = [row.prompt.tobytes() for row in rows]
    for key, row in zip(keys, rows, strict=True):
        longest[key] = max(longest.get(key, 0), len(row.prompt) + len(row.response))
    numbers = {key: i for i, key in enumerate(longest)}
    batches: list[list[int]] = []
    room = widest = 0
    for i in sorted(range(len(rows)), key=lambda i: (-longest[keys[i]], numbers[keys[i]], -len(rows[i].response), i)):
        shared = bool(batches) and keys[batches[-1][-1]] == keys[i]
        length = len(rows[i].prompt) + len(rows[i].response)
        padded = (len(batches[-1]) + 1) * max(widest, length) if batches else 0
        full = most is not None and bool(batches) and len(batches[-1]) >= most
        if not batches or full or _cost(rows[i], shared=shared) > room or padded > PADDED * budget:
            batches.append([])
            room, shared, widest = budget, False, 0
        widest = max(widest, length)
        batches[-1].append(i)
        room -= _cost(rows[i], shared=shared)
    return batches


def _cost(row: Row, *, shared: bool) -> int:
    """Count the tokens that a row adds to a pass; its last one is only predicted, never read."""
    return max(0, len(row.response) - 1) + (0 if shared else len(row.prompt))


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
    """Lay the chosen rows end to end, each prompt once.

    Args:
        rows: all rows of the batch.
        chosen: which of them.
        width: T of the padded form.
        device: of the tensors.
    """
    mine = [rows[i] for i in chosen]
    prompts: dict[bytes, NDArray[np.int64]] = {}
    tokens: list[NDArray[np.int32]] = []
    sequences: list[NDArray[np.int64]] = []
    count = 0

    def lay(piece: NDArray[np.int32]) -> NDArray[np.int64]:
        nonlocal count
        tokens.append(piece)
        count += len(piece)
        return np.arange(count - len(piece), count)

    for row in mine:
        key = row.prompt.tobytes()
        if key not in prompts:
            prompts[key] = lay(row.prompt)
        sequences.append(np.concatenate([prompts[key], lay(row.response[:-1])]))
    # An answer token is predicted at the place before it: the first one at the end of the prompt.
    at = [s[len(row.prompt) - 1 :][: len(row.response)] for s, row in zip(sequences, mine, strict=True)]
    answers = np.array([len(row.response) for row in mine])
    return Pack(
        rows=torch.tensor(list(chosen), device=device),
        tokens_1N=_ids(np.concatenate(tokens), device)[None],
        plan=Packed(sequences, device),
        at_M=_ids(np.concatenate(at), device),
        targets_M=_ids(np.concatenate([row.response for row in mine]), device),
        mask_bT=torch.from_numpy(np.arange(width)[None] < answers[:, None]).to(device),
    )


def _ids(numbers: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64)).to(device)
