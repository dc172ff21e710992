"""From the `init` of a model to a model that can be trained, and back to a folder.

`init` is a name of `TINY`, a Hugging Face folder, or a Hugging Face id, which becomes a folder by download. A folder is
hostile until it has been checked: weights are read from safetensors only, code that comes with a model is never run,
and a checkpoint that does not fill the model is refused, because what it leaves out would be random.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rewardsmith.engines.embedded import bounds
from rewardsmith.engines.embedded.gguf import gguf_advice
from rewardsmith.engines.embedded.quiet import quiet
from rewardsmith.engines.embedded.support import without_dropout
from rewardsmith.engines.embedded.tiny import TINY, make_tiny
from rewardsmith.errors import UserError, listing, nearest

HeadKind = Literal["language", "scalar"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# What a download needs; pickled weights and code stay where they are.
_DOWNLOADED = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", _WEIGHTS, "model-*-of-*.safetensors"]
_SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
# Weights of another shape are let pass while loading, and refused where they can be named.
_CHECKED = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
_TOKENIZER_FILES = ["tokenizer.json", "vocab.*", "*.model", "*.tiktoken"]


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be trained.

    Attributes:
        model: on `device`, in `dtype`, in training mode without dropout. It returns logits [B, T, V] with the language
            head, and [B, 1] with the scalar head.
        tokenizer: with a padding and an end token. It may lack a chat template; see `require_chat_template`.
        device: where the model is.
        dtype: of its weights.
        stop_ids: the tokens that end an answer, in ascending order; at least one.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    stop_ids: tuple[int, ...]


def load(
    init: str,
    *,
    head: HeadKind,
    device: Literal["auto", "cpu", "cuda"],
    dtype: Literal["auto", "float32", "bfloat16"],
    seed: int,
    attention: str | None = None,
) -> Loaded:
    """Return the model that `init` names, ready to be trained.

    Args:
        init: a name of `TINY`, a folder, or a Hugging Face id. A name of `TINY` comes first: a folder of the same name
            is written `./tiny-llama`.
        head: `language` predicts the next token. `scalar` gives one number for a text; a layer that the checkpoint does
            not have starts at zero, so that every text begins with a score of 0.
        device: `auto` takes the GPU if there is one.
        dtype: `auto` is float32 on a CPU and bfloat16 on a GPU.
        seed: of the weights of a tiny model; the weights of a folder come from its files.
        attention: name of a registered attention function; the choice of `transformers` if None.

    Raises:
        UserError: there is no such model, it cannot be used here, or its files are damaged or do not fit together.
    """
    where, precision = place(device, dtype)
    folder = None if is_tiny(init) else find_folder(init)  # a download may take long, and shows its progress
    with quiet():
        if folder is None:
            model, tokenizer = _tiny(init, head, precision, seed, attention)
        else:
            config = read_config(init, folder, head)
            model = _model(init, folder, config, head, precision, attention)
            tokenizer = read_tokenizer(init, folder, config)
            _fit(init, model, tokenizer)
        nn.Module.to(model, where)
    text_config = model.config.get_text_config()
    text_config.use_cache = False
    without_dropout(model)
    return Loaded(model.train(), tokenizer, where, precision, _stop_ids(model, tokenizer))


def require_chat_template(tokenizer: PreTrainedTokenizerBase, init: str) -> None:
    """Raise a `UserError` unless the tokenizer can render a chat.

    Args:
        tokenizer: of the model that `init` names.
        init: for the message.
    """
    if not tokenizer.chat_template:
        message = "the tokenizer has no chat template, so it cannot render the messages of a prompt. Take the"
        raise _bad(
            init, f'{message} instruction-tuned variant, set chat = "chatml", or put a chat_template.jinja there'
        )


def save_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an ordinary Hugging Face folder: configuration, safetensors, tokenizer, chat template.

    The folder is made if need be, and written file by file: who needs it whole or not at all writes beside and renames.

    Args:
        model: with either head.
        tokenizer: of that model.
        folder: where to.
    """
    text_config = model.config.get_text_config()
    try:
        text_config.use_cache = True  # off for training only: who loads the folder to generate wants it
        with quiet():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        text_config.use_cache = False


