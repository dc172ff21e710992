"""The recorded values as tensors, and the comparison that all parity tests use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardsmith.algorithms.policy_losses import REDUCTIONS, reduce
from tests.parity.reference import as_tensor


@dataclass(frozen=True)
class Case:
    """One call of a peer: its settings, and inputs and outputs as tensors (masks bool, ids int64, the rest float64)."""

    settings: dict[str, Any]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def _document(peer: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(f"{peer}.json").read_text(encoding="utf-8"))


def version(peer: str) -> str:
    """Return the peer's version that computed the values."""
    return _document(peer)["version"]


def load(peer: str) -> dict[str, Case]:
    """Return all cases of a peer by name."""
    document = _document(peer)
    inputs = {scenario: _tensors(values) for scenario, values in document["scenarios"].items()} | {None: {}}
    return {
        name: Case(case["settings"], inputs[case["scenario"]], _tensors(case["outputs"]))
        for name, case in document["cases"].items()
    }


def _tensors(values: dict[str, Any]) -> dict[str, Tensor]:
    return {name: as_tensor(name, value) for name, value in values.items()}


VERL, TRL = load("verl"), load("trl")


def names(cases: dict[str, Case], *prefixes: str, without: str = "!") -> list[str]:
    """Return the names that begin with one of the prefixes and do not hold `without`; at least one."""
    found = [name for name in cases if name.startswith(prefixes) and without not in name]
    assert found, f"no recorded case begins with {prefixes}"
    return found


def assert_near(actual: Tensor, expected: Tensor, *, rtol: float = 1e-8, atol: float = 1e-9) -> None:
    """Compare as float64; the tolerances leave room for the ten recorded digits and little else."""
    torch.testing.assert_close(actual.detach().double(), expected.double(), rtol=rtol, atol=atol)


def assert_near_where(mask_BT: Tensor, actual_BT: Tensor, expected_BT: Tensor, **tolerance: float) -> None:
    """Compare under the mask; outside, ours is exactly zero and the peer's may be anything."""
    assert not actual_BT[~mask_BT].any()
    assert_near(actual_BT[mask_BT], expected_BT[mask_BT], **tolerance)


def leaf(values: Tensor) -> Tensor:
    """Return a copy that collects a gradient; recorded inputs are shared between tests."""
    return values.clone().requires_grad_()


def weights(reduction: str, mask_BT: Tensor, **settings: int) -> Tensor:
    """Return a reduction's weights in float64."""
    return REDUCTIONS[reduction](mask_BT, torch.float64, **settings)


def ours(
    loss: Callable[..., Any],
    inputs: dict[str, Tensor],
    advantages_BT: Tensor,
    reduction: str,
    *,
    length: int | None = None,
    weights_BT: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return our reduced policy loss, its gradient in the log-probs, and the token means of its statistics."""
    mask_BT, logprobs_BT = inputs["mask_BT"], leaf(inputs["logprobs_BT"])
    losses_BT, statistics = loss(logprobs_BT, inputs["old_BT"], advantages_BT, mask_BT, **settings)
    if weights_BT is not None:
        losses_BT = losses_BT * weights_BT
    total = reduce(losses_BT, weights(reduction, mask_BT, **({} if length is None else {"length": length})))
    (gradient_BT,) = torch.autograd.grad(total, logprobs_BT)
    means = {name: values_BT[mask_BT].double().mean() for name, values_BT in statistics.items()}
    return total, gradient_BT, means
