"""Built-in models: real Hugging Face architectures, small enough to train on a CPU in seconds.

Weights are random, so a recipe that names one needs no download. The entries of `TINY` cover the ways in which
architectures differ: grouped queries, query norms, biases, learned positions, soft caps, sliding windows. Saved, a tiny
model is an ordinary Hugging Face folder. One token is one character (printable ASCII and the newline), or one byte
where the name says so. The chat template costs two tokens for a prompt of one message:

    <|user|>7+5-3?<|assistant|>7+5=12;12-3=9;#9<|eos|>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from rewardsmith.errors import UserError, listing, nearest

ROLES = ("system", "user", "assistant", "tool")  # that the chat template of a tiny model knows
MAX_LENGTH = 1024  # positions of a tiny model, prompt and response together

_SPECIAL = {"pad_token": "<|pad|>", "bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>"}
_CHARACTERS = ["\n", *map(chr, range(32, 127))]

# The content is printed as it is: a tiny model sees exactly the characters of the message.
TINY_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}
{{- raise_exception('unknown role ' ~ message['role'] ~ ': known are system, user, assistant and tool') -}}
{%- endif -%}
{{- '<|' ~ message['role'] ~ '|>' ~ message['content'] -}}
{%- if message['role'] == 'assistant' -%}{{- eos_token -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


@dataclass(frozen=True)
class Tiny:
    """What a tiny model is made of."""

    model_type: str  # of `transformers`
    shape: Mapping[str, Any]  # settings of its configuration; vocabulary and special tokens are added later
    unit: Literal["character", "byte"] = "character"  # of one token


def _shape(hidden: int, heads: int, key_value_heads: int, intermediate: int, **others: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": 2,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "intermediate_size": intermediate,
        "max_position_embeddings": MAX_LENGTH,
        **others,
    }


_LLAMA = _shape(128, 4, 4, 344, tie_word_embeddings=False)
_GROUPED = _shape(64, 4, 2, 168)
_WINDOW = {"sliding_window": 16, "head_dim": 16}  # so few that short texts already reach beyond the window
_LAYERS = ["sliding_attention", "full_attention"]
_GEMMA = {**_GROUPED, **_WINDOW, "query_pre_attn_scalar": 16, "layer_types": _LAYERS}

TINY: dict[str, Tiny] = {
    "tiny-llama": Tiny("llama", _LLAMA),
    "tiny-llama-bytes": Tiny("llama", _LLAMA, unit="byte"),
    "tiny-qwen2": Tiny("qwen2", {**_GROUPED, "tie_word_embeddings": True}, unit="byte"),
    "tiny-qwen3": Tiny("qwen3", {**_GROUPED, "head_dim": 32, "tie_word_embeddings": True}),
    "tiny-gpt2": Tiny("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": MAX_LENGTH}),
    "tiny-gemma2": Tiny("gemma2", _GEMMA),
    "tiny-gemma3": Tiny("gemma3_text", _GEMMA),
    "tiny-mistral": Tiny("mistral", {**_GROUPED, **_WINDOW}),
}
"""The names that `init` of a model may have instead of a folder or an id."""


def make_tiny(name: str, *, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a language model with random weights, float32 on the CPU, and its tokenizer; global seeds stay."""
    config, tokenizer = tiny_config(name)
    # Only the generator of the CPU is seeded and restored: torch.manual_seed would also reset those of the GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model.train(False), tokenizer


def tiny_config(name: str) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Return the configuration and the tokenizer of a tiny model."""
    if name not in TINY:
        raise UserError(f'unknown tiny model "{name}".{nearest(name, TINY)} Known: {listing(TINY)}')
    tiny = TINY[name]
    tokenizer = _tokenizer(tiny)
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    # Sizes are copied out of the entry: a configuration keeps, and may change, the lists that it is given.
    shape = {key: list(value) if isinstance(value, list) else value for key, value in tiny.shape.items()}
    return AutoConfig.for_model(tiny.model_type, vocab_size=len(tokenizer), **special, **shape), tokenizer


def _tokenizer(tiny: Tiny) -> PreTrainedTokenizerFast:
    """Return a tokenizer without merges: BPE then splits a text into single characters, or bytes."""
    special = [*_SPECIAL.values(), *(f"<|{role}|>" for role in ROLES)]
    alphabet = _CHARACTERS if tiny.unit == "character" else sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    settings: dict[str, Any] = {
        **_SPECIAL,
        "extra_special_tokens": special[len(_SPECIAL) :],
        "chat_template": TINY_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tiny.model_type == "qwen2":
        # AutoTokenizer makes this class of every folder of that type, whatever its files name, so that another
        # tokenizer would come back changed. It reads bytes, and composes Unicode first (NFC).
        return Qwen2Tokenizer(vocab=vocabulary, merges=[], **settings)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=_SPECIAL["unk_token"]))
    if tiny.unit == "byte":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
    else:
        backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)  # type: ignore[no-untyped-call]
