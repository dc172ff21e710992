"""The memory estimate: exact where tensors can be counted, and the formulas of what a backward pass keeps."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rewardsmith.engines.embedded import architectures, decoder, engine, generate, heads, joined_linear, row_cache
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.kernels import cache_blocks
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.memory_estimate import (
    BLOCK_TOKENS,
    CHUNK_LOGITS,
    LENGTH_STEP,
    PREFILL_TOKENS,
    ROWS_STEP,
    activation_bytes,
    gradient_bytes,
    kv_cache_bytes,
    layer_bytes,
    model_shape,
    named_shape,
    optimizer_bytes,
    weight_bytes,
    with_adapter,
)
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.learning import OptimizerSettings
from rewardsmith.runs import memory

LORA, INT8 = LoraSettings(rank=4), LoraSettings(rank=4, base="int8")


def rows(group: int = 4, prompt: int = 32, answer: int = 64) -> list[Row]:
    draw = np.random.default_rng(0)
    first = draw.integers(8, 100, prompt, dtype=np.int32)
    return [Row(first, draw.integers(8, 100, answer, dtype=np.int32)) for _ in range(group)]


def size(tensors: list[Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in {id(one): one for one in tensors}.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("init", "lora"),
    [(init, lora) for init in ("tiny-llama", "tiny-qwen3") for lora in (None, LORA, INT8)] + [("tiny-gpt2", LORA)],
)
def test_weights_optimizer_and_gradients_are_counted_exactly(
    init: str, lora: LoraSettings | None, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(init=init, device="cpu", dtype=dtype, lora=lora)
    shape, itemsize = model_shape(settings), {"float32": 4, "bfloat16": 2}[dtype]
    assert shape is not None
    model = EmbeddedEngine.open(settings)
    model.learn_with(OptimizerSettings(lr=1e-3))
    gradients: list[int] = []

    def recorded(found: list[Tensor]) -> Tensor:
        gradients.append(size(found))
        return torch.stack([one.norm() for one in found]).norm()

    monkeypatch.setattr(nn.utils, "get_total_norm", recorded)
    model.update(rows(), lambda outputs: outputs.logprobs_bT.sum(), lr=1e-3)
    scales = [buffer for name, buffer in model.model.named_buffers() if name.endswith(".scale")]
    assert size([*model.model.parameters(), *scales]) == weight_bytes(shape, itemsize)
    assert gradients == [gradient_bytes(shape)]
    learner: Any = model._learner
    counts = [one for one in learner.tensors() if one.dim() == 0]  # AdamW counts the steps of each tensor
    assert size(learner.tensors()) - size(counts) == optimizer_bytes(shape, itemsize)


def test_a_language_model_as_a_critic_has_no_head() -> None:
    shape, critic = (model_shape(ModelSettings(init="tiny-llama", head=head)) for head in ("language", "scalar"))
    assert shape is not None
    assert critic is not None
    assert critic.parameters == shape.parameters - shape.vocabulary * shape.hidden + shape.hidden
    assert critic.matrices == critic.parameters - shape.vocabulary * shape.hidden


def test_the_kv_cache_is_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Recorded(row_cache.KeyValueCache):
        def __init__(self, count: int, length: int) -> None:
            super().__init__(count, length)
            made.append(self)

    monkeypatch.setattr(row_cache, "KeyValueCache", Recorded)
    model = EmbeddedEngine.open(ModelSettings(init="tiny-qwen3", device="cpu"))
    shape = model_shape(model.settings)
    assert shape is not None

    async def write() -> None:
        request = generate.GenerationRequest(np.arange(10, 40, dtype=np.int32), 9, 0)
        async for _ in model.complete([request], Sampling(max_tokens=40)):
            pass

    asyncio.run(write())
    tensors = [tensor for cache in made for pair in cache.layers.values() for tensor in pair]
    assert size(tensors) == kv_cache_bytes(shape, 4, rows=9, prompt=30, answer=40, prompts=1, kind="cpu")


def test_the_constants_are_those_of_the_engine() -> None:
    assert (generate.ROWS_STEP["cpu"], row_cache.LENGTH_STEP) == (ROWS_STEP, LENGTH_STEP)
    assert (BLOCK_TOKENS, PREFILL_TOKENS) == (cache_blocks.BLOCK_TOKENS, generate.PREFILL_TOKENS)
    assert (CHUNK_LOGITS, memory.KV_SHARE) == (heads.CHUNK_ELEMENTS, engine.CACHE_SHARE)


class Kernel(torch.autograd.Function):
    """Computes something, and keeps what a kernel of a GPU keeps."""

    @staticmethod
    def forward(ctx: Any, compute: Any, kept: Any, *inputs: Any) -> Any:
        outputs = compute(*inputs)
        ctx.save_for_backward(*kept(inputs, outputs))
        return outputs

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("init", ["tiny-llama", "tiny-qwen3"])
def test_layers_keep_what_the_formula_says(
    init: str, lora: LoraSettings | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(init=init, device="cpu", dtype="bfloat16", lora=lora)
    model = EmbeddedEngine.open(settings)
    work = [*rows(), *rows(answer=63)]
    places = sum(len(row.prompt) + len(row.response) - 1 for row in work)  # a prompt is there once for each row
    parts: dict[str, Any] = {
        "add_rms_norm": lambda inputs, outputs: [outputs[1]],
        "rotate": lambda inputs, outputs: (
            [*inputs[:2], *([torch.empty_like(inputs[1])] if lora is None else [])] if inputs[4] is not None else []
        ),  # queries, keys and values are one product, of which values are kept with the others
        "attend": lambda inputs, out: [inputs[1], out, *(x.new_empty(places, *x.shape[1:]) for x in inputs[2:])],
    }
    for name, kept_by in parts.items():
        monkeypatch.setattr(decoder, name, partial(Kernel.apply, getattr(decoder, name), kept_by))
    if lora is None:
        width = model.model.config.intermediate_size
        mlp = partial(
            Kernel.apply,
            decoder.gated_mlp,
            lambda inputs, _: [inputs[2], inputs[2].new_empty(len(inputs[2]), 2 * width)],
        )
        monkeypatch.setattr(decoder, "gated_mlp", mlp)
    else:
        gated = partial(Kernel.apply, joined_linear.silu_mul, lambda inputs, _: inputs)
        monkeypatch.setattr(joined_linear, "silu_mul", gated)
    weights = {p.untyped_storage().data_ptr() for p in model.model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        batch, _ = next(model._forward(work, 1.0, None, entropy=True))
    shape, tokens = model_shape(settings), len(batch.tokens_N)
    assert shape is not None
    layers = shape.layers * layer_bytes(shape, 2, spread=places / tokens)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    assert measured == pytest.approx(layers + 2 * shape.hidden * 2, rel=0.03)


def test_recompute_keeps_the_input_of_each_layer_and_the_rest_of_one() -> None:
    shape = named_shape("Qwen3-4B")
    assert shape is not None
    shape = replace(shape, scalar=True)  # without the logits
    more = [activation_bytes(shape, 2, tokens=tokens, recomputed=shape.layers) for tokens in (1000, 2000)]
    each = 2 * shape.hidden * (shape.layers + 2) + layer_bytes(shape, 2) + 2 * 4 * shape.intermediate
    assert more[1] - more[0] == pytest.approx(1000 * each)
    assert more[1] < activation_bytes(shape, 2, tokens=2000) / 9


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_an_adapter_has_as_many_weights_as_peft_gives_it(targets: Any) -> None:
    lora = LoraSettings(rank=3, targets=targets)
    shape = model_shape(ModelSettings(init="tiny-qwen2", lora=lora))
    adapted = architectures.attach_adapter(make_tiny("tiny-qwen2", seed=0)[0], lora, "model")
    assert shape is not None
    assert shape.adapter == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


@pytest.mark.parametrize("lora", [LORA, INT8])
def test_an_adapter_of_a_model_that_is_not_here_is_counted_as_one_that_is(lora: LoraSettings) -> None:
    below, shape = (model_shape(ModelSettings(init="tiny-qwen3", lora=one)) for one in (None, lora))
    assert below is not None
    assert with_adapter(below, lora) == shape


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-4B-Base", 4.022),
        ("Qwen/Qwen2.5-7B-Instruct", 7.616),
        ("Qwen3-8B", 8.191),
        ("HuggingFaceTB/SmolLM2-135M", 0.1345),
        ("some/model-20b", 20.0),
    ],
)
def test_the_size_of_a_model_that_is_not_here_is_read_from_its_name(name: str, billions: float) -> None:
    shape = named_shape(name)
    assert shape is not None
    assert shape.guessed
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("name", ["models/rubric-reward-model", "tiny-lama", "gpt2"])
def test_a_name_without_a_size_gives_no_shape(name: str) -> None:
    assert named_shape(name) is None
