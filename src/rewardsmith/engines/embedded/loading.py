"""From the settings of a model to a model that can be trained, and back to a folder.

`init` is a name of `TINY`, a Hugging Face folder, or a Hugging Face id. A name of `TINY` comes first: a folder of the
same name is written `./tiny-llama`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rewardsmith.engines.embedded import architectures
from rewardsmith.engines.embedded.attention import ATTENTION
from rewardsmith.engines.embedded.cards import current, select_device
from rewardsmith.engines.embedded.chat_template import require_chat_template, with_chat_template
from rewardsmith.engines.embedded.int8_linear import quantise_layers
from rewardsmith.engines.embedded.model_files import ModelFolder, quiet
from rewardsmith.engines.embedded.tiny import TINY, make_tiny, tiny_config
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import ModelOutline
from rewardsmith.errors import UserError
from rewardsmith.storage import HASHING_THREADS

SHARD_BYTES = 1 << 28  # of a file of optimizer states

# Tokenizers that `check_model` has read, by `init` and the time of the files, for `load_model`: some take a second.
_checked: dict[tuple[str, int], PreTrainedTokenizerBase] = {}


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be trained."""

    model: PreTrainedModel  # on `device`, in `dtype`, in training mode without dropout
    tokenizer: PreTrainedTokenizerBase  # with a padding and an end token; it may have no chat template
    device: torch.device
    dtype: torch.dtype
    stop_ids: tuple[int, ...]  # the tokens that end a response, in ascending order; at least one


def load_model(settings: ModelSettings, *, seed: int = 0) -> LoadedModel:
    """Return the model that `settings.init` names; `seed` is of a tiny model. A new scalar head starts at zero."""
    init, head = settings.init, settings.head
    assert init is not None
    device, dtype = select_device(settings.device, settings.dtype)
    folder = None if is_tiny(init) else ModelFolder(init)  # a download may take long, and shows its progress
    with quiet(), current(device):
        model: Any
        if folder is None:
            model, tokenizer = make_tiny(init, seed=seed)
            model = architectures.with_scalar_head(model) if head == "scalar" else model
            architectures.cast_parameters(model, dtype)
            model.set_attn_implementation(ATTENTION)
        else:
            config = folder.config(head)
            model, new_head = folder.model(config, head, dtype, ATTENTION, device)
            if new_head:
                nn.init.zeros_(model.score.weight)
            key = init, folder.changed
            tokenizer = _checked.pop(key) if key in _checked else folder.tokenizer(config)
            folder.fit_tokenizer(model, tokenizer)
        if settings.lora is not None and settings.lora.base == "int8":
            architectures.check_base(model, settings.lora, "lora")
            quantise_layers(model, device)  # before it is moved: the device never holds the weights as they were
        model.to(device)
    model.config.get_text_config().use_cache = False
    architectures.disable_dropout(model)
    stops = stop_ids(model.config, getattr(model, "generation_config", None), tokenizer)
    return LoadedModel(model.train(), tokenizer, device, dtype, stops)


def is_tiny(init: str) -> bool:
    """Whether a built-in model is meant, misspelt or not."""
    return init in TINY or (init.startswith("tiny-") and "/" not in init and not os.path.exists(init))


