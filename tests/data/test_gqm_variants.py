"""Subgroups and orders of a group: how many, which, and that all are as likely."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.data.gqm import Variant, variants_of


def variants(count: int, subgroups: int, shuffles: int, seed: int = 0) -> list[Variant]:
    return list(variants_of(count, subgroups=subgroups, shuffles=shuffles, rng=random.Random(seed)))


@pytest.mark.parametrize(
    ("count", "subgroups", "shuffles", "expected"),
    [
        (2, 0, 0, 1),
        (2, 4, 4, 2),  # itself and the other order; it has no parts
        (3, 4, 4, 5 + 3 * 2),
        (3, 0, 4, 5),
        (3, 0, 100, 6),  # all orders, then no more
        (3, 4, 0, 4),
        (4, 100, 100, 24 + 4 * 6 + 6 * 2),
        (26, 3, 2, 4 * 3),  # far more parts and orders than could be listed
    ],
)
def test_counts(count: int, subgroups: int, shuffles: int, expected: int) -> None:
    assert len(variants(count, subgroups, shuffles)) == expected


def test_groups_of_four_give_13_to_25_variants_and_17_8_on_average() -> None:
    counts = [len(variants(4, 4, 4, seed)) for seed in range(4000)]
    # 5 of the whole group; 4 of the 10 parts, of which 6 have 2 orders and 4 have 5.
    assert min(counts) == 5 + 4 * 2
    assert max(counts) == 5 + 4 * 5
    assert math.isclose(sum(counts) / len(counts), 5 + 4 * (0.6 * 2 + 0.4 * 5), abs_tol=0.15)


@settings(max_examples=150)
@given(count=st.integers(2, 26), subgroups=st.integers(0, 12), shuffles=st.integers(0, 12), seed=st.integers(0, 2**32))
def test_what_every_variant_is(count: int, subgroups: int, shuffles: int, seed: int) -> None:
    found = variants(count, subgroups, shuffles, seed)
    assert found == variants(count, subgroups, shuffles, seed)
    assert found[0] == Variant(tuple(range(count)), tuple(range(count)), "original")
    assert len({one.order for one in found}) == len(found)
    parts = Counter(one.picked for one in found)
    assert len(parts) == 1 + min(subgroups, 2**count - count - 2)
    for picked, times in parts.items():
        assert list(picked) == sorted(set(picked))
        assert 2 <= len(picked) <= count
        assert times == min(shuffles + 1, math.factorial(len(picked)))
    for one in found:
        assert sorted(one.order) == list(one.picked)
        assert tuple(one.picked[i] for i in one.permutation) == one.order
        assert ("shuffled" in one.kind) == (one.order != one.picked)
        assert ("subgroup" in one.kind) == (len(one.picked) < count)


@pytest.mark.parametrize(("count", "subgroups", "shuffles"), [(4, 2, 2), (8, 2, 2)])  # listed, and drawn
def test_every_part_and_every_order_is_as_likely(count: int, subgroups: int, shuffles: int) -> None:
    sizes, first, rounds = Counter[int](), Counter[int](), 3000
    for seed in range(rounds):
        for one in variants(count, subgroups, shuffles, seed):
            if one.kind == "subgroup":
                sizes[len(one.picked)] += 1
            elif one.kind == "shuffled":
                first[one.order[0]] += 1
    total = 2**count - count - 2
    for size in range(2, count):
        assert math.isclose(sizes[size] / (subgroups * rounds), math.comb(count, size) / total, abs_tol=0.03)
    for i in range(count):
        share = (math.factorial(count - 1) - (i == 0)) / (math.factorial(count) - 1)  # the identity is not drawn
        assert math.isclose(first[i] / (shuffles * rounds), share, abs_tol=0.03)
