"""PRIME on random ragged batches: from two rewards to advantages. The peer is `prime_peer`."""

from __future__ import annotations

import math
import statistics
from functools import partial

import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream, estimate_advantages, gae, grpo, process_value, reinforce, rloo
from rewardsmith.algorithms.implicit_rewards import implicit_rewards, values_before
from rewardsmith.algorithms.tensors import last_token
from tests.algorithms.tensors import gather_steps, normalise_by_return
from tests.parity import prime_peer as peer
from tests.parity.prime_peer import BETA, SEEDS, Draw, Rows, drawn

GAMMAS = [(1.0, 1.0), (0.9, 1.0), (0.95, 0.8)]


@pytest.fixture(params=SEEDS)
def draw(request: pytest.FixtureRequest) -> Draw:
    return drawn(request.param)


def streams(
    draw: Draw,
    process_BT: Tensor,
    gammas: tuple[float, float] = (1.0, 1.0),
    weights: tuple[float, float] = (1.0, 1.0),
    support_BT: Tensor | None = None,
) -> list[Stream]:
    support_BT = draw.mask_BT if support_BT is None else support_BT
    return [
        Stream("process", process_BT, support_BT, discount=gammas[0], weight=weights[0]),
        Stream("outcome", draw.tensor(draw.outcome_rows), discount=gammas[1], weight=weights[1]),
    ]


def prime(found: list[Stream], draw: Draw, **settings: bool) -> Tensor:
    estimator = partial(rloo, leave_one_out="prime")
    return estimate_advantages(found, draw.mask_BT, draw.groups_B, estimator=estimator, combine="after", **settings)


@pytest.mark.parametrize("whiten", [True, False])  # whitening hides a common factor such as n/(n-1)
@pytest.mark.parametrize("gammas", GAMMAS)
def test_advantage_of_the_authors_code(draw: Draw, gammas: tuple[float, float], whiten: bool) -> None:
    """P: leave-one-out for each source, returns with a discount for each, summed; whitened over the batch."""
    sources = [(draw.ratios, "all", gammas[0]), (draw.outcome_rows, "last", gammas[1])]
    parts = [
        [peer.returns(row, gamma) for row in peer.masked_rloo(draw, rows, carries=carries)]
        for rows, carries, gamma in sources
    ]
    expected = peer.whitened(peer.added(*parts)) if whiten else peer.added(*parts)
    draw.assert_rows(prime(streams(draw, draw.tensor(draw.ratios), gammas), draw, whiten=whiten), expected)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("weights", [(5.0, 5.0), (0.5, 2.0)])
def test_advantage_of_the_recipe(draw: Draw, weights: tuple[float, float], whiten: bool) -> None:
    """V: leave-one-out for each source, times a coefficient; one cumulative sum without a discount; whitened."""
    rows = peer.without_last(peer.scaled(draw.ratios, BETA))
    centred = peer.added(
        peer.scaled(peer.masked_rloo(draw, rows, carries="all"), weights[0]),
        peer.scaled(peer.masked_rloo(draw, draw.outcome_rows, carries="last"), weights[1]),
    )
    expected = [peer.returns(row, 1.0) for row in centred]
    found_BT = prime(streams(draw, draw.tensor(rows), weights=weights), draw, whiten=whiten)
    draw.assert_rows(found_BT, peer.whitened(expected) if whiten else expected)


