"""Comparison of a function and its gradients with the same in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2**-7}  # of the largest value of a tensor; bfloat16 has 8 bits


def close(found: Tensor, exact: Tensor, factor: float = 1.0) -> None:
    """Compare with a bound relative to the largest exact value."""
    assert found.shape == exact.shape
    gap = (found.detach().double().cpu() - exact.detach().cpu()).abs()
    bound = factor * BOUNDS[found.dtype] * float(exact.detach().abs().max()) if exact.numel() else 0.0
    assert gap.numel() == 0 or float(gap.max()) <= bound, f"{float(gap.max())} > {bound}"


def check(
    ours: Callable[..., Tensor | tuple[Tensor, ...]],
    exact: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    factor: float = 1.0,
) -> None:
    """Compare results and the gradients of a random combination of them, for all tensors among the inputs."""
    doubles = [None if x is None else x.detach().double().cpu().requires_grad_() for x in inputs]
    found, wanted = ours(*inputs), exact(*doubles)
    found, wanted = ((x,) if isinstance(x, Tensor) else x for x in (found, wanted))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(found[0].dtype) for x in wanted]
    gradients = torch.autograd.grad(
        found, [x for x in inputs if x is not None], [w.to(found[0].device) for w in weights]
    )
    expected = torch.autograd.grad(wanted, [x for x in doubles if x is not None], [w.double() for w in weights])
    for ours_, exact_ in zip((*found, *gradients), (*wanted, *expected), strict=True):
        close(ours_, exact_, factor)
