"""What a step minimises: formulas, and the same gradient over any split of the rows."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.policy_losses import POLICY_LOSSES
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.trainers.objective import CriticObjective, PolicyObjective, explained_variance
from rewardsmith.trainers.stages import PolicyStage
from tests.trainers.world import distance, new_engine, policy_stage, weights

B, T, V = 6, 5, 7
LENGTHS = torch.tensor([5, 1, 3, 2, 4, 0])
MASK = torch.arange(T)[None] < LENGTHS[:, None]
REDUCTIONS: dict[str, Any] = {
    "token-mean": "token-mean",
    "sequence-mean-token-mean": "sequence-mean-token-mean",
    "sequence-mean-token-sum": "sequence-mean-token-sum",
    "constant-length": {"type": "constant-length", "length": 4},
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "entropy": {"entropy": 0.3},
    "imitation": {"imitation": 0.5},
    "kl": {"kl": {"coefficient": 0.2}},
    "all": {"entropy": -0.1, "imitation": 0.5, "kl": {"coefficient": 0.2, "estimator": "k3"}},
}


class Case:
    """Logits of a tiny vocabulary in float64, and everything that a loss is made of."""

    def __init__(self, stage: PolicyStage, *, seed: int = 0, importance: bool = False) -> None:
        make = torch.Generator().manual_seed(seed)
        normal = partial(torch.randn, generator=make, dtype=torch.float64)
        self.logits_BTV = normal(B, T, V)
        self.tokens_BT = torch.randint(V, (B, T), generator=make)
        self.old_BT = self.logprobs(self.logits_BTV) + 0.1 * normal(B, T)
        self.reference_BT = self.logprobs(self.logits_BTV) + 0.3 * normal(B, T)
        self.advantages_BT = torch.where(MASK, normal(B, 1).expand(B, T), 0)
        self.advantages_BT[2] = 0  # a row that all its siblings equal
        self.importance_BT = normal(B, T).exp() if importance else None
        self.objective = PolicyObjective(
            stage,
            MASK,
            self.advantages_BT,
            self.old_BT,
            self.reference_BT if stage.kl.coefficient else None,
            self.importance_BT,
        )

    def logprobs(self, logits_BTV: Tensor) -> Tensor:
        return logits_BTV.log_softmax(-1).gather(-1, self.tokens_BT[..., None]).squeeze(-1)

    def outputs(self, logits_BTV: Tensor, rows: Tensor, at: Tensor, width: int) -> Outputs:
        """Return what an engine says about the rows, which were given to it at the places `at`."""
        logprobs_BTV = logits_BTV.log_softmax(-1)
        entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
        nothing = torch.zeros_like(entropy_BT)
        cut = [torch.where(MASK, x, 0)[rows, :width] for x in (self.logprobs(logits_BTV), entropy_BT, nothing)]
        return Outputs(at, MASK[rows, :width], *cut)

    def gradient(self, rows_b: list[int], parts: list[list[int]]) -> tuple[Tensor, float]:
        """Return gradient and value of a step about `rows_b`, of which each part is a list of places."""
        live_k = torch.tensor(sorted(i for part in parts for i in part))
        rows = torch.tensor(rows_b)
        loss = self.objective.part(rows, live_k)
        logits_BTV = self.logits_BTV.clone().requires_grad_()
        width = max(1, int(LENGTHS[rows[live_k]].max()))
        total = 0.0
        for part in parts:
            at = torch.searchsorted(live_k, torch.tensor(part))
            value = loss(self.outputs(logits_BTV, rows[torch.tensor(part)], at, width))
            value.backward()
            total += float(value.detach())
        assert logits_BTV.grad is not None
        return logits_BTV.grad, total


def close(a: object, b: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * 1e-2, check_dtype=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", POLICY_LOSSES)
@settings(max_examples=8)
@given(order=st.permutations(range(B)), cuts=st.sets(st.integers(1, B - 1)), extra=st.sampled_from(sorted(EXTRAS)))
def test_the_parts_of_a_step_add_up_to_the_whole(
    loss: str, reduction: str, order: list[int], cuts: set[int], extra: str
) -> None:
    stage = policy_stage(loss=loss, reduction=REDUCTIONS[reduction], **EXTRAS[extra])
    case = Case(stage, importance=True)
    bounds = [0, *sorted(cuts), B]
    parts = [order[a:b] for a, b in pairwise(bounds)]
    whole, value = case.gradient(list(range(B)), [list(range(B))])
    split, sum_of_values = case.gradient(list(range(B)), parts)
    assert whole.abs().max() > 1e-3
    close(split, whole, 1e-12)
    assert sum_of_values == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("extra", ["plain", "imitation", "entropy", "kl"])
def test_rows_that_are_not_live_have_no_gradient_but_weigh(reduction: str, extra: str) -> None:
    case = Case(policy_stage(reduction=REDUCTIONS[reduction], **EXTRAS[extra]))
    live = case.objective.live_B.nonzero().squeeze(-1).tolist()
    # row 2 has no advantage, row 5 no token; something that is added to the policy loss is about row 2 as well
    assert live == ([0, 1, 2, 3, 4] if extra in ("entropy", "kl") else [0, 1, 3, 4])
    everything, value = case.gradient(list(range(B)), [list(range(B))])
    only_live, same = case.gradient(list(range(B)), [live])
    assert torch.equal(only_live, everything)
    assert same == pytest.approx(value, rel=1e-12)


def expected(case: Case, stage: PolicyStage, logits_BTV: Tensor) -> Tensor:
    """The clip loss with token-mean and all that may be added, from the equations."""
    logprobs_BT = case.logprobs(logits_BTV)
    ratio_BT = (logprobs_BT - case.old_BT).exp()
    clipped_BT = ratio_BT.clamp(0.8, 1.2)
    losses_BT = torch.maximum(-case.advantages_BT * ratio_BT, -case.advantages_BT * clipped_BT)
    if case.importance_BT is not None:
        losses_BT = losses_BT * case.importance_BT
    probabilities = logits_BTV.softmax(-1)
    entropy_BT = -(probabilities * probabilities.log()).sum(-1)
    d = logprobs_BT - case.reference_BT
    kl_BT = {"auto": d**2 / 2, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[stage.kl.estimator]
    total = (losses_BT - stage.entropy * entropy_BT + stage.kl.coefficient * kl_BT)[MASK].mean()
    good_BT = MASK & (case.advantages_BT > 0)
    return total + stage.imitation * (-case.advantages_BT * logprobs_BT)[good_BT].mean()


@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize("extra", EXTRAS)
def test_value_and_gradient_are_those_of_the_equations(extra: str, importance: bool) -> None:
    stage = policy_stage(**EXTRAS[extra])
    case = Case(stage, seed=3, importance=importance)
    logits_BTV = case.logits_BTV.clone().requires_grad_()
    value = expected(case, stage, logits_BTV)
    value.backward()
    gradient, found = case.gradient(list(range(B)), [[0, 1], [2, 3, 4, 5]])
    assert found == pytest.approx(float(value.detach()), rel=1e-6)
    assert logits_BTV.grad is not None
    close(gradient, logits_BTV.grad)


def test_without_old_logprobs_the_ratio_is_one() -> None:
    case = Case(policy_stage(loss="clip", reduction="token-mean"))
    objective = PolicyObjective(case.objective.stage, MASK, case.advantages_BT, None, None, None)
    case.objective = objective
    _, value = case.gradient(list(range(B)), [list(range(B))])
    assert value == pytest.approx(-float(case.advantages_BT[MASK].mean()))
    means = objective.meter.means()
    assert (means["clipped_low"], means["clipped_high"], means["kl_from_old"]) == (0, 0, 0)


def test_statistics_are_means_over_the_tokens_of_all_parts() -> None:
    stage = policy_stage(kl={"coefficient": 0.1})
    case = Case(stage)
    case.gradient(list(range(B)), [[0, 3], [1, 2, 4, 5]])
    means = case.objective.meter.means()
    logprobs_BT = case.logprobs(case.logits_BTV)
    assert means["kl_from_old"] == pytest.approx(float((case.old_BT - logprobs_BT)[MASK].mean()), rel=1e-6)
    assert means["kl_from_reference"] == pytest.approx(float((logprobs_BT - case.reference_BT)[MASK].mean()), rel=1e-6)
    ratio_BT = (logprobs_BT - case.old_BT).exp()
    low_BT = (ratio_BT < 0.8) & (case.advantages_BT < 0)
    assert means["clipped_low"] == pytest.approx(float(low_BT[MASK].double().mean()))


# ---- the critic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4]], [[3, 0], [1], [4, 2]]])
def test_the_loss_of_a_critic_is_the_clipped_squared_error(parts: list[list[int]]) -> None:
    stage = policy_stage(advantage="gae", critic={"model": "critic", "clip": 0.2})
    make = torch.Generator().manual_seed(0)
    values_BT, old_BT, returns_BT = (torch.randn(B, T, generator=make) for _ in range(3))
    values_BT.requires_grad_()
    objective = CriticObjective(stage, MASK, old_BT, returns_BT)
    assert objective.live_B.tolist() == [True] * 5 + [False]
    loss = objective.part(torch.arange(B), torch.arange(5))
    nothing = torch.zeros(B, T)
    for part in parts:
        at = torch.tensor(part)
        loss(Outputs(at, MASK[at], nothing[at], nothing[at], torch.where(MASK, values_BT, 0)[at])).backward()
    gradient = values_BT.grad
    assert gradient is not None
    near_BT = old_BT + (values_BT.detach() - old_BT).clamp(-0.2, 0.2)
    worse_BT = (near_BT - returns_BT).square() > (values_BT.detach() - returns_BT).square()
    slope_BT = torch.where(worse_BT, 0, values_BT.detach() - returns_BT)  # a clipped value does not move
    close(gradient, torch.where(MASK, slope_BT, 0) / MASK.sum(), 1e-5)
    error = (values_BT.detach() - returns_BT).square()[MASK].mean()
    assert objective.meter.means()["squared_error"] == pytest.approx(float(error))


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(returns - 5, returns) == 1  # a constant offset is no variance
    assert explained_variance(torch.zeros(4), returns) == 0
    assert explained_variance(-returns, returns) == pytest.approx(1 - 4)
    assert explained_variance(returns, torch.ones(4)) == 0
    assert explained_variance(torch.zeros(1), torch.ones(1)) == 0


# ---- the meter, and a real model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 40])
def test_a_model_takes_the_same_step_whatever_fits_into_a_pass(budget: int) -> None:
    make = np.random.default_rng(0)
    prompts = [make.integers(5, 100, 4).astype(np.int32) for _ in range(2)]
    rows = [Row(prompts[i % 2], make.integers(5, 100, int(LENGTHS[i])).astype(np.int32)) for i in range(5)]
    stage = policy_stage(entropy=0.1, reduction="sequence-mean-token-mean")
    results = []
    for tokens in (None, budget):
        engine = new_engine(tokens_per_pass=tokens)
        engine.learn_with(stage.optimizer)
        objective = PolicyObjective(stage, MASK[:5], Case(stage).advantages_BT[:5].float(), None, None, None)
        step = engine.update(rows, objective.part(torch.arange(5), torch.arange(5)), lr=1e-3)
        results.append((step.grad_norm, weights(engine)))
    (norm, one), (same, other) = results
    assert same == pytest.approx(norm, rel=1e-4)
    assert distance(one, other) < 1e-2 * distance(one, weights(new_engine()))