def stop_ids(config: Any, generation: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that end a response by the configurations of a model and by its tokenizer."""
    found: set[int] = {tokenizer.eos_token_id}
    for source in (generation, config, config.get_text_config()):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return tuple(sorted(found))


# ---- before the weights are loaded -----------------------------------------------------------------------------------


def check_model(settings: ModelSettings, name: str, *, chat: bool = True) -> ModelOutline:
    """Check everything of a model but its weights, of which the headers are read; with `chat`, it needs a template."""
    init, where = settings.init, f"models.{name}"
    assert init is not None
    try:
        select_device(settings.device, settings.dtype)
        if is_tiny(init):
            config, tokenizer = tiny_config(init)
        else:
            folder = ModelFolder(init)
            with quiet():
                config = folder.config(settings.head)
                folder.weights()
                tokenizer = _checked[init, folder.changed] = folder.tokenizer(config)
        tokenizer = with_chat_template(tokenizer, settings, name)
        if chat:
            require_chat_template(tokenizer, init)
        if settings.lora is not None:
            architectures.check_trained_adapter(settings.lora, f"{where}.lora")
            family = AutoModelForCausalLM if settings.head == "language" else AutoModelForSequenceClassification
            with quiet(), torch.device("meta"):
                model = family.from_config(config)  # type: ignore[no-untyped-call]
            architectures.check_base(model, settings.lora, f"{where}.lora")
            architectures.attach_adapter(model, settings.lora, name)
    except UserError as error:
        if str(error).startswith(where):
            raise
        raise UserError(f"{where}: {error}") from error
    return ModelOutline(name, tokenizer.get_vocab(), architectures.max_length(config))


# ---- our own folders -------------------------------------------------------------------------------------------------


def save_folder(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an ordinary Hugging Face folder, file by file: configuration, safetensors, tokenizer, chat template."""
    text_config = model.config.get_text_config()
    try:
        text_config.use_cache = True  # off for training only
        with quiet():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    finally:
        text_config.use_cache = False


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file, and what is more than `SHARD_BYTES` to `NAME-00002.safetensors` and so on.

    Files can be hashed and synced at the same time, and no more than one is held in host memory.
    """
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if size > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = tensor.nbytes
        shards[-1][name] = tensor
    for number, shard in enumerate(shards, 1):
        # Page-locked where a GPU copies to it, which is several times as fast.
        copies = {name: tensor.detach().contiguous().to("cpu", non_blocking=True) for name, tensor in shard.items()}
        if any(tensor.is_cuda for tensor in shard.values()):
            torch.cuda.synchronize()
        save_file(copies, file if number == 1 else file.with_stem(f"{file.stem}-{number:05}"))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, and of those that go on with it."""
    found: dict[str, Tensor] = {}
    for part in (file, *sorted(file.parent.glob(f"{file.stem}-*{file.suffix}"))):
        try:
            found |= load_file(part)
        except FileNotFoundError:
            raise UserError(f"there is no file {str(part)!r}: the checkpoint is not complete") from None
        except (OSError, SafetensorError, ValueError) as error:
            raise UserError(f"{part} cannot be read: {error}") from None
    return found


def hash_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a hash of the shape and the bytes of each tensor; weights that are tied are read once."""
    distinct = {(tensor.data_ptr(), tensor.shape): tensor for tensor in tensors.values()}
    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        hashes = dict(zip(distinct, threads.map(_hash, distinct.values()), strict=True))
    return {name: hashes[tensor.data_ptr(), tensor.shape] for name, tensor in tensors.items()}


def _hash(tensor: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(tensor.shape)).encode())  # for which processors have instructions
    digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def restore_weights(model: Any, folder: Path, *, adapter: bool) -> None:
    """Overwrite the weights of a model, or of its adapter, by those that `save_folder` wrote."""
    if adapter:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict  # noqa: PLC0415 it takes seconds

        saved = read_tensors(folder / "adapter_model.safetensors")
        _require_same(saved, get_peft_model_state_dict(model, save_embedding_layers=False), folder)
        set_peft_model_state_dict(model, saved)
        return
    if not any(folder.glob("model*.safetensors")):
        raise UserError(f"there are no weights in {str(folder)!r}: the checkpoint is not complete")
    try:
        with quiet():  # transformers may save weights under other names, and maps them back
            other, report = type(model).from_pretrained(
                folder, dtype=model.dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except Exception as error:  # transformers and safetensors raise many kinds
        raise UserError(f"the weights in {str(folder)!r} cannot be read: {error}") from error
    if wrong := sorted({*report["missing_keys"], *report["unexpected_keys"]}):  # missing ones would be random
        raise UserError(f"{folder} does not fit the model (see {wrong[0]}): it is not complete, or of another model")
    own, saved = model.state_dict(), other.state_dict()
    _require_same(saved, own, folder)
    with torch.no_grad():
        for name, tensor in saved.items():
            own[name].copy_(tensor)


def _require_same(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], folder: Path) -> None:
    wrong = sorted(set(saved) ^ set(own)) or [name for name in saved if saved[name].shape != own[name].shape]
    if wrong:
        raise UserError(f"{folder} does not fit the model (see {wrong[0]}): it is of another model")
