"""One query per row over a cache in blocks, against attention computed row by row in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.engines.embedded.kernels import INTERPRETED
from rewardsmith.engines.embedded.kernels import block_attention as module
from rewardsmith.engines.embedded.kernels.block_attention import block_attention
from rewardsmith.engines.embedded.kernels.cache_blocks import cache_offsets, store_keys_values

Place = tuple[str, torch.dtype]


@dataclass
class Case:
    """Rows of some lengths in a cache whose free places hold NaN, with groups that share full blocks."""

    q_RHD: Tensor
    keys: Tensor
    values: Tensor
    table_RM: Tensor
    positions_R: Tensor
    prefix: tuple[Tensor, Tensor]
    k: list[Tensor]  # of each row, [K, length, D]
    v: list[Tensor]


def make_case(
    lengths: list[list[int]],
    shared: list[int],
    place: Place,
    *,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    tokens: int = 16,
    spare: int = 1,
) -> Case:
    """Lay out groups of rows; a group has its first `shared` blocks in common."""
    device, dtype = place
    generator = torch.Generator().manual_seed(len(lengths))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    rows = [(group, length) for group, mine in enumerate(lengths) for length in mine]
    columns = max(math.ceil(length / tokens) for _, length in rows) + spare
    blocks = torch.randperm(len(rows) * columns + 1, generator=generator).tolist()
    table = torch.full((len(rows), columns), blocks.pop(), dtype=torch.int32)  # what is not used points at scratch
    keys, values = (
        torch.full((len(rows) * columns + 1, heads[1], tokens, width), math.nan, device=device, dtype=dtype)
        for width in widths
    )
    k_rows, v_rows, members, first = [], [], [], 0
    for mine, common in zip(lengths, shared, strict=True):
        prefix = [draw(heads[1], common * tokens, width) for width in widths]
        ids = [blocks.pop() for _ in range(common)]
        for row, length in enumerate(mine, start=first):
            k, v = (
                torch.cat([p, draw(heads[1], length - common * tokens, w)], 1)
                for p, w in zip(prefix, widths, strict=True)
            )
            for column in range(math.ceil(length / tokens)):
                table[row, column] = ids[column] if column < common else blocks.pop()
                part = slice(column * tokens, min((column + 1) * tokens, length))
                for cache, x in ((keys, k), (values, v)):
                    cache[table[row, column], :, : part.stop - part.start] = x[:, part]
            k_rows.append(k)
            v_rows.append(v)
        members.append(list(range(first, first + len(mine))) if common else [])
        first += len(mine)
    size = max(map(len, members)) + 1
    members_Pn = torch.tensor([m + [-1] * (size - len(m)) for m in members], dtype=torch.int32, device=device)
    shared_R = torch.tensor([c for c, m in zip(shared, lengths, strict=True) for _ in m], dtype=torch.int32)
    positions = torch.tensor([length - 1 for _, length in rows], device=device)
    q = draw(len(rows), heads[0], widths[0])
    return Case(q, keys, values, table.to(device), positions, (members_Pn, shared_R.to(device)), k_rows, v_rows)


def expected(case: Case, scale: float, window: int | None = None, cap: float | None = None) -> Tensor:
    """Return softmax(q · k) · v over the last `window` keys, a row and a head at a time."""
    result = []
    for q_HD, k, v in zip(case.q_RHD.double(), case.k, case.v, strict=True):
        group = len(q_HD) // len(k)
        start = 0 if window is None else max(0, k.shape[1] - window)
        for head, q_D in enumerate(q_HD):
            scores = k[head // group, start:].double() @ q_D * scale
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            result.append(scores.softmax(0) @ v[head // group, start:].double())
    return torch.stack(result).view(*case.q_RHD.shape[:2], -1)


def attend(case: Case, **options: Any) -> Tensor:
    return block_attention(case.q_RHD, case.keys, case.values, case.table_RM, case.positions_R, **options)


def assert_right(found: Tensor, case: Case, **options: Any) -> None:
    bound = 2e-5 if found.dtype == torch.float32 else 2e-2 if found.is_cuda else 6e-2  # torch rounds the scores too
    torch.testing.assert_close(found.double(), expected(case, **options), atol=bound, rtol=0)


def without_nan(case: Case) -> Case:
    """The torch version adds -inf to the scores of what is not seen; NaN times 0 would be NaN."""
    for cache in (case.keys, case.values):
        if not (INTERPRETED or cache.is_cuda):
            cache.nan_to_num_()
    return case


@pytest.mark.parametrize(
    ("use_prefix", "options"),
    [(False, {}), (True, {}), (False, {"window": 7}), (True, {"window": 20, "cap": 1.5})],
    ids=str,
)
def test_each_row_attends_to_its_own_blocks(place: Place, use_prefix: bool, options: dict[str, Any]) -> None:
    case = without_nan(make_case([[40, 32], [1], [17, 16, 48]], [2, 0, 1], place))
    prefix = case.prefix if use_prefix else None
    assert_right(attend(case, scale=0.3, prefix=prefix, **options), case, scale=0.3, **options)


@pytest.mark.parametrize(
    ("heads", "widths", "tokens"),
    [((1, 1), (64, 64), 32), ((9, 3), (20, 40), 16), ((20, 1), (24, 8), 16)],
    ids=str,
)
def test_heads_and_widths_of_all_sizes(
    place: Place, heads: tuple[int, int], widths: tuple[int, int], tokens: int
) -> None:
    case = without_nan(make_case([[5], [33, 37]], [0, 1], place, heads=heads, widths=widths, tokens=tokens))
    assert_right(attend(case, scale=0.2, prefix=case.prefix), case, scale=0.2)


@pytest.mark.parametrize(("use_prefix", "window"), [(False, None), (True, 40)])
def test_a_split_row_gives_the_same(
    place: Place, use_prefix: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPLIT_TOKENS", 16)
    monkeypatch.setattr(module, "PROGRAMS", 16)
    case = without_nan(make_case([[60, 51], [3]], [3, 0], place, heads=(2, 1), spare=3))
    assert module.split_count(3, 1, case.table_RM.shape[1] * 16) == 6  # some have nothing to read
    prefix = case.prefix if use_prefix else None
    assert_right(attend(case, scale=0.3, prefix=prefix, window=window), case, scale=0.3, window=window)


def test_splits_keep_the_gpu_busy_and_depend_on_shapes_alone() -> None:
    assert module.split_count(512, 8, 8192) == 1
    assert module.split_count(8, 8, 8192) == 16
    assert module.split_count(1, 1, 1024) == 4  # each has 256 tokens at least


@settings(
    max_examples=3 if INTERPRETED else 20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 2),
    st.sampled_from([None, 1, 24]),
)
def test_a_prefix_changes_nothing(place: Place, lengths: list[list[int]], common: int, window: int | None) -> None:
    shared = [min(common, min(mine) // 16) for mine in lengths]
    case = without_nan(make_case(lengths, shared, place, heads=(3, 1)))
    for prefix in (None, case.prefix):
        assert_right(attend(case, scale=0.3, prefix=prefix, window=window), case, scale=0.3, window=window)


def test_the_cache_may_move_between_two_launches(place: Place) -> None:
    case = without_nan(make_case([[20, 30], [5]], [1, 0], place))
    anchor = torch.zeros(16, device=place[0], dtype=place[1])
    shapes = torch.empty_like(case.keys), torch.empty_like(case.values)  # as recorded; their memory is not used
    for _ in range(2):
        offsets = torch.tensor(cache_offsets(anchor, case.keys, case.values), device=place[0])
        given = shapes if INTERPRETED or place[0] == "cuda" else (case.keys, case.values)
        found = block_attention(
            case.q_RHD, *given, case.table_RM, case.positions_R, scale=0.3, places=(anchor, offsets)
        )
        assert_right(found, case, scale=0.3)
        k_NKD, v_NKD = case.k[0][:, :3].transpose(0, 1), case.v[1][:, :3].transpose(0, 1)
        slots = case.table_RM[2, 0] * 16 + torch.arange(3, device=place[0])
        store_keys_values(k_NKD, v_NKD, *given, slots, places=(anchor, offsets))
        case.k[2][:, :3], case.v[2][:, :3] = case.k[0][:, :3], case.v[1][:, :3]
        case.keys, case.values = case.keys.clone(), case.values.clone()


@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_graph_stays_valid_while_rows_grow_and_the_cache_moves() -> None:
    def lay_out(lengths: list[list[int]]) -> Case:
        return make_case(lengths, [1, 0], ("cuda", torch.bfloat16), tokens=64, spare=9 - max(map(max, lengths)) // 64)

    case = lay_out([[70, 90], [3]])
    anchor = torch.zeros(16, device="cuda", dtype=torch.bfloat16)
    offsets = torch.tensor(cache_offsets(anchor, case.keys, case.values), device="cuda")
    graph = torch.cuda.CUDAGraph()

    def decode() -> Tensor:
        return attend(case, scale=0.3, places=(anchor, offsets), prefix=case.prefix)

    decode()  # compiles
    with torch.cuda.graph(graph):
        found = decode()
    for lengths in ([[70, 90], [3]], [[500, 129], [64]], [[65, 300], [577]]):
        new = lay_out(lengths)
        for name in ("q_RHD", "table_RM", "positions_R"):
            getattr(case, name).copy_(getattr(new, name))
        offsets.copy_(torch.tensor(cache_offsets(anchor, new.keys, new.values)))
        graph.replay()
        assert_right(found, new, scale=0.3)


@pytest.mark.parametrize("widths", [(16, 16), (20, 8)], ids=str)
def test_tokens_are_stored_at_their_slots(place: Place, widths: tuple[int, int]) -> None:
    device, dtype = place
    keys, values = (torch.zeros(5, 3, 16, width, device=device, dtype=dtype) for width in widths)
    new = torch.randn(20, 3, sum(widths)).to(device, dtype)
    k_NKD, v_NKE = new.split(widths, -1)  # views, as from one projection
    tokens = torch.cat([torch.arange(20), torch.tensor([3, 19])])
    slots = torch.randperm(80)[:22]
    store_keys_values(k_NKD, v_NKE, keys, values, slots.to(device), tokens.to(device))
    wanted_k, wanted_v = torch.zeros_like(keys), torch.zeros_like(values)
    for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
        wanted_k[slot // 16, :, slot % 16], wanted_v[slot // 16, :, slot % 16] = k_NKD[token], v_NKE[token]
    assert torch.equal(keys, wanted_k)
    assert torch.equal(values, wanted_v)
    store_keys_values(k_NKD[:2], v_NKE[:2], keys, values, slots[:2].flip(0).to(device))
    assert torch.equal(keys[slots[0] // 16, :, slots[0] % 16], k_NKD[1])
