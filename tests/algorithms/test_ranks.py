"""Statistics of orderings against scipy, loops and enumeration; accuracy rewards of judges."""

import itertools
import math
from itertools import combinations
from statistics import mean

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.ranks import (
    average_ranks,
    best_of_n,
    closeness,
    credit,
    gain,
    kendall_tau_b,
    margin_agreement,
    pairwise_agreement,
    pass_at_k,
    spearman,
    tie_calibrated_agreement,
    top1,
)

SCORE = st.integers(-3, 3).map(float) | st.floats(-100, 100)


PAIRS = st.lists(st.tuples(SCORE, SCORE), min_size=1, max_size=9)


def same(actual: float, expected: float) -> bool:
    return math.isnan(actual) if math.isnan(expected) else actual == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50)
@given(PAIRS)
@pytest.mark.filterwarnings("ignore:.*constant.*")
def test_correlations_agree_with_scipy(pairs: list[tuple[float, float]]) -> None:
    x, y = map(list, zip(*pairs, strict=True))
    if len(pairs) > 1:
        assert same(kendall_tau_b(x, y), float(scipy.stats.kendalltau(x, y).statistic))
        assert same(spearman(x, y), float(scipy.stats.spearmanr(x, y).statistic))
    assert np.array_equal(average_ranks(x), scipy.stats.rankdata(x))


@settings(max_examples=50)
@given(PAIRS)
def test_pairwise_agreement_agrees_with_a_double_loop(pairs: list[tuple[float, float]]) -> None:
    credit: dict[str, list[float]] = {"strict": [], "half": [], "ignore": []}
    for (true_a, guess_a), (true_b, guess_b) in itertools.combinations(pairs, 2):
        right = (true_a > true_b) == (guess_a > guess_b) and (true_a < true_b) == (guess_a < guess_b)
        credit["strict"].append(float(right))
        credit["half"].append(0.5 if (true_a == true_b) != (guess_a == guess_b) else float(right))
        if true_a != true_b:
            credit["ignore"].append(float(right))
    true, guess = map(list, zip(*pairs, strict=True))
    for ties, values in credit.items():
        expected = sum(values) / len(values) if values else math.nan
        assert same(pairwise_agreement(true, guess, ties=ties), expected), ties


