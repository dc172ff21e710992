"""PRIME on random ragged batches: implicit rewards, and what the reward model learns by. The peer is `prime_peer`."""

from __future__ import annotations

import math

import pytest
import torch

from rewardsmith.algorithms.implicit_rewards import (
    implicit_rewards,
    outcome_cross_entropy,
    pairwise_wins,
)
from rewardsmith.algorithms.tensors import last_token
from tests.algorithms.tensors import gather_steps, normalise_by_return, pairwise_accuracy, pairwise_loss, smooth
from tests.parity import prime_peer as peer
from tests.parity.load import leaf
from tests.parity.prime_peer import BETA, SEEDS, Draw, Rows, drawn


@pytest.fixture(params=SEEDS)
def draw(request: pytest.FixtureRequest) -> Draw:
    return drawn(request.param)


def sums_of(rows: Rows) -> list[float]:
    return [sum(row) for row in rows]


# ---- rewards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, BETA])
def test_implicit_rewards_and_their_gradient(draw: Draw, beta: float) -> None:
    """P's token scores are the raw q, which is β = 1; V's are β q. The gradient stays out of the reference."""
    logprobs_BT, reference_BT = leaf(draw.tensor(draw.logprobs)), leaf(draw.tensor(draw.reference))
    rewards_BT = implicit_rewards(logprobs_BT, reference_BT, draw.mask_BT, beta=beta)
    draw.assert_rows(rewards_BT, peer.scaled(draw.ratios, beta))
    rewards_BT.sum().backward()
    assert torch.equal(logprobs_BT.grad, beta * draw.mask_BT.double())
    assert reference_BT.grad is None


def test_rewards_are_zero_where_the_model_is_its_reference(draw: Draw) -> None:
    logprobs_BT = draw.tensor(draw.logprobs)
    assert not implicit_rewards(logprobs_BT, logprobs_BT, draw.mask_BT, beta=BETA).any()


def test_granularity_whole_puts_the_sum_on_the_last_token(draw: Draw) -> None:
    """P's; V's assigns a vector to one place and cannot run."""
    rewards_BT, support_BT = gather_steps(draw.tensor(draw.ratios), draw.mask_BT)
    draw.assert_rows(rewards_BT, peer.on_last(draw.ratios))
    assert torch.equal(support_BT, last_token(draw.mask_BT))


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_smoothing_and_the_recipes_tokens(draw: Draw, lam: float) -> None:
    """V: Σ_k λ^k (β q)_{t+k} over all tokens, and then 0 on the last one; ours keeps what is there."""
    smoothed_BT = smooth(draw.tensor(peer.scaled(draw.ratios, BETA)), draw.mask_BT, lam=lam)
    expected = [peer.returns(row, lam) for row in peer.scaled(draw.ratios, BETA)]
    draw.assert_rows(smoothed_BT, expected)
    recipe_BT = torch.where(last_token(draw.mask_BT), 0, smoothed_BT)
    draw.assert_rows(recipe_BT, peer.without_last(expected))


@pytest.mark.parametrize("beta", [1.0, BETA])
@pytest.mark.parametrize("granularity", ["token", "token of the recipe", "whole"])
def test_batch_norm_divides_by_the_largest_return(draw: Draw, granularity: str, beta: float) -> None:
    rows = peer.scaled(draw.ratios, beta)
    rewards_BT = draw.tensor(rows)
    if granularity == "whole":
        rows, rewards_BT = peer.on_last(rows), gather_steps(rewards_BT, draw.mask_BT)[0]
    if granularity == "token of the recipe":
        rows, rewards_BT = peer.without_last(rows), torch.where(last_token(draw.mask_BT), 0, rewards_BT)
    draw.assert_rows(normalise_by_return(rewards_BT, draw.mask_BT), peer.batch_norm(rows))


def test_batch_norm_is_of_the_whole_batch_and_not_of_a_shard(draw: Draw) -> None:
    """P and V normalise the rows of each process by themselves; ours has one scale for all."""
    rows, half = draw.ratios, draw.size // 2
    shards = peer.batch_norm(rows[:half]) + peer.batch_norm(rows[half:])
    found_BT = normalise_by_return(draw.tensor(rows), draw.mask_BT)
    draw.assert_rows(found_BT, peer.batch_norm(rows))
    factors = {round(b[0] / a[0], 6) for a, b in zip(rows, shards, strict=True)}
    assert len(factors) == 2  # the peers' two shards are on two scales


# ---- learning ------------------------------------------------------------------------------------------------------


def test_cross_entropy_and_its_gradient(draw: Draw) -> None:
    """Mean over the responses, fractions allowed; dL/dr_t = (σ(q) - o) / B at every token."""
    rows = peer.scaled(draw.ratios, BETA)
    rewards_BT = leaf(draw.tensor(rows))
    losses_B = outcome_cross_entropy(rewards_BT, draw.mask_BT, draw.outcomes_B)
    pairs = list(zip(sums_of(rows), draw.outcomes, strict=True))
    draw.assert_column(losses_B, [peer.cross_entropy(q, o) for q, o in pairs])
    losses_B.mean().backward()
    slopes = [(peer.sigmoid(q) - o) / len(pairs) for q, o in pairs]
    draw.assert_rows(rewards_BT.grad, [[slope] * len(row) for slope, row in zip(slopes, rows, strict=True)])


