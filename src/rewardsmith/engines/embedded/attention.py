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
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface

from rewardsmith.engines.embedded.cards import to_device
from rewardsmith.engines.embedded.kernels.block_attention import matmul_attention
from rewardsmith.engines.embedded.kernels.repeats import Repeats

# What `torch.nn.attention.varlen.varlen_attn` calls, whose own layers take the host longer than a small model's kernel.
flash_attention = torch.ops.aten._flash_attention_forward
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
        out: Tensor = flash_attention(
            *(q, k, v, starts_q, starts_k, longest_q, longest_k),
            dropout_p=0.0,
            is_causal=layer.window is None,
            return_debug_mask=False,
            scale=layer.scale,
            window_size_left=left,
            window_size_right=0,
        )[0]
        return out

    @cached_property
    def _flash_layout(self) -> tuple[Tensor, Tensor, int, int, Repeats | None]:
        ends = np.maximum.accumulate(self._tokens[np.cumsum(self._lengths) - 1]) + 1
        new = np.diff(ends, prepend=0)  # tokens of a sequence that no sequence before it has
        keys, new = self._lengths[new > 0], new[new > 0]
        starts_q, starts_k = (to_device(np.cumsum([0, *counts]), self._device, np.int32) for counts in (new, keys))
        repeats = None if len(self._tokens) == len(self.positions_N) else Repeats(self._tokens, self._device)
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
    def _padded_layout(self) -> tuple[int, Repeats | None]:
        width = int(self._lengths.max())
        places = np.repeat(width * np.arange(len(self._lengths)), self._lengths) + self._positions
        spread = np.zeros(len(self._lengths) * width, dtype=np.int64)
        spread[places] = self._tokens
        if np.array_equal(spread, np.arange(len(self.positions_N))):
            return width, None
        return width, Repeats(spread, self._device, places)

    def _visible(self, window: int | None, width: int) -> Tensor:
        """Return which keys each query sees, [L, L]; the layers of one pass share it."""
        if window not in self._masks:
            ones = torch.ones(width, width, dtype=torch.bool, device=self._device).tril()
            self._masks[window] = ones if window is None else ones.triu(1 - window)
        return self._masks[window]


def _fits_flash(q: Tensor, v: Tensor) -> bool:
    width = q.shape[-1]
    return q.is_cuda and q.dtype != torch.float32 and width == v.shape[-1] and width % 8 == 0 and width <= 256


def consecutive(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the places of the tokens of sequences that lie end to end and share nothing."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
