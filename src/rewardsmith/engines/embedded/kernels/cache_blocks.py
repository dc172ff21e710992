"""The key-value cache in blocks: where its memory is, and writing it.

The cache of a layer is keys [B, K, T, D] and values [B, K, T, E]: B blocks of T tokens. `table_RM[r, p // T]` is the
block that holds position p of row r; rows with the same prompt have its full blocks in common. On CUDA, T is
`BLOCK_TOKENS`.

The cache may be allocated again without recording CUDA graphs again. With `places = (anchor, offsets)`, kernels read
its address: keys begin `offsets[0]` elements after the fixed tensor `anchor`, values `offsets[1]`. The tensors that are
passed then give shapes and strides only.

Shape legend: N new tokens, M slots, B blocks, K key-value heads, T tokens of a block, D width of a key, E of a value.
"""

from __future__ import annotations

import math

from torch import Tensor

from rewardsmith.engines.embedded.kernels import jit, tl, use_triton

# A tile of keys is one block: its number is one scalar load, its memory contiguous (16 KiB for D = 128 in bfloat16).
# With 32, tiles would be too small to keep the memory busy; with 128, a row would waste 64 tokens on average, not 32.
BLOCK_TOKENS = 64
STORE_TOKENS = 16  # of one program

Places = tuple[Tensor, Tensor]


def store_keys_values(
    k_NKD: Tensor,
    v_NKE: Tensor,
    keys_BKTD: Tensor,
    values_BKTE: Tensor,
    slots_M: Tensor,
    tokens_M: Tensor | None = None,
    places: Places | None = None,
) -> None:
    """Write keys and values of new tokens at slots: block · T + place in the block.

    Token `tokens_M[i]` goes to `slots_M[i]` (without `tokens_M`, token i), so a prompt token can go to several rows.
    Slots must be in the cache, and different ones, except in one scratch block: a row that is finished points all its
    table there, so that it never writes into a block that belongs to another row by now. What the scratch block
    holds is any of the values written; it is read by finished rows only.
    """
    if use_triton(k_NKD):
        _launch_store(k_NKD, v_NKE, keys_BKTD, values_BKTE, slots_M, tokens_M, places)
    else:
        store_keys_values_torch(k_NKD, v_NKE, keys_BKTD, values_BKTE, slots_M, tokens_M)


def store_keys_values_torch(
    k_NKD: Tensor,
    v_NKE: Tensor,
    keys_BKTD: Tensor,
    values_BKTE: Tensor,
    slots_M: Tensor,
    tokens_M: Tensor | None = None,
) -> None:
    """`store_keys_values` by indexing."""
    blocks_M, offsets_M = slots_M // keys_BKTD.shape[2], slots_M % keys_BKTD.shape[2]
    for cached, new in ((keys_BKTD, k_NKD), (values_BKTE, v_NKE)):
        cached[blocks_M, :, offsets_M] = new if tokens_M is None else new[tokens_M]


def cache_offsets(anchor: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """Return how many elements after `anchor` keys and values begin: the numbers for `places`.

    They are multiples of 16, as the kernels assume: PyTorch aligns allocations to 512 bytes.
    """
    bytes_away = [x.data_ptr() - anchor.data_ptr() for x in (keys, values)]
    step = 16 * anchor.element_size()
    assert anchor.dtype == keys.dtype == values.dtype
    assert not any(n % step for n in bytes_away), f"{bytes_away} bytes from the anchor; want multiples of {step}"
    return bytes_away[0] // anchor.element_size(), bytes_away[1] // anchor.element_size()


def padded(width: int) -> int:
    """Return the power of two that a tile of this width has; tensor cores take no less than 16."""
    return max(16, 1 << (width - 1).bit_length())


@jit
def base_pointer(pointer, offsets, index: tl.constexpr, has_places: tl.constexpr):
    """Return where keys (index 0) or values (1) begin."""
    if has_places:  # the hint keeps 16-byte loads: nothing is known of a number from memory
        pointer += tl.multiple_of(tl.load(offsets + index), 16)
    return pointer


@jit
def _cache_store(
    k,
    v,
    keys,
    values,
    slots,
    tokens,
    offsets,
    count,
    k_token,
    k_head,
    v_token,
    v_head,
    keys_block,
    keys_head,
    keys_token,
    values_block,
    values_head,
    values_token,
    T: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    HAS_PLACES: tl.constexpr,
):
    """One program: some tokens of one key head."""
    keys, values = base_pointer(keys, offsets, 0, HAS_PLACES), base_pointer(values, offsets, 1, HAS_PLACES)
    item = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    there = item < count
    slot = tl.load(slots + item, mask=there, other=0).to(tl.int64)
    token = tl.load(tokens + item, mask=there, other=0).to(tl.int64) if HAS_TOKENS else item.to(tl.int64)
    block, offset = slot // T, slot % T
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    in_k, in_v = there[:, None] & (d < D)[None, :], there[:, None] & (e < E)[None, :]
    new_k = tl.load(k + (token * k_token + head * k_head)[:, None] + d[None, :], mask=in_k)
    new_v = tl.load(v + (token * v_token + head * v_head)[:, None] + e[None, :], mask=in_v)
    at_k = (block * keys_block + head * keys_head + offset * keys_token)[:, None] + d[None, :]
    at_v = (block * values_block + head * values_head + offset * values_token)[:, None] + e[None, :]
    tl.store(keys + at_k, new_k, mask=in_k)
    tl.store(values + at_v, new_v, mask=in_v)


def _launch_store(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots_M: Tensor, tokens_M: Tensor | None, places: Places | None
) -> None:
    anchor_k, anchor_v, offsets = (keys, values, slots_M) if places is None else (places[0], places[0], places[1])
    assert k.stride(2) == v.stride(2) == keys.stride(3) == values.stride(3) == 1
    _cache_store[(math.ceil(len(slots_M) / STORE_TOKENS), k.shape[1])](
        *(k, v, anchor_k, anchor_v, slots_M, slots_M if tokens_M is None else tokens_M, offsets, len(slots_M)),
        *(*k.stride()[:2], *v.stride()[:2], *keys.stride()[:3], *values.stride()[:3]),
        T=keys.shape[2],
        D=k.shape[2],
        E=v.shape[2],
        DP=padded(k.shape[2]),
        EP=padded(v.shape[2]),
        TOKENS=STORE_TOKENS,
        HAS_TOKENS=tokens_M is not None,
        HAS_PLACES=places is not None,
        num_warps=4,
    )
