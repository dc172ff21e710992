"""The next token of each row and its log-probability, with one pass over the logits.

Shape legend: R rows, V tokens of the vocabulary, C chunks of a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import jit, tl, triton, use_triton

CHUNK = 4096  # logits of a program: 32 for each of 128 threads, in loads of 16 bytes


def sample_tokens(
    logits_RV: Tensor, uniforms_R: Tensor, temperature: float, floor_R: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the token at which the cumulative probability passes the row's uniform number, and its log-probability.

    p_v = exp(x_v / temperature) / Σ exp(x / temperature) over the logits that are not below the row's floor. At
    temperature 0 the token is the first of the likeliest, and its log-probability that of the softmax. A token of
    probability 0 is never chosen. Where a logit is NaN or inf, the log-probability is not finite.
    """
    if use_triton(logits_RV):
        return _launch(logits_RV, uniforms_R, temperature, floor_R)
    return sample_tokens_torch(logits_RV, uniforms_R, temperature, floor_R)


def sample_tokens_torch(
    logits_RV: Tensor, uniforms_R: Tensor, temperature: float, floor_R: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`sample_tokens` with the whole distribution in memory."""
    logits_RV = logits_RV.float()
    if floor_R is not None:
        logits_RV = logits_RV.masked_fill(logits_RV < floor_R[:, None], -math.inf)
    if temperature == 0:
        tokens_R = logits_RV.argmax(-1)
        return tokens_R, pick(logits_RV.log_softmax(-1), tokens_R)
    p_RV = (logits_RV / temperature).softmax(-1)
    cumulative_RV = p_RV.cumsum(-1)
    # Rounding may leave the last sum a little off 1, so the target is scaled by it and stays below it. A token of
    # probability 0 is never the first to pass. The clamp is for logits that are NaN, which the caller reports.
    target_R1 = (uniforms_R * cumulative_RV[:, -1])[:, None]
    tokens_R = torch.searchsorted(cumulative_RV, target_R1, right=True).squeeze(-1).clamp_(max=logits_RV.shape[-1] - 1)
    return tokens_R, pick(p_RV, tokens_R).log()


def pick(values_RV: Tensor, index_R: Tensor) -> Tensor:
    """Return one value of each row."""
    return values_RV.gather(-1, index_R[:, None]).squeeze(-1)


@jit
def load_logits(logits, row, stride, column, vocabulary, floor, inverse_temperature, HAS_FLOOR: tl.constexpr):
    """Return x / temperature; -inf outside the row and below the floor. NaN stays NaN."""
    x = tl.load(logits + row.to(tl.int64) * stride + column, mask=column < vocabulary, other=float("-inf"))
    x = x.to(tl.float32)
    if HAS_FLOOR:
        x = tl.where(x < tl.load(floor + row), float("-inf"), x)
    return x * inverse_temperature


@jit
def finite_or_zero(peak):
    """Return what to subtract before exp: without a finite logit, -inf - -inf would be NaN."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@jit
def _sample_sums(
    logits,
    floor,
    peaks,
    sums,
    places,
    stride,
    vocabulary,
    chunks,
    inverse_temperature,
    CHUNK: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
):
    """One program: largest logit of a chunk, its place, and Σ exp(x - largest)."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_logits(logits, row, stride, column, vocabulary, floor, inverse_temperature, HAS_FLOOR)
    peak, place = tl.max(x, 0, return_indices=True)  # the first, where several are equal
    at = row * chunks + chunk
    tl.store(peaks + at, peak)
    tl.store(places + at, chunk * CHUNK + place)
    tl.store(sums + at, tl.sum(tl.exp(x - finite_or_zero(peak)), 0))


@jit
def _first_to_pass(mass, target, SIZE: tl.constexpr):
    """Return the first index at which the cumulative mass passes the target, and the mass before it.

    Sums of a parallel scan need not grow where 0 is added, and may end below the target: only an index with mass
    counts, and the last of them if none passes.
    """
    index = tl.arange(0, SIZE)
    cumulative = tl.cumsum(mass, 0)
    first = tl.min(tl.where((cumulative > target) & (mass > 0), index, SIZE), 0)
    first = tl.minimum(first, tl.max(tl.where(mass > 0, index, 0), 0))
    return first, tl.sum(tl.where(index == first, cumulative - mass, 0.0), 0)


@jit
def _sample_choose(
    logits,
    floor,
    peaks,
    sums,
    places,
    uniforms,
    tokens,
    logprobs,
    stride,
    vocabulary,
    chunks,
    inverse_temperature,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
    IS_GREEDY: tl.constexpr,
):
    """One program: a row. The chunk first, from the sums; then the token in it, from its logits."""
    row = tl.program_id(0)
    index = tl.arange(0, CHUNKS)
    at = row * chunks + index
    peak_of = tl.load(peaks + at, mask=index < chunks, other=float("-inf"))
    sum_of = tl.load(sums + at, mask=index < chunks, other=0.0)
    peak, best = tl.max(peak_of, 0, return_indices=True)
    peak = finite_or_zero(peak)
    mass = sum_of * tl.exp(peak_of - peak)
    total = tl.sum(mass, 0)
    if IS_GREEDY:  # the bounds are for NaN, beside which any place may be the largest
        best = row * chunks + tl.minimum(best, chunks - 1)
        token = tl.minimum(tl.load(places + best), vocabulary - 1)
        x = tl.load(peaks + best)
    else:
        target = tl.load(uniforms + row) * total
        chunk, before = _first_to_pass(mass, target, CHUNKS)
        inner = tl.arange(0, CHUNK)
        column = chunk * CHUNK + inner
        x_of = load_logits(logits, row, stride, column, vocabulary, floor, inverse_temperature, HAS_FLOOR)
        found, _ = _first_to_pass(tl.exp(x_of - peak), target - before, CHUNK)
        token = chunk * CHUNK + found
        x = tl.sum(tl.where(inner == found, x_of, 0.0), 0)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, x - peak - tl.log(total))


def _launch(logits_RV: Tensor, uniforms_R: Tensor, temperature: float, floor_R: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits_RV.shape
    assert logits_RV.stride(1) == uniforms_R.stride(0) == 1
    size = min(CHUNK, triton.next_power_of_2(vocabulary))
    chunks = triton.cdiv(vocabulary, size)
    peaks_RC, sums_RC = (uniforms_R.new_empty(rows, chunks, dtype=torch.float32) for _ in range(2))
    places_RC = uniforms_R.new_empty(rows, chunks, dtype=torch.int32)
    tokens_R = uniforms_R.new_empty(rows, dtype=torch.int64)
    logprobs_R = uniforms_R.new_empty(rows, dtype=torch.float32)
    floor = uniforms_R if floor_R is None else floor_R
    sizes = (logits_RV.stride(0), vocabulary, chunks, 1 / temperature if temperature else 1.0)
    options = {"CHUNK": size, "HAS_FLOOR": floor_R is not None}
    _sample_sums[(chunks, rows)](logits_RV, floor, peaks_RC, sums_RC, places_RC, *sizes, **options, num_warps=4)
    _sample_choose[(rows,)](
        *(logits_RV, floor, peaks_RC, sums_RC, places_RC, uniforms_R, tokens_R, logprobs_R),
        *sizes,
        **options,
        CHUNKS=triton.next_power_of_2(chunks),
        IS_GREEDY=temperature == 0,
        num_warps=8,  # few programs, and each waits for its chunk
    )
    return tokens_R, logprobs_R
