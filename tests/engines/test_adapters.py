"""Low-rank adapters: they start as no change, they alone are trained, and the model below stays as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.engines.protocol import Outputs
from rewardsmith.errors import UserError

from .running import random_rows

ROWS = random_rows(0, [(4, 6), (20, 5), (4, 1)])


def open_both(name: str, **lora: Any) -> tuple[EmbeddedEngine, EmbeddedEngine]:
    """Return an engine with an adapter, and one on the same weights without."""
    return (
        EmbeddedEngine.open(ModelSettings(init=name, device="cpu", lora=LoraSettings(**{"rank": 4, **lora}))),
        EmbeddedEngine.open(ModelSettings(init=name, device="cpu")),
    )


def loss(outputs: Outputs) -> Tensor:
    return -outputs.logprobs_bT.sum()


def train(engine: EmbeddedEngine, steps: int = 3) -> None:
    engine.learn_with(OptimizerSettings(lr=1e-2))
    for _ in range(steps):
        engine.update(ROWS, loss, lr=1e-2)


def base_weights(engine: EmbeddedEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine.model.named_parameters() if "lora_" not in name}


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_an_adapter_starts_as_no_change_and_leaves_the_model_below_alone(name: str) -> None:
    engine, base = open_both(name)
    expected = base.logprobs(ROWS)
    assert torch.equal(engine.logprobs(ROWS), expected)
    below = base_weights(engine)
    trained = {n for n, p in engine.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in n for n in trained)
    train(engine)
    assert all(torch.equal(p, below[n]) for n, p in engine.model.named_parameters() if "lora_" not in n)
    assert float(engine.logprobs(ROWS).sum()) > float(expected.sum()) + 1
    for temperature in (1.0, 0.7):
        reference = engine.reference_logprobs(ROWS, temperature=temperature)
        assert torch.equal(reference, base.logprobs(ROWS, temperature=temperature))
    assert not torch.equal(engine.logprobs(ROWS), expected)  # and the adapter is on again


def test_an_adapter_adds_alpha_over_rank_times_its_product() -> None:
    engine, base = open_both("tiny-llama", rank=2, alpha=6.0, targets=["q_proj", "down_proj"])
    train(engine)
    below, adapted = base.model.state_dict(), dict(engine.model.named_parameters())
    pairs = [name for name in adapted if name.endswith("lora_A.default.weight")]
    assert len(pairs) == 4
    with torch.no_grad():
        for name in pairs:
            a, b = adapted[name], adapted[name.replace("lora_A", "lora_B")]
            key = name.removeprefix("base_model.model.").replace("lora_A.default.weight", "weight")
            below[key] += 6.0 / 2 * b @ a
    torch.testing.assert_close(base.logprobs(ROWS), engine.logprobs(ROWS), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ["language", "scalar"])
def test_the_hash_without_the_adapter_is_that_of_the_model_below(head: Any) -> None:
    lora = LoraSettings(rank=4)
    settings = ModelSettings(init="tiny-llama", device="cpu", head=head)
    engine = EmbeddedEngine.open(settings.model_copy(update={"lora": lora}))
    base = EmbeddedEngine.open(settings)
    assert base.digest(adapter=False) == base.digest() == engine.digest(adapter=False)
    fresh = engine.digest()
    assert fresh != base.digest()
    engine.learn_with(OptimizerSettings(lr=1e-2))
    engine.update(ROWS, lambda outputs: (outputs.values_bT if head == "scalar" else outputs.logprobs_bT).sum(), lr=1e-2)
    assert engine.digest() != fresh
    assert engine.digest(adapter=False) == base.digest()
    other = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu", head=head), seed=7)
    assert other.digest() != base.digest()


def test_a_published_adapter_is_where_another_model_may_start(tmp_path: Path) -> None:
    engine, base = open_both("tiny-llama")
    train(engine)
    engine.publish(tmp_path)
    merged = EmbeddedEngine.open(ModelSettings(init=str(tmp_path), device="cpu"))
    torch.testing.assert_close(merged.logprobs(ROWS), engine.logprobs(ROWS), atol=1e-5, rtol=1e-5)
    again, fresh = (open_both("tiny-llama", **lora)[0] for lora in ({"init": str(tmp_path / "adapter")}, {}))
    assert fresh.adapter_is_fresh
    assert torch.equal(again.logprobs(ROWS), engine.logprobs(ROWS))
    # Unlike a merged one it can be switched off.
    assert torch.equal(again.reference_logprobs(ROWS), base.logprobs(ROWS))
    assert not again.adapter_is_fresh
    train(again)
    assert not torch.equal(again.logprobs(ROWS), engine.logprobs(ROWS))


def test_an_adapter_of_another_model_or_setting_is_refused(tmp_path: Path) -> None:
    open_both("tiny-llama")[0].save(tmp_path)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("tiny-llama", {"rank": 3}, "was trained with rank = 4: set models.model.lora.rank to it"),
        ("tiny-llama", {"alpha": 8}, "was trained with alpha = 32.0: set models.model.lora.alpha to it"),
        ("tiny-llama", {"targets": ["q_proj"]}, "does not fit the model"),
        ("tiny-qwen3", {}, "does not fit the model"),
    ]
    for name, lora, message in cases:
        with pytest.raises(UserError, match=message):
            open_both(name, init=str(tmp_path), **lora)
