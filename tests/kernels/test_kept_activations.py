"""What layers keep for the backward pass is what the memory estimate says."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.kernels import INTERPRETED
from rewardsmith.engines.memory_estimate import layer_bytes, model_shape
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Row

CUDA = torch.cuda.is_available() and not INTERPRETED


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="kernels keep less than their twins")
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
@pytest.mark.parametrize("init", ["tiny-llama", "tiny-qwen3"])
def test_layers_keep_what_the_formula_says(init: str, lora: LoraSettings | None) -> None:
    settings = ModelSettings(init=init, device="cuda" if CUDA else "cpu", lora=lora)
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
    if not CUDA:  # attention pads, repeats keys for heads that share them, and gathers its output
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        padded = len(rows) * (32 + 64 - 1) / tokens
        each += itemsize * (4 * padded * queries - 2 * spread * (queries + keys))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    assert measured == pytest.approx(shape.layers * each + 3 * shape.hidden * itemsize, rel=0.04)