def test_the_recipe_from_log_probabilities_to_advantages(draw: Draw) -> None:
    """V with its defaults: β q, nothing on the last token, batch norm, coefficients of 5, whitening."""
    rows = peer.batch_norm(peer.without_last(peer.scaled(draw.ratios, BETA)))
    centred = peer.added(
        peer.scaled(peer.masked_rloo(draw, rows, carries="all"), 5.0),
        peer.scaled(peer.masked_rloo(draw, draw.outcome_rows, carries="last"), 5.0),
    )
    expected = peer.whitened([peer.returns(row, 1.0) for row in centred])
    rewards_BT = implicit_rewards(draw.tensor(draw.logprobs), draw.tensor(draw.reference), draw.mask_BT, beta=BETA)
    rewards_BT = normalise_by_return(torch.where(last_token(draw.mask_BT), 0, rewards_BT), draw.mask_BT)
    draw.assert_rows(prime(streams(draw, rewards_BT, weights=(5.0, 5.0)), draw, whiten=True), expected)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_advantage_of_the_paper(draw: Draw, gamma: float) -> None:
    """Equation 5: Σ_{s≥t} γ^{s-t} [r_s - mean_{j≠i} r̄_j] + o_i - mean_{j≠i} o_j."""
    rewards, expected = draw.ratios, []
    means = [statistics.fmean(row) for row in rewards]
    for i, row in enumerate(rewards):
        others = [j for j in draw.siblings(i) if j != i]
        baseline = statistics.fmean(means[j] for j in others)
        outcome = draw.outcomes[i] - statistics.fmean(draw.outcomes[j] for j in others)
        process = [sum(gamma ** (s - t) * (row[s] - baseline) for s in range(t, len(row))) for t in range(len(row))]
        expected.append([value + outcome for value in process])
    found = streams(draw, draw.tensor(rewards), (gamma, 1.0))
    draw.assert_rows(estimate_advantages(found, draw.mask_BT, draw.groups_B, estimator=rloo, combine="after"), expected)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_authors_code_stretches_what_differs_inside_a_response(draw: Draw, gamma: float) -> None:
    """Their leave-one-out is the exact one plus (r_t - r̄_i)/(n-1) at each token; over a response that adds up to 0."""
    found = [Stream("process", draw.tensor(draw.ratios), draw.mask_BT, discount=gamma)]
    exact_BT = estimate_advantages(found, draw.mask_BT, draw.groups_B, estimator=rloo, combine="after")
    excess = []
    for row in draw.ratios:
        mean = statistics.fmean(row)
        excess.append(peer.returns([(r - mean) / (draw.size - 1) for r in row], gamma))
    theirs_BT = prime(found, draw)
    draw.assert_rows(theirs_BT - exact_BT, excess)
    if gamma == 1:
        torch.testing.assert_close(theirs_BT[:, 0], exact_BT[:, 0], rtol=1e-9, atol=1e-9)


def test_for_the_outcome_their_leave_one_out_is_exact(draw: Draw) -> None:
    outcome = streams(draw, draw.tensor(draw.ratios))[1:]
    exact_BT = estimate_advantages(outcome, draw.mask_BT, draw.groups_B, estimator=rloo, combine="after")
    torch.testing.assert_close(prime(outcome, draw), exact_BT, rtol=1e-9, atol=1e-9)


def test_the_whole_response_is_centred_on_the_token_that_carries_it(draw: Draw) -> None:
    """P has the sum on the last token but centres all tokens; ours by default the last alone."""
    rows = peer.on_last(draw.ratios)
    rewards_BT, support_BT = gather_steps(draw.tensor(draw.ratios), draw.mask_BT)
    theirs = [peer.returns(row, 1.0) for row in peer.masked_rloo(draw, rows, carries="all")]
    draw.assert_rows(prime(streams(draw, rewards_BT, support_BT=draw.mask_BT)[:1], draw), theirs)
    ours = [peer.returns(row, 1.0) for row in peer.masked_rloo(draw, rows, carries="last")]
    draw.assert_rows(prime(streams(draw, rewards_BT, support_BT=support_BT)[:1], draw), ours)


# ---- with other estimators: section 5 of the paper -----------------------------------------------------------------


def standardised(draw: Draw, levels: list[float], i: int) -> tuple[float, float]:
    """Return the mean of a group's levels, and one over their deviation; a constant group has no advantage."""
    group = [levels[j] for j in draw.siblings(i)]
    deviation = statistics.stdev(group)
    return statistics.fmean(group), 1 / (deviation + 1e-6) if deviation > 1e-12 else 0.0


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_grpo_with_process_rewards(draw: Draw, gamma: float) -> None:
    """Σ_{s≥t} γ^{s-t} (r_s - mean_j r̄_j) / std_j r̄_j, plus the outcome's (o_i - mean_j o_j) / std_j o_j."""
    levels, expected = [statistics.fmean(row) for row in draw.ratios], []
    for i, row in enumerate(draw.ratios):
        mean, scale = standardised(draw, levels, i)
        outcome_mean, outcome_scale = standardised(draw, draw.outcomes, i)
        outcome = (draw.outcomes[i] - outcome_mean) * outcome_scale
        expected.append([value + outcome for value in peer.returns([(r - mean) * scale for r in row], gamma)])
    found = streams(draw, draw.tensor(draw.ratios), (gamma, 1.0))
    draw.assert_rows(estimate_advantages(found, draw.mask_BT, draw.groups_B, estimator=grpo, combine="after"), expected)


