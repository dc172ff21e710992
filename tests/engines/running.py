"""What the tests of the embedded engine share: engines with lively weights, and transformers' own model beside them."""

import asyncio
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rewardsmith import Message, Prompt, RolloutGroup
from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.protocol import Row, Sampling


def lively(model: Any, seed: int = 0) -> Any:
    """Draw large weights: with those of a fresh model, what stands before the last token hardly matters."""
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            # A Gemma multiplies its embeddings, and would say the last token again and again.
            scale = 0.05 if parameter is embedding and "gemma" in model.config.model_type else 0.15
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    return model


def open_engine(name: str, **settings: Any) -> EmbeddedEngine:
    """Open an engine on a tiny model with lively weights."""
    engine = EmbeddedEngine.open(ModelSettings(init=name, device="cpu", **settings))
    if settings.get("lora") is None and settings.get("head") is None:
        lively(engine.model)
    return engine


@cache
def shared_engine(name: str) -> EmbeddedEngine:
    """Return an engine that no test may change."""
    return open_engine(name)


@cache
def hf_model(name: str) -> Any:
    """Return transformers' model with the weights of `open_engine`, and transformers' own attention.

    That is the eager one: with another, some releases of transformers leave out the soft cap of Gemma 2.
    """
    model = lively(make_tiny(name, seed=0)[0]).eval()
    model.set_attn_implementation("eager")
    return model


def open_config(kind: str, folder: Path, **shape: Any) -> EmbeddedEngine:
    """Open an engine on a small model of any architecture, by way of a folder."""
    tokenizer = make_tiny("tiny-llama", seed=0)[1]
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = AutoConfig.for_model(kind, **{**sizes, **shape})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_folder(lively(AutoModelForCausalLM.from_config(config)), tokenizer, folder)
    return EmbeddedEngine.open(ModelSettings(init=str(folder), device="cpu"))


def ask(text: str) -> Prompt:
    return Prompt(f"prompt {text}", [Message("user", text)])


def answer(
    engine: EmbeddedEngine,
    texts: Sequence[str],
    sampling: Sampling,
    *,
    n: int = 1,
    seeds: Sequence[int] | None = None,
) -> list[RolloutGroup]:
    """Return a group for each text, in order."""

    async def run() -> dict[int, RolloutGroup]:
        numbers = range(len(texts)) if seeds is None else seeds
        stream = engine.generate([ask(text) for text in texts], sampling, n=n, seeds=list(numbers))
        return {number: group async for number, group in stream}

    found = asyncio.run(run())
    assert sorted(found) == list(range(len(texts)))
    return [found[i] for i in range(len(texts))]


def tokens_of(groups: Sequence[RolloutGroup]) -> list[list[list[int]]]:
    return [[rollout.tokens.tolist() for rollout in group.rollouts] for group in groups]


def rows_of(engine: EmbeddedEngine, groups: Sequence[RolloutGroup]) -> list[Row]:
    return [Row(engine.encode(group.prompt), rollout.tokens) for group in groups for rollout in group.rollouts]


def random_rows(seed: int, lengths: Sequence[tuple[int, int]], vocabulary: int = 100) -> list[Row]:
    """Return rows of random tokens with these lengths of prompt and response."""
    rng = np.random.default_rng(seed)
    return [Row(*(rng.integers(3, vocabulary, size=n, dtype=np.int32) for n in pair)) for pair in lengths]


def hf_logits(model: Any, row: Row) -> Tensor:
    """Return the logits that predict the answer tokens of one row, [T, V], from one sequence without padding."""
    ids = torch.from_numpy(np.concatenate([row.prompt, row.response]).astype(np.int64))[None]
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits[len(row.prompt) - 1 : -1]


def hf_logprobs(model: Any, row: Row, temperature: float = 1.0) -> Tensor:
    targets = torch.from_numpy(row.response.astype(np.int64))[:, None]
    return (hf_logits(model, row) / temperature).log_softmax(-1).gather(-1, targets)[:, 0]
