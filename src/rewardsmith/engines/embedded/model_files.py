"""Reads Hugging Face model folders, which are hostile until they have been checked.

Weights come from safetensors only, code that comes with a model is never run, and numbers in the files that decide what
is allocated have bounds far above the models that exist.
"""

from __future__ import annotations

import copy
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from safetensors import SafetensorError, safe_open
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
from transformers.utils import logging

from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.masking import shown

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# What a download needs; pickled weights and code are not fetched.
_DOWNLOADED = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", _WEIGHTS, "model-*-of-*.safetensors"]
_SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
_TOKENIZER_FILES = ["tokenizer.json", "vocab.*", "*.model", "*.tiktoken"]

MAX_JSON = 64 << 20  # bytes of config.json, and of the list of shards
MAX_TOKENIZER = 256 << 20  # bytes of a file of a tokenizer
MAX_ADDED = 200_000  # tokens added to the vocabulary
MAX_LIST = 10_000  # entries of a list in config.json
MAX_UNFILLED = 10_000_000  # parameters that may be missing from the files before the model is allocated

# Numbers in config.json by the end of their name: these decide how many modules are created.
_MAX_SIZES = {r"layers?$": 1_000, r"(heads?|experts?|labels?)$": 4_096, "": 10**12}
_ADDED = ("added_tokens", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the logs, warnings and progress bars of `transformers` off the terminal."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # also those of the hub
            if not hub_bars:
                disable_progress_bars()


def find_folder(init: str, patterns: Sequence[str], *, subfolders: bool = False) -> Path:
    """Return the folder that `init` names; if it is a Hugging Face id, the files of these patterns are downloaded."""
    path = Path(os.path.expanduser(init))  # unlike the methods of Path, these raise for no text whatsoever
    if os.path.isdir(path):
        return path
    where = f'init = "{init}"'
    if os.path.isfile(path):
        raise UserError(f"{where}: this is a file; name a Hugging Face folder, with config.json and safetensors")
    if init.startswith(("./", "../", "/", "~")):
        raise UserError(f"{where}: there is no such folder")
    try:
        ignored = None if subfolders else ["*/*"]
        return Path(snapshot_download(init, allow_patterns=list(patterns), ignore_patterns=ignored))
    except Exception as error:
        raise UserError(
            f"{where}: there is no such folder here, and no model of that id could be downloaded."
            f"{nearest(init, TINY)} Check the network, HF_HUB_OFFLINE and HF_TOKEN, or name a folder. Built-in"
            f" models: {listing(TINY)}. The error was: {_first_line(error)}"
        ) from error


class ModelFolder:
    """The folder that `init` names, after a download if it is an id; what is wrong with it is a `UserError`."""

    def __init__(self, init: str, *, weights: bool = True) -> None:
        self._init = init
        self.path = find_folder(init, [name for name in _DOWNLOADED if weights or "safetensors" not in name])

    @property
    def changed(self) -> int:
        """When a file of the folder changed last."""
        return max((file.stat().st_mtime_ns for file in self.path.iterdir() if file.exists()), default=0)

    def _bad(self, message: str) -> UserError:
        return UserError(f'init = "{self._init}": {message}')

    def _out_of_bounds(self, message: str) -> UserError:
        return self._bad(f"{message}: no model is like that; get the files again from a source that you trust")

    # ---- config.json -----------------------------------------------------------------------------------------------

    def config(self, head: str) -> PreTrainedConfig:
        """Return the configuration of a model that can have the head."""
        if (self.path / "adapter_config.json").is_file():  # transformers would follow it to another model
            raise self._bad("the folder holds an adapter. Name the base model, and the adapter in lora.init")
        if not (self.path / "config.json").is_file():
            raise self._bad(f"{self.path} has no config.json, so it is not a Hugging Face model folder")
        table = self._json("config.json")
        kind = table.get("model_type")
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
            hint = nearest(kind, CONFIG_MAPPING) if isinstance(kind, str) else ""
            code = " Code that comes with a model is never run." if "auto_map" in table else ""
            raise self._bad(
                f"config.json has model_type = {json.dumps(kind)}, which the installed transformers does not know."
                f"{hint}{code} Update transformers if the model is new"
            )
        if table.get("quantization_config"):
            raise self._bad("the weights are quantised and cannot be trained; name the original model")
        self._check_sizes(table)
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(self.path, **_SAFE)
        except Exception as error:
            raise self._bad(f"config.json does not describe a model of type {kind}: {_first_line(error)}") from error
        masked = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
        if masked or getattr(config, "is_encoder_decoder", False) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise self._bad(f"a model of type {kind} does not generate text from left to right: name one that does")
        if head == "scalar" and type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
            raise self._bad(f"transformers has no sequence classifier of type {kind}: name a model of another type")
        return config

    def _json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            if file.stat().st_size > MAX_JSON:
                raise ValueError(f"it has more than {MAX_JSON:,} bytes")
            value = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError, OSError) as error:
            raise self._bad(f"{file} cannot be read as JSON ({_first_line(error)}); get the file again") from error
        if not isinstance(value, dict):
            raise self._bad(f"{file} holds no JSON object; get the file again")
        return value

    def _check_sizes(self, table: Mapping[str, Any]) -> None:
        """Refuse a config.json that describes a model of a size that none has."""
        for name, value in table.items():
            if isinstance(value, dict):
                self._check_sizes(value)
            if isinstance(value, list) and len(value) > MAX_LIST:
                raise self._out_of_bounds(f"config.json has {len(value):,} entries in {name}, not {MAX_LIST:,}")
            limit = next(limit for end, limit in _MAX_SIZES.items() if re.search(end, name))
            if isinstance(value, int | float) and not -limit <= value <= limit:
                raise self._out_of_bounds(f"config.json has {name} = {shown(value)}, more than {limit:,}")

    # ---- weights ---------------------------------------------------------------------------------------------------

    def weights(self) -> list[Path]:
        """Return the safetensors files; refuse missing and damaged ones, and those of another folder."""
        folder = self.path
        if (folder / _WEIGHTS).is_file():
            names = {_WEIGHTS}
        elif (folder / _INDEX).is_file():
            shards = self._json(_INDEX).get("weight_map")
            names = set(map(str, shards.values())) if isinstance(shards, dict) else set()
            if not names or any(Path(name).name != name for name in names):
                raise self._bad(f"{_INDEX} does not list files of its folder; get the file again")
        elif any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise self._bad(
                "the weights are pickled, and loading a pickle can run any code. Convert them where you trust the file:"
                " AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)"
            )
        else:
            raise self._bad(f"{folder} has no weights; there should be {_WEIGHTS} or {_INDEX}")
        for name in sorted(names):
            if not (folder / name).is_file():
                raise self._bad(f"{folder / name} is missing; {_INDEX} lists it")
            try:
                with safe_open(folder / name, framework="pt"):  # reads the header, and compares it with the file's size
                    pass
            except (SafetensorError, OSError) as error:
                message = f"{folder / name} is damaged ({_first_line(error)}); copy or download it again"
                raise self._bad(message) from error
        return [folder / name for name in sorted(names)]

    def model(
        self, config: PreTrainedConfig, head: str, dtype: torch.dtype, attention: str, device: torch.device
    ) -> tuple[PreTrainedModel, bool]:
        """Return the model on the device, and whether its scalar head was missing and is random."""
        files = self.weights()
        if head == "scalar" and config.num_labels != 1:
            config.num_labels = 1
        family: Any = AutoModelForCausalLM if head == "language" else AutoModelForSequenceClassification
        try:
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                expected = sum(each.numel() for each in family.from_config(copy.deepcopy(config)).parameters())
        except Exception as error:
            raise self._bad(f"config.json does not describe a model: {_first_line(error)}") from error
        stored = sum(map(_count_parameters, files))
        if expected > 3 * stored + MAX_UNFILLED:
            raise self._out_of_bounds(
                f"config.json describes a model of {expected:,} parameters, and the files hold {stored:,}"
            )
        try:
            with torch.random.fork_rng(devices=[]):  # what is not in the files is drawn at random first
                model, report = family.from_pretrained(
                    self.path,
                    config=config,
                    dtype=dtype,
                    attn_implementation=attention,
                    device_map={"": device} if device.type == "cuda" else None,
                    use_safetensors=True,
                    ignore_mismatched_sizes=True,  # they are reported, and refused below
                    output_loading_info=True,
                    **_SAFE,
                )
        except Exception as error:
            raise self._bad(f"transformers cannot load {self.path}: {_first_line(error)}") from error
        self._check_report(model, head, report)
        return model, head == "scalar" and bool(report["missing_keys"])

    def _check_report(self, model: PreTrainedModel, head: str, report: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that leaves weights of the model random, or has layers that the model does not have."""
        wrong = [f"{key} is {[*there]}, not {[*here]}" for key, there, here in report["mismatched_keys"]]
        if wrong:
            raise self._bad(f"weights in the files have another shape than config.json says: {listing(wrong[:3])}")
        missing = [key for key in report["missing_keys"] if head == "language" or not key.startswith("score.")]
        if missing:
            raise self._bad(f"weights are missing from the files, and would be random: {listing(sorted(missing)[:3])}")
        # Other extra weights are harmless, such as the head of another task.
        kinds = {re.sub(r"\d+", "N", key) for key, _ in model.named_parameters()}
        extra = [key for key in report["unexpected_keys"] if re.sub(r"\d+", "N", key) in kinds]
        if extra:
            raise self._bad(f"the files have more layers than config.json says: {listing(sorted(extra)[:3])}")

    # ---- tokenizer -------------------------------------------------------------------------------------------------

    def tokenizer(self, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
        """Return the tokenizer, which has an end token."""
        # Without files, transformers creates an empty tokenizer for some types.
        if not any(any(self.path.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise self._bad(f"{self.path} has no tokenizer. Copy tokenizer*.json of the model that it was trained from")
        self._check_tokenizer_files()
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.path, config=config, **_SAFE)
        except Exception as error:
            message = f"the tokenizer in {self.path} cannot be loaded ({_first_line(error)}); copy its files again"
            raise self._bad(message) from error
        if tokenizer.eos_token_id is None:
            file = self.path / "tokenizer_config.json"
            raise self._bad(f"the tokenizer has no end token, so no response could end. Set eos_token in {file}")
        for ours in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(ours, None)  # they would be saved with it
        return tokenizer

    def _check_tokenizer_files(self) -> None:
        """Refuse a tokenizer whose files are very large, or list more tokens than one can have."""
        for file in self.path.iterdir():
            if file.is_file() and file.suffix in (".json", ".jinja", ".txt", ".model", ".tiktoken"):
                size = file.stat().st_size
                if size > MAX_TOKENIZER:
                    raise self._out_of_bounds(f"{file} has {size:,} bytes, more than {MAX_TOKENIZER:,}")
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
            try:
                table = json.loads((self.path / name).read_bytes())
            except (OSError, ValueError, RecursionError):
                continue  # AutoTokenizer reports it
            lists = table if isinstance(table, dict) else {}
            entries = [table] if name == "added_tokens.json" else [lists.get(key) for key in _ADDED]
            count = max(len(each) if isinstance(each, dict | list) else 0 for each in entries)
            if count > MAX_ADDED:
                raise self._out_of_bounds(f"{self.path / name} adds {count:,} tokens, more than {MAX_ADDED:,}")

    def fit_tokenizer(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse a tokenizer whose tokens the model does not have, and give it a padding token that the model has."""
        embedding: Any = model.get_input_embeddings()
        rows = embedding.weight.shape[0]
        # Tokens added to the vocabulary are not counted: published models have some that the model never reads.
        largest = max(tokenizer.vocab_size - 1, tokenizer.eos_token_id)
        if largest >= rows:
            raise self._bad(f"the tokenizer has a token {largest}, and the model knows only {rows}: copy its own one")
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
            tokenizer.pad_token = tokenizer.eos_token


def _first_line(error: BaseException) -> str:
    """Return the start of an error of a library, which may run over a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _count_parameters(file: Path) -> int:
    with safe_open(file, framework="pt") as tensors:
        return sum(torch.Size(tensors.get_slice(name).get_shape()).numel() for name in tensors.keys())  # noqa: SIM118
