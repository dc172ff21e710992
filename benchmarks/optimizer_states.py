"""Measures memory and time of the optimizer's options: float32 states, 8-bit moments, states in host memory.

    python benchmarks/optimizer_states.py                          # one GPU: Qwen3-0.6B's shape, random weights
    python benchmarks/optimizer_states.py --shape 4b --models 2 --only offload --only both   # a 4B policy and a critic

All options run in one process on the same weights and rows; the ratios are to float32 states where those ran. A step is
a whole update: forward, backward, clipping, AdamW. `loss` is that of the last step: host memory must not change it.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from rewardsmith.engines.embedded import architectures
from rewardsmith.engines.embedded.attention import ATTENTION
from rewardsmith.engines.embedded.cards import select_device
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import LoadedModel
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.learning import OptimizerSettings

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2048},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "8bit": {"states": "8bit"},
    "offload": {"offload": True},
    "both": {"states": "8bit", "offload": True},
}
LR = 1e-5


def open_engine(shape: str, device: str, *, recompute: bool) -> EmbeddedEngine:
    """Return an engine of random weights, in bfloat16."""
    place, _ = select_device(device, "auto")
    _, tokenizer = make_tiny("tiny-llama", seed=0)
    more = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    config = Qwen3Config(**more | SHAPES[shape], eos_token_id=tokenizer.eos_token_id, use_cache=False)
    torch.manual_seed(0)
    with torch.device(place):
        model = Qwen3ForCausalLM(config)
    architectures.cast_parameters(model, torch.bfloat16)
    model.set_attn_implementation(ATTENTION)
    loaded = LoadedModel(model.train(), tokenizer, place, torch.bfloat16, (tokenizer.eos_token_id,))
    return EmbeddedEngine(loaded, ModelSettings(init=shape, device=device, recompute=recompute))


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Return GiB, seconds and the loss of one option."""
    cuda = options.device.startswith("cuda")
    rng = np.random.default_rng(0)
    engines = [open_engine(options.shape, options.device, recompute=options.recompute) for _ in range(options.models)]
    vocabulary = engines[0].model.config.vocab_size
    rows = [
        Row(*(rng.integers(0, vocabulary, n).astype(np.int32) for n in (16, options.tokens)))
        for _ in range(options.rows)
    ]
    losses: list[float] = []
    stepping = 0.0

    def loss(outputs: Outputs) -> torch.Tensor:
        value = -outputs.logprobs_bT.sum() / (options.rows * options.tokens)
        losses.append(float(value.detach()))
        return value

    for engine in engines:
        engine.learn_with(OptimizerSettings(lr=LR, **OPTIONS[name]))
        assert engine._learner is not None
        step = engine._learner.step

        def timed(lr: float, step: Any = step) -> Any:
            nonlocal stepping
            synchronize(cuda)
            begun = time.perf_counter()
            done = step(lr)
            synchronize(cuda)
            stepping += time.perf_counter() - begun
            return done

        engine._learner.step = timed  # type: ignore[method-assign]
    for engine in engines:  # the first step allocates
        engine.update(rows, loss, lr=LR)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    stepping, begun = 0.0, time.perf_counter()
    for _ in range(options.steps):
        for engine in engines:
            engine.update(rows, loss, lr=LR)
    synchronize(cuda)
    seconds = (time.perf_counter() - begun) / options.steps
    found = {"seconds": seconds, "adamw_seconds": stepping / options.steps, "loss": losses[-1]}
    if cuda:
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["between_steps_gib"] = torch.cuda.memory_allocated() / 2**30
    found["billions"] = sum(p.numel() for engine in engines for p in engine.model.parameters()) / 1e9
    return found


def synchronize(cuda: bool) -> None:
    """Wait for the GPU."""
    if cuda:
        torch.cuda.synchronize()


def main() -> None:
    """Measure the options and print a table, and a JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--models", type=int, default=1, help="models that learn, such as a policy and its critic")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=OPTIONS, action="append", help="options to measure; all if not given")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1008)
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in options.only or OPTIONS:
        try:
            found[name] = measure(name, options)
        except torch.OutOfMemoryError as error:
            print(f"{name}: out of memory: {str(error).splitlines()[0]}")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if name in found:
            print(json.dumps({"option": name} | found[name]), flush=True)
    table = Table(title=f"{options.models} x {options.shape}, {options.rows} rows of {options.tokens} tokens, bfloat16")
    columns = ("peak_gib", "between_steps_gib", "seconds", "adamw_seconds", "loss")
    for column in ("option", *columns):
        table.add_column(column, justify="right")
    base = found.get("float32", {})
    for name, numbers in found.items():
        cells = []
        for column in columns:
            value = numbers.get(column)
            ratio = f" ({value / base[column]:.3f}x)" if value is not None and base.get(column) else ""
            cells.append("" if value is None else f"{value:.4g}{ratio}")
        table.add_row(name, *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
