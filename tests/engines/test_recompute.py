"""Layers that are recomputed: which ones, what they keep, and that no bit of a gradient changes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rewardsmith.engines.embedded.attention import attention_plan
from rewardsmith.engines.embedded.recompute import recompute_layers, run_layer
from rewardsmith.engines.memory_estimate import activation_bytes, named_shape, recomputed_layers
from rewardsmith.engines.model_settings import LoraSettings

from .running import open_engine, random_rows

ROWS = random_rows(0, [(4, 6), (20, 5), (4, 1)])
CASES = [(0, False), (1, False), (3, False), (5, False), (3, True)]


def run_stack(count: int, *, offload: bool) -> tuple[list[Tensor], list[int], int]:
    """Return gradients, how often each of three layers ran, and the numbers that they kept."""
    torch.manual_seed(0)
    layers, runs, kept = [nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)], [0] * 3, []
    weights = {p.untyped_storage().data_ptr() for layer in layers for p in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        kept.append(0 if tensor.untyped_storage().data_ptr() in weights else tensor.numel())
        return tensor

    def layer(i: int, hidden: Tensor) -> Tensor:
        runs[i] += 1
        found: Tensor = layers[i](hidden)
        return found

    hidden = torch.randn(5, 8, requires_grad=True)
    with recompute_layers(count, offload=offload), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        for i in range(3):
            hidden = run_layer(layer, i, hidden)
    hidden.square().sum().backward()  # type: ignore[no-untyped-call]
    return [p.grad for layer in layers for p in layer.parameters() if p.grad is not None], runs, sum(kept)


@pytest.mark.parametrize(("count", "offload"), CASES)
def test_the_first_layers_run_twice_and_keep_their_input(count: int, offload: bool) -> None:
    expected, _, most = run_stack(0, offload=False)
    found, runs, kept = run_stack(count, offload=offload)
    assert runs == [2 if i < count else 1 for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    if not offload:  # its own hooks are inside
        assert most - kept == min(count, 3) * 5 * (32 + 32)  # what goes into and out of the GELU


def test_nothing_is_recomputed_without_gradients_or_outside() -> None:
    calls: list[int] = []
    with recompute_layers(9), torch.no_grad():
        run_layer(calls.append, 1)
    run_layer(calls.append, 2)
    with recompute_layers(1), recompute_layers(0):
        run_layer(calls.append, 3)
    assert calls == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, base="int8")])
def test_no_bit_of_a_gradient_changes(lora: LoraSettings | None, dtype: Any) -> None:
    found = []
    for recompute in (False, True, "offload", "auto"):
        engine = open_engine("tiny-qwen3", recompute=recompute, lora=lora, dtype=dtype)
        parameters = dict(engine.model.named_parameters())
        for batch, outputs in engine._forward(ROWS, 0.8, None, entropy=True):
            with attention_plan(batch.plan):
                (outputs.entropy_bT - outputs.logprobs_bT.square()).sum().backward()  # type: ignore[no-untyped-call]
        found.append({name: p.grad for name, p in parameters.items() if p.grad is not None})
    assert found[0]
    for other in found[1:]:
        assert all(torch.equal(gradient, other[name]) for name, gradient in found[0].items())


@settings(max_examples=30)
@given(tokens=st.integers(1, 200_000), free=st.floats(0, 2e11), spread=st.floats(1, 4))
def test_as_few_layers_are_recomputed_as_the_memory_allows(tokens: int, free: float, spread: float) -> None:
    shape = named_shape("Qwen3-1.7B")
    assert shape is not None
    counts = range(shape.layers + 1)
    needs = [activation_bytes(shape, 2, tokens=tokens, spread=spread, recomputed=count) for count in counts]
    chosen = recomputed_layers(shape, 2, free, tokens=tokens, spread=spread)
    if needs[chosen] > free:
        assert needs[chosen] == min(needs)
    else:
        assert all(need > free for need in needs[:chosen])
