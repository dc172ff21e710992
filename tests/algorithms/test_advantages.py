"""Every advantage estimator against a loop over its equation, by hand, and what must not change it."""

import itertools
import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors, gae, grpo, process_value, rloo
from rewardsmith.algorithms.implicit_rewards import values_before
from rewardsmith.algorithms.tensors import last_token
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


WITHOUT_GROUP = {"gae", "reinforce", "reinforce_plus_plus", "remax", "process_value"}


TWO_DISCOUNTS = st.sampled_from([0.7, 1.0])


every_estimator = pytest.mark.parametrize("name", ADVANTAGES)


every_group_estimator = pytest.mark.parametrize("name", [name for name in ADVANTAGES if name not in WITHOUT_GROUP])


both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@every_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=TWO_DISCOUNTS, columns=st.integers(0, 5), data=st.data())
def test_permuted_rows_permute_the_result_and_more_padding_changes_nothing(
    name: str, batch: Batch, discount: float, columns: int, data: st.DataObject
) -> None:
    order, width = data.draw(st.permutations(range(len(batch.mask_BT)))), batch.mask_BT.shape[1]
    expected_BT = batch.estimate(ADVANTAGES[name], discount=discount)[order]
    actual_BT = batch.take(order).padded(columns).estimate(ADVANTAGES[name], discount=discount)
    assert_close(actual_BT[:, :width], expected_BT, 1e-9)
    assert not actual_BT[:, width:].any()


@every_estimator
@settings(max_examples=25)
@given(batch=batches(min_rows=2), discount=TWO_DISCOUNTS, data=st.data())
def test_a_failed_row_is_as_good_as_deleted(name: str, batch: Batch, discount: float, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, len(batch.mask_BT) - 1))
    mask_BT = batch.mask_BT.clone()
    mask_BT[failed] = False  # its rewards stay where they are: nobody may read them
    masked = Batch(batch.rewards_BT, mask_BT, batch.groups_B, batch.values_BT, batch.support_BT)
    others = [row for row in range(len(mask_BT)) if row != failed]
    actual_BT = masked.estimate(ADVANTAGES[name], discount=discount)
    assert not actual_BT[failed].any()
    assert_close(actual_BT[others], batch.take(others).estimate(ADVANTAGES[name], discount=discount), 1e-9)


@every_estimator
@settings(max_examples=15)
@given(batch=batches(), bad=st.sampled_from([torch.nan, torch.inf, -torch.inf]), data=st.data())
def test_a_reward_that_is_not_finite_is_named(name: str, batch: Batch, bad: float, data: st.DataObject) -> None:
    counts = [(row, t) for row in range(len(batch.mask_BT)) for t in counted(batch.mask_BT, row)]
    if not counts:
        return
    row, column = data.draw(st.sampled_from(counts))
    batch.rewards_BT[row, column] = bad
    with pytest.raises(ValueError, match=rf"rewards\[{row}, {column}\] is {bad}"):
        batch.estimate(ADVANTAGES[name])


@every_estimator
@both_dtypes
@settings(max_examples=15)
@given(batch=batches(), size=st.sampled_from([1e30, 1e-30]), discount=TWO_DISCOUNTS)
def test_huge_and_tiny_rewards_have_finite_advantages(
    name: str, dtype: torch.dtype, batch: Batch, size: float, discount: float
) -> None:
    batch = batch.to(dtype)
    scaled = Batch(batch.rewards_BT * size, batch.mask_BT, batch.groups_B, batch.values_BT * size, batch.support_BT)
    actual_BT = scaled.estimate(ADVANTAGES[name], discount=discount)
    assert actual_BT.isfinite().all()
    assert not actual_BT[~batch.mask_BT].any()


@every_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=TWO_DISCOUNTS)
def test_float32_is_float64_rounded(name: str, batch: Batch, discount: float) -> None:
    single = batch.to(torch.float32)
    # Deviations that are nothing but rounding are scaled up to a millionth by grpo: compare from there on.
    expected_BT = single.to(torch.float64).estimate(ADVANTAGES[name], discount=discount)
    actual_BT = single.estimate(ADVANTAGES[name], discount=discount)
    assert actual_BT.dtype == torch.float32
    assert expected_BT.dtype == torch.float64
    assert_close(actual_BT, expected_BT, 1e-3)