def place(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Return where and in which precision a model runs; a `UserError` where there is no GPU but one was asked for."""
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise UserError(f'device = "cuda": {reason}. Set device = "cpu", or "auto" to take a GPU where there is one')
    where = ("cuda" if found else "cpu") if device == "auto" else device
    precision = ("bfloat16" if where == "cuda" else "float32") if dtype == "auto" else dtype
    return torch.device(where), {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def is_tiny(init: str) -> bool:
    """Return whether a built-in shape is meant, be it misspelt."""
    return init in TINY or (init.startswith("tiny-") and "/" not in init and not os.path.exists(init))


def _tiny(
    name: str, head: HeadKind, dtype: torch.dtype, seed: int, attention: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = make_tiny(name, seed=seed)
    if head == "scalar":
        config = copy.deepcopy(model.config)
        config.num_labels = 1
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            scalar: PreTrainedModel = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        scalar.base_model.load_state_dict(model.base_model.state_dict())
        _zero(scalar)
        model = scalar
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)  # not the buffers: rotary frequencies need float32
    if attention is not None:
        model.set_attn_implementation(attention)
    return model, tokenizer


def _zero(model: PreTrainedModel) -> None:
    for parameter in model.get_submodule("score").parameters():
        nn.init.zeros_(parameter)


def _bad(init: str, message: str) -> UserError:
    return UserError(f'init = "{init}": {message}')


def find_folder(init: str) -> Path:
    """Return the folder that `init` names, after a download if it is an id."""
    path = Path(os.path.expanduser(init))  # unlike the methods of Path, these raise for no text whatsoever
    if os.path.isdir(path):
        return path
    if os.path.isfile(path):
        raise _bad(init, gguf_advice(path) or "this is a file; name the folder that it lies in")
    if init.startswith(("./", "../", "/", "~")):
        raise _bad(init, f"there is no such folder.{_sibling(path)}")
    if not _HUB_ID.fullmatch(init):
        message = "neither a folder here nor a Hugging Face id, which is written name or owner/name."
        raise _bad(init, f"{message}{_sibling(path)} Built-in shapes: {listing(TINY)}")
    try:
        return Path(snapshot_download(init, allow_patterns=_DOWNLOADED, ignore_patterns=["*/*"]))
    except Exception as error:
        raise _bad(
            init,
            "there is no such folder here, and no model of that id could be downloaded."
            f"{_sibling(path) or nearest(init, TINY)} If the id is right, check the network, that HF_HUB_OFFLINE is "
            "not set, and that your account may read the model (HF_TOKEN); or download it elsewhere and name the "
            f"folder. The download said: {_first_line(error)}",
        ) from error


def _sibling(path: Path) -> str:
    """Return the hint at a folder beside `path` with a similar name, or ""."""
    try:
        return nearest(path.name, [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()])
    except (OSError, ValueError):
        return f" Nor is there a folder {path.parent}."


def _first_line(error: BaseException) -> str:
    """Return the start of an error of a library, which may run over a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _json(init: str, file: Path) -> dict[str, Any]:
    try:
        bounds.require_small(file, bounds.MAX_JSON)
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise _bad(init, f"{file} cannot be read as JSON ({_first_line(error)}); get the file again") from error
    if not isinstance(value, dict):
        raise _bad(init, f"{file} holds no JSON object; get the file again")
    return value


def read_config(init: str, folder: Path, head: HeadKind) -> PreTrainedConfig:
    """Return the configuration in the folder, of a model that can have the head."""
    if (folder / "adapter_config.json").is_file():
        # transformers would follow it to another model, perhaps by download.
        message = "the folder holds an adapter. Merge it into its base model (merge_and_unload of peft)"
        raise _bad(init, f"{message}, save that, and name its folder")
    if not (folder / "config.json").is_file():
        raise _bad(init, gguf_advice(folder) or f"{folder} has no config.json, so it is not the folder of a model")
    table = _json(init, folder / "config.json")
    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        message = f"config.json has model_type = {json.dumps(kind)}, which the installed transformers does not know."
        hint = nearest(kind, CONFIG_MAPPING) if isinstance(kind, str) else ""
        code = " Code that comes with a model is never run." if "auto_map" in table else ""
        raise _bad(init, f"{message}{hint}{code} Update transformers if the model is new")
    if table.get("quantization_config"):
        raise _bad(init, "the weights are quantised and cannot be trained; name the original model")
    _require(init, lambda: bounds.require_sane_config(table))
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **_SAFE)
    except Exception as error:
        raise _bad(init, f"config.json does not describe a model of type {kind}: {_first_line(error)}") from error
    masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if masked or getattr(config, "is_encoder_decoder", False) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        message = f"a model of type {kind} does not write text from left to right."
        raise _bad(init, f"{message} Name a causal language model, such as one of type llama, qwen3 or gemma3")
    if head == "scalar" and type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        message = f"transformers has no model of type {kind} that gives a score."
        raise _bad(init, f"{message} Name one of another type, such as llama, qwen3 or gemma3")
    return config


def _require(init: str, check: Callable[[], None]) -> None:
    """Refuse a folder that is out of bounds."""
    try:
        check()
    except (ValueError, OSError) as error:
        raise _bad(init, f"{error}: no model is like that; get the files again from where you trust them") from None


