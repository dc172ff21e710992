"""RMS norm with the addition before it against its definition in float64, and against transformers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import INTERPRETED
from rewardsmith.engines.embedded.kernels.norms import add_rms_norm
from tests.kernels.exact import BOUNDS, check


def definition(residual: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    x = residual if delta is None else residual + delta
    return weight * x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt(), x


def ours(residual: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    return add_rms_norm(residual, delta, weight, 0.01)


@pytest.mark.parametrize(("n", "width"), [(3, 7), (37, 80), (17, 576), (1, 2049), (0, 8)])
def test_add_rms_norm(randn: Callable[..., Tensor], n: int, width: int) -> None:
    weight = randn(width)
    check(ours, definition, [randn(n, width), randn(n, width), weight])
    check(ours, definition, [randn(n, width), None, weight])


def test_outputs_that_no_loss_uses(randn: Callable[..., Tensor]) -> None:
    residual, delta, weight = randn(5, 24), randn(5, 24), randn(24)
    exact_weight = weight.detach().double().cpu()
    check(lambda *x: ours(*x)[0], lambda *x: definition(*x)[0], [residual, delta, weight])
    check(lambda *x: ours(*x, weight)[1], lambda *x: definition(*x, exact_weight)[1], [residual, delta])
    weight.requires_grad_(False)  # frozen, as under LoRA
    check(lambda *x: ours(*x, weight), lambda *x: definition(*x, exact_weight), [residual, delta])


def test_a_row_of_zeros_is_zero_and_has_a_finite_gradient(place: tuple[str, torch.dtype]) -> None:
    x = torch.zeros(2, 24, device=place[0], dtype=place[1], requires_grad=True)
    normed, _ = add_rms_norm(x, None, torch.ones_like(x[0]), 1e-6)
    (gradient,) = torch.autograd.grad(normed.sum(), x)
    assert not normed.any()
    torch.testing.assert_close(gradient, torch.full_like(x, 1e3))  # 1 / sqrt(eps)


@pytest.mark.skipif(INTERPRETED, reason="importing transformers takes seconds")
def test_it_is_the_norm_of_transformers(randn: Callable[..., Tensor], place: tuple[str, torch.dtype]) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, delta, weight = randn(9, 576), randn(9, 576), randn(576)
    theirs = LlamaRMSNorm(576, 1e-5).to(*place)
    theirs.weight.data = weight.data
    normed, total = add_rms_norm(x, delta, weight, 1e-5)
    bound = BOUNDS[place[1]] if place[0] == "cuda" else 0.0
    torch.testing.assert_close(total, x + delta, rtol=0.0, atol=0.0)
    torch.testing.assert_close(normed, theirs(x + delta), rtol=2 * bound, atol=0.0)
