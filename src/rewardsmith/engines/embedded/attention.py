"""Our attention function for Hugging Face models; the current plan decides which tokens see which.

`PackedAttention` runs whole sequences laid end to end without padding: learning, and the prefill of prompts.
`DecodeAttention` runs one new token for each of many rows over their cached keys and values. The model itself builds no
mask and keeps no cache.

Shape legend: N tokens of all sequences laid end to end, B sequences, R rows that decode, L length of the longest,
H heads, K key-value heads, G = H / K heads that share one of them, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

ATTENTION = "rewardsmith"  # our key in transformers' table of attention functions


@dataclass(frozen=True)
class AttentionLayer:
    """What a layer passes to its attention function."""

    index: int
    scale: float
    window: int | None  # tokens of the sliding window
    cap: float | None  # soft cap of the scores: cap · tanh(score / cap), which no fused kernel offers (Gemma 2)


class AttentionPlan(Protocol):
    """Which tokens see which in one forward pass."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return [batch, tokens, H, D] for q [batch, H, tokens, D] and k, v [batch, K, tokens, D]."""
        ...


# One process runs one forward pass at a time. Gradient checkpointing repeats attention in a thread of autograd's, where
# a context variable would be lost; so this is a global, and `backward` runs inside `attention_plan` too.
_plan: AttentionPlan | None = None


def set_attention_plan(plan: AttentionPlan | None) -> None:
    """Use a plan for the passes from now on."""
    global _plan  # noqa: PLW0603 see above
    _plan = plan


@contextmanager
def attention_plan(plan: AttentionPlan) -> Iterator[None]:
    """Run forward and backward passes under a plan."""
    before = _plan
    set_attention_plan(plan)
    try:
        yield
    finally:
        set_attention_plan(before)


