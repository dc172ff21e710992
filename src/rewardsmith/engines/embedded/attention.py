"""Attention behind one seam: a Hugging Face model calls `attend`, and the plan in force says which tokens see which.

There are two plans. `Packed` runs whole sequences laid end to end without padding: learning, and the prefill of
prompts. `Decode` runs one new token for each of many rows over the keys and values that the rows have so far. The model
itself builds no mask and keeps no cache, so nothing here depends on transformers' cache classes; a faster kernel
replaces the body of one method.

Shape legend: N tokens of all sequences laid end to end, B sequences, R rows that decode, L length of the longest,
H heads, K key-value heads, G = H / K heads that share one of them, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

NAME = "rewardsmith"
"""What `attend` is called in transformers' table of attention functions."""


class Plan(Protocol):
    """Which tokens see which in one forward pass."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """Return [batch, tokens, H, D] for q [batch, H, tokens, D] and k, v [batch, K, tokens, D]."""
        ...


# One process runs one forward pass at a time. Gradient checkpointing repeats attention in a thread of autograd's, where
# a context variable would be lost; so this is a plain global, and `backward` runs inside `planned` too.
_plan: Plan | None = None


@contextmanager
def planned(plan: Plan) -> Iterator[None]:
    """Run forward and backward passes under a plan."""
    global _plan  # noqa: PLW0603 see above
    before, _plan = _plan, plan
    try:
        yield
    finally:
        _plan = before


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Be the attention function of a Hugging Face model; `planned` says how."""
    if _plan is None:
        raise RuntimeError("attention was called outside `planned`")
    if others.get("s_aux") is not None:
        raise NotImplementedError("attention sinks are not supported by the embedded engine")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = int(module.layer_idx)
    return _plan.attend(layer, query, key, value, scale=scale, window=sliding_window, cap=softcap), None


AttentionInterface.register(NAME, attend)


