"""Attention of one new token per row over a key-value cache in blocks.

Nothing in a launch depends on lengths: they are read from `positions_R`. Of the shapes, it depends on those of q, of
the table and of a block. So a recorded CUDA graph stays valid while rows grow.

Shape legend: R rows, H heads, K key-value heads, G = H / K heads that share one of them, D width of a head, E width of
a value, B blocks, T tokens of a block, M blocks of a row, L = M · T, P tiles of n rows that share a prompt.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import jit, tl, triton, use_triton
from rewardsmith.engines.embedded.kernels.cache_blocks import Places, base_pointer, padded

PROGRAMS = 1024  # that keep a GPU busy: 132 multiprocessors of an H200 run three each, and the last round is not full
SPLIT_TOKENS = 256  # the least that is worth a program of its own: its partial result is written and read again

Prefix = tuple[Tensor, Tensor]


def block_attention(
    q_RHD: Tensor,
    keys_BKTD: Tensor,
    values_BKTE: Tensor,
    table_RM: Tensor,
    positions_R: Tensor,
    *,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    places: Places | None = None,
    prefix: Prefix | None = None,
) -> Tensor:
    """Return out_RHE: softmax(cap · tanh(scale · q · k / cap)) · v over the positions that a row sees.

    Row r sees 0 … positions_R[r], its own new key included, and the last `window` of them only. Other content of its
    blocks is never read by the kernel.

    `prefix = (members_Pn, shared_R)`, both int32, reads a common prompt once for up to n rows. Row r has its first
    `shared_R[r]` blocks, all full, in common with its tile; `members_Pn` are the rows of the tiles, padded with -1. A
    row that shares nothing is in no tile and has 0. `tile_rows` tells a good n. Without
    `prefix`, each row reads all its blocks; rows of a group should be neighbours then, so that they run together and
    the L2 cache serves what they share.

    When `prefix` pays: for a prompt of S tokens and V tokens after it, memory is read for S + n·V tokens either way, L2
    for n·(S + V) without it and S + n·V with it. The partial results that are merged then, two of 4·E bytes for each
    head, written and read, cost as much as 4·G tokens a row in bfloat16. So (n - 1)·S - 4·G·n tokens are saved, 384 of
    1,536 for n = 8, S = 64, V = 128, G = 2, for two more launches a layer: it is for prompts of hundreds of tokens.
    """
    if use_triton(q_RHD):
        return _launch(q_RHD, keys_BKTD, values_BKTE, table_RM, positions_R, scale, window, cap, places, prefix)
    return block_attention_torch(
        q_RHD, keys_BKTD, values_BKTE, table_RM, positions_R, scale=scale, window=window, cap=cap
    )


def block_attention_torch(
    q_RHD: Tensor,
    keys_BKTD: Tensor,
    values_BKTE: Tensor,
    table_RM: Tensor,
    positions_R: Tensor,
    *,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """`block_attention` by two matrix products over all positions of the table; they must hold numbers, not NaN."""
    rows, heads, width = q_RHD.shape
    k, v = (x[table_RM.long()].transpose(1, 2).flatten(2, 3) for x in (keys_BKTD, values_BKTE))  # [R, K, L, D]
    columns_L = torch.arange(k.shape[2], device=q_RHD.device)
    visible_RL = columns_L[None] <= positions_R[:, None]
    if window is not None:
        visible_RL &= columns_L[None] > positions_R[:, None] - window
    mask = torch.zeros_like(visible_RL, dtype=q_RHD.dtype).masked_fill_(~visible_RL, -math.inf)[:, None, None]
    q = q_RHD.reshape(rows, k.shape[1], -1, width)  # heads that share keys are queries of one head
    return matmul_attention(q, k, v, mask, scale=scale, cap=cap).reshape(rows, heads, v.shape[-1])


def matmul_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, cap: float | None = None
) -> Tensor:
    """Attend by two matrix products; `mask` is added to the scores."""
    scores = (q * scale) @ k.transpose(-1, -2)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    return (scores + mask).softmax(-1, dtype=torch.float32).to(v.dtype) @ v


# ---- kernels ---------------------------------------------------------------------------------------------------------


@jit
def _block_attention(  # noqa: PLR0915 one loop, read from top to bottom
    q,
    keys,
    values,
    table,
    positions,
    members,
    shared,
    out,
    lse,
    offsets,
    rows,
    scale,
    first_slot,
    splits,
    q_row,
    q_head,
    k_block,
    k_head,
    k_token,
    v_block,
    v_head,
    v_token,
    table_row,
    HEADS: tl.constexpr,
    G: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    QUERIES: tl.constexpr,
    MEMBERS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    IS_PREFIX: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_PLACES: tl.constexpr,
    IS_DIRECT: tl.constexpr,
):
    """One program: the queries of a row, or of n rows, that share a key head, over a part of the blocks."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    keys, values = base_pointer(keys, offsets, 0, HAS_PLACES), base_pointer(values, offsets, 1, HAS_PLACES)

    query = tl.arange(0, QUERIES)
    member = query // G
    if IS_PREFIX:
        row = tl.load(members + tile * MEMBERS + member, mask=member < MEMBERS, other=-1)
        leader = tl.max(row, 0)  # any row of the tile: their first blocks are the same; -1 in an empty tile
    else:
        row = tl.where(member < MEMBERS, tile, -1)
        leader = tile
    there = row >= 0
    position = tl.load(positions + row, mask=there, other=-1).to(tl.int32)

    first, last = 0, 0
    if IS_PREFIX:
        last = tl.load(shared + leader, mask=leader >= 0, other=0)
        if WINDOW > 0:
            first = tl.maximum(tl.min(tl.where(there, position, last * T), 0) + 1 - WINDOW, 0) // T
    else:
        last = tl.max(position, 0) // T + 1
        if HAS_PREFIX:
            first = tl.load(shared + leader)
        if WINDOW > 0:
            first = tl.maximum(first, tl.maximum(tl.max(position, 0) + 1 - WINDOW, 0) // T)
    share = tl.cdiv(tl.maximum(last - first, 0), splits)
    first += split * share
    last = tl.minimum(first + share, last)
    end = tl.max(position, 0) + 1

    d, e, t = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, T)
    head_of = head * G + query % G
    at = row.to(tl.int64)[:, None] * q_row + head_of[:, None] * q_head + d[None, :]
    tile_q = tl.load(q + at, mask=there[:, None] & (d < D)[None, :], other=0.0)
    keys += head * k_head + t[:, None] * k_token + d[None, :]
    values += head * v_head + t[:, None] * v_token + e[None, :]

    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, EP], tl.float32)
    for block in range(first, last):
        number = tl.load(table + leader.to(tl.int64) * table_row + block).to(tl.int64)
        column = block * T + t
        stored = column < end
        k = tl.load(keys + number * k_block, mask=stored[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(values + number * v_block, mask=stored[:, None] & (e < E)[None, :], other=0.0)
        scores = tl.dot(tile_q, tl.trans(k), input_precision="ieee") * scale
        if CAP > 0:  # tanh(x) = 1 - 2 / (1 + exp(2x))
            scores = CAP - 2 * CAP / (1 + tl.exp2(scores * (2 * 1.4426950408889634 / CAP)))
        visible = column[None, :] <= position[:, None]
        if WINDOW > 0:
            visible = visible & (column[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))  # in units of log 2
        new_top = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(new_top > float("-inf"), new_top, 0.0)  # a query that has seen nothing yet
        p = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(p, 1)
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None], input_precision="ieee")
        top = new_top

    total = tl.where(total > 0, total, 1.0)  # 0 where nothing was seen: the weight of the result is 2^-inf
    result = sums / total[:, None]
    place = row * HEADS + head_of
    if IS_DIRECT:
        at = place.to(tl.int64)[:, None] * E + e[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=there[:, None] & (e < E)[None, :])
    else:
        place = (first_slot + split).to(tl.int64) * rows * HEADS + place
        tl.store(lse + place, top + tl.log2(total), mask=there)
        tl.store(out + place[:, None] * E + e[None, :], result, mask=there[:, None] & (e < E)[None, :])


