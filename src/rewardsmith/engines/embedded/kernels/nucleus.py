"""The smallest logit that top-p sampling keeps.

Shape legend: R rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import jit, tl, triton, use_triton
from rewardsmith.engines.embedded.kernels.sample_tokens import CHUNK, finite_or_zero, load_logits, pick


def nucleus_floor(logits_RV: Tensor, temperature: float, top_p: float) -> Tensor:
    """Return floor_R: the smallest logit x of a row with Σ_{x' > x} p(x') < top_p, for p = softmax(x / temperature).

    What is not below the floor is kept: the likeliest tokens, up to and with the one that reaches `top_p`, and those
    that are exactly as likely as it.
    """
    if use_triton(logits_RV):
        return _launch(logits_RV, temperature, top_p)
    return nucleus_floor_torch(logits_RV, temperature, top_p)


def nucleus_floor_torch(logits_RV: Tensor, temperature: float, top_p: float) -> Tensor:
    """`nucleus_floor` by sorting."""
    sorted_RV = logits_RV.float().sort(-1, descending=True).values
    p_RV = (sorted_RV / temperature).softmax(-1)
    kept_R = (p_RV.cumsum(-1) - p_RV < top_p).sum(-1)
    return pick(sorted_RV, (kept_R - 1).clamp_(min=0))  # 0 only for logits that are NaN, which the caller reports


@jit
def _ordered(x):
    """Return integers in the order of float32 numbers; the same function turns them back."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _sample_floor(
    logits,
    floor,
    stride,
    vocabulary,
    inverse_temperature,
    top_p,
    CHUNK: tl.constexpr,
    BITS: tl.constexpr,
):
    """One program: a row. Search the floor, two bits in each pass, by the mass above three numbers.

    The first BITS bits of a number tell it from all others: 16 for bfloat16, 32 for float32.
    """
    row = tl.program_id(0)
    lanes = tl.arange(0, CHUNK)
    top = tl.full([CHUNK], float("-inf"), tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for start in range(0, vocabulary, CHUNK):
        x = load_logits(logits, row, stride, start + lanes, vocabulary, floor, inverse_temperature, False)
        new_top = tl.maximum(top, x)
        shift = finite_or_zero(new_top)
        total = total * tl.exp(top - shift) + tl.exp(x - shift)
        top = new_top
    peak = finite_or_zero(tl.max(top, 0))
    wanted = top_p * tl.sum(total * tl.exp(top - peak), 0)

    # The floor is the largest number with at least the wanted mass at or above it: `low` plus less than 4 · step.
    low = tl.full([], -(1 << (BITS - 1)), tl.int32)
    for index in range(BITS // 2):
        step = 1 << (BITS - 2 - 2 * index)
        mass_1 = tl.zeros([CHUNK], tl.float32)
        mass_2 = tl.zeros([CHUNK], tl.float32)
        mass_3 = tl.zeros([CHUNK], tl.float32)
        for start in range(0, vocabulary, CHUNK):
            x = load_logits(logits, row, stride, start + lanes, vocabulary, floor, 1.0, False)
            key = _ordered(x) >> (32 - BITS)
            p = tl.exp(x * inverse_temperature - peak)
            mass_1 += tl.where(key >= low + step, p, 0.0)
            mass_2 += tl.where(key >= low + 2 * step, p, 0.0)
            mass_3 += tl.where(key >= low + 3 * step, p, 0.0)
        reached = (tl.sum(mass_1, 0) >= wanted).to(tl.int32)
        reached += (tl.sum(mass_2, 0) >= wanted).to(tl.int32)
        reached += (tl.sum(mass_3, 0) >= wanted).to(tl.int32)
        low += reached * step
    if BITS == 16:
        low = (low << 16) | ((low >> 31) & 0xFFFF)
    tl.store(floor + row, _ordered(low).to(tl.float32, bitcast=True))


def _launch(logits_RV: Tensor, temperature: float, top_p: float) -> Tensor:
    rows, vocabulary = logits_RV.shape
    assert logits_RV.stride(1) == 1
    floor_R = logits_RV.new_empty(rows, dtype=torch.float32)
    _sample_floor[(rows,)](
        *(logits_RV, floor_R, logits_RV.stride(0), vocabulary, 1 / temperature, top_p),
        CHUNK=min(CHUNK, triton.next_power_of_2(vocabulary)),
        BITS=16 if logits_RV.dtype == torch.bfloat16 else 32,
        num_warps=8,
    )
    return floor_R
