"""Rotary embedding with norms of heads against its definition in float64, and against transformers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import INTERPRETED
from rewardsmith.engines.embedded.kernels.rotary import rotate
from tests.kernels.exact import BOUNDS, check


def angles(n: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of tokens at odd positions, as transformers lays them out."""
    turns = torch.arange(n)[:, None] * 37 % 101 * 0.3 ** torch.arange(width // 2)
    return tuple(f(turns).repeat(1, 2).to(like) for f in (torch.cos, torch.sin))  # type: ignore[return-value]


def definition(x: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None) -> Tensor:
    """Turn each pair (x_i, x_{i + D/2}) as a complex number."""
    if norm is not None:
        x = norm * x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt()
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.complex(cos[:, :half], sin[:, :half])[:, None]
    return torch.cat((turned.real, turned.imag), -1)


@pytest.mark.parametrize(("n", "heads", "kv", "width"), [(3, 2, 1, 6), (19, 9, 3, 64), (7, 3, 3, 80), (0, 2, 1, 16)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate(randn: Callable[..., Tensor], n: int, heads: int, kv: int, width: int, normed: bool) -> None:
    inputs = [randn(n, heads, width), randn(n, kv, width), *((randn(width), randn(width)) if normed else (None, None))]
    cos, sin = angles(n, width, inputs[0])
    doubles = cos.double().cpu(), sin.double().cpu()
    check(
        lambda q, k, a, b: rotate(q, k, cos, sin, a, b, 0.01),
        lambda q, k, a, b: (definition(q, *doubles, a), definition(k, *doubles, b)),
        inputs,
        factor=2,
    )


@pytest.mark.parametrize("normed", [False, True])
def test_views_of_a_joined_product(randn: Callable[..., Tensor], normed: bool) -> None:
    n, heads, kv, width = 5, 4, 2, 16
    joined, norms = randn(n, (heads + 2 * kv) * width), (randn(width), randn(width)) if normed else (None, None)
    cos, sin = angles(n, width, joined)
    doubles = cos.double().cpu(), sin.double().cpu()

    def split(joined: Tensor) -> tuple[Tensor, Tensor]:
        q, k, _ = joined.view(n, -1, width).split((heads, kv, kv), 1)
        return q, k

    def exact(joined: Tensor, *norms: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(definition(x, *doubles, norm) for x, norm in zip(split(joined), norms, strict=True))

    check(lambda joined, *norms: rotate(*split(joined), cos, sin, *norms, 0.01), exact, [joined, *norms], factor=2)


def test_gradients_from_another_layout(randn: Callable[..., Tensor]) -> None:
    q, k, norm = randn(5, 2, 8), randn(5, 1, 8), randn(8)
    cos, sin = angles(5, 8, q)
    by_q = randn(2, 5, 8).detach()
    for norms in ((None, None), (norm, norm)):
        found = rotate(q, k, cos, sin, *norms, 0.01)[0]
        strided, plain = (
            torch.autograd.grad(found, q, g, retain_graph=True)
            for g in (by_q.transpose(0, 1), by_q.transpose(0, 1).contiguous())
        )
        assert torch.equal(strided[0], plain[0])


@pytest.mark.skipif(INTERPRETED, reason="importing transformers takes seconds")
def test_it_is_the_embedding_of_transformers(randn: Callable[..., Tensor], place: tuple[str, torch.dtype]) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    q, k, norm = randn(9, 4, 128), randn(9, 2, 128), randn(128)
    cos, sin = angles(9, 128, q)
    theirs = Qwen3RMSNorm(128, 1e-6).to(*place)
    theirs.weight.data = norm.data
    expected = apply_rotary_pos_emb(theirs(q), theirs(k), cos, sin)
    found = rotate(q, k, cos, sin, norm, norm, 1e-6)
    for ours, wanted in zip(found, expected, strict=True):
        bound = 2 * float(wanted.detach().abs().max()) * BOUNDS[place[1]] if place[0] == "cuda" else 0.0
        torch.testing.assert_close(ours, wanted, rtol=0.0, atol=bound)


def test_a_head_of_zeros_has_a_finite_gradient(place: tuple[str, torch.dtype]) -> None:
    x = torch.zeros(2, 1, 8, device=place[0], dtype=place[1], requires_grad=True)
    cos, sin = angles(2, 8, x)
    weight = torch.ones(8, device=place[0], dtype=place[1])
    q, k = rotate(x, x, cos, sin, weight, weight, 1e-6)
    (gradient,) = torch.autograd.grad(q.sum() + k.sum(), x)
    assert not q.any()
    half = (cos + sin)[0, :4] / math.sqrt(1e-6)
    torch.testing.assert_close(gradient[0, 0, :4], 2 * half, rtol=0.02, atol=0.0)