@jit
def _attention_merge(
    partial,
    lse,
    shared,
    out,
    rows,
    splits,
    slots,
    HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    E: tl.constexpr,
    EP: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
):
    """Combine the partial results of a row and head: out = Σ exp(lse_s) · partial_s / Σ exp(lse_s)."""
    place = tl.program_id(0).to(tl.int64)
    slot, e = tl.arange(0, SLOTS), tl.arange(0, EP)
    count = splits
    if HAS_PREFIX:
        count = tl.where(tl.load(shared + place // HEADS) > 0, slots, splits)
    written = slot < count
    at = slot.to(tl.int64) * rows * HEADS + place
    weight = tl.load(lse + at, mask=written, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, 0))
    parts = tl.load(partial + at[:, None] * E + e[None, :], mask=written[:, None] & (e < E)[None, :], other=0.0)
    result = tl.sum(parts * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + place * E + e, result.to(out.dtype.element_ty), mask=e < E)


def tile_rows(group: int) -> int:
    """Return how many rows read their prompt together, by G: more than 64 queries would not fit the registers."""
    return max(2, min(8, 64 // group))


# ---- launches --------------------------------------------------------------------------------------------------------


def split_count(tiles: int, heads: int, length: int) -> int:
    """Return over how many programs the blocks of a tile are split; 1 where there are programs enough.

    The last bits of a result depend on it, and so on the number of rows.
    """
    return max(1, min(math.ceil(PROGRAMS / (tiles * heads)), length // SPLIT_TOKENS))


def _launch(
    q_RHD: Tensor,
    keys: Tensor,
    values: Tensor,
    table_RM: Tensor,
    positions_R: Tensor,
    scale: float,
    window: int | None,
    cap: float | None,
    places: Places | None,
    prefix: Prefix | None,
) -> Tensor:
    rows, heads, width = q_RHD.shape
    (_, key_heads, tokens, _), out_width = keys.shape, values.shape[-1]
    group = heads // key_heads
    assert q_RHD.stride(2) == keys.stride(3) == values.stride(3) == table_RM.stride(1) == 1
    anchor_k, anchor_v, offsets = (keys, values, positions_R) if places is None else (places[0], places[0], places[1])
    length = table_RM.shape[1] * tokens
    members, shared = (table_RM, table_RM) if prefix is None else prefix
    splits = split_count(rows, key_heads, length)
    slots = splits + (0 if prefix is None else split_count(len(members), key_heads, length))
    out_RHE = q_RHD.new_empty(rows, heads, out_width)
    partial = out_RHE if slots == 1 else q_RHD.new_empty(slots, rows, heads, out_width, dtype=torch.float32)
    lse = out_RHE if slots == 1 else q_RHD.new_empty(slots, rows, heads, dtype=torch.float32)

    def attend(tiles: int, in_tile: int, first_slot: int, parts: int, *, is_prefix: bool) -> None:
        _block_attention[(tiles, key_heads, parts)](
            *(q_RHD, anchor_k, anchor_v, table_RM, positions_R, members, shared, partial, lse, offsets),
            *(rows, scale, first_slot, parts),
            *(*q_RHD.stride()[:2], *keys.stride()[:3], *values.stride()[:3], table_RM.stride(0)),
            HEADS=heads,
            G=group,
            T=tokens,
            D=width,
            E=out_width,
            DP=padded(width),
            EP=padded(out_width),
            QUERIES=padded(in_tile * group),
            MEMBERS=in_tile,
            WINDOW=window or 0,
            CAP=cap or 0.0,
            IS_PREFIX=is_prefix,
            HAS_PREFIX=prefix is not None,
            HAS_PLACES=places is not None,
            IS_DIRECT=slots == 1,
            # The pipeline fetches the number of a block ahead of the block: of five stages, two are buffers of keys and
            # values, of three, one. Two for D = 128 in bfloat16 are 64 KiB, and three programs fit a multiprocessor
            # (168 registers, 72 KiB each); 30 KiB of requests hide the latency of the memory. In float32 the products
            # run on the ordinary cores and need the registers of eight warps.
            num_warps=4 if keys.element_size() == 2 else 8,
            num_stages=5 if keys.element_size() == 2 else 3,
        )

    attend(rows, 1, 0, splits, is_prefix=False)
    if prefix is not None:
        attend(len(members), members.shape[1], splits, slots - splits, is_prefix=True)
    if slots > 1:
        _attention_merge[(rows * heads,)](
            *(partial, lse, shared, out_RHE, rows, splits, slots),
            HEADS=heads,
            SLOTS=triton.next_power_of_2(slots),
            E=out_width,
            EP=padded(out_width),
            HAS_PREFIX=prefix is not None,
            num_warps=1,
        )
    return out_RHE
