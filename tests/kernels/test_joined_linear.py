"""Joined linear layers and the gated MLP as one step of autograd, against their definitions in float64."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from rewardsmith.engines.embedded.joined_linear import JoinedLinear, gated_mlp

Place = tuple[str, torch.dtype]


def layer(inputs: int, outputs: int, place: Place, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(inputs * outputs)
    made = nn.Linear(inputs, outputs, bias=bias).to(*place)
    for parameter in made.parameters():
        parameter.grad_dtype = torch.float32
    return made


@pytest.mark.parametrize("bias", [False, True])
def test_joined_layers_give_what_they_give_apart(place: Place, randn: Callable[..., Tensor], bias: bool) -> None:
    layers = [layer(24, outputs, place, bias=bias) for outputs in (32, 8, 16)]
    joined = JoinedLinear(SimpleNamespace(a=layers[0], b=layers[1], c=layers[2]), "abc")
    joined.join()
    x, grads = randn(7, 24), [randn(7, outputs).detach() for outputs in (32, 8, 16)]
    exact_x = x.detach().double().requires_grad_()
    exact = [[p.detach().double().requires_grad_() for p in one.parameters()] for one in layers]
    expected = [nn.functional.linear(exact_x, *parameters) for parameters in exact]
    torch.autograd.backward(expected, [grad.double() for grad in grads])
    found = joined(x)
    torch.autograd.backward(list(found), grads)
    tolerance = 1e-5 if place[1] == torch.float32 else 3e-2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(x.grad.double(), exact_x.grad, atol=tolerance, rtol=tolerance)
    for one, parameters in zip(layers, exact, strict=True):
        for parameter, leaf in zip(one.parameters(), parameters, strict=True):
            assert parameter.grad.dtype == torch.float32
            torch.testing.assert_close(parameter.grad.double(), leaf.grad, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("frozen", ["nothing", "up", "down", "input"])
def test_the_mlp_against_autograd(place: Place, randn: Callable[..., Tensor], frozen: str) -> None:
    gate, up, down = layer(24, 40, place), layer(24, 40, place), layer(40, 24, place)
    x, grad = randn(9, 24), randn(9, 24).detach()
    leaves = {"gate": gate.weight, "up": up.weight, "down": down.weight, "input": x}
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    if frozen in leaves:
        leaves[frozen].requires_grad_(False)
    joined = JoinedLinear(SimpleNamespace(gate=gate, up=up), ("gate", "up"))
    joined.join()
    z = exact["input"] @ exact["gate"].T
    expected = (z / (1 + torch.exp(-z)) * (exact["input"] @ exact["up"].T)) @ exact["down"].T
    expected.backward(grad.double())
    found = gated_mlp(joined, down, x)
    found.backward(grad)
    tolerance = 1e-5 if place[1] == torch.float32 else 4e-2
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        assert torch.equal(gated_mlp(joined, down, x), found)  # log-probabilities are those of the update
    for name, leaf in leaves.items():
        if name == frozen:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad.double(), exact[name].grad, atol=tolerance, rtol=tolerance)