@pytest.mark.parametrize("gammas", GAMMAS)
def test_reinforce_with_process_rewards(draw: Draw, gammas: tuple[float, float]) -> None:
    """No baseline: the returns of both."""
    expected = peer.added(
        [peer.returns(row, gammas[0]) for row in draw.ratios],
        [peer.returns(row, gammas[1]) for row in draw.outcome_rows],
    )
    found = streams(draw, draw.tensor(draw.ratios), gammas)
    draw.assert_rows(
        estimate_advantages(found, draw.mask_BT, draw.groups_B, estimator=reinforce, combine="after"), expected
    )


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8)])
def test_ppo_with_process_rewards(draw: Draw, gamma: float, lam: float) -> None:
    """The critic values the sum of both rewards; its values are the reference's log-probabilities here."""
    expected: Rows = []
    for rewards, values in zip(peer.added(draw.ratios, draw.outcome_rows), draw.reference, strict=True):
        following = [*values[1:], 0.0]
        deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
        expected.append(peer.returns(deltas, gamma * lam))
    found = streams(draw, draw.tensor(draw.ratios), (gamma, gamma))
    values_BT = draw.tensor(draw.reference)
    estimator = partial(gae, lam=lam)
    draw.assert_rows(estimate_advantages(found, draw.mask_BT, draw.groups_B, values_BT, estimator=estimator), expected)


def test_the_reward_model_as_value(draw: Draw) -> None:
    """A_t = o - v_φ(y_<t), the sum of the process rewards before the token."""
    expected = [
        [outcome - sum(row[:t]) for t in range(len(row))]
        for row, outcome in zip(draw.ratios, draw.outcomes, strict=True)
    ]
    outcome = streams(draw, draw.tensor(draw.ratios))[1:]
    values_BT = values_before(draw.tensor(draw.ratios), draw.mask_BT)
    draw.assert_rows(
        estimate_advantages(outcome, draw.mask_BT, draw.groups_B, values_BT, estimator=process_value), expected
    )


# ---- where the originals have no answer ----------------------------------------------------------------------------


def test_a_failed_outcome_is_left_out_of_its_source_alone(draw: Draw) -> None:
    """P and V call it 0 (or 0.5) and go on. Ours: no vote among the outcomes, while the process reward still counts."""
    failed = [i for i in range(len(draw.outcomes)) if i % 3 == 1]
    scored_BT = draw.mask_BT & torch.tensor([i not in failed for i in draw.order])[:, None]
    process, outcome = streams(draw, draw.tensor(draw.ratios))
    rewards_BT = torch.where(scored_BT, outcome.rewards_BT, math.nan)
    found = [process, Stream("outcome", rewards_BT, mask_BT=scored_BT, discount=1.0)]
    expected = [peer.returns(row, 1.0) for row in peer.masked_rloo(draw, draw.ratios, carries="all")]
    for i, row in enumerate(expected):
        others = [j for j in draw.siblings(i) if j != i and j not in failed]
        if i not in failed and others:
            baseline = statistics.fmean(draw.outcomes[j] for j in others)
            expected[i] = [value + draw.outcomes[i] - baseline for value in row]
    draw.assert_rows(prime(found, draw), expected)


def test_a_response_without_sibling_and_an_empty_one_have_no_advantage() -> None:
    """P and V: a group of one divides by zero, and an empty response is a mean of nothing."""
    mask_BT = torch.tensor([[True, True], [True, False], [False, False]])
    rewards_BT = torch.tensor([[0.3, -0.1], [0.7, math.nan], [math.nan, math.nan]], dtype=torch.float64)
    for leave_one_out in ("exact", "prime"):
        advantages_BT = estimate_advantages(
            [Stream("process", rewards_BT, mask_BT)],
            mask_BT,
            torch.tensor([0, 1, 1]),
            estimator=partial(rloo, leave_one_out=leave_one_out),
            combine="after",
        )
        assert not advantages_BT.any()
