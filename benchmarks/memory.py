"""Compares the memory estimate with what a GPU had to hold: estimate, measured peak and their ratio.

    python benchmarks/memory.py [--shape qwen3-0.6b] [--tokens 16384] [--json FILE]     # on a machine with a GPU

For each shape, with random weights: full training in bfloat16 with and without recompute, full training in float32,
and LoRA where peft is installed. Each writes answers and then takes two optimizer steps of two passes each; the peak is
`torch.cuda.max_memory_allocated` of the part. On a CPU (`--device cpu`, with a small shape) the bytes of weights,
optimizer and gradients are counted and must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded import SHAPES
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from rewardsmith.engines.embedded.attention import ATTENTION
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.embedded.loading import LoadedModel
from rewardsmith.engines.embedded.tiny import tiny_config
from rewardsmith.engines.memory_estimate import (
    GIB,
    ModelShape,
    activation_bytes,
    config_shape,
    gradient_bytes,
    kv_cache_bytes,
    optimizer_bytes,
    weight_bytes,
    writing_bytes,
)
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.learning import OptimizerSettings

SHAPES = SHAPES | {
    "qwen3-1.7b": lambda: Qwen3Config(
        hidden_size=2048,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=6144,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    ),
}
PROMPTS, GROUP, PROMPT_TOKENS, ANSWER_TOKENS = (32, 8, 256, 256) if torch.cuda.is_available() else (4, 2, 16, 16)


@dataclass(frozen=True)
class Case:
    """One configuration."""

    shape: str
    dtype: str = "bfloat16"
    recompute: bool = False
    lora: bool = False
    tokens: int = 16_384  # of a pass

    @property
    def settings(self) -> ModelSettings:
        """The model's table in a recipe."""
        lora = LoraSettings(rank=16) if self.lora else None
        return ModelSettings(
            init="tiny-llama", dtype=self.dtype, recompute=self.recompute, lora=lora, tokens_per_pass=self.tokens,
            rows=PROMPTS * GROUP,
        )  # fmt: skip