def _attend(
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
    if _plan is None:
        raise RuntimeError("attention was called outside `attention_plan`")
    if others.get("s_aux") is not None:
        raise NotImplementedError("attention sinks are not supported by the embedded engine")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return _plan.attend(AttentionLayer(int(module.layer_idx), scale, sliding_window, softcap), query, key, value), None


AttentionInterface.register(ATTENTION, _attend)


class PackedAttention:
    """Sequences laid end to end; each token sees its own sequence up to itself.

    Sequences may share a beginning: the prompt of several responses is there once among the N tokens, and goes through
    every layer once. Only attention repeats it for each sequence. `sequences` are the places of their tokens among the
    N; `positions_N` is the position of each token in its sequence.
    """

    def __init__(self, sequences: Sequence[NDArray[np.int64]], device: torch.device) -> None:
        lengths = np.array([len(sequence) for sequence in sequences])
        self._count, self._width = len(sequences), int(lengths.max())
        places = np.concatenate([i * self._width + np.arange(n) for i, n in enumerate(lengths)])
        tokens = np.concatenate(sequences)
        spread = np.zeros(self._count * self._width, dtype=np.int64)
        spread[places] = tokens
        gathered = np.empty(int(tokens.max()) + 1, dtype=np.int64)
        gathered[tokens] = places  # a shared token comes out the same from each of its sequences: any one will do
        self._is_identity = np.array_equal(spread, np.arange(len(gathered)))
        self._spread = to_device(spread, device)
        self._gathered_N = to_device(gathered, device)
        self._extra = to_device(places[gathered[tokens] != places], device)
        self.positions_N = self._gathered_N % self._width
        self._masks: dict[int | None, Tensor] = {}
        self.windows: set[int | None] = set()  # that layers have used so far

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend within each sequence: q [1, H, N, D] gives [1, N, H, D].

        Tokens are spread to [B, L] for this step alone. They are padded on the right, where causal attention never
        looks, so no mask is needed and the fastest kernels apply.
        """
        self.windows.add(layer.window)
        q, k, v = (self._spread_rows(x) for x in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        slides = layer.window is not None and layer.window < self._width
        fused = q.device.type == "cuda" and not slides and layer.cap is None  # kernels that share keys among heads
        if groups > 1 and not fused:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        if layer.cap is not None:
            visible = self._visible(layer.window if slides else None, q.device)
            mask = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -math.inf)
            out = _matmul_attention(layer, q, k, v, mask)
        else:
            band = self._visible(layer.window, q.device) if slides else None
            out = sdpa(q, k, v, band, is_causal=not slides, scale=layer.scale, enable_gqa=fused and groups > 1)
        flat = out.transpose(1, 2).reshape(-1, out.shape[1], out.shape[-1])
        return (flat if self._is_identity else _Gather.apply(flat, self._gathered_N))[None]  # type: ignore[no-untyped-call]

    def _spread_rows(self, x: Tensor) -> Tensor:
        flat = x[0].transpose(0, 1)  # [N, heads, D]
        if not self._is_identity:
            flat = _Spread.apply(flat, self._spread, self._gathered_N, self._extra)  # type: ignore[no-untyped-call]
        return flat.reshape(self._count, self._width, *flat.shape[1:]).transpose(1, 2)

    def _visible(self, window: int | None, device: torch.device) -> Tensor:
        """Return which keys each query sees, [L, L]; the layers of one pass share it."""
        if window not in self._masks:
            ones = torch.ones(self._width, self._width, dtype=torch.bool, device=device).tril()
            self._masks[window] = ones if window is None else ones.triu(1 - window)
        return self._masks[window]


class KeyValueCache:
    """Keys and values of up to `rows` sequences of up to `length` tokens: [rows, K, length, D] for each layer."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows = rows
        self.length = length
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return a layer's tensors, allocated at the first call like k and v."""
        if layer not in self._layers:
            shape = (self.rows, k.shape[1], self.length)
            self._layers[layer] = (k.new_zeros(*shape, k.shape[-1]), v.new_zeros(*shape, v.shape[-1]))
        return self._layers[layer]

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` tokens of the rows `sources` to the rows `targets`."""
        for pair in self._layers.values():
            for tensor in pair:
                tensor[targets, :, :length] = tensor[sources, :, :length]


class PrefillAttention(PackedAttention):
    """`PackedAttention` over prompts that stores keys and values in the cache, for all `rows` that share a prompt."""

    def __init__(
        self, lengths: Sequence[int], rows: Sequence[Sequence[int]], cache: KeyValueCache, device: torch.device
    ) -> None:
        prompts = consecutive(lengths)
        super().__init__(prompts, device)
        self._cache = cache
        copies = [(row, prompt) for prompt, mine in zip(prompts, rows, strict=True) for row in mine]
        self._rows_M = to_device(np.concatenate([np.full(len(prompt), row) for row, prompt in copies]), device)
        self._positions_M = to_device(np.concatenate([np.arange(len(prompt)) for _, prompt in copies]), device)
        self._tokens_M = to_device(np.concatenate([prompt for _, prompt in copies]), device)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, then attend."""
        for cached, new in zip(self._cache.layer(layer.index, k, v), (k, v), strict=True):
            cached[self._rows_M, :, self._positions_M] = new[0].transpose(0, 1)[self._tokens_M]
        return super().attend(layer, q, k, v)


class DecodeAttention:
    """One new token for each of the first R rows of a cache, at `positions_R`; it sees itself and everything before.

    `length` is how much of the cache is read, more than the largest position.
    """

    def __init__(self, cache: KeyValueCache, positions_R: Tensor, length: int) -> None:
        self._cache = cache
        self._positions_R = positions_R
        self._rows_R = torch.arange(len(positions_R), device=positions_R.device)
        self._length = length
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from q [R, H, 1, D] to each row's keys; returns [R, 1, H, D].

        Heads that share keys become queries of one head, [R, K, G, D]: nothing is repeated in memory.
        """
        rows, heads, _, width = q.shape
        keys, values = self._cache.layer(layer.index, k, v)
        keys[self._rows_R, :, self._positions_R] = k[:, :, 0]
        values[self._rows_R, :, self._positions_R] = v[:, :, 0]
        q = q.view(rows, k.shape[1], heads // k.shape[1], width)
        k, v = keys[:rows, :, : self._length], values[:rows, :, : self._length]
        mask = self._mask(layer.window, q.dtype)
        # Fused kernels are made for many queries; for one, two matrix products are faster if heads are wide.
        if layer.cap is None and q.device.type != "cpu" and width < 128:
            out = sdpa(q, k, v, attn_mask=mask.expand(*q.shape[:3], self._length), scale=layer.scale)
        else:
            out = _matmul_attention(layer, q, k, v, mask)
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


def _matmul_attention(layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attend by two matrix products; `mask` is added to the scores."""
    scores = (q * layer.scale) @ k.transpose(-1, -2)
    if layer.cap is not None:
        scores = torch.tanh(scores / layer.cap) * layer.cap
    return (scores + mask).softmax(-1, dtype=torch.float32).to(v.dtype) @ v


class _Spread(torch.autograd.Function):
    """Spread tokens [N, …] over their places; the gradient of a token is the sum over its places.

    Most tokens have one place. Their gradients are picked, not summed: adding is slow, and on a GPU not repeatable.
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


def consecutive(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the places of the tokens of sequences that lie end to end and share nothing."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def to_device(numbers: Sequence[int] | NDArray[np.integer], device: torch.device) -> Tensor:
    """Return integers as an int64 tensor; nobody waits for what the device does meanwhile."""
    tensor = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
