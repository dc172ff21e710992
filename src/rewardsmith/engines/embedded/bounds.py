"""What a model folder may say about itself. Its files are hostile, and numbers in them decide what is allocated.

All bounds are far above the models that exist. Each function raises a `ValueError` that says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

MAX_JSON = 64 << 20
"""Bytes of a JSON file other than those of a tokenizer."""

MAX_TOKENIZER = 256 << 20
"""Bytes of a file of a tokenizer."""

MAX_ADDED, MAX_VOCABULARY = 200_000, 2_000_000
"""Tokens that a tokenizer adds to its vocabulary, and tokens in all."""

MAX_TEMPLATE = 200_000
"""Characters of a chat template."""

_SIZES = {
    1_000: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "num_encoder_layers"),
    4_096: (
        *("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"),
        *("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "moe_num_experts"),
    ),
    16_384: ("head_dim", "v_head_dim", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "global_head_dim"),
    131_072: ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"),
    1_048_576: ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    MAX_VOCABULARY: ("vocab_size", "num_labels"),
    16_777_216: ("n_positions", "n_ctx", "max_position_embeddings", "max_sequence_length"),
}
"""The largest that settings of a config.json may be."""

_LONGEST_LIST = 10_000

_SLACK = 10_000_000
"""Parameters that may be missing from the files: what is refused for that has a better message elsewhere."""


def require_small(file: Path, limit: int) -> None:
    """Raise if a file has more bytes than `limit`."""
    size = file.stat().st_size
    if size > limit:
        raise ValueError(f"{file} has {size:,} bytes, more than {limit:,}")


def require_sane_config(table: Mapping[str, Any]) -> None:
    """Raise if a config.json describes a model of a size that none has."""
    limits = {name: limit for limit, names in _SIZES.items() for name in names}
    for name, value in _settings(table):
        limit = limits.get(name)
        if limit is not None and isinstance(value, int | float) and not -limit <= value <= limit:
            raise ValueError(f"config.json has {name} = {_short(value)}, more than {limit:,}")
        if isinstance(value, list) and len(value) > _LONGEST_LIST:
            raise ValueError(f"config.json has {len(value):,} entries in {name}, more than {_LONGEST_LIST:,}")


def _settings(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table and of those in it."""
    open_tables: list[Mapping[str, Any]] = [table]
    while open_tables:
        for name, value in open_tables.pop().items():
            yield name, value
            if isinstance(value, dict):
                open_tables.append(value)


def _short(value: float) -> str:
    return (
        f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else f"{value:,}"
    )


def require_filled(expected: int, files: Iterable[Path]) -> None:
    """Raise if a model has far more parameters than its files hold: what is missing would be allocated first."""
    held = 0
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            held += sum(torch.Size(tensors.get_slice(name).get_shape()).numel() for name in tensors.keys())  # noqa: SIM118
    if expected > 3 * held + _SLACK:
        raise ValueError(f"config.json describes a model of {expected:,} parameters, and the files hold {held:,}")


def require_sane_tokenizer(folder: Path) -> None:
    """Raise if a tokenizer's files are very large, or list more tokens than one can have."""
    for file in folder.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model", ".tiktoken"):
            require_small(file, MAX_TOKENIZER)
    for name, counted in _COUNTED.items():
        table = _table(folder / name)
        for what, limit in counted.items():
            count = _count(table, what)
            if count > limit:
                raise ValueError(f"{folder / name} lists {count:,} {what or 'tokens'}, more than {limit:,}")


_COUNTED = {
    "tokenizer.json": {"added_tokens": MAX_ADDED, "model.vocab": MAX_VOCABULARY, "model.merges": 2 * MAX_VOCABULARY},
    "tokenizer_config.json": {
        "added_tokens_decoder": MAX_ADDED,
        "additional_special_tokens": MAX_ADDED,
        "extra_special_tokens": MAX_ADDED,
    },
    "special_tokens_map.json": {"additional_special_tokens": MAX_ADDED},
    "added_tokens.json": {"": MAX_ADDED},
    "vocab.json": {"": MAX_VOCABULARY},
}
"""By file and path in it, how many entries there may be."""


def _table(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # who loads the tokenizer says what is wrong


def _count(table: Any, path: str) -> int:
    for name in filter(None, path.split(".")):
        table = table.get(name) if isinstance(table, dict) else None
    return len(table) if isinstance(table, dict | list) else 0


__all__ = [
    "MAX_JSON",
    "MAX_TEMPLATE",
    "require_filled",
    "require_sane_config",
    "require_sane_tokenizer",
    "require_small",
]