def check_weights(init: str, folder: Path) -> list[Path]:
    """Return the safetensors files of a folder; refuse it where they are missing, damaged or elsewhere."""
    if (folder / _WEIGHTS).is_file():
        names = {_WEIGHTS}
    elif (folder / _INDEX).is_file():
        shards = _json(init, folder / _INDEX).get("weight_map")
        names = set(map(str, shards.values())) if isinstance(shards, dict) else set()
        if not names or any(Path(name).name != name for name in names):
            raise _bad(init, f"{_INDEX} does not list files of its folder; get the file again")
    elif any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        message = "the weights are pickled, and loading a pickle can run any code. Convert them where you trust the"
        raise _bad(init, f"{message} file: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)")
    else:
        message = f"{folder} has no weights; there should be {_WEIGHTS} or {_INDEX}"
        raise _bad(init, gguf_advice(folder) or message)
    for name in sorted(names):
        if not (folder / name).is_file():
            raise _bad(init, f"{folder / name} is missing; {_INDEX} lists it")
        try:
            with safe_open(folder / name, framework="pt"):  # reads the header, and compares it with the file's size
                pass
        except (SafetensorError, OSError) as error:
            message = f"{folder / name} is damaged ({_first_line(error)}); copy or download it again"
            raise _bad(init, message) from error
    return [folder / name for name in sorted(names)]


def _model(
    init: str, folder: Path, config: PreTrainedConfig, head: HeadKind, dtype: torch.dtype, attention: str | None
) -> PreTrainedModel:
    files = check_weights(init, folder)
    if head == "scalar" and config.num_labels != 1:
        config.num_labels = 1
    family: Any = AutoModelForCausalLM if head == "language" else AutoModelForSequenceClassification
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            expected = sum(each.numel() for each in family.from_config(copy.deepcopy(config)).parameters())
    except Exception as error:
        raise _bad(init, f"config.json does not describe a model: {_first_line(error)}") from error
    _require(init, lambda: bounds.require_filled(expected, files))
    try:
        with torch.random.fork_rng(devices=[]):  # what is not in the files is drawn at random first
            model, report = family.from_pretrained(
                folder, config=config, dtype=dtype, attn_implementation=attention, **_SAFE, **_CHECKED
            )
    except Exception as error:
        raise _bad(init, f"transformers cannot load {folder}: {_first_line(error)}") from error
    _check_report(init, model, head, report)
    if head == "scalar" and report["missing_keys"]:
        _zero(model)
    return model  # type: ignore[no-any-return]


def _check_report(init: str, model: PreTrainedModel, head: HeadKind, report: dict[str, Any]) -> None:
    """Refuse a checkpoint that leaves weights of the model random, or has layers that the model has not."""
    wrong = [f"{key} is {[*there]}, not {[*here]}" for key, there, here in report["mismatched_keys"]]
    if wrong:
        raise _bad(init, f"weights in the files have another shape than config.json says: {_some(wrong)}")
    missing = {key for key in report["missing_keys"] if head == "language" or not key.startswith("score.")}
    if missing:
        message = f"weights are missing from the files, and would be random: {_some(missing)}. Name a folder that was"
        raise _bad(init, f"{message} saved from the whole model; a reward model has no language head")
    # Other extra weights are harmless, such as the head of another task.
    kinds = {re.sub(r"\d+", "N", key) for key, _ in model.named_parameters()}
    extra = [key for key in report["unexpected_keys"] if re.sub(r"\d+", "N", key) in kinds]
    if extra:
        raise _bad(init, f"the files have more layers than config.json says: {_some(extra)}")


def _some(names: Iterable[str]) -> str:
    """Return the first of the names in a stable order, and how many there are beside."""
    first = sorted(names)
    return "; ".join(first[:3]) + (f"; and {len(first) - 3} more" if len(first) > 3 else "")


def read_tokenizer(init: str, folder: Path, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer in the folder, which has an end token."""
    # Looked for first: without files, transformers makes a tokenizer of some types that knows no words at all.
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise _bad(init, f"{folder} has no tokenizer. Copy tokenizer*.json of the model that it was trained from")
    _require(init, lambda: bounds.require_sane_tokenizer(folder))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, config=config, **_SAFE)
    except Exception as error:
        message = f"the tokenizer in {folder} cannot be loaded ({_first_line(error)}); copy its files again"
        raise _bad(init, message) from error
    if tokenizer.eos_token_id is None:
        message = "the tokenizer has no end token, so no answer could end. Set eos_token in"
        raise _bad(init, f"{message} {folder / 'tokenizer_config.json'}")
    for ours in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(ours, None)  # how it was loaded would be saved with it
    return tokenizer


def _fit(init: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose tokens the model does not have, and see to a padding token that it has."""
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    # Tokens added beside the vocabulary are not counted: published models have some that the model never sees.
    largest = max(tokenizer.vocab_size - 1, tokenizer.eos_token_id)
    if largest >= rows:
        message = f"the tokenizer has a token {largest}, and the model knows only {rows}."
        raise _bad(init, f"{message} Copy the tokenizer of the model that it was trained from")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        tokenizer.pad_token = tokenizer.eos_token


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    found: set[int] = {tokenizer.eos_token_id}
    for source in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return tuple(sorted(found))
