"""Log-probabilities and entropy of chosen tokens, against autograd and differences."""

import itertools

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded import heads
from rewardsmith.engines.embedded.heads import Head

N, D, V = 11, 5, 7
HEADS = [
    {"bias": bias, "scale": scale, "cap": cap}
    for bias, scale, cap in itertools.product([False, True], [1.0, 0.4], [None, 2.0])
]


def numbers(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((N, D), (V, D), (V,))
    )
    targets = torch.randint(V, (N,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), targets


def by_definition(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, cap: float | None, temperature: float
) -> Tensor:
    """Return all log-probabilities, [N, V]."""
    logits = hidden @ weight.T * scale if bias is None else (hidden @ weight.T + bias) * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return torch.log_softmax(logits / temperature, -1)


@pytest.mark.parametrize(("chunk", "temperature"), [(3, 0.7), (100, 1.0)])
@pytest.mark.parametrize("parts", HEADS, ids=str)
def test_numbers_and_gradients(
    parts: dict[str, float | None], temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(heads.CHUNK_ELEMENTS, "cpu", chunk * V)
    hidden, weight, bias, targets = numbers()
    scale, cap = float(parts["scale"] or 1), parts["cap"]
    inputs = [x.requires_grad_() for x in ((hidden, weight, bias) if parts["bias"] else (hidden, weight))]

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return Head(weight, bias, scale, cap).token_logprobs(hidden, targets, temperature=temperature)

    logp = by_definition(hidden, weight, bias if parts["bias"] else None, scale, cap, temperature)
    logprobs, entropy = ours(*inputs)
    expected = (logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1))
    torch.testing.assert_close((logprobs, entropy), expected)
    for by_logprob, by_entropy in ((1.0, 0.0), (0.0, 1.0), (1.0, -0.5)):
        weights = torch.linspace(-1, 2, N, dtype=torch.float64)
        found, wanted = (
            torch.autograd.grad((weights * (by_logprob * a + by_entropy * b)).sum(), inputs, retain_graph=True)
            for a, b in ((logprobs, entropy), expected)
        )
        torch.testing.assert_close(found, wanted)


def test_the_gradient_in_bfloat16_is_that_of_the_same_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=generator) * 3 for shape in ((64, 16), (50, 16)))
    hidden, weight = hidden.bfloat16(), weight.bfloat16().requires_grad_()
    targets = torch.randint(50, (64,), generator=generator)
    logits = torch.nn.functional.linear(hidden, weight).float()  # as rounded as in the forward pass
    gaps = []
    for temperature in (1.0, 0.7):
        logprobs, _ = Head(weight).token_logprobs(hidden, targets, temperature=temperature)
        (found,) = torch.autograd.grad(logprobs.sum(), weight)
        by_logits = (torch.nn.functional.one_hot(targets, 50) - (logits / temperature).softmax(-1)) / temperature
        expected = by_logits.T @ hidden.float()
        gaps.append(float((found.float() - expected).detach().norm() / expected.detach().norm()))
    assert gaps[1] < 1.5 * gaps[0]


@pytest.mark.parametrize("parts", HEADS, ids=str)
def test_without_the_entropy_the_rest_is_the_same(
    parts: dict[str, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(heads.CHUNK_ELEMENTS, "cpu", 4 * V)
    hidden, weight, bias, targets = numbers(torch.float32)
    inputs = [x.requires_grad_() for x in ((hidden, weight, bias) if parts["bias"] else (hidden, weight))]
    head = Head(weight, bias if parts["bias"] else None, float(parts["scale"] or 1), parts["cap"])
    found = {}
    for entropy in (True, False):
        logprobs, entropies = head.token_logprobs(hidden, targets, temperature=0.7, entropy=entropy)
        assert bool(entropies.any()) == entropies.requires_grad == entropy
        found[entropy] = (logprobs, *torch.autograd.grad(logprobs.square().sum(), inputs))
    assert all(bool((a == b).all()) for a, b in zip(found[True], found[False], strict=True))
