"""What layers keep for the backward pass is what the memory estimate says."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.memory_estimate import layer_bytes, model_shape
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Row


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels keep less than torch")
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
@pytest.mark.parametrize("init", ["tiny-llama", "tiny-qwen3"])
def test_layers_keep_what_the_formula_says(init: str, lora: LoraSettings | None) -> None:
    settings = ModelSettings(init=init, device="cuda", lora=lora)
    model = EmbeddedEngine.open(settings)
    draw = np.random.default_rng(0)
    prompt = draw.integers(8, 100, 32, dtype=np.int32)
    rows = [Row(prompt, draw.integers(8, 100, answer, dtype=np.int32)) for answer in [64] * 4 + [63] * 4]
    weights = {p.untyped_storage().data_ptr() for p in model.model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        batch, _ = next(model._forward(rows, 1.0, None, entropy=True))
    shape, itemsize, tokens = model_shape(settings), model.dtype.itemsize, len(batch.tokens_N)
    assert shape is not None
    spread = sum(len(row.prompt) + len(row.response) - 1 for row in rows) / tokens
    each = layer_bytes(shape, itemsize, spread=spread)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    assert measured == pytest.approx(shape.layers * each + 3 * shape.hidden * itemsize, rel=0.04)
