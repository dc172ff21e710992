"""Rows of tokens packed under a token budget, without padding; a prompt that rows share is there once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import PackedAttention
from rewardsmith.engines.embedded.cards import to_device
from rewardsmith.engines.protocol import Row

MAX_PADDING = 4  # attention may see this many times the budget, padding and repeated prompts included


def micro_batches(rows: Sequence[Row], budget: int, max_rows: int | None = None) -> list[list[int]]:
    """Split rows into forward passes of at most `budget` tokens and `max_rows` rows; a longer row is alone.

    Rows with the same prompt come together, since they share it. Groups of like length come together, longest first, so
    that attention, which alone is padded, wastes little; and a batch that does not fit the memory fails at once. Passes
    are filled evenly: a last one with a few tokens would take as long as one with many, and the others more memory.
    """
    longest: dict[bytes, int] = {}
    keys = [row.prompt.tobytes() for row in rows]
    for key, row in zip(keys, rows, strict=True):
        longest[key] = max(longest.get(key, 0), len(row.prompt) + len(row.response))
    numbers = {key: i for i, key in enumerate(longest)}
    prompts = {key: len(row.prompt) for key, row in zip(keys, rows, strict=True)}
    total = sum(prompts.values()) + sum(_new_tokens(row, shared=True) for row in rows)
    even = min(budget, total // max(1, -(-total // budget)) + max(longest.values(), default=0))
    batches: list[list[int]] = []
    room = width = 0
    for i in sorted(range(len(rows)), key=lambda i: (-longest[keys[i]], numbers[keys[i]], -len(rows[i].response), i)):
        shared = bool(batches) and keys[batches[-1][-1]] == keys[i]
        length = len(rows[i].prompt) + len(rows[i].response)
        padded = (len(batches[-1]) + 1) * max(width, length) if batches else 0
        full = max_rows is not None and bool(batches) and len(batches[-1]) >= max_rows
        if not batches or full or _new_tokens(rows[i], shared=shared) > room or padded > MAX_PADDING * budget:
            batches.append([])
            room, shared, width = even, False, 0
        width = max(width, length)
        batches[-1].append(i)
        room -= _new_tokens(rows[i], shared=shared)
    return batches


def _new_tokens(row: Row, *, shared: bool) -> int:
    """Count the tokens that a row adds to a pass; its last one is only predicted, never read."""
    return max(0, len(row.response) - 1) + (0 if shared else len(row.prompt))


@dataclass(frozen=True)
class PackedBatch:
    """Rows laid end to end, ready for one forward pass."""

    rows: Tensor  # int64 [b], which rows of the batch these are
    tokens_N: Tensor  # the input tokens
    plan: PackedAttention  # which of them see which
    predicts_M: Tensor  # the input places that predict the response tokens, over all rows
    targets_M: Tensor  # the response tokens
    mask_bT: Tensor  # True where the padded form has a response token
    places_M: Tensor  # where these are in it, counted through

    def padded(self, values_M: Tensor) -> Tensor:
        """Return numbers per response token as [b, T], zero where there is none; gradients flow through."""
        flat = values_M.new_zeros(self.mask_bT.numel())
        return flat.index_copy(0, self.places_M, values_M).view(self.mask_bT.shape)


def pack(rows: Sequence[Row], chosen: Sequence[int], width: int, device: torch.device) -> PackedBatch:
    """Lay the chosen rows end to end, each prompt once; `width` is T of the padded form."""
    mine = [rows[i] for i in chosen]
    prompts: dict[bytes, NDArray[np.int64]] = {}
    tokens: list[NDArray[np.int32]] = []
    sequences: list[NDArray[np.int64]] = []
    count = 0

    def append(part: NDArray[np.int32]) -> NDArray[np.int64]:
        nonlocal count
        tokens.append(part)
        count += len(part)
        return np.arange(count - len(part), count)

    for row in mine:
        key = row.prompt.tobytes()
        if key not in prompts:
            prompts[key] = append(row.prompt)
        sequences.append(np.concatenate([prompts[key], append(row.response[:-1])]))
    # A response token is predicted at the place before it: the first one at the end of the prompt.
    predicts = [s[len(row.prompt) - 1 :][: len(row.response)] for s, row in zip(sequences, mine, strict=True)]
    lengths = np.array([len(row.response) for row in mine])
    # Made of its places on the device: a mask and what selects by it would wait for all that the device does.
    places_M = to_device(np.concatenate([i * width + np.arange(n) for i, n in enumerate(lengths)]), device)
    mask_bT = torch.zeros(len(mine) * width, dtype=torch.bool, device=device).index_fill_(0, places_M, value=True)
    return PackedBatch(
        rows=to_device(chosen, device),
        tokens_N=to_device(np.concatenate(tokens), device),
        plan=PackedAttention(sequences, device),
        predicts_M=to_device(np.concatenate(predicts), device),
        targets_M=to_device(np.concatenate([row.response for row in mine]), device),
        mask_bT=mask_bT.view(len(mine), width),
        places_M=places_M,
    )
