"""Every advantage estimator against a loop over its equation, and small examples worked out by hand."""

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors, gae, grpo, rloo
from tests.algorithms.batches import Batch, assert_close, batches, counted, outcome_batch

DISCOUNTS = st.sampled_from([0.0, 0.5, 0.97, 1.0])


def whiten_loop(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    kept = values_BT[mask_BT].tolist()
    if len(kept) < 2:
        return torch.zeros_like(values_BT)
    mean, variance = statistics.fmean(kept), statistics.variance(kept)
    return torch.where(mask_BT, (values_BT - mean) / math.sqrt(variance + 1e-8), 0)


# A baseline and a scale see: the row, the rows that vote in its group, the level and the length of every row.
Statistic = Callable[[int, list[int], list[float], list[int]], float]


def group_loop(batch: Batch, discount: float, baseline: Statistic, scale: Statistic) -> tuple[Tensor, Tensor]:
    """Return A_t = Σ_{s≥t} γ^{s-t} (r_s - b)·scale over the carrying tokens, and which rows had a sibling."""
    rows = range(len(batch.mask_BT))
    columns = [counted(batch.mask_BT, i) for i in rows]
    carrying = [
        c if batch.support_BT is None else [t for t in c if batch.support_BT[i, t]] for i, c in enumerate(columns)
    ]
    sums = [sum(float(batch.rewards_BT[i, t]) for t in carrying[i]) for i in rows]
    level = (
        sums if batch.support_BT is None else [total / max(1, len(c)) for total, c in zip(sums, carrying, strict=True)]
    )
    lengths = [len(c) for c in columns]
    result_BT, compared_B = (
        torch.zeros(batch.mask_BT.shape, dtype=torch.float64),
        torch.zeros(len(rows), dtype=torch.bool),
    )
    for i in rows:
        voters = [j for j in rows if batch.groups_B[j] == batch.groups_B[i] and carrying[j]]
        if i not in voters or len(voters) < 2:
            continue
        compared_B[i] = True
        b, factor, after = baseline(i, voters, level, lengths), scale(i, voters, level, lengths), 0.0
        for t in reversed(columns[i]):
            if batch.support_BT is None:
                own = (level[i] - b) * factor if t == columns[i][-1] else 0.0
            else:
                own = (float(batch.rewards_BT[i, t]) - b) * factor if t in carrying[i] else 0.0
            after = own + discount * after
            result_BT[i, t] = after
    return result_BT, compared_B


def mean(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
    return statistics.fmean(level[j] for j in voters)


def mean_of_others(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
    return statistics.fmean(level[j] for j in voters if j != i)


def length_weighted_mean(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
    return sum(lengths[j] * level[j] for j in voters) / sum(lengths[j] for j in voters)


def one(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
    return 1.0


def over_group_deviation(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
    deviation = statistics.stdev(level[j] for j in voters)
    return 1 / (deviation + 1e-6) if deviation > 1e-12 else 0.0


GROUP_EQUATIONS = {
    "grpo": (mean, over_group_deviation),
    "dr_grpo": (mean, one),
    "rloo": (mean_of_others, one),
    "opo": (length_weighted_mean, one),
}


@pytest.mark.parametrize("name", GROUP_EQUATIONS)
@settings(max_examples=40)
@given(batch=batches(), discount=DISCOUNTS)
def test_group_estimators_follow_their_equation(name: str, batch: Batch, discount: float) -> None:
    expected_BT, _ = group_loop(batch, discount, *GROUP_EQUATIONS[name])
    assert_close(batch.estimate(ADVANTAGES[name], discount=discount), expected_BT, 1e-9)


@settings(max_examples=40)
@given(batch=batches(), discount=DISCOUNTS)
def test_reinforce_plus_plus_baseline_whitens_what_has_a_sibling(batch: Batch, discount: float) -> None:
    centred_BT, compared_B = group_loop(batch, discount, mean, one)
    expected_BT = whiten_loop(centred_BT, batch.mask_BT & compared_B[:, None])
    actual_BT = batch.estimate(ADVANTAGES["reinforce_plus_plus_baseline"], discount=discount)
    assert_close(actual_BT, torch.where(compared_B[:, None], expected_BT, 0), 1e-9)


@settings(max_examples=40)
@given(batch=batches(outcome=False), discount=DISCOUNTS)
def test_primes_leave_one_out_follows_its_published_formula(batch: Batch, discount: float) -> None:
    # r·n/(n-1) - Σ_j r̄_j/(n-1) = (r - Σ_j r̄_j / n)·n/(n-1)
    def stretch(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
        return len(voters) / (len(voters) - 1)

    def total_over_n(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
        return sum(level[j] for j in voters) / len(voters)

    expected_BT, _ = group_loop(batch, discount, total_over_n, stretch)
    assert_close(batch.estimate(rloo, discount=discount, leave_one_out="prime"), expected_BT, 1e-9)


@settings(max_examples=40)
@given(batch=batches(outcome=True))
def test_grpo_can_divide_by_the_deviation_of_the_whole_batch(batch: Batch) -> None:
    def over_batch_deviation(i: int, voters: list[int], level: list[float], lengths: list[int]) -> float:
        deviation = statistics.stdev(level[j] for j in range(len(level)) if lengths[j])
        return 1 / (deviation + 0.01) if deviation > 1e-12 else 0.0

    expected_BT, _ = group_loop(batch, 1.0, mean, over_batch_deviation)
    assert_close(batch.estimate(grpo, scale="batch", eps=0.01), expected_BT, 1e-9)


def gae_loop(batch: Batch, discount: float, lam: float) -> Tensor:
    result_BT = torch.zeros(batch.mask_BT.shape, dtype=torch.float64)
    for row in range(len(batch.mask_BT)):
        advantage = next_value = 0.0
        for t in reversed(counted(batch.mask_BT, row)):
            value = float(batch.values_BT[row, t])
            advantage = float(batch.rewards_BT[row, t]) + discount * next_value - value + discount * lam * advantage
            next_value = value
            result_BT[row, t] = advantage
    return result_BT


@settings(max_examples=50)
@given(batch=batches(), discount=DISCOUNTS, lam=st.sampled_from([0.0, 0.4, 0.95, 1.0]))
def test_gae_follows_its_recursion(batch: Batch, discount: float, lam: float) -> None:
    assert_close(batch.estimate(gae, discount=discount, lam=lam), gae_loop(batch, discount, lam))


@settings(max_examples=40)
@given(batch=batches(), discount=DISCOUNTS)
def test_reinforce_and_its_relatives_follow_their_equation(batch: Batch, discount: float) -> None:
    returns_BT = gae_loop(Batch(batch.rewards_BT, batch.mask_BT, batch.groups_B, batch.values_BT * 0), discount, 1.0)
    centred_BT = torch.where(batch.mask_BT, returns_BT - batch.values_BT, 0)
    no_baseline_BT = ADVANTAGES["reinforce"](
        RewardTensors(batch.rewards_BT, batch.mask_BT, batch.groups_B), discount=discount
    )
    assert_close(no_baseline_BT, returns_BT)
    assert_close(batch.estimate(ADVANTAGES["reinforce"], discount=discount), centred_BT)
    assert_close(batch.estimate(ADVANTAGES["remax"], discount=discount), centred_BT)
    whitened_BT = batch.estimate(ADVANTAGES["reinforce_plus_plus"], discount=discount)
    assert_close(whitened_BT, whiten_loop(returns_BT, batch.mask_BT), 1e-9)


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_a_failed_rollout_has_no_vote() -> None:
    batch = outcome_batch([1, 1, 0, 0], [2, 0, 1, 3], [4, 4, 4, 4])  # the second failed
    firsts = [2 / 3, 0, -1 / 3, -1 / 3]
    assert_close(batch.estimate(ADVANTAGES["dr_grpo"])[:, 0], firsts, 1e-15)
    deviation = math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 2) + 1e-6
    assert_close(batch.estimate(grpo)[:, 0], [a / deviation for a in firsts], 1e-14)
    assert_close(batch.estimate(rloo)[:, 0], [1, 0, -1 / 2, -1 / 2], 1e-15)


def test_opo_weighs_the_baseline_by_length() -> None:
    batch = outcome_batch([1, 1, 0, 0], [2, 0, 1, 3], [4, 4, 4, 4])
    baseline = (2 * 1 + 1 * 0 + 3 * 0) / 6
    assert_close(batch.estimate(ADVANTAGES["opo"])[:, 0], [1 - baseline, 0, -baseline, -baseline], 1e-15)


def test_a_token_without_support_carries_nothing_but_credit_for_what_follows() -> None:
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    support_BT = torch.tensor([[False, True, True], [False, False, True]])
    rewards_BT = torch.tensor([[9.0, 1.0, 3.0], [9.0, 9.0, 4.0]]).double()  # the nines do not count
    batch = Batch(rewards_BT, mask_BT, torch.tensor([0, 0]), rewards_BT, support_BT)
    mean_level = ((1 + 3) / 2 + 4) / 2
    first = [(1 - mean_level) + (3 - mean_level)] * 2 + [3 - mean_level]
    assert_close(batch.estimate(ADVANTAGES["dr_grpo"]), [first, [4 - mean_level] * 3], 1e-15)


def test_leave_one_out_has_the_expected_gradient_of_the_reward() -> None:
    logits_V, rewards_V = (
        torch.tensor([0.3, -0.5, 1.0]).double().requires_grad_(),
        torch.tensor([1.0, 4.0, -2.0]).double(),
    )
    logprobs_V = torch.log_softmax(logits_V, -1)
    (wanted_V,) = torch.autograd.grad((logprobs_V.exp() * rewards_V).sum(), logits_V, retain_graph=True)
    expected = torch.zeros((), dtype=torch.float64)
    mask_BT, groups_B = torch.ones(2, 1, dtype=torch.bool), torch.tensor([0, 0])
    for pair in itertools.product(range(3), repeat=2):  # all groups of two samples, weighted by their probability
        chosen_B = logprobs_V[list(pair)]
        advantages_BT = rloo(RewardTensors(rewards_V[list(pair)][:, None], mask_BT, groups_B))
        expected = expected + chosen_B.sum().exp().detach() * (advantages_BT[:, 0] * chosen_B).mean()
    (actual_V,) = torch.autograd.grad(expected, logits_V)
    assert_close(actual_V, wanted_V, 1e-14)
