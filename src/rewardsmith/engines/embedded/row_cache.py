"""Keys and values on a CPU: those of a prompt once for its rows, those of each response in a row of its own.

Nothing is gathered: the prompts of the rows in use are the first blocks of one tensor, and the rows those of another.
Attention reads a prompt once for all its rows. The scores of both parts are normalised together:

    softmax([q Kᵀ_prompt, q Kᵀ_response]) [V_prompt; V_response]

Shape legend: R rows that decode, U prompts, n rows of a prompt at most, P tokens of a prompt and T of a response at
most, H heads, K key-value heads, G = H / K heads that share one of them, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import AttentionLayer
from rewardsmith.engines.embedded.decode_state import DecodeState
from rewardsmith.engines.embedded.kernels.cache_blocks import store_keys_values
from rewardsmith.engines.embedded.kv_cache import KeyValueCache, PrefillAttention

LENGTH_STEP = 32  # attention reads up to a multiple of this many tokens


class RowCache:
    """The cache of a generation with up to `prompts` prompts of up to `longest` tokens at a time."""

    is_limited = False
    shares_prompts = False

    def __init__(self, state: DecodeState, prompts: int, longest: int) -> None:
        self._state = state
        self._prompts = KeyValueCache(prompts, in_steps(longest))
        self._responses = KeyValueCache(state.rows, in_steps(state.width))
        self._rows: list[list[int]] = []  # of each prompt
        self._lengths: list[int] = []  # of the prompts
        self._tiles: Tiles | None = None  # of these rows, once they are needed

    def admit(self, rows: Sequence[int], length: int, *, spare: int) -> bool:
        """Give rows a prompt; there is room for all."""
        self._rows.append(list(rows))
        self._lengths.append(length)
        self._tiles = None
        return True

    def grow(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
        """Do nothing: there is room for all."""
        return True

    def release(self, row: int) -> None:
        """Free a row; with its last one a prompt goes, and the last prompt takes its place."""
        prompt = next(i for i, rows in enumerate(self._rows) if row in rows)
        self._rows[prompt].remove(row)
        self._tiles = None
        if not self._rows[prompt]:
            last = len(self._rows) - 1
            if prompt != last:
                self._prompts.copy_blocks([last], [prompt], self._lengths[last])
                self._rows[prompt], self._lengths[prompt] = self._rows[last], self._lengths[last]
            self._rows.pop()
            self._lengths.pop()

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Move rows, of which the longest has stored `length` tokens of its response."""
        self._responses.copy_blocks(sources, targets, length)
        new = dict(zip(sources, targets, strict=True))
        self._rows = [[new.get(row, row) for row in rows] for rows in self._rows]
        self._tiles = None

    def upload(self) -> None:
        """Do nothing: there is no other device."""

    def prefill(self, prompts: Sequence[tuple[Sequence[int], int]]) -> PrefillAttention:
        """Return the plan of a pass over prompts, each with its rows and its length."""
        blocks = {rows[0]: block for block, rows in enumerate(self._rows)}
        stored = []
        for rows, length in prompts:
            places = np.arange(length)
            stored.append((places, blocks[rows[0]] * self._prompts.tokens + places))
        return PrefillAttention([length for _, length in prompts], stored, self._prompts, self._state.device)

    def decode(self, rows: int, longest: int) -> RowDecode:
        """Return the plan of a pass over one new token for each of the first rows."""
        if self._tiles is None or len(self._tiles.place_R) != rows:
            self._tiles = Tiles(self._rows, in_steps(max(self._lengths)), rows)
        length = min(in_steps(longest), self._responses.tokens)
        return RowDecode(self._prompts, self._responses, self._tiles, self._state, rows, length)


