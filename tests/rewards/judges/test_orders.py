"""Who is shown together, and in which order."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards.judges.candidates import all_pairs, balanced, drawn, heats, random_rings, ring, windows

TEXTS = st.lists(st.text(max_size=5), min_size=2, max_size=8, unique=True)


@given(TEXTS, st.randoms(use_true_random=False))
def test_the_drawn_order_is_that_of_the_texts_and_not_of_the_rollouts(texts: list[str], random) -> None:
    before = [texts[i] for i in drawn("p", texts)]
    random.shuffle(texts)
    assert [texts[i] for i in drawn("p", texts)] == before
    assert sorted(drawn("p", texts)) == list(range(len(texts)))


def test_the_drawn_order_depends_on_the_prompt() -> None:
    texts = list("abcdefgh")
    assert len({tuple(drawn(f"p{i}", texts)) for i in range(20)}) == 20
    assert drawn("p", ["\ud800", "x"]) in ([0, 1], [1, 0])


@pytest.mark.parametrize("n", range(2, 12))
def test_all_orders_together_are_a_williams_design(n: int) -> None:
    orders = balanced(range(n), 1000)
    assert len(set(orders)) == len(orders) == (2 * n if n % 2 else n)
    places = Counter((candidate, place) for order in orders for place, candidate in enumerate(order))
    assert set(places.values()) == {len(orders) // n}
    behind = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(behind) == n * (n - 1)
    assert set(behind.values()) == {len(orders) // n}


@pytest.mark.parametrize("n", range(2, 12))
@pytest.mark.parametrize("count", [2, 4])
def test_an_even_number_of_orders_gives_everyone_the_same_mean_place(n: int, count: int) -> None:
    orders = balanced(range(n), count)
    assert len(orders) == min(count, 2 * n if n % 2 else n)
    totals = {sum(order.index(candidate) for order in orders) for candidate in range(n)}
    assert totals == {(n - 1) * len(orders) / 2}
    # everyone stands ahead of everyone else in half of them
    for a, b in all_pairs(range(n)):
        assert sum(order.index(a) < order.index(b) for order in orders) == len(orders) / 2


@pytest.mark.parametrize("most", range(2, 9))
@pytest.mark.parametrize("n", range(2, 25))
def test_windows_cover_everyone_and_share_enough(n: int, most: int) -> None:
    for overlap in range(1, most):
        found = windows(range(n), most, overlap)
        assert {candidate for window in found for candidate in window} == set(range(n))
        assert all(len(set(window)) == len(window) == min(n, most) for window in found)
        for one, following in zip(found, [*found[1:], found[0]], strict=True):
            assert len(set(one) & set(following)) >= min(overlap, len(one))
        assert len(found) == (1 if n <= most else -(-n // (most - overlap)))


def test_heats_are_the_fewest_and_even() -> None:
    for n in range(2, 30):
        for most in range(2, 9):
            found = heats(range(n), most)
            assert sorted(candidate for heat in found for candidate in heat) == list(range(n))
            assert len(found) == -(-n // most)
            assert max(map(len, found)) <= most
            assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("n", range(2, 12))
@pytest.mark.parametrize("opponents", [2, 4, 6, 20])
def test_in_a_ring_everyone_meets_as_many_others(n: int, opponents: int) -> None:
    pairs = ring(range(n), opponents)
    assert all(a < b for a, b in pairs)
    assert len(set(pairs)) == len(pairs)
    met = Counter(candidate for pair in pairs for candidate in pair)
    assert set(met.values()) == {min(opponents, n - 1)}


@given(TEXTS, st.sampled_from([2, 4, 6]))
def test_random_rings_connect_everyone_and_bound_the_number_of_opponents(texts: list[str], opponents: int) -> None:
    pairs = random_rings("p", texts, opponents)
    met = Counter(candidate for pair in pairs for candidate in pair)
    assert set(met) == set(range(len(texts)))
    assert max(met.values()) <= opponents
    reached = {0}
    for _ in texts:
        reached |= {b for a, b in pairs if a in reached} | {a for a, b in pairs if b in reached}
    assert reached == set(range(len(texts)))
