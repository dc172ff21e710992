"""Keys and values that the rows of a batch have stored, and attention over prompts that stores them.

`BlockCache` is the cache of a GPU, `RowCache` that of a CPU. A row is one response. Rows with the same prompt share its
keys and values.

Shape legend: N tokens of all prompts laid end to end, B blocks, T tokens of a block, R rows that decode, K key-value
heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import (
    AttentionLayer,
    AttentionPlan,
    PackedAttention,
    consecutive,
)
from rewardsmith.engines.embedded.cards import to_device
from rewardsmith.engines.embedded.kernels.cache_blocks import store_keys_values


class Cache(Protocol):
    """What the generator does with the keys and values of its rows."""

    is_limited: bool  # whether there may be too little room
    shares_prompts: bool  # whether decoding reads a prompt once for its rows; recorded graphs differ by it

    def admit(self, rows: Sequence[int], length: int, *, spare: int) -> bool:
        """Make room for a prompt that rows share; False if there is too little, or would be less than `spare` left."""
        ...

    def grow(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
        """Let rows have so many tokens, in this order; False if there is too little room for one of them."""
        ...

    def release(self, row: int) -> None:
        """Take back what a row has."""
        ...

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Give what rows have to free ones; the longest response has `length` tokens."""
        ...

    def upload(self) -> None:
        """Let the device know of all this."""
        ...

    def prefill(self, prompts: Sequence[tuple[Sequence[int], int]]) -> PrefillAttention:
        """Return the plan of a pass over prompts, each with its rows and its length."""
        ...

    def decode(self, rows: int, longest: int) -> AttentionPlan:
        """Return the plan of a pass over one new token for each of the first rows; responses have `longest` tokens."""
        ...


class KeyValueCache:
    """Keys and values: [B, K, T, D] for each layer."""

    def __init__(self, blocks: int, tokens: int) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int, k_NKD: Tensor, v_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's tensors, allocated at the first call like k and v."""
        if layer not in self.layers:
            keys, values = (x.new_zeros(self.blocks, x.shape[1], self.tokens, x.shape[2]) for x in (k_NKD, v_NKD))
            self.layers[layer] = keys, values
        return self.layers[layer]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of some blocks to others."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[targets, :, :length] = tensor[sources, :, :length]


class PrefillAttention(PackedAttention):
    """`PackedAttention` over prompts that stores keys and values.

    `stored` has, for each prompt, its tokens and the slots in which they are stored.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        stored: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
        cache: KeyValueCache,
        device: torch.device,
    ) -> None:
        prompts = consecutive(lengths)
        super().__init__(prompts, device)
        self._cache = cache
        tokens = [prompt[tokens] for prompt, (tokens, _) in zip(prompts, stored, strict=True)]
        self._tokens_P = to_device(np.concatenate(tokens), device)
        self._slots_P = to_device(np.concatenate([slots for _, slots in stored]), device)

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store keys and values, then attend."""
        keys, values = self._cache.layer(layer.index, k_NKD, v_NKD)
        store_keys_values(k_NKD, v_NKD, keys, values, self._slots_P, tokens_M=self._tokens_P)
        return super().attend(layer, q_NHD, k_NKD, v_NKD)