class Tiles:
    """The rows of each prompt side by side, [U, n]: rows that are free or missing stand for row 0."""

    def __init__(self, rows: Sequence[Sequence[int]], longest: int, count: int) -> None:
        self.prompts, self.width, self.longest = len(rows), max(map(len, rows)), longest
        members = np.zeros((self.prompts, self.width), dtype=np.int64)
        place = np.zeros(count, dtype=np.int64)
        for prompt, mine in enumerate(rows):
            members[prompt, : len(mine)] = mine
            place[list(mine)] = prompt * self.width + np.arange(len(mine))
        self.members_T = torch.from_numpy(members.reshape(-1))
        self.place_R = torch.from_numpy(place)
        self._is_identity = np.array_equal(place, np.arange(members.size))

    def gather(self, x_RKGD: Tensor) -> Tensor:
        """Return the queries of each prompt, [U, K, n G, D]."""
        x = x_RKGD if self._is_identity else x_RKGD[self.members_T]
        return x.view(self.prompts, self.width, *x.shape[1:]).transpose(1, 2).flatten(2, 3)

    def scatter(self, x_UKGD: Tensor) -> Tensor:
        """Return what each row has of that, [R, K, G, D]."""
        heads, width = x_UKGD.shape[1], x_UKGD.shape[-1]
        x = x_UKGD.view(self.prompts, heads, self.width, -1, width).transpose(1, 2).flatten(0, 1)
        return x if self._is_identity else x[self.place_R]


class RowDecode:
    """One new token for each of the first R rows; it sees its prompt, itself and what its row has before."""

    def __init__(
        self,
        prompts: KeyValueCache,
        responses: KeyValueCache,
        tiles: Tiles,
        state: DecodeState,
        rows: int,
        length: int,
    ) -> None:
        self._prompts, self._responses, self._tiles = prompts, responses, tiles
        self._rows, self._length = rows, length
        self._start_R = state.start_S[:rows]
        self._own_R = state.position_S[:rows] - self._start_R  # place in the response
        self._slots_R = state.row_S[:rows] * responses.tokens + self._own_R
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Store the new keys and values, then attend."""
        own = self._responses.layer(layer.index, k_NKD, v_NKD)
        store_keys_values(k_NKD, v_NKD, *own, self._slots_R)
        keys, values = (x[: self._rows, :, : self._length] for x in own)
        shared = self._prompts.layers[layer.index]
        prompt_keys, prompt_values = (x[: self._tiles.prompts, :, : self._tiles.longest] for x in shared)
        tiles = self._tiles
        q_RKGD = q_NHD.view(self._rows, keys.shape[1], -1, q_NHD.shape[-1]) * layer.scale
        shared_RKGP = tiles.scatter(tiles.gather(q_RKGD) @ prompt_keys.transpose(-1, -2))
        scores = torch.cat([shared_RKGP, q_RKGD @ keys.transpose(-1, -2)], -1)
        if layer.cap is not None:
            scores = torch.tanh(scores / layer.cap) * layer.cap
        weights = (scores + self._mask(layer.window, scores.dtype)).softmax(-1, dtype=torch.float32).to(v_NKD.dtype)
        of_prompt, of_row = weights[..., : tiles.longest], weights[..., tiles.longest :]
        out = of_row @ values + tiles.scatter(tiles.gather(of_prompt) @ prompt_values)
        return out.reshape(self._rows, q_NHD.shape[1], -1)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return what to add to the scores, [R, 1, 1, P + T]; layers with the same window share it."""
        if window not in self._masks:
            columns_P, columns_T = torch.arange(self._tiles.longest), torch.arange(self._length)
            start_R1, own_R1 = self._start_R[:, None], self._own_R[:, None]
            visible = [columns_P < start_R1, columns_T <= own_R1]
            if window is not None:
                visible[0] &= columns_P > start_R1 + own_R1 - window
                visible[1] &= columns_T > own_R1 - window
            seen = torch.cat(visible, -1)
            self._masks[window] = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -math.inf)[:, None, None]
        return self._masks[window]


def in_steps(length: int) -> int:
    """Return a length that attention reads."""
    return math.ceil(length / LENGTH_STEP) * LENGTH_STEP