def cases(shape: str, tokens: int) -> Iterator[Case]:
    """Yield the configurations of a shape."""
    plain = Case(shape, tokens=tokens)
    yield plain
    yield replace(plain, recompute=True)
    yield replace(plain, tokens=tokens // 4)
    yield replace(plain, dtype="float32", tokens=tokens // 4)
    if find_spec("peft") is not None:
        yield replace(plain, lora=True)
        yield replace(plain, lora=True, recompute=True)


def engine_of(config: PreTrainedConfig, case: Case, device: torch.device) -> EmbeddedEngine:
    """Return an engine with random weights, made on the device; its tokenizer is a tiny one, and never used."""
    dtype = getattr(torch, case.dtype)
    _, tokenizer = tiny_config("tiny-llama")
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.set_attn_implementation(ATTENTION)
    model.config.use_cache = False
    return EmbeddedEngine(LoadedModel(model.train(), tokenizer, device, dtype, (2,)), case.settings)


def estimates(shape: ModelShape, case: Case, kind: str) -> dict[str, float]:
    """Return the bytes of each part."""
    size = 4 if case.dtype == "float32" else 2
    length = PROMPT_TOKENS + ANSWER_TOKENS
    shared = PROMPT_TOKENS / GROUP + ANSWER_TOKENS
    tokens = min(case.tokens, int(PROMPTS * GROUP * shared))
    states = weight_bytes(shape, size) + optimizer_bytes(shape, size)
    answers: dict[str, Any] = {"rows": PROMPTS * GROUP, "kind": kind}
    writing = {"rows": PROMPTS * GROUP, "prompt_tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS}
    passes = {"tokens": tokens, "responses": int(tokens * ANSWER_TOKENS / shared), "spread": length / shared}
    return {
        "weights": weight_bytes(shape, size),
        "optimizer": optimizer_bytes(shape, size),
        "gradients": gradient_bytes(shape),
        "write": states
        + kv_cache_bytes(shape, size, prompt=PROMPT_TOKENS, answer=ANSWER_TOKENS, prompts=PROMPTS, **answers)
        + writing_bytes(shape, size, prompts=PROMPTS, **writing),
        "learn": states
        + gradient_bytes(shape)
        + activation_bytes(shape, size, recomputed=shape.layers if case.recompute else 0, kind=kind, **passes),
    }


async def write(engine: EmbeddedEngine, vocabulary: int) -> None:
    """Write a step's answers, all of the same length."""
    draw = np.random.default_rng(0)
    requests = [
        GenerationRequest(draw.integers(10, vocabulary, PROMPT_TOKENS, dtype=np.int32), GROUP, i)
        for i in range(PROMPTS)
    ]
    sampling = Sampling(max_tokens=ANSWER_TOKENS, min_tokens=ANSWER_TOKENS)
    async for _ in engine.complete(requests, sampling):
        pass


def learn(engine: EmbeddedEngine, vocabulary: int) -> None:
    """Take one optimizer step."""
    draw = np.random.default_rng(1)
    rows = []
    for _ in range(PROMPTS):
        prompt = draw.integers(10, vocabulary, PROMPT_TOKENS, dtype=np.int32)
        rows += [Row(prompt, draw.integers(10, vocabulary, ANSWER_TOKENS, dtype=np.int32)) for _ in range(GROUP)]
    engine.update(rows, lambda outputs: -1e-4 * outputs.logprobs_bT.sum(), lr=1e-6)


def measure(case: Case, device: torch.device) -> dict[str, tuple[float, float]]:
    """Return (estimate, measured) of each part, in bytes."""
    config = SHAPES[case.shape]()
    shape = config_shape(SHAPES[case.shape](), lora=case.settings.lora)
    expected = estimates(shape, case, device.type)
    engine = engine_of(config, case, device)
    engine.learn_with(OptimizerSettings(lr=1e-6))
    learn(engine, config.vocab_size)  # makes the moments
    parameters, learner = list(engine.model.parameters()), engine._learner
    assert learner is not None
    held = {"weights": _bytes(parameters), "optimizer": _bytes(learner.tensors())}
    if device.type == "cuda":
        for part, work in {"write": lambda: asyncio.run(write(engine, config.vocab_size)), "learn": None}.items():
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            work() if work is not None else learn(engine, config.vocab_size)
            torch.cuda.synchronize()
            held[part] = torch.cuda.max_memory_allocated()
            print(f"{case}: {part} {time.perf_counter() - begun:.1f} s", flush=True)
    return {part: (expected[part], held[part]) for part in held}


def _bytes(tensors: list[torch.Tensor]) -> float:
    return float(sum(one.numel() * one.element_size() for one in {id(one): one for one in tensors}.values()))


def main() -> None:
    """Measure every configuration and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="may be repeated")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens of a pass")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    cuda = given.device.startswith("cuda")
    shapes = given.shape or (["smollm2-135m", "qwen3-0.6b", "qwen3-1.7b"] if cuda else ["tiny-llama"])
    table = Table("model", "dtype", "recompute", "lora", "tokens", "part", "estimate GiB", "measured GiB", "ratio")
    found = []
    for case in (case for shape in shapes for case in cases(shape, given.tokens)):
        try:
            parts = measure(case, torch.device(given.device))
        except torch.OutOfMemoryError as error:
            print(f"{case}: out of memory: {error}", flush=True)
            continue
        finally:
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
        for part, (estimate, measured) in parts.items():
            found.append(asdict(case) | {"part": part, "estimate": estimate, "measured": measured})
            flags = ("yes" if flag else "" for flag in (case.recompute, case.lora))
            gib = (f"{number / GIB:.3f}" for number in (estimate, measured))
            ratio = f"{estimate / measured:.3f}"
            table.add_row(case.shape, case.dtype, *flags, str(case.tokens), part, *gib, ratio)
    Console(width=140).print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
