"""Frozen weights in 8 bits: how far they are from the original, whose gradients flow, and the life of such a model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.int8_linear import Int8Linear, quantise_rows
from rewardsmith.engines.embedded.loading import check_model
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.engines.protocol import Outputs, Sampling
from rewardsmith.errors import UserError

from .running import answer, random_rows, rows_of

ROWS = random_rows(0, [(4, 6), (20, 5), (4, 1)])
CPU = torch.device("cpu")


def open_engine(
    name: str = "tiny-qwen3", *, base: str = "int8", lora: dict[str, Any] | None = None, **settings: Any
) -> EmbeddedEngine:
    adapter = LoraSettings.model_validate({"rank": 4, "base": base, **(lora or {})})
    return EmbeddedEngine.open(ModelSettings(init=name, device="cpu", lora=adapter, **settings))


def loss(outputs: Outputs) -> Tensor:
    return -outputs.logprobs_bT.sum()


def train(engine: EmbeddedEngine, steps: int = 3) -> list[float]:
    return [engine.update(ROWS, loss, lr=1e-2).grad_norm for _ in range(steps)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]))
def test_a_weight_is_off_by_half_a_step_of_its_row(dtype: torch.dtype, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((5, 33)) * scale * 10.0 ** rng.integers(-3, 3, (5, 1))
    numbers[2] = 0
    weight = torch.from_numpy(numbers).to(dtype)
    codes, scales = quantise_rows(weight)
    step = weight.double().abs().amax(-1, keepdim=True) / 127
    error = (codes.double() * scales.double() - weight.double()).abs()
    assert bool((error <= 0.51 * step).all())
    assert codes.abs().amax(-1).tolist() == [127, 127, 0, 127, 127]


def test_int8_is_closer_than_float8() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    codes, scales = quantise_rows(weight)
    largest = weight.abs().amax(-1, keepdim=True) / 448
    float8 = (weight / largest).to(torch.float8_e4m3fn).float() * largest
    errors = [float((found - weight).square().mean().sqrt()) for found in (codes * scales, float8)]
    assert errors[0] < 0.01
    assert errors[0] < errors[1] / 2.5


@pytest.mark.parametrize("bias", [True, False])
def test_product_and_gradient_are_those_of_the_dequantised_weights(bias: bool) -> None:
    torch.manual_seed(0)
    layer = Int8Linear(nn.Linear(17, 9, bias=bias), CPU)
    exact = nn.Linear(17, 9, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        exact.weight.copy_(layer.weight.double() * layer.scale.double())
        if bias:
            exact.bias.copy_(layer.bias)
    x = torch.randn(2, 3, 17, requires_grad=True)
    x64 = x.detach().double().requires_grad_()
    weights = torch.randn(2, 3, 9)
    y, y64 = layer(x), exact(x64)
    (y * weights).sum().backward()  # type: ignore[no-untyped-call]
    (y64 * weights).sum().backward()
    torch.testing.assert_close(y.double(), y64, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.grad.double(), x64.grad, atol=1e-5, rtol=1e-5)  # type: ignore[union-attr]
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.dequantised()(x), y)


def test_only_one_byte_of_a_weight_is_kept_for_the_backward_pass() -> None:
    layer, kept = Int8Linear(nn.Linear(64, 32, bias=False), CPU), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.untyped_storage().nbytes()), lambda x: x):
        layer(torch.randn(8, 64, requires_grad=True))
    assert sum(kept) == 64 * 32 + 32 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_layers_of_the_backbone_are_in_8_bits_and_the_adapter_alone_learns(dtype: Any) -> None:
    engine, plain = open_engine(dtype=dtype), open_engine(dtype=dtype, base="dtype")
    kinds = {name.rpartition(".")[2]: p.dtype for name, p in engine.model.named_parameters() if "base_layer" in name}
    below = {n: p.detach().clone() for n, p in engine.model.named_parameters() if "lora_" not in n}
    assert set(kinds.values()) == {torch.int8}
    floats = [n for n, p in below.items() if p.dtype != torch.int8]
    assert all("embed" in n or "norm" in n for n in floats)  # the head is the table of embeddings here
    near = engine.logprobs(ROWS)
    assert not torch.equal(near, plain.logprobs(ROWS))
    torch.testing.assert_close(near, plain.logprobs(ROWS), atol=0.05, rtol=0)
    assert torch.equal(engine.reference_logprobs(ROWS), near)
    engine.learn_with(OptimizerSettings(lr=1e-2))
    train(engine)
    assert all(torch.equal(p, below[n]) for n, p in engine.model.named_parameters() if n in below)
    assert float(engine.logprobs(ROWS).sum()) > float(near.sum()) + 1
    assert torch.equal(engine.reference_logprobs(ROWS), near)


def test_what_is_sampled_has_the_log_probabilities_that_are_learned_from() -> None:
    engine = open_engine()
    engine.learn_with(OptimizerSettings(lr=1e-2))
    train(engine)
    groups = answer(engine, ["1+2", "7*8-3"], Sampling(max_tokens=12), n=3)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    logprobs_BT = engine.logprobs(rows_of(engine, groups))
    for row, rollout in zip(logprobs_BT, rollouts, strict=True):
        np.testing.assert_allclose(row[: len(rollout.tokens)].numpy(), rollout.logprobs, atol=2e-5)


def test_what_is_published_is_the_model_that_was_trained(tmp_path: Path) -> None:
    engine = open_engine()
    engine.learn_with(OptimizerSettings(lr=1e-2))
    train(engine)
    engine.publish(tmp_path)
    merged = EmbeddedEngine.open(ModelSettings(init=str(tmp_path), device="cpu"))
    assert all(p.dtype == torch.float32 for p in merged.model.parameters())
    torch.testing.assert_close(merged.logprobs(ROWS), engine.logprobs(ROWS), atol=1e-5, rtol=1e-5)
    copy = engine.copy(name="copy")
    torch.testing.assert_close(copy.logprobs(ROWS), engine.logprobs(ROWS), atol=1e-5, rtol=1e-5)
    assert any(isinstance(module, Int8Linear) for module in engine.model.modules())  # it stays as it was
    again = open_engine(lora={"init": str(tmp_path / "adapter")})
    assert torch.equal(again.logprobs(ROWS), engine.logprobs(ROWS))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_goes_on_bit_for_bit(dtype: Any, tmp_path: Path) -> None:
    whole, again = (open_engine(dtype=dtype, head="scalar" if dtype == "float32" else "language") for _ in range(2))
    score = loss if dtype == "bfloat16" else lambda outputs: (outputs.values_bT.sum() - 3).square()
    steps = lambda engine: [engine.update(ROWS, score, lr=1e-2).grad_norm for _ in range(2)]  # noqa: E731
    whole.learn_with(OptimizerSettings(lr=1e-2))
    steps(whole)
    whole.save(tmp_path)
    whole.sleep()
    whole.wake()
    again.load(tmp_path)
    again.learn_with(OptimizerSettings(lr=1e-2))
    again.load_learner(tmp_path)
    assert steps(whole) == steps(again)
    assert whole.digest() == again.digest()


def test_the_hash_tells_8_bits_from_the_original() -> None:
    engine, plain = open_engine(), open_engine(base="dtype")
    assert engine.digest(adapter=False) != plain.digest(adapter=False)
    assert engine.digest() == open_engine().digest()


def test_a_model_without_linear_layers_is_refused() -> None:
    settings = ModelSettings(init="tiny-gpt2", device="cpu", lora=LoraSettings(base="int8"))
    with pytest.raises(UserError, match=r'models.policy.lora.base = "int8": a gpt2 model has no ordinary linear'):
        check_model(settings, "policy")
    with pytest.raises(UserError, match=r"lora.base"):
        EmbeddedEngine.open(settings)
