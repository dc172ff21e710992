"""Keys and values on a GPU, in blocks of a few tokens.

A row takes blocks as it grows, and rows with the same prompt share its full ones; long prompts are read once for all of
them.

Shape legend: R rows that decode, S rows there are, M blocks that a row may have, H heads, K key-value heads, D width of
a head, P tiles of n rows that share a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import AttentionLayer
from rewardsmith.engines.embedded.decode_state import CachePlaces, DecodeState
from rewardsmith.engines.embedded.kernels import cache_blocks
from rewardsmith.engines.embedded.kernels.block_attention import block_attention
from rewardsmith.engines.embedded.kernels.cache_blocks import store_keys_values
from rewardsmith.engines.embedded.kv_cache import KeyValueCache, PrefillAttention

MIN_SHARED = 4  # blocks of a prompt that pay for two more kernels a layer (see `block_attention`)


class BlockTable:
    """Which blocks each row has, kept on the host; `upload` copies it to the device.

    Block 0 belongs to no row: what free rows write goes there.
    """

    def __init__(self, state: DecodeState, blocks: int, tokens: int, *, shares_prompts: bool) -> None:
        self._state = state
        self.shares_prompts = shares_prompts
        self._tokens = tokens
        self._blocks_SM = np.zeros(state.table_SM.shape, dtype=np.int32)
        self._shared_S = np.zeros(state.rows, dtype=np.int32)  # blocks that were admitted for several rows
        self._counts_S = np.zeros(state.rows, dtype=np.int64)
        self._users = np.zeros(blocks, dtype=np.int64)  # rows that share each block
        self._free = list(range(blocks - 1, 0, -1))
        self._changed = True

    def admit(self, rows: Sequence[int], length: int, *, spare: int) -> bool:
        """Give rows the blocks of a prompt and of one token more; False if fewer than `spare` would be left."""
        shared, count = length // self._tokens, length // self._tokens + 1
        if len(self._free) < shared + len(rows) * (count - shared) + spare:
            return False
        prompt = [self._free.pop() for _ in range(shared)]
        for row in rows:
            own = [self._free.pop() for _ in range(count - shared)]
            self._blocks_SM[row, :count] = [*prompt, *own]
            self._counts_S[row] = count
            self._shared_S[row] = shared if len(rows) > 1 else 0
            self._users[self._blocks_SM[row, :count]] += 1
        self._changed = True
        return True

    def grow(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
        """Let rows have so many tokens, in this order; False where there are too few free blocks for one."""
        needed = -(-lengths // self._tokens)
        is_short = needed > self._counts_S[rows]
        for row, need in zip(rows[is_short].tolist(), needed[is_short].tolist(), strict=True):
            have = int(self._counts_S[row])
            if need - have > len(self._free):
                return False
            for i in range(have, need):
                block = self._blocks_SM[row, i] = self._free.pop()
                self._users[block] = 1
            self._counts_S[row], self._changed = need, True
        return True

    def release(self, row: int) -> None:
        """Take the blocks of a row back."""
        blocks = self._blocks_SM[row, : self._counts_S[row]]
        self._users[blocks] -= 1
        self._free += blocks[self._users[blocks] == 0].tolist()
        for rows in (self._blocks_SM, self._counts_S, self._shared_S):
            rows[row] = 0
        self._changed = True

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Give the blocks of rows to others that have none."""
        for rows in (self._blocks_SM, self._counts_S, self._shared_S):
            rows[targets] = rows[sources]
            rows[sources] = 0
        self._changed = True

    def upload(self) -> None:
        """Copy the table to the device if it has changed."""
        if self._changed:
            self._state.table_SM.copy_(torch.from_numpy(self._blocks_SM))
            if self.shares_prompts:
                members_Pn, shared_S = self.tiles()
                self._state.members_Pn.copy_(torch.from_numpy(members_Pn))
                self._state.shared_S.copy_(torch.from_numpy(shared_S))
            self._changed = False

    def tiles(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return tiles of rows that share a prompt, padded with -1, and how many blocks each row shares, [S]."""
        members_Pn = np.full(self._state.members_Pn.shape, -1, dtype=np.int32)
        shared_S = np.zeros_like(self._shared_S)
        groups: dict[int, list[int]] = {}  # by the first block of the prompt
        for row in np.flatnonzero(self._shared_S).tolist():
            groups.setdefault(int(self._blocks_SM[row, 0]), []).append(row)
        width = members_Pn.shape[1]
        tiles = [rows[i : i + width] for rows in groups.values() for i in range(0, len(rows), width)]
        for tile, rows in zip(members_Pn, (rows for rows in tiles if len(rows) > 1), strict=False):
            tile[: len(rows)] = rows
            shared_S[rows] = self._shared_S[rows]
        return members_Pn, shared_S

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


class BlockCache(BlockTable):
    """The blocks of a generation; `state` has the table on the device, and the places of the tensors."""

    is_limited = True

    def __init__(self, state: DecodeState, blocks: int, *, shares_prompts: bool) -> None:
        super().__init__(state, blocks, cache_blocks.BLOCK_TOKENS, shares_prompts=shares_prompts)
        assert state.places is not None
        self._cache = PlacedCache(blocks, cache_blocks.BLOCK_TOKENS, state.places)

    def prefill(self, prompts: Sequence[tuple[Sequence[int], int]]) -> PrefillAttention:
        """Return the plan of a pass over prompts, each with its rows and its length."""
        stored = [self.prompt_slots(rows, length) for rows, length in prompts]
        return PrefillAttention([length for _, length in prompts], stored, self._cache, self._state.device)

    def decode(self, rows: int, longest: int) -> BlockDecode:
        """Return the plan of a pass over one new token for each of the first rows."""
        return BlockDecode(self._cache, self._state, rows, shares_prompts=self.shares_prompts)


class PlacedCache(KeyValueCache):
    """A cache that notes where its tensors are."""

    def __init__(self, blocks: int, tokens: int, places: CachePlaces) -> None:
        super().__init__(blocks, tokens)
        self.places = places

    def layer(self, layer: int, k_NKD: Tensor, v_NKD: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's tensors, allocated at the first call, which is never recorded in a graph."""
        is_new = layer not in self.layers
        keys, values = super().layer(layer, k_NKD, v_NKD)
        if is_new:
            self.places.set(layer, keys, values)
        return keys, values


class BlockDecode:
    """One new token for each of the first R rows; it sees itself and everything before."""

    def __init__(self, cache: PlacedCache, state: DecodeState, rows: int, *, shares_prompts: bool) -> None:
        self._cache = cache
        self._prefix = (state.members_Pn[: rows // 2], state.shared_S[:rows]) if shares_prompts else None
        self._table_RM, self._positions_R = state.table_SM[:rows], state.position_S[:rows]
        blocks_R = self._table_RM.gather(1, (self._positions_R // cache.tokens)[:, None])[:, 0].long()
        self._slots_R = blocks_R * cache.tokens + self._positions_R % cache.tokens

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store the new keys and values, then attend."""
        keys, values = self._cache.layer(layer.index, k_NKD, v_NKD)
        places = self._cache.places.of(layer.index)
        store_keys_values(k_NKD, v_NKD, keys, values, self._slots_R, places=places)
        return block_attention(
            *(q_NHD, keys, values, self._table_RM, self._positions_R),
            scale=layer.scale,
            window=layer.window,
            cap=layer.cap,
            places=places,
            prefix=self._prefix,
        )


def shared_prompts_pay(prompts: Sequence[int], responses: int) -> bool:
    """Whether prompts of these lengths are worth reading once for the rows of a group."""
    return responses > len(prompts) and sum(prompts) >= MIN_SHARED * cache_blocks.BLOCK_TOKENS * len(prompts)
