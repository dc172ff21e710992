"""Our attention function; the current plan decides which tokens see which.

`PackedAttention` runs whole sequences laid end to end without padding: learning, and the prefill of prompts.
`DecodeAttention` runs one new token for each of many rows over their cached keys and values. A model from Hugging Face
builds no mask and keeps no cache.

Shape legend: N tokens of all sequences laid end to end, H heads, K key-value heads, D width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

from rewardsmith.engines.embedded.kernels.block_attention import matmul_attention

# From torch 2.12 on it must be said that heads share keys.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
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

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Return [N, H, D], what each query reads."""
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


def attend(layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
    """Attend under the current plan."""
    if _plan is None:
        raise RuntimeError("attention was called outside `attention_plan`")
    return _plan.attend(layer, q_NHD, k_NKD, v_NKD)


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
    if others.get("s_aux") is not None:
        raise NotImplementedError("attention sinks are not supported by the embedded engine")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer = AttentionLayer(int(module.layer_idx), scale, sliding_window, softcap)
    out_NHD = attend(layer, *(x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)))
    return out_NHD.view(query.shape[0], query.shape[2], *out_NHD.shape[1:]), None


AttentionInterface.register(ATTENTION, _attend)


class PackedAttention:
    """Sequences laid end to end; each token sees its own sequence up to itself.

    Sequences may share a beginning: the prompt of several responses is there once among the N tokens, and goes through
    every layer once. `sequences` are the places of their tokens among the N, in the order of the N; `positions_N` is
    the position of each token in its sequence.
    """

    def __init__(self, sequences: Sequence[NDArray[np.int64]], device: torch.device) -> None:
        self._device = device
        self._lengths = np.array([len(sequence) for sequence in sequences])
        self._tokens = np.concatenate(sequences)
        starts = np.cumsum(self._lengths) - self._lengths
        self._positions = np.arange(len(self._tokens)) - np.repeat(starts, self._lengths)
        positions_N = np.empty(int(self._tokens.max()) + 1, dtype=np.int64)
        positions_N[self._tokens] = self._positions
        self.positions_N = to_device(positions_N, device)
        self._masks: dict[int | None, Tensor] = {}
        self.windows: set[int | None] = set()  # that layers have used so far

    def attend(self, layer: AttentionLayer, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        """Attend within each sequence."""
        self.windows.add(layer.window)
        if layer.cap is None and _fits_flash(q_NHD, v_NKD):
            return self._flash(layer, q_NHD, k_NKD, v_NKD)
        return self._padded(layer, q_NHD, k_NKD, v_NKD)

    # ---- on a GPU: one kernel for sequences of any length ----------------------------------------------------------

    def _flash(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The queries of a sequence are its own tokens; its keys begin with the prompt that it shares."""
        starts_q, starts_k, longest_q, longest_k, repeats = self._flash_layout
        if repeats is not None:
            k, v = repeats.apply(k), repeats.apply(v)
        left = -1 if layer.window is None else layer.window - 1
        out = varlen_attn(
            q, k, v, starts_q, starts_k, longest_q, longest_k, scale=layer.scale, window_size=(left, 0), **_GROUPED
        )
        assert isinstance(out, Tensor)  # and no pair: nothing else was requested
        return out

    @cached_property
    def _flash_layout(self) -> tuple[Tensor, Tensor, int, int, _Repeats | None]:
        ends = np.maximum.accumulate(self._tokens[np.cumsum(self._lengths) - 1]) + 1
        new = np.diff(ends, prepend=0)  # tokens of a sequence that no sequence before it has
        keys, new = self._lengths[new > 0], new[new > 0]
        starts_q, starts_k = (to_device(np.cumsum([0, *counts]), self._device, np.int32) for counts in (new, keys))
        repeats = None if len(self._tokens) == len(self.positions_N) else _Repeats(self._tokens, self._device)
        return starts_q, starts_k, int(new.max()), int(keys.max()), repeats

    # ---- anywhere: sequences padded to the longest -----------------------------------------------------------------

    def _padded(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Padding is on the right, where causal attention never looks, so no mask is needed."""
        width, repeats = self._padded_layout
        shape = (len(self._lengths), width)
        if repeats is not None:
            q, k, v = (repeats.apply(x) for x in (q, k, v))
        q, k, v = (x.reshape(*shape, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        slides = layer.window is not None and layer.window < width
        fused = q.device.type == "cuda" and not slides and layer.cap is None  # kernels that share keys among heads
        if groups > 1 and not fused:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        if layer.cap is not None:
            visible = self._visible(layer.window if slides else None, width)
            mask = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, -math.inf)
            out = matmul_attention(q, k, v, mask, scale=layer.scale, cap=layer.cap)
        else:
            band = self._visible(layer.window, width) if slides else None
            out = sdpa(q, k, v, band, is_causal=not slides, scale=layer.scale, enable_gqa=fused and groups > 1)
        out = out.transpose(1, 2).flatten(0, 1)
        return out if repeats is None else repeats.undo(out)

    @cached_property
    def _padded_layout(self) -> tuple[int, _Repeats | None]:
        width = int(self._lengths.max())
        places = np.repeat(width * np.arange(len(self._lengths)), self._lengths) + self._positions
        spread = np.zeros(len(self._lengths) * width, dtype=np.int64)
        spread[places] = self._tokens
        if np.array_equal(spread, np.arange(len(self.positions_N))):
            return width, None
        return width, _Repeats(spread, self._device, places)

    def _visible(self, window: int | None, width: int) -> Tensor:
        """Return which keys each query sees, [L, L]; the layers of one pass share it."""
        if window not in self._masks:
            ones = torch.ones(width, width, dtype=torch.bool, device=self._device).tril()
            self._masks[window] = ones if window is None else ones.triu(1 - window)
        return self._masks[window]


class _Repeats:
    """N tokens laid out over more places: a token may have several, and a place may hold padding.

    `spread` has the token of each place; `places` are those that are no padding, by default all.
    """

    def __init__(
        self, spread: NDArray[np.int64], device: torch.device, places: NDArray[np.int64] | None = None
    ) -> None:
        places = np.arange(len(spread)) if places is None else places
        tokens = spread[places]
        gathered = np.empty(int(tokens.max()) + 1, dtype=np.int64)
        gathered[tokens] = places  # a shared token comes out the same from each of its sequences: any one will do
        extra = places[gathered[tokens] != places]
        shared, index = np.unique(spread[extra], return_inverse=True)
        self._spread, self._gathered_N = to_device(spread, device), to_device(gathered, device)
        self._sums = tuple(to_device(numbers, device) for numbers in (extra, shared, index))

    def apply(self, flat: Tensor) -> Tensor:
        """Lay tokens [N, …] out over their places."""
        out: Tensor = _Spread.apply(flat, self._spread, self._gathered_N, *self._sums)  # type: ignore[no-untyped-call]
        return out

    def undo(self, spread: Tensor) -> Tensor:
        """Pick each of the N tokens from one of its places."""
        out: Tensor = _Gather.apply(spread, self._gathered_N)  # type: ignore[no-untyped-call]
        return out


def _fits_flash(q: Tensor, v: Tensor) -> bool:
    width = q.shape[-1]
    return q.is_cuda and q.dtype != torch.float32 and width == v.shape[-1] and width % 8 == 0 and width <= 256


class _Spread(torch.autograd.Function):
    """Spread tokens [N, …] over their places; the gradient of a token is the sum over its places.

    Most tokens have one place. Their gradients are picked, not summed: adding is slow, and on a GPU not repeatable.
    `extra` are the other places of the `shared` tokens, and `index` says which one of these each belongs to.
    """

    @staticmethod
    def forward(
        ctx: Any, flat: Tensor, spread: Tensor, gathered_N: Tensor, extra: Tensor, shared: Tensor, index: Tensor
    ) -> Tensor:
        ctx.save_for_backward(gathered_N, extra, shared, index)
        return flat.index_select(0, spread)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gathered_N, extra, shared, index = ctx.saved_tensors
        result = grad.index_select(0, gathered_N)
        if len(extra):  # in float32: a prompt may have many places
            total = result.index_select(0, shared).float().index_add_(0, index, grad.index_select(0, extra).float())
            result.index_copy_(0, shared, total.to(grad.dtype))
        return result, *[None] * 5


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


def to_device(numbers: Sequence[int] | NDArray[np.integer], device: torch.device, dtype: type = np.int64) -> Tensor:
    """Return integers as a tensor; the host does not wait until the device has done what was launched before."""
    tensor = torch.from_numpy(np.asarray(numbers, dtype=dtype))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
