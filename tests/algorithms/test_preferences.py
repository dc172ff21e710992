"""Bradley-Terry, Rao-Kupper ties and Plackett-Luce: likelihoods that must sum to one."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.preferences import (
    bradley_terry,
    group_centering,
    list_losses,
    pair_losses,
    plackett_luce,
)
from tests.algorithms.batches import assert_close

SCORES = st.floats(-8, 8)


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@settings(max_examples=40)
@given(a=SCORES, b=SCORES, margin=st.floats(0, 3), width=st.floats(0, 2))
def test_a_win_has_the_logistic_likelihood_of_the_difference_less_margin_and_width(
    a: float, b: float, margin: float, width: float
) -> None:
    assert_close(bradley_terry(one(a), one(b)), [-math.log(sigmoid(a - b))])
    expected = -math.log(sigmoid(a - b - margin - width))
    assert_close(bradley_terry(one(a), one(b), margin_N=one(margin), tie_width=width), [expected])


@settings(max_examples=40)
@given(a=SCORES, b=SCORES, width=st.floats(1e-3, 3))
def test_win_loss_and_tie_have_probabilities_that_sum_to_one(a: float, b: float, width: float) -> None:
    tied_N = torch.tensor([True])
    win = torch.exp(-bradley_terry(one(a), one(b), tie_width=width))
    loss = torch.exp(-bradley_terry(one(b), one(a), tie_width=width))
    tie = torch.exp(-bradley_terry(one(a), one(b), tied_N=tied_N, tie_width=width))
    assert_close(win + loss + tie, [1.0], 1e-12)
    assert_close(tie, torch.exp(-bradley_terry(one(b), one(a), tied_N=tied_N, tie_width=width)), 1e-12)


@settings(max_examples=25)
@given(a=SCORES, b=SCORES)
def test_without_a_width_a_tie_is_half_a_win_for_either_side(a: float, b: float) -> None:
    expected = (bradley_terry(one(a), one(b)) + bradley_terry(one(b), one(a))) / 2
    assert_close(bradley_terry(one(a), one(b), tied_N=torch.tensor([True])), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
def test_far_apart_rewards_have_finite_losses_and_gradients(dtype: torch.dtype, width: float) -> None:
    chosen_N = torch.tensor([1e4, -1e4, 1e4, -1e4, 0.0], dtype=dtype, requires_grad=True)
    tied_N = torch.tensor([False, False, True, True, True])
    losses_N = bradley_terry(chosen_N, torch.zeros_like(chosen_N), tied_N=tied_N, tie_width=width)
    losses_N.sum().backward()
    assert losses_N.isfinite().all()
    assert chosen_N.grad.isfinite().all()
    assert chosen_N.grad[1] == -1  # a pair in the wrong order, far apart: the steepest slope


def plackett_luce_loop(scores: list[float], levels: list[int]) -> float:
    return -sum(
        s - math.log(sum(math.exp(other) for other, place in zip(scores, levels, strict=True) if place >= level))
        for s, level in zip(scores, levels, strict=True)
    )


@settings(max_examples=40)
@given(
    items=st.lists(st.tuples(SCORES, st.integers(-2, 3)), min_size=1, max_size=6),
    hidden=st.lists(st.sampled_from([0.0, torch.nan, 1e30]), max_size=3),
)
def test_plackett_luce_follows_its_formula_and_ignores_items_that_do_not_exist(
    items: list[tuple[float, int]], hidden: list[float]
) -> None:
    scores, levels = zip(*items, strict=True)
    scores_GN = torch.tensor([[*scores, *hidden]], dtype=torch.float64, requires_grad=True)
    levels_GN = torch.tensor([[*levels, *(0 for _ in hidden)]])
    mask_GN = torch.tensor([[True] * len(items) + [False] * len(hidden)])
    loss_G = plackett_luce(scores_GN, levels_GN, mask_GN)
    loss_G.sum().backward()
    assert_close(loss_G, [plackett_luce_loop(list(scores), list(levels))], 1e-9)
    assert scores_GN.grad.isfinite().all()
    assert not scores_GN.grad[~mask_GN].any()


def test_probabilities_of_all_orders_of_four_items_sum_to_one() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))
    scores_GN = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64).expand(24, 4)
    probabilities_G = torch.exp(-plackett_luce(scores_GN, orders, torch.ones(24, 4, dtype=torch.bool)))
    assert_close(probabilities_G.sum(), 1.0, 1e-14)
    best = probabilities_G.argmax()
    assert orders[best].tolist() == [1, 3, 0, 2]  # places by descending score: 2.0, 0.5, 0.3, -1.0


# ---- what a recipe chooses: groups of answers ------------------------------------------------------------------------

GROUPS = st.lists(st.tuples(SCORES, st.integers(0, 3)), min_size=0, max_size=5)


def group(items: list[tuple[float, int]], hidden: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rewards, levels, quality and mask [1, N] of (reward, quality) items, with some that do not exist."""
    rewards, quality = [r for r, _ in items], [float(q) for _, q in items]
    levels = [sum(other > q for other in {*quality}) for q in quality]
    return (
        torch.tensor([[*rewards, *[torch.nan] * hidden]], dtype=torch.float64),
        torch.tensor([[*levels, *[0] * hidden]], dtype=torch.long),
        torch.tensor([[*quality, *[torch.nan] * hidden]], dtype=torch.float64),
        torch.tensor([[True] * len(items) + [False] * hidden], dtype=torch.bool),
    )


