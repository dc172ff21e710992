"""Score bands and their balance: closed forms, and what holds for any numbers."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data.rubrics.bands import Balance, band_name, band_of, sizes


@pytest.mark.parametrize(
    ("share", "bands", "band"),
    [(0, 5, 0), (0.19, 5, 0), (0.2, 5, 1), (0.6, 5, 3), (0.1 + 0.2 + 0.3, 5, 3), (0.99, 5, 4), (1, 5, 4), (1, 1, 0)],
)
def test_bands(share: float, bands: int, band: int) -> None:
    assert band_of(share, bands) == band


def test_names() -> None:
    assert [band_name(band, 5) for band in range(5)] == ["0-2", "2-4", "4-6", "6-8", "8-10"]
    assert band_name(1, 3) == "3.33-6.67"


SIZES = [
    ([], 2, 2, []),
    ([0, 0], 2, 2, [0, 0]),
    ([5], 1, 1, [5]),
    ([100, 100, 60], 2, 3, [100, 100, 60]),  # near enough
    ([10, 100, 100], 2, 1, [10, 20, 20]),  # F = min(10, 50), C = 20
    ([10, 100, 100], 2, 2, [20, 40, 40]),  # F = min(20, 50), C = 40
    ([10, 100, 100], 2, 5, [50, 100, 100]),  # F = min(50, 50), C = 100
    ([10, 100, 100], 2, 99, [50, 100, 100]),  # no more than is needed
    ([10, 30, 100], 1, 2, [20, 20, 20]),
    ([10, 30, 100], 1.5, 2, [20, 30, 30]),
    ([0, 7, 0, 21], 3, 1, [0, 7, 0, 21]),
]


@pytest.mark.parametrize(("counts", "ratio", "repeats", "expected"), SIZES)
def test_sizes(counts: list[int], ratio: float, repeats: int, expected: list[int]) -> None:
    assert sizes(counts, ratio, repeats) == expected


@given(st.lists(st.integers(0, 500), max_size=8), st.floats(1, 10), st.integers(1, 6))
def test_what_holds_for_any_sizes(counts: list[int], ratio: float, repeats: int) -> None:
    found = sizes(counts, ratio, repeats)
    filled = [size for size in found if size]
    assert [bool(size) for size in found] == [bool(count) for count in counts]
    assert all(size <= repeats * count for size, count in zip(found, counts, strict=True))
    if filled:
        assert max(filled) <= ratio * min(filled) + 1e-6
        big, small = max(counts), min(count for count in counts if count)
        if big <= ratio * small:
            assert found == counts
        assert sizes(found, ratio, 1) == found  # balanced is balanced


SHARES = {f"s{i}": (i % 100) ** 2 / 99**2 for i in range(200)}


@given(st.permutations(list(SHARES)), st.integers(0, 3))
def test_who_is_taken_does_not_depend_on_the_order(order: list[str], seed: int) -> None:
    balance = Balance(seed=seed)
    assert balance.copies({key: SHARES[key] for key in order}) == balance.copies(SHARES)


def test_copies_are_what_the_sizes_say() -> None:
    balance = Balance(bands=5, ratio=2, repeats=3, seed=1)
    copies = balance.copies(SHARES)
    before, after = Counter[int](), Counter[int]()
    for key, share in SHARES.items():
        before[band_of(share, 5)] += 1
        after[band_of(share, 5)] += copies[key]
    assert [after[band] for band in range(5)] == sizes([before[band] for band in range(5)], 2, 3)
    assert max(copies.values()) <= 3
    for band in range(5):  # nobody is there three times while another of the band is there once
        often = {copies[key] for key, share in SHARES.items() if band_of(share, 5) == band}
        assert max(often) - min(often) <= 1


def test_another_seed_takes_others() -> None:
    one, other = (Balance(ratio=1, repeats=1, seed=seed).copies(SHARES) for seed in (0, 1))
    assert one != other
    assert sum(one.values()) == sum(other.values())
    assert math.isclose(sum(one.values()) / 5, min(Counter(band_of(s, 5) for s in SHARES.values()).values()))
