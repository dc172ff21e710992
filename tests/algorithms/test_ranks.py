"""Statistics of orderings, against scipy, double loops and enumeration."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.ranks import average_ranks, kendall_tau_b, pairwise_agreement, pass_at_k, spearman, top1

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


@pytest.mark.parametrize("statistic", [kendall_tau_b, spearman])
def test_correlations_are_plus_one_minus_one_and_undefined_where_they_should_be(statistic) -> None:
    assert statistic([1, 2, 3], [10, 20, 40]) == pytest.approx(1)
    assert statistic([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    for undefined in ([], [1]):
        assert math.isnan(statistic(undefined, undefined))
    assert math.isnan(statistic([1, 1, 1], [1, 2, 3]))


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


def test_the_three_ways_to_treat_a_tie() -> None:
    # pairs: (0, 1) tied in truth, (0, 2) right, (1, 2) tied in the prediction
    true, guess = [1, 1, 2], [0, 5, 5]
    assert pairwise_agreement(true, guess, ties="strict") == pytest.approx(1 / 3)
    assert pairwise_agreement(true, guess, ties="half") == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert pairwise_agreement(true, guess, ties="ignore") == pytest.approx(1 / 2)


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


@pytest.mark.parametrize("statistic", [pairwise_agreement, kendall_tau_b, spearman, top1])
def test_scores_that_cannot_be_compared_are_refused(statistic) -> None:
    with pytest.raises(ValueError, match="the lists have 2 and 3 values"):
        statistic([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="the first list holds a value that is not finite"):
        statistic([1, math.nan], [1, 2])
    with pytest.raises(ValueError, match="the second list holds a value that is not finite"):
        statistic([1, 2], [1, math.inf])
    with pytest.raises(ValueError, match=r"the first list has shape \(1, 2\)"):
        statistic([[1, 2]], [1, 2])