# ---- groups --------------------------------------------------------------------------------------------------------


@every_group_estimator
@both_dtypes
@pytest.mark.parametrize("reward", [0.1, -1 / 3, 1e30, 1e-30])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [3, 1, 2], [2, 5, 0, 3]])
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_a_constant_group_has_advantage_exactly_zero(
    name: str, dtype: torch.dtype, reward: float, lengths: list[int], discount: float
) -> None:
    batch = outcome_batch([reward] * len(lengths), lengths, [9] * len(lengths), dtype)
    assert not batch.estimate(ADVANTAGES[name], discount=discount).any()


@every_group_estimator
@settings(max_examples=25)
@given(batch=batches(outcome=True), discount=TWO_DISCOUNTS)
def test_an_outcome_is_a_reward_carried_by_the_last_token(name: str, batch: Batch, discount: float) -> None:
    end_BT = last_token(batch.mask_BT)
    sums_B1 = torch.where(batch.mask_BT, batch.rewards_BT, 0).sum(-1, keepdim=True)
    rewards_BT = torch.where(end_BT, sums_B1, 0)
    carried = Batch(rewards_BT, batch.mask_BT, batch.groups_B, batch.values_BT, end_BT)
    actual_BT = carried.estimate(ADVANTAGES[name], discount=discount)
    assert_close(actual_BT, batch.estimate(ADVANTAGES[name], discount=discount), 1e-9)


LINKS = ["logit", "probability"]


@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=40)
@given(batch=batches(), discount=st.sampled_from([0.0, 0.7, 1.0]))
def test_it_is_the_return_less_what_was_thought_before_the_token(link: str, batch: Batch, discount: float) -> None:
    # The values of the batch stand for process rewards; the estimator gets their sums.
    expected_BT = torch.zeros_like(batch.rewards_BT)
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        for i, t in enumerate(columns):
            reward = sum(discount**k * float(batch.rewards_BT[row, s]) for k, s in enumerate(columns[i:]))
            value = sum(float(batch.values_BT[row, s]) for s in columns[:i])
            expected_BT[row, t] = reward - (value if link == "logit" else 1 / (1 + math.exp(-value)))
    thought = Batch(
        batch.rewards_BT, batch.mask_BT, batch.groups_B, values_before(batch.values_BT, batch.mask_BT), batch.support_BT
    )
    assert_close(thought.estimate(process_value, discount=discount, link=link), expected_BT)


@settings(max_examples=40)
@given(batch=batches())
def test_for_an_outcome_the_steps_of_the_advantage_are_the_process_rewards(batch: Batch) -> None:
    # A_t - A_{t+1} = v_{t+1} - v_t = r_t: the paper's value has the process rewards as its differences.
    outcomes_BT = torch.where(last_token(batch.mask_BT), 0.75, 0.0).double()
    values_BT = values_before(batch.values_BT, batch.mask_BT)
    advantages_BT = process_value(RewardTensors(outcomes_BT, batch.mask_BT, batch.groups_B, values_BT))
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        for t, following in itertools.pairwise(columns):
            step = float(advantages_BT[row, t] - advantages_BT[row, following])
            assert step == pytest.approx(float(batch.values_BT[row, t]), abs=1e-12)
        if columns:
            assert float(advantages_BT[row, columns[0]]) == 0.75  # nothing was thought yet


@every_estimator
def test_bfloat16_agrees_with_float64_to_its_own_digits_and_the_graph_ends(name: str) -> None:
    rewards_BT = torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 0.25], [1.0, 1.0]], dtype=torch.float64)
    batch = Batch(rewards_BT, torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 0, 1, 1]), rewards_BT / 4)
    actual_BT = batch.to(torch.bfloat16).estimate(ADVANTAGES[name])
    assert actual_BT.dtype == torch.bfloat16
    torch.testing.assert_close(actual_BT.double(), batch.estimate(ADVANTAGES[name]), rtol=3e-2, atol=3e-2)
    assert (
        not batch.map(lambda x: x.requires_grad_() if x.is_floating_point() else x)
        .estimate(ADVANTAGES[name])
        .requires_grad
    )