@settings(max_examples=50)
@given(PAIRS)
def test_top1_is_the_share_of_best_guesses_that_are_best(pairs: list[tuple[float, float]]) -> None:
    best, best_guess = max(true for true, _ in pairs), max(guess for _, guess in pairs)
    hits = [true == best for true, guess in pairs if guess == best_guess]
    assert top1(*map(list, zip(*pairs, strict=True))) == pytest.approx(sum(hits) / len(hits))


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int) -> None:
    for correct in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(range(n), k))
            expected = sum(any(i < correct for i in subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_neither_overflows_nor_cancels() -> None:
    assert pass_at_k(10**6, 1, 10**5) == pytest.approx(0.1, rel=1e-9)
    assert pass_at_k(10**9, 1, 1) == pytest.approx(1e-9, rel=1e-9)
    assert pass_at_k(2000, 1000, 1000) == 1 - 1 / math.comb(2000, 1000)


@pytest.mark.parametrize("statistic", [pairwise_agreement, kendall_tau_b, top1])
def test_scores_that_cannot_be_compared_are_refused(statistic) -> None:
    with pytest.raises(ValueError, match="the lists have 2 and 3 values"):
        statistic([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="the first list holds a value that is not finite"):
        statistic([1, math.nan], [1, 2])
    with pytest.raises(ValueError, match="the second list holds a value that is not finite"):
        statistic([1, 2], [1, math.inf])
    with pytest.raises(ValueError, match=r"the first list has shape \(1, 2\)"):
        statistic([[1, 2]], [1, 2])


LEVELS = st.lists(
    st.tuples(st.integers(-3, 3).map(float), st.integers(0, 3).map(float)), min_size=1, max_size=7
)  # few levels, so that ties are frequent


def by_hand(true: list[float], guess: list[float], n: int) -> float:
    """Return the mean over all draws of the mean true score of those that are predicted best."""
    draws = []
    for chosen in combinations(range(len(true)), n):
        top = max(guess[i] for i in chosen)
        draws.append(mean(true[i] for i in chosen if guess[i] == top))
    return mean(draws)


@given(LEVELS, st.data())
def test_best_of_n_is_the_mean_over_all_draws(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    true, guess = map(list, zip(*pairs, strict=True))
    n = data.draw(st.integers(1, len(pairs)))
    assert best_of_n(true, guess, n) == pytest.approx(by_hand(true, guess, n))


def test_a_large_group_has_no_rounding_trouble() -> None:
    m, n = 3000, 1500
    true = list(range(m))
    assert best_of_n(true, true, n) == pytest.approx((m + 1) * n / (n + 1) - 1)  # the largest of n out of 0 … m-1


@given(st.floats(-1e9, 1e9), st.lists(st.floats(-9, 9), min_size=2, max_size=9))
def test_where_all_are_equally_good_no_choice_gains(value: float, guess: list[float]) -> None:
    assert gain([value] * len(guess), guess, 2) == (0.0, 0.0)


TIED_GROUP = st.lists(st.tuples(st.integers(0, 2).map(float), st.integers(0, 6).map(float)), min_size=2, max_size=5)


TIED_GROUPS = st.lists(TIED_GROUP, min_size=1, max_size=4)


def at_width(groups: list[list[tuple[float, float]]], width: float) -> float:
    def right(a: tuple[float, float], b: tuple[float, float]) -> bool:
        true = (a[0] > b[0]) - (a[0] < b[0])
        guess = 0 if abs(a[1] - b[1]) <= width else (a[1] > b[1]) - (a[1] < b[1])
        return true == guess

    return mean(mean(right(a, b) for a, b in combinations(group, 2)) for group in groups)


def calibrated(groups: list[list[tuple[float, float]]]) -> tuple[float, float]:
    return tie_calibrated_agreement([[t for t, _ in g] for g in groups], [[p for _, p in g] for g in groups])


@given(TIED_GROUPS)
def test_the_tie_width_is_the_best_of_all_and_the_smallest(groups: list) -> None:
    accuracy, width = calibrated(groups)
    tried = {w / 2: at_width(groups, w / 2) for w in range(14)}
    assert accuracy == pytest.approx(max(tried.values()))
    assert at_width(groups, width) == pytest.approx(accuracy)
    assert width == min(w for w, reached in tried.items() if reached == pytest.approx(accuracy))


STEPS = (1.0, 0.6, 0.2)


@pytest.mark.parametrize(
    ("error", "power", "earned"),
    [
        (0.0, 2.0, 1.0),
        (0.3, 2.0, 0.7**2),
        (-0.3, 2.0, 0.7**2),
        (0.3, 1.0, 0.7),
        (0.3, 0.5, math.sqrt(0.7)),
        (1.0, 2.0, 0.0),
        (10.5, 2.0, 0.0),  # without a bound, 90.25
        (-1e300, 2.0, 0.0),
    ],
)
def test_closeness(error: float, power: float, earned: float) -> None:
    assert closeness(error, power=power) == pytest.approx(earned, abs=1e-15)


def test_credit_is_the_table_at_whole_points_and_linear_between() -> None:
    assert credit([0, 1, 2, 3, 4, 1e9], STEPS).tolist() == [1.0, 0.6, 0.2, 0.0, 0.0, 0.0]
    assert credit([-1, 0.5, 2.5], STEPS).tolist() == pytest.approx([0.6, 0.8, 0.1])
    assert credit(1.0000000000000002, STEPS) == pytest.approx(0.6)  # a rounding error is no step
    assert credit([0, 0.25, 1], (1.0,)).tolist() == [1.0, 0.75, 0.0]


def by_loops(true: list[float], guess: list[float], ties: str) -> float:
    earned = []
    for x, y in itertools.combinations(range(len(true)), 2):
        if ties == "ignore" and true[x] == true[y]:
            continue
        off = abs((true[x] - true[y]) - (guess[x] - guess[y]))
        earned.append({0: 1.0, 1: 0.6, 2: 0.2}.get(off, 0.0))
    return math.fsum(earned) / len(earned) if earned else math.nan


SCORES = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=8)


@given(SCORES, st.sampled_from(["strict", "half", "ignore"]), st.integers(-3, 3))
def test_margins_are_the_mean_over_pairs(pairs: list[tuple[int, int]], ties: str, offset: int) -> None:
    true, guess = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    expected = by_loops(true, guess, ties)
    assert margin_agreement(true, guess, STEPS, ties=ties) == pytest.approx(expected, nan_ok=True)
    moved = [score + offset for score in guess]
    assert margin_agreement(true, moved, STEPS, ties=ties) == pytest.approx(expected, nan_ok=True)
    if not math.isnan(expected):
        assert margin_agreement(true, true, STEPS, ties=ties) == 1.0