def test_means_of_equal_micro_batches_are_the_mean_of_the_mini_batch(draw: Draw) -> None:
    """P and V: a mean in each micro-batch, by their number. Ours are weighted by rows, so every split is exact."""
    rows = peer.scaled(draw.ratios, BETA)
    losses = [peer.cross_entropy(q, o) for q, o in zip(sums_of(rows), draw.outcomes, strict=True)]
    micro = [sum(losses[i] for i in group) / draw.size for group in draw.groups]
    losses_B = outcome_cross_entropy(draw.tensor(rows), draw.mask_BT, draw.outcomes_B)
    assert losses_B.mean().item() == pytest.approx(sum(micro) / len(micro), rel=1e-10)


@pytest.mark.parametrize("logit", [-1e4, 1e4])
def test_cross_entropy_does_not_end_where_a_sigmoid_is_full(logit: float) -> None:
    """P and V: the loss is 100 and the gradient 0, so a response that is wrong beyond doubt teaches nothing."""
    outcome_B = torch.tensor([0.0 if logit > 0 else 1.0])
    theirs_B, ours_BT = torch.tensor([logit], requires_grad=True), torch.tensor([[logit]], requires_grad=True)
    clamped = torch.nn.functional.binary_cross_entropy(theirs_B.sigmoid(), outcome_B)
    clamped.backward()
    assert (clamped.item(), theirs_B.grad.item()) == (100, 0)
    loss_B = outcome_cross_entropy(ours_BT, torch.ones(1, 1, dtype=torch.bool), outcome_B)
    loss_B.sum().backward()
    assert (loss_B.item(), ours_BT.grad.item()) == (1e4, math.copysign(1, logit))


WEIGHTINGS = [("dpo", "none"), ("bon_acc", "best-of-n-outcome"), ("bon_rm", "best-of-n-reward")]


@pytest.mark.parametrize(("name", "weighting"), WEIGHTINGS)
@pytest.mark.parametrize("failing", [False, True])
def test_pairwise_losses_of_each_response_and_their_gradient(
    draw: Draw, name: str, weighting: str, failing: bool
) -> None:
    """V's three losses, before it averages `dpo` and adds up the other two. A failed outcome is no label in ours."""
    rows = peer.scaled(draw.ratios, BETA)
    voters = [i for i in range(len(rows)) if not (failing and i % 3 == 1)]
    rewards_BT = leaf(draw.tensor(rows))
    voting_BT = draw.mask_BT & torch.tensor([i in voters for i in draw.order])[:, None]
    outcomes = [o if i in voters else math.nan for i, o in enumerate(draw.outcomes)]
    losses_B = pairwise_loss(rewards_BT, voting_BT, draw.column(outcomes), draw.groups_B, weighting=weighting)
    sums, losses, slopes = sums_of(rows), [0.0] * len(rows), [0.0] * len(rows)
    for i in voters:
        losses[i], slopes[i] = peer.pairwise(draw, sums, voters, i)
        if name != "dpo":
            weight = peer.best_of_n(draw, draw.outcomes if name == "bon_acc" else sums, voters, i)
            losses[i], slopes[i] = weight * losses[i], weight * slopes[i]
    draw.assert_column(losses_B, losses)
    losses_B.sum().backward()
    draw.assert_rows(rewards_BT.grad, [[slope] * len(row) for slope, row in zip(slopes, rows, strict=True)])


def test_pairwise_accuracy(draw: Draw) -> None:
    """`dpo_acc` counts a group without a difference as 0.5; ours leaves it out, and says how many are left."""
    sums = sums_of(draw.ratios)
    votes_B = torch.ones(len(sums), dtype=torch.bool)
    shares = peer.dpo_accuracy(draw, sums)
    differing = [len({draw.outcomes[i] for i in group}) > 1 for group in draw.groups]
    ordered = [share for share, differs in zip(shares, differing, strict=True) if differs]
    won, number = pairwise_wins(draw.column(sums), draw.outcomes_B, votes_B, draw.groups_B)
    assert number == len(ordered)
    assert won.item() == pytest.approx(sum(ordered), rel=1e-12)
    assert (won.item() + (len(shares) - len(ordered)) / 2) / len(shares) == pytest.approx(sum(shares) / len(shares))
    expected = sum(ordered) / len(ordered) if ordered else 0.5
    found = pairwise_accuracy(draw.column(sums), draw.outcomes_B, votes_B, draw.groups_B)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_draws_are_not_all_of_one_kind() -> None:
    draws = [drawn(seed) for seed in SEEDS]
    assert len({draw.size for draw in draws}) > 2
    assert any(len(row) == 1 for draw in draws for row in draw.logprobs)
    assert any(0 < outcome < 1 for draw in draws for outcome in draw.outcomes)
    shares = [share for draw in draws for share in peer.dpo_accuracy(draw, sums_of(draw.ratios))]
    assert {0.5} < set(shares)
    same = [len({draw.outcomes[i] for i in group}) == 1 for draw in draws for group in draw.groups]
    assert any(same)
    assert not all(same)
