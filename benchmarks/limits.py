"""Prints the longest answer and the largest model that train on one GPU of 24, 80 and 141 GB.

    python benchmarks/limits.py [--model Qwen3-8B] [--rows 8]                     # by the memory estimate, anywhere
    python benchmarks/limits.py --trial [--model Qwen3-8B] [--gpu "24 GB"]        # tries them, with random weights

A limit is where an optimizer step over one answer, alone in its pass, and the writing of `--rows` such answers at a
time still fit. `a / b`: with `recompute = true` and with `recompute = "offload"`. A trial fills the GPU up to the
memory of the smaller one, reads prompts that leave 64 tokens of the length to write, and learns from one answer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rewardsmith.engines.embedded.attention import ATTENTION
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.embedded.int8_linear import quantise_layers
from rewardsmith.engines.embedded.loading import LoadedModel
from rewardsmith.engines.embedded.tiny import tiny_config
from rewardsmith.engines.memory_estimate import (
    GIB,
    ModelShape,
    activation_bytes,
    gradient_bytes,
    kv_cache_bytes,
    named_shape,
    optimizer_bytes,
    recomputed_layers,
    weight_bytes,
    with_adapter,
    writing_bytes,
)
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings

GPUS = {"24 GB": 23.6, "80 GB": 79.1, "141 GB": 139.8}  # GiB that torch sees
CONTEXT, SHARE = 0.8, 0.95  # GiB of CUDA itself; what fragmentation leaves of the rest
MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")
SIZES = (*MODELS, "Qwen3-14B", "Qwen3-32B", "Llama-70B")
LENGTHS = (1024, 8192, 32_768)
LONGEST = 131_072  # answers that are tried
PROMPT, WRITTEN = 512, 64
PLAIN = OptimizerSettings(lr=1e-6)


@dataclass(frozen=True)
class Way:
    """A way to train."""

    name: str
    lora: LoraSettings | None = None
    optimizer: OptimizerSettings = PLAIN

    def shape(self, model: str) -> ModelShape:
        """Return the shape of a published model, trained so."""
        shape = named_shape(model)
        assert shape is not None
        return shape if self.lora is None else with_adapter(shape, self.lora)


WAYS = (
    Way("all weights"),
    Way('all weights, `states = "8bit"`', optimizer=OptimizerSettings(lr=1e-6, states="8bit")),
    Way("all weights, optimizer `offload`", optimizer=OptimizerSettings(lr=1e-6, offload=True)),
    Way("LoRA, rank 16", LoraSettings(rank=16)),
    Way('LoRA, rank 16, `base = "int8"`', LoraSettings(rank=16, base="int8")),
)


def needed(shape: ModelShape, way: Way, answer: int, rows: int, *, offload: bool) -> float:
    """Return the bytes of a step with answers of this length, in bfloat16."""
    states = weight_bytes(shape, 2)
    states += 0 if way.optimizer.offload else optimizer_bytes(shape, 2, states=way.optimizer.states)
    a_pass = {"tokens": PROMPT + answer, "responses": answer, "offload": offload}
    layers = recomputed_layers(shape, 2, 0.0, **a_pass)
    learning = states + gradient_bytes(shape) + activation_bytes(shape, 2, recomputed=layers, **a_pass)
    written = {"prompt_tokens": PROMPT, "answer_tokens": answer, "prompts": 1}
    cache = kv_cache_bytes(shape, 2, rows=rows, prompt=PROMPT, answer=answer, prompts=1)
    return max(learning, states + cache + writing_bytes(shape, 2, rows=rows, **written))


def longest_answer(shape: ModelShape, way: Way, gib: float, rows: int, *, offload: bool) -> int:
    """Return the longest answer that fits a GPU, up to `LONGEST`; 0 if none does."""
    room = SHARE * (gib - CONTEXT) * GIB
    low, high = 0, LONGEST + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = needed(shape, way, middle, rows, offload=offload) <= room
        low, high = (middle, high) if fits else (low, middle)
    return low


def tokens(count: int) -> str:
    """Return a number of tokens to read: `12k`, or `>131k` where none was too many."""
    if count == LONGEST:
        return f">{LONGEST // 1000}k"
    return "-" if count < 128 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count // 1000}k"


def estimate(models: list[str], rows: int) -> None:
    """Print both tables, in Markdown."""
    print(f'Longest answer, {rows} written at a time, recompute = true / "offload":\n')
    print(f"| model | | {' | '.join(GPUS)} |\n|---|---|{'---|' * len(GPUS)}")
    for model in models:
        for way in WAYS:
            shape = way.shape(model)
            pairs = [
                [longest_answer(shape, way, gib, rows, offload=offload) for offload in (False, True)]
                for gib in GPUS.values()
            ]
            cells = (tokens(a) if tokens(a) == tokens(b) else f"{tokens(a)} / {tokens(b)}" for a, b in pairs)
            print(f"| {model} | {way.name} | {' | '.join(cells)} |")
    lengths = " / ".join(f"{length:,}" for length in LENGTHS)
    print(f'\nLargest model for answers of {lengths} tokens, recompute = "offload":\n')
    print(f"| | {' | '.join(GPUS)} |\n|---|{'---|' * len(GPUS)}")
    for way in WAYS:
        cells = []
        for gib in GPUS.values():
            limits = {m: longest_answer(way.shape(m), way, gib, rows, offload=True) for m in SIZES}
            fitting = [[m.rpartition("-")[2] for m in SIZES if limits[m] >= length] for length in LENGTHS]
            cells.append(" / ".join(found[-1] if found else "-" for found in fitting))
        print(f"| {way.name} | {' | '.join(cells)} |")


# ---- by trial --------------------------------------------------------------------------------------------------------


def open_engine(shape: ModelShape, way: Way, rows: int, device: torch.device, *, offload: bool) -> EmbeddedEngine:
    """Return an engine of this shape with random weights; its tokenizer is a tiny one, and never used."""
    config = Qwen3Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=2 * LONGEST,
        use_cache=False,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION)
    if way.lora is not None and way.lora.base == "int8":
        quantise_layers(model, device)
    settings = ModelSettings(
        init="tiny-llama", lora=way.lora, rows=rows, recompute="offload" if offload else True, dtype="bfloat16"
    )
    loaded = LoadedModel(model.train(), tiny_config("tiny-llama")[1], device, torch.bfloat16, (2,))
    return EmbeddedEngine(loaded, settings)


def work(engine: EmbeddedEngine, way: Way, answer: int, rows: int, vocabulary: int) -> None:
    """Write answers up to the length, and take one optimizer step on one."""
    draw = np.random.default_rng(0)
    length = PROMPT + answer
    prompts = [draw.integers(10, vocabulary, length - WRITTEN, dtype=np.int32) for _ in range(rows)]

    async def write() -> None:
        requests = [GenerationRequest(prompt, 1, i) for i, prompt in enumerate(prompts)]
        async for _ in engine.complete(requests, Sampling(max_tokens=WRITTEN, min_tokens=WRITTEN)):
            pass

    engine.learn_with(way.optimizer)
    asyncio.run(write())
    row = Row(*(draw.integers(10, vocabulary, count, dtype=np.int32) for count in (PROMPT, answer)))
    engine.update([row], lambda outputs: -1e-4 * outputs.logprobs_bT.sum(), lr=1e-6, entropy=False)


def trial(model: str, way: Way, gib: float, rows: int, device: torch.device, *, offload: bool) -> str:
    """Return a row of the table: estimate, peak, seconds and verdict at the longest answer."""
    shape = way.shape(model)
    answer = longest_answer(shape, way, gib, rows, offload=offload)
    if answer < WRITTEN:
        return f"- | {needed(shape, way, 128, rows, offload=offload) / GIB:.1f} | | | does not fit, by the estimate"
    engine = open_engine(shape, way, rows, device, offload=offload)
    ballast, verdict, peak, begun = torch.empty(0), "fits", 0.0, time.perf_counter()
    try:
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            size = torch.cuda.mem_get_info(device)[1] - int(gib * GIB)  # what the smaller GPU would not have
            ballast = torch.empty(max(0, size), dtype=torch.uint8, device=device)
            torch.cuda.reset_peak_memory_stats(device)
        work(engine, way, answer, rows, shape.vocabulary)
    except torch.OutOfMemoryError as error:
        verdict = f"out of memory ({str(error).partition('.')[0]})"
    except UserError as error:  # the keys and values of one answer do not fit
        verdict = str(error)
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) - ballast.nbytes
    seconds = time.perf_counter() - begun
    estimated = needed(shape, way, answer, rows, offload=offload)
    return f"{answer:,} | {estimated / GIB:.1f} | {peak / GIB:.1f} | {seconds:.0f} | {verdict}"


def main() -> None:
    """Print the limits, or try them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", action="append", choices=SIZES, help="may be repeated")
    parser.add_argument("--rows", type=int, default=1, help="answers that must fit at a time; others wait")
    parser.add_argument("--trial", action="store_true", help="try the limits on a GPU")
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="of a trial; may be repeated")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if not given.trial:
        estimate(given.model or list(MODELS), given.rows)
        return
    print("| model | | recompute | GPU | answer | estimate GiB | peak GiB | seconds | verdict |\n" + "|---" * 9 + "|")
    for model in given.model or ("Qwen3-0.6B", "Qwen3-8B"):
        for way in (WAYS[1], WAYS[4]):
            for gpu in given.gpu or GPUS:
                found = trial(model, way, GPUS[gpu], given.rows, torch.device(given.device), offload=True)
                print(f"| {model} | {way.name} | offload | {gpu} | {found} |", flush=True)
                gc.collect()
                if given.device.startswith("cuda"):
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
