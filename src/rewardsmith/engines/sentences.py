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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.embedded.cards import select_device
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
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1, f"embed-{name}")  # one: the model is never used twice at a time

    async def identity(self) -> str:
        """Return the model's identity in the cache: a hash of its files, and the truncation."""
        return f"sentences:{self._digest}:{self._settings.max_tokens or ''}"

    async def check(self) -> None:
        """Load the model, or raise `UserError`."""
        self._loaded()

    async def close(self) -> None:
        """Unload the model; the next call loads it again."""
        self._thread.shutdown()
        self._thread, self._model = ThreadPoolExecutor(1, f"embed-{self.name}"), None

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, float32 [n, D]; a text too long for the model is truncated."""
        model = self._loaded()
        try:
            loop = asyncio.get_running_loop()
            vectors_ND = await loop.run_in_executor(self._thread, self._encode, model, list(texts))
            if not np.isfinite(vectors_ND).all():
                raise ModelCallError("invalid", "a vector has numbers that are not finite")
        except Exception as error:
            self.usage.failed += len(texts)
            if isinstance(error, ModelCallError):
                raise
            raise ModelCallError("crashed", f"{type(error).__name__}: {error}") from error
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

    @cached_property
    def _folder(self) -> Path:
        try:
            return find_folder(self._settings.init, _FILES, subfolders=True)
        except UserError as error:
            raise UserError(f"models.{self.name}: {error}") from None

    @cached_property
    def _digest(self) -> str:
        """A hash of the model's files and their names in the folder."""
        files = {file.relative_to(self._folder).as_posix(): file for p in _FILES for file in self._folder.rglob(p)}
        total = hashlib.blake2b(digest_size=16)
        for name, file in sorted(files.items()):
            with file.open("rb") as opened:
                total.update(f"{name} {hashlib.file_digest(opened, 'blake2b').hexdigest()} ".encode())
        return total.hexdigest()

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
        _require_safe(self._folder, self.name)
        safe: dict[str, Any] = {
            "trust_remote_code": False,
            "local_files_only": True,
            "model_kwargs": {"use_safetensors": True},
        }
        try:
            with quiet():
                model = SentenceTransformer(str(self._folder), device=str(self._device), **safe)
        except Exception as error:
            raise UserError(f"models.{self.name}.init: {self._folder} cannot be loaded: {error}") from error
        if self._settings.max_tokens is not None:
            model.max_seq_length = min(self._settings.max_tokens, model.max_seq_length or self._settings.max_tokens)
        self._model = model.eval()
        return self._model


def _require_safe(folder: Path, name: str) -> None:
    """Refuse a folder that is not a sentence-transformers model, needs code of its own, or has pickled weights."""
    where = f"models.{name}.init: {folder}"
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        parts = [(str(module["type"]), folder / str(module["path"])) for module in modules]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            f"{where}: modules.json cannot be read ({error!r}): name a sentence-transformers model, which has one"
        ) from None
    for kind, part in parts:
        if not kind.startswith("sentence_transformers."):
            raise UserError(f"{where} comes with code of its own ({kind}), which is never run: name another model")
        if not part.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{where}: modules.json names {part}, which is not in the folder")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise UserError(f"{where}: the weights in {part} are pickled, and loading a pickle can run any code")
