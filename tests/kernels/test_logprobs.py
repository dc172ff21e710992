"""Log-probabilities, entropies and the gradient of a chunk of logits, against autograd in float64."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded import heads
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.kernels.logprobs import LogitScale, logits_gradient, measure
from tests.kernels.exact import BOUNDS, check, close

SCALES = [
    LogitScale(scale, cap, temperature)
    for scale, cap, temperature in itertools.product((1.0, 0.4), (None, 2.0), (1.0, 0.7))
]


def definition(logits: Tensor, targets: Tensor, scaling: LogitScale) -> tuple[Tensor, Tensor, Tensor]:
    x = logits * scaling.scale
    x = x if scaling.cap is None else scaling.cap * torch.tanh(x / scaling.cap)
    x = x / scaling.temperature
    p = x.softmax(-1)
    return p.gather(-1, targets[:, None])[:, 0].log(), x.logsumexp(-1), -(p * p.log()).sum(-1)


def near(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double().cpu(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("n", "width"), [(3, 7), (2, 5001), (0, 16), (1, 512)])
@pytest.mark.parametrize("scaling", SCALES[:: len(SCALES) - 1], ids=str)
def test_sizes(randn: Callable[..., Tensor], n: int, width: int, scaling: LogitScale) -> None:
    compare(randn(n, width, scale=3.0), scaling)


@pytest.mark.parametrize("scaling", SCALES, ids=str)
def test_scales(randn: Callable[..., Tensor], scaling: LogitScale) -> None:
    compare(randn(3, 40, scale=3.0), scaling)


def compare(logits: Tensor, scaling: LogitScale) -> None:
    n, width = logits.shape
    targets = torch.arange(n) * 31 % width
    targets[:1] = width - 1
    exact_logits = logits.detach().double().cpu().requires_grad_()
    exact = definition(exact_logits, targets, scaling)
    targets = targets.to(logits.device)
    by_logprob, by_entropy = (torch.linspace(*ends, n, device=logits.device) for ends in ((-1, 2), (3, 1)))
    for entropy in (True, False):
        logprobs, lse, entropies = measure(logits.detach().clone(), targets, scaling, entropy=entropy)
        for found, wanted in zip((logprobs, lse, entropies), exact, strict=True):
            near(found, wanted.detach() if entropy or found is not entropies else torch.zeros(n, dtype=torch.float64))
        weights = (by_logprob, torch.zeros_like(lse), by_entropy if entropy else torch.zeros_like(lse))
        (gradient,) = torch.autograd.grad(exact, exact_logits, [w.double().cpu() for w in weights], retain_graph=True)
        chunk = logits.detach().clone()
        found = logits_gradient(chunk, targets, lse, entropies, by_logprob, by_entropy if entropy else None, scaling)
        assert found is chunk or torch.equal(found, chunk)
        close(found, gradient, 2)


def test_a_chunk_in_a_wider_buffer(randn: Callable[..., Tensor]) -> None:
    buffer = randn(4, 24).detach()
    kept = buffer.clone()
    targets = torch.tensor([0, 5, 18, 3], device=buffer.device)
    found = measure(buffer[:, :19].clone(), targets, SCALES[0], entropy=True)
    logits_gradient(buffer[:, :19], targets, found[1], found[2], torch.ones_like(found[0]), None, SCALES[0])
    assert torch.equal(buffer[:, 19:], kept[:, 19:])
    assert float(buffer[:, :19].sum(-1).abs().max()) < 19 * BOUNDS[buffer.dtype]  # Σ_v ([v = y] - p_v) = 0


def test_certain_and_hopeless_tokens(place: tuple[str, torch.dtype]) -> None:
    logits = torch.full((2, 5000), -90.0, device=place[0], dtype=place[1])
    logits[:, 4999] = 90.0
    targets = torch.tensor([4999, 17], device=place[0])
    logprobs, _, entropy = measure(logits.clone(), targets, LogitScale(), entropy=True)
    near(logprobs, torch.tensor([0.0, -180.0], dtype=torch.float64))
    near(entropy, torch.zeros(2, dtype=torch.float64))


def test_a_head_in_chunks(randn: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias = randn(7, 16), randn(37, 16, scale=0.3), randn(37)
    targets = torch.arange(7) * 5

    def exact(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return definition(hidden @ weight.T + bias, targets, LogitScale(temperature=0.7))[::2]

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        places = targets.to(hidden.device)
        return tuple(x.to(hidden) for x in Head(weight, bias).token_logprobs(hidden, places, temperature=0.7))

    for rows in (3, 100):
        monkeypatch.setitem(heads.CHUNK_ELEMENTS, hidden.device.type, rows * 37)
        check(ours, exact, [hidden, weight, bias], factor=3)