@settings(max_examples=40)
@given(SCORES, SCORES, st.floats(0, 3), st.floats(0, 2))
def test_a_pair_has_the_loss_of_other_trainers(chosen: float, rejected: float, margin: float, centre: float) -> None:
    """-log σ(r_c - r_r - m) + c·(r_c + r_r)²: what TRL's RewardTrainer takes the mean of."""
    rewards_GN, mask_GN = torch.tensor([[chosen, rejected]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    levels_GN, quality_GN = torch.tensor([[0, 1]]), torch.tensor([[margin, 0.0]], dtype=torch.float64)
    for factor in (False, True, 0.5):
        loss_G = pair_losses(rewards_GN, levels_GN, quality_GN, mask_GN, margin=factor)
        loss_G = loss_G + centre * group_centering(rewards_GN, mask_GN)
        lead = chosen - rejected - float(factor) * margin
        assert_close(loss_G, [-math.log(sigmoid(lead)) + centre * (chosen + rejected) ** 2])


@settings(max_examples=60)
@given(GROUPS, st.integers(0, 2), st.booleans(), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.1]))
def test_a_group_has_the_mean_loss_of_its_pairs(
    items: list[tuple[float, int]], hidden: int, margin: bool, width: float, smoothing: float
) -> None:
    def loss(first: tuple[float, int], second: tuple[float, int]) -> float:
        (a, better), (b, worse) = (first, second) if first[1] >= second[1] else (second, first)
        tied = torch.tensor([better == worse])
        right = bradley_terry(one(a), one(b), margin_N=one((better - worse) * margin), tied_N=tied, tie_width=width)
        wrong = bradley_terry(one(b), one(a), tied_N=tied, tie_width=width)
        return float((1 - smoothing) * right + smoothing * wrong)

    expected = [loss(a, b) for a, b in itertools.combinations(items, 2)]
    rewards_GN, *rest = group(items, hidden)
    rewards_GN.requires_grad_()
    found_G = pair_losses(rewards_GN, *rest, margin=margin, tie_width=width, smoothing=smoothing)
    assert_close(found_G, [sum(expected) / max(1, len(expected))], 1e-9)
    found_G.sum().backward()
    assert rewards_GN.grad.isfinite().all()
    assert not rewards_GN.grad[0, len(items) :].any()


@settings(max_examples=30)
@given(GROUPS, st.integers(0, 2))
def test_lists_are_plackett_luce_and_centering_is_the_mean_over_pairs(
    items: list[tuple[float, int]], hidden: int
) -> None:
    rewards_GN, levels_GN, quality_GN, mask_GN = group(items, hidden)
    assert_close(
        list_losses(rewards_GN, levels_GN, quality_GN, mask_GN), plackett_luce(rewards_GN, levels_GN, mask_GN), 0
    )
    pairs = [(a + b) ** 2 for (a, _), (b, _) in itertools.combinations(items, 2)]
    assert_close(group_centering(rewards_GN, mask_GN), [math.fsum(pairs) / max(1, len(pairs))], 1e-9)


def test_smoothing_has_its_minimum_at_a_finite_lead() -> None:
    """With a share ε of wrong labels the best lead is log((1 - ε) / ε)."""
    best = math.log(0.9 / 0.1)
    losses = [
        float(pair_losses(*group([(lead, 1), (0.0, 0)]), smoothing=0.1)) for lead in (best - 0.1, best, best + 0.1, 9)
    ]
    assert losses.index(min(losses)) == 1
