"""Keys and values of the rows that decode, in blocks: who has which block, and attention over them.

On a GPU a block has a few tokens. A row takes blocks as it grows, and rows with the same prompt share its full ones. On
a CPU a block is a whole row: the keys of a row lie one after the other, and nothing is gathered.

Shape legend: N tokens of all prompts laid end to end, R rows that decode, S rows there are, M blocks that a row may
have, H heads, K key-value heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import AttentionLayer, PackedAttention, consecutive, to_device
from rewardsmith.engines.embedded.kernels.block_attention import block_attention, decode_mask
from rewardsmith.engines.embedded.kernels.cache_blocks import Places, cache_offsets, store_keys_values


class CachePlaces:
    """Where the tensors of a cache are, as numbers on the device: a recorded graph reads them when it is replayed.

    So the memory of the cache can be given back between two calls, and graphs stay valid.
    """

    def __init__(self, layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self.anchor = torch.zeros(64, dtype=dtype, device=device)
        self.offsets_L2 = torch.zeros(layers, 2, dtype=torch.int64, device=device)

    def set(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Note the places of a layer, counted in elements from the anchor."""
        self.offsets_L2[layer] = torch.tensor(cache_offsets(self.anchor, keys, values))


class KeyValueCache:
    """Keys and values: [blocks, K, tokens, D] for each layer."""

    def __init__(self, blocks: int, tokens: int, places: CachePlaces | None = None) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self._places = places
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int, k_NKD: Tensor, v_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's tensors, allocated at the first call like k and v."""
        if layer not in self._layers:
            keys, values = (x.new_zeros(self.blocks, x.shape[1], self.tokens, x.shape[2]) for x in (k_NKD, v_NKD))
            self._layers[layer] = keys, values
            if self._places is not None:
                self._places.set(layer, keys, values)
        return self._layers[layer]

    def places(self, layer: int) -> Places | None:
        """Return what kernels need to find a layer's tensors wherever they are."""
        return None if self._places is None else (self._places.anchor, self._places.offsets_L2[layer])

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` tokens of some blocks to others."""
        for pair in self._layers.values():
            for tensor in pair:
                tensor[targets, :, :length] = tensor[sources, :, :length]


class BlockTable:
    """Which blocks each row has, kept on the host; `upload` copies it to the device.

    Block 0 belongs to no row: what free rows write goes there.
    """

    def __init__(self, table_SM: Tensor, blocks: int, tokens: int) -> None:
        self.table_SM = table_SM
        self._tokens = tokens
        self._blocks_SM = np.zeros(table_SM.shape, dtype=np.int32)
        self._counts_S = np.zeros(len(table_SM), dtype=np.int64)
        self._users = np.zeros(blocks, dtype=np.int64)  # rows that share each block
        self._free = list(range(blocks - 1, 0, -1))
        self._changed = True

    def admit(self, rows: Sequence[int], length: int, *, spare: int = 0) -> bool:
        """Give rows the blocks of a prompt and of one token more; False if fewer than `spare` would be left."""
        shared, count = length // self._tokens, self._needed(length + 1)
        if len(self._free) < shared + len(rows) * (count - shared) + spare:
            return False
        prompt = [self._free.pop() for _ in range(shared)]
        for row in rows:
            own = [self._free.pop() for _ in range(count - shared)]
            self._blocks_SM[row, :count] = [*prompt, *own]
            self._counts_S[row] = count
            self._users[self._blocks_SM[row, :count]] += 1
        self._changed = True
        return True

    def grow(self, row: int, length: int) -> bool:
        """Let a row have `length` tokens; False if there are too few free blocks."""
        have, need = int(self._counts_S[row]), self._needed(length)
        if need - have > len(self._free):
            return False
        for i in range(have, need):
            block = self._blocks_SM[row, i] = self._free.pop()
            self._users[block] = 1
            self._changed = True
        self._counts_S[row] = max(have, need)
        return True

    def release(self, row: int) -> None:
        """Take the blocks of a row back."""
        blocks = self._blocks_SM[row, : self._counts_S[row]]
        self._users[blocks] -= 1
        self._free += blocks[self._users[blocks] == 0].tolist()
        self._blocks_SM[row], self._counts_S[row], self._changed = 0, 0, True

    def move(self, source: int, target: int) -> None:
        """Give the blocks of a row to a row that has none."""
        for rows in (self._blocks_SM, self._counts_S):
            rows[target], rows[source] = rows[source].copy(), 0
        self._changed = True

    def upload(self) -> None:
        """Copy the table to the device if it has changed."""
        if self._changed:
            self.table_SM.copy_(torch.from_numpy(self._blocks_SM))
            self._changed = False

    def prompt_slots(self, rows: Sequence[int], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (token of the prompt, slot) of all that a prompt's keys are stored in: a shared block once."""
        positions = np.arange(length)
        end = length // self._tokens * self._tokens
        tokens, slots = [positions[:end]], [self._slots(rows[0], positions[:end])]
        for row in rows:
            tokens.append(positions[end:])
            slots.append(self._slots(row, positions[end:]))
        return np.concatenate(tokens), np.concatenate(slots)

    def _slots(self, row: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        blocks: NDArray[np.int64] = self._blocks_SM[row, positions // self._tokens].astype(np.int64)
        return blocks * self._tokens + positions % self._tokens

    def _needed(self, length: int) -> int:
        return math.ceil(length / self._tokens)


class PrefillAttention(PackedAttention):
    """`PackedAttention` over prompts that stores keys and values in the cache, for all rows that share a prompt.

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


class DecodeAttention:
    """One new token for each of the first R rows, at `positions_R`; it sees itself and everything before.

    Without a table block r is row r. `length`, more than the largest position, is then how much of the cache is read.
    """

    def __init__(self, cache: KeyValueCache, table_RM: Tensor | None, positions_R: Tensor, length: int) -> None:
        self._cache, self._table_RM, self._positions_R, self._length = cache, table_RM, positions_R, length
        if table_RM is None:
            blocks_R = torch.arange(len(positions_R), device=positions_R.device)
        else:
            blocks_R = table_RM.gather(1, (positions_R // cache.tokens)[:, None])[:, 0].long()
        self._slots_R = blocks_R * cache.tokens + positions_R % cache.tokens
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store the new keys and values, then attend."""
        keys, values = self._cache.layer(layer.index, k_NKD, v_NKD)
        places = self._cache.places(layer.index)
        store_keys_values(k_NKD, v_NKD, keys, values, self._slots_R, places=places)
        return block_attention(
            q_NHD,
            keys,
            values,
            self._table_RM,
            self._positions_R,
            scale=layer.scale,
            window=layer.window,
            cap=layer.cap,
            places=places,
            length=self._length,
            mask=self._mask(layer.window, q_NHD.dtype),
        )

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of the layers with this window; blocks need none."""
        if self._table_RM is not None:
            return None
        if window not in self._masks:
            self._masks[window] = decode_mask(self._positions_R, self._length, window, dtype)
        return self._masks[window]