class KeyValues:
    """Keys and values of up to `rows` sequences of up to `length` tokens: [rows, K, length, D] for each layer."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows = rows
        self.length = length
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's tensors, made when it is first seen: k and v show its heads, width, type and device."""
        if layer not in self.layers:
            shape = (self.rows, k.shape[1], self.length)
            self.layers[layer] = (k.new_zeros(*shape, k.shape[-1]), v.new_zeros(*shape, v.shape[-1]))
        return self.layers[layer]

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` tokens of the rows `sources` to the rows `targets`."""
        for pair in self.layers.values():
            for tensor in pair:
                tensor[targets, :, :length] = tensor[sources, :, :length]


class Packed:
    """Sequences laid end to end; each token sees its own sequence up to itself.

    Sequences may begin alike: a prompt that several answers share stands among the N tokens once, and goes through
    every layer once. Only attention sees it again in each of its sequences.

    Args:
        sequences: for each sequence the places of its tokens among the N, in order; at least one token each.
        device: of the tensors.

    Attributes:
        windows: the sliding windows that layers have asked for so far; None for full attention.
    """

    def __init__(self, sequences: Sequence[NDArray[np.int64]], device: torch.device) -> None:
        lengths = np.array([len(sequence) for sequence in sequences])
        self.count, self.longest = len(sequences), int(lengths.max())
        places = np.concatenate([i * self.longest + np.arange(n) for i, n in enumerate(lengths)])
        tokens = np.concatenate(sequences)
        spread = np.zeros(self.count * self.longest, dtype=np.int64)
        spread[places] = tokens
        gathered = np.empty(int(tokens.max()) + 1, dtype=np.int64)
        gathered[tokens] = places  # a shared token comes out the same from each of its sequences: any one will do
        extra = places[gathered[tokens] != places]
        self._plain = np.array_equal(spread, np.arange(len(gathered)))
        self._spread = torch.from_numpy(spread).to(device)
        self._gathered_N = torch.from_numpy(gathered).to(device)
        self._extra = torch.from_numpy(extra).to(device)
        self.positions_N = self._gathered_N % self.longest
        self._bands: dict[int, Tensor] = {}
        self.windows: set[int | None] = set()

    @classmethod
    def apart(cls, lengths: Sequence[int], device: torch.device) -> Packed:
        """Return the plan for sequences of these lengths that share nothing."""
        return cls(consecutive(lengths), device)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """Attend within each sequence: q [1, H, N, D] gives [1, N, H, D].

        The rows are spread to [B, L] for this step alone. They are padded on the right, where causal attention never
        looks, so no mask is needed and the fastest kernels apply.
        """
        self.windows.add(window)
        q, k, v = (self._spread_rows(x) for x in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        band = self._band(window, q.device)
        fused = q.device.type == "cuda" and band is None and cap is None  # kernels that share keys among heads
        if groups > 1 and not fused:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        if cap is not None:
            visible = torch.ones(self.longest, self.longest, dtype=torch.bool, device=q.device).tril()
            hidden = ~(visible if band is None else band)
            mask = torch.zeros_like(hidden, dtype=q.dtype).masked_fill_(hidden, -math.inf)
            out = plain_attention(q, k, v, mask, scale=scale, cap=cap)
        else:
            out = sdpa(q, k, v, attn_mask=band, is_causal=band is None, scale=scale, enable_gqa=fused and groups > 1)
        flat = out.transpose(1, 2).reshape(-1, out.shape[1], out.shape[-1])
        return (flat if self._plain else _Gather.apply(flat, self._gathered_N))[None]  # type: ignore[no-untyped-call]

    def _spread_rows(self, x: Tensor) -> Tensor:
        flat = x[0].transpose(0, 1)  # [N, heads, D]
        if not self._plain:
            flat = _Spread.apply(flat, self._spread, self._gathered_N, self._extra)  # type: ignore[no-untyped-call]
        return flat.reshape(self.count, self.longest, *flat.shape[1:]).transpose(1, 2)

    def _band(self, window: int | None, device: torch.device) -> Tensor | None:
        """Return which keys a query sees under a sliding window; None where the window hides nothing."""
        if window is None or window >= self.longest:
            return None
        if window not in self._bands:
            ones = torch.ones(self.longest, self.longest, dtype=torch.bool, device=device)
            self._bands[window] = ones.tril().triu(1 - window)
        return self._bands[window]


class _Spread(torch.autograd.Function):
    """Spread tokens [N, …] over their places; the gradient of a token is the sum over its places.

    Most tokens have one place. Their gradients are picked, not added up: adding is slow, and on a GPU not repeatable.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, spread: Tensor, gathered_N: Tensor, extra: Tensor) -> Tensor:
        ctx.save_for_backward(spread, gathered_N, extra)
        return flat.index_select(0, spread)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        spread, gathered_N, extra = ctx.saved_tensors
        result = grad.index_select(0, gathered_N)
        if len(extra):  # in float32: a prompt may have many places
            total = result.float().index_add_(0, spread[extra], grad[extra].float())
            result = total.to(grad.dtype)
        return result, None, None, None


class _Gather(torch.autograd.Function):
    """Pick each token [N, …] from one of its places; the other places have no gradient."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, gathered_N: Tensor) -> Tensor:
        ctx.save_for_backward(gathered_N)
        ctx.places = len(flat)
        return flat.index_select(0, gathered_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (gathered_N,) = ctx.saved_tensors
        return grad.new_zeros(ctx.places, *grad.shape[1:]).index_copy_(0, gathered_N, grad), None


class Prefill(Packed):
    """`Packed`, and the keys and values of each sequence are kept for every row that goes on from it.

    Args:
        lengths: tokens of each prompt.
        rows: for each prompt, the rows of `cache` that share it.
        cache: where to keep them.
        device: of the tensors.
    """

    def __init__(
        self, lengths: Sequence[int], rows: Sequence[Sequence[int]], cache: KeyValues, device: torch.device
    ) -> None:
        prompts = consecutive(lengths)
        super().__init__(prompts, device)
        self._cache = cache
        copies = [(row, prompt) for prompt, mine in zip(prompts, rows, strict=True) for row in mine]
        self._rows_M, self._positions_M, self._tokens_M = (
            torch.from_numpy(np.concatenate(parts)).to(device)
            for parts in (
                [np.full(len(prompt), row) for row, prompt in copies],
                [np.arange(len(prompt)) for _, prompt in copies],
                [prompt for _, prompt in copies],
            )
        )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """Keep k and v, then attend."""
        for kept, new in zip(self._cache.of(layer, k, v), (k, v), strict=True):
            kept[self._rows_M, :, self._positions_M] = new[0].transpose(0, 1)[self._tokens_M]
        return super().attend(layer, q, k, v, scale=scale, window=window, cap=cap)


def consecutive(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the places of the tokens of sequences that lie end to end."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]


class Decode:
    """One new token for each of the first R rows of a cache.

    Args:
        cache: the keys and values so far; the new ones are written into it.
        positions_R: where each row's new token stands; it sees itself and everything before.
        length: how much of the cache to read, more than the largest position.
    """

    def __init__(self, cache: KeyValues, positions_R: Tensor, length: int) -> None:
        self._cache = cache
        self._positions_R = positions_R
        self._rows_R = torch.arange(len(positions_R), device=positions_R.device)
        self._length = length
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, cap: float | None
    ) -> Tensor:
        """Attend from q [R, H, 1, D] to each row's keys; returns [R, 1, H, D].

        Heads that share keys become queries of one head, [R, K, G, D]: nothing is repeated in memory.
        """
        rows, heads, _, width = q.shape
        keys, values = self._cache.of(layer, k, v)
        keys[self._rows_R, :, self._positions_R] = k[:, :, 0]
        values[self._rows_R, :, self._positions_R] = v[:, :, 0]
        q = q.view(rows, k.shape[1], heads // k.shape[1], width)
        k, v = keys[:rows, :, : self._length], values[:rows, :, : self._length]
        mask = self._mask(window, q.dtype)
        # Fused kernels are made for many queries; for one, two plain products are faster if heads are wide.
        if cap is None and q.device.type != "cpu" and width < 128:
            out = sdpa(q, k, v, attn_mask=mask.expand(*q.shape[:3], self._length), scale=scale)
        else:
            out = plain_attention(q, k, v, mask, scale=scale, cap=cap)
        return out.reshape(rows, 1, heads, v.shape[-1])

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return [R, 1, 1, L] to add to the scores; the layers of one step share it."""
        if (window, dtype) not in self._masks:
            columns_L = torch.arange(self._length, device=self._positions_R.device)
            visible_RL = columns_L[None] <= self._positions_R[:, None]
            if window is not None:
                visible_RL &= columns_L[None] > self._positions_R[:, None] - window
            hidden_RL = torch.zeros_like(visible_RL, dtype=dtype).masked_fill_(~visible_RL, -math.inf)
            self._masks[window, dtype] = hidden_RL[:, None, None]
        return self._masks[window, dtype]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, cap: float | None) -> Tensor:
    """Attend by two matrix products.

    With `cap`, scores are bounded softly, cap · tanh(score / cap), which no fused kernel offers (Gemma 2). `mask` is
    added to the scores.
    """
    scores = (q * scale) @ k.transpose(-1, -2)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    return (scores + mask).softmax(-1, dtype=torch.float32).to(v.dtype) @ v
