"""Texts to vectors with a sentence-transformers model in this process.

A folder is hostile until it has been checked: weights are read from safetensors only, and code that comes with a model
is never run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.embedded.loading import select_device
from rewardsmith.engines.embedded.model_files import find_folder, quiet
from rewardsmith.engines.model_settings import SentenceSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError, Usage

_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")  # no pickled weights, and no code


class SentenceModel:
    """Turns texts into vectors; see `rewardsmith.llm.Embedder`. `usage.calls` counts texts."""

    rates_together = True  # a cached vector belongs to its whole call, because the batch changes the last bits

    def __init__(self, settings: SentenceSettings, *, name: str = "model") -> None:
        self.name = name
        self.usage = Usage()
        self._settings = settings
        self._device, _ = select_device(settings.device, "float32")
        self._folder: Path | None = None
        self._model: Any = None
        self._digest = ""
        self._thread: ThreadPoolExecutor | None = None

    async def identity(self) -> str:
        """Return the model's identity in the cache: a hash of its files, and the truncation."""
        self._digest = self._digest or _digest(self._model_folder())
        return f"sentences:{self._digest}:{self._settings.max_tokens or ''}"

    async def check(self) -> None:
        """Load the model, or raise `UserError`."""
        self._loaded()

    async def close(self) -> None:
        """Unload the model; the next call loads it again."""
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._model = None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, float32 [n, D]; a text too long for the model is truncated."""
        model = self._loaded()
        try:
            # One thread: the event loop goes on, and the model is never used twice at a time.
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix=f"embed-{self.name}")
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._encode, model, list(texts))
            vectors_ND = await work
        except Exception as error:
            self.usage.failed += len(texts)
            raise ModelCallError("crashed", f"{type(error).__name__}: {error}") from error
        if not np.isfinite(vectors_ND).all():
            self.usage.failed += len(texts)
            raise ModelCallError("invalid", "a vector has numbers that are not finite")
        self.usage.calls += len(texts)
        return vectors_ND

    def _encode(self, model: Any, texts: list[str]) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        distinct = sorted(set(texts))  # so that the order of the call does not matter
        vectors_ND = model.encode(
            distinct, batch_size=self._settings.batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        places = {text: i for i, text in enumerate(distinct)}
        return np.asarray(vectors_ND, dtype=np.float32)[[places[text] for text in texts]]

    def _model_folder(self) -> Path:
        try:
            self._folder = self._folder or find_folder(self._settings.init, _FILES, subfolders=True)
        except UserError as error:
            raise UserError(f"models.{self.name}.{error}") from None
        return self._folder

    def _loaded(self) -> Any:
        """Return the model, loaded when it is first needed."""
        if self._model is not None:
            return self._model
        try:
            with quiet():
                from sentence_transformers import SentenceTransformer  # noqa: PLC0415 an extra, and slow to import
        except ImportError:
            raise UserError(
                f'models.{self.name} needs sentence-transformers: pip install "rewardsmith[similarity]"'
            ) from None
        folder = self._model_folder()
        _require_safe(folder, self.name)
        try:
            with quiet():
                model = SentenceTransformer(
                    str(folder),
                    device=self._device.type,
                    trust_remote_code=False,
                    local_files_only=True,
                    model_kwargs={"use_safetensors": True},
                )
        except Exception as error:
            raise UserError(f"models.{self.name}.init: {folder} cannot be loaded: {error}") from error
        limit, own = self._settings.max_tokens, model.max_seq_length
        if limit is not None and own is not None and limit > own:
            raise UserError(f"models.{self.name}.max_tokens is {limit}, and the model reads {own}: lower it")
        if limit is not None:
            model.max_seq_length = limit
        self._model = model.eval()
        return self._model


def _require_safe(folder: Path, name: str) -> None:
    """Refuse a folder that is not a sentence-transformers model, needs code of its own, or has pickled weights."""
    where = f"models.{name}.init: {folder}"
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        parts = [(str(module["type"]), folder / str(module["path"])) for module in modules]
    except FileNotFoundError:
        raise UserError(
            f"{where} has no modules.json, which defines the pooling: name a sentence-transformers model"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{where}: modules.json cannot be read ({type(error).__name__}: {error})") from None
    for kind, part in parts:
        if not kind.startswith("sentence_transformers."):
            raise UserError(f"{where} comes with code of its own ({kind}), which is never run: name another model")
        if not part.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{where}: modules.json names {part}, which is not in the folder")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise UserError(f"{where}: the weights in {part} are pickled, and loading a pickle can run any code")


def _digest(folder: Path) -> str:
    """Return a hash of the model's files and their names in the folder."""
    found = hashlib.blake2b(digest_size=16)
    files = {file.relative_to(folder).as_posix(): file for pattern in _FILES for file in folder.rglob(pattern)}
    for name, file in sorted(files.items()):
        with file.open("rb") as opened:
            found.update(f"{name} {hashlib.file_digest(opened, 'blake2b').hexdigest()} ".encode())
    return found.hexdigest()
