"""A plug-in file inside a worker: loaded with its folder, and called. All results are JSON.

While a plug-in is loaded or called, the Python files of its folder can be imported: by name, as relative imports,
and as modules of `verl.workers.reward_function`, where files of this kind come from; verl need not be installed.
Between calls its modules are removed, so that plug-ins of other folders may have files of the same names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.llm import Unparsable
from rewardsmith.masking import shown
from rewardsmith.rewards.judges.hooks import finite_number, unless_halted

PREPROCESS, POSTPROCESS = "rm_preprocess", "rm_postprocess"
_PACKAGE = "verl.workers.reward_function"
_PARENTS = ("verl", "verl.workers")

HUB_TIMEOUT = 10.0
"""Seconds for the hub to tell whether it has the tokenizer."""


def load_plugin(path: str, *, tokenizer: str | None = None) -> Callable[[tuple[str, str, list[str]], str], list[Any]]:
    """Return a function that calls one of the two functions of a plug-in file.

    It takes `(name of the function, question, texts)`, and returns for each text `[value]` or `[kind, detail]`.
    """
    folder = Siblings(Path(path).parent)
    with folder.importable():
        module = _load(Path(path))
    for name in (PREPROCESS, POSTPROCESS):
        if not callable(getattr(module, name, None)):
            raise UserError(f"it has no function {name}")
    given = None if tokenizer is None else load_tokenizer(tokenizer)

    def call(task: tuple[str, str, list[str]], _: str) -> list[Any]:
        with folder.importable():
            return unless_halted(_called, module, given, *task)

    return call


def _called(module: ModuleType, tokenizer: Any, name: str, question: str, texts: list[str]) -> list[Any]:
    function = getattr(module, name)
    made = function([question] * len(texts), texts, tokenizer) if name == PREPROCESS else function(texts)
    if isinstance(made, str) or not isinstance(made, Iterable):
        raise TypeError(f"{name} returned a {type(made).__name__}: it must return a list")
    found = list(islice(made, len(texts) + 1))
    if len(found) != len(texts):
        many = "more" if len(found) > len(texts) else len(found)
        raise TypeError(f"{name} returned {many} values for {len(texts)} texts")
    return [_text(one) if name == PREPROCESS else _value(one) for one in found]


def _text(one: object) -> list[str]:
    if isinstance(one, str):
        return [one]
    return ["crashed", f"TypeError: {PREPROCESS} returned a {type(one).__name__} as a prompt: it must be text"]


def _value(one: object) -> list[Any]:
    try:
        return [finite_number(one, POSTPROCESS)]
    except Unparsable as error:
        return ["invalid", str(error)]
    except TypeError as error:
        return ["crashed", f"TypeError: {error}"]


def _load(file: Path) -> ModuleType:
    name = f"{_PACKAGE}.{file.stem}"  # its name where it comes from: relative imports then work
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Siblings:
    """A finder for the Python files of a plug-in's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        packages = [path.parent.name for path in folder.glob("*/__init__.py")]
        self._names = {*packages, *(path.stem for path in folder.glob("*.py"))} - sys.stdlib_module_names
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let them be imported inside the block."""
        hidden = self._take_out()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)  # it has what is needed of a finder
        sys.path.append(self._folder)  # last, so that nothing is shadowed
        try:
            yield
        finally:
            sys.path.remove(self._folder)
            sys.meta_path.remove(self)
            self._modules = self._take_out()
            sys.modules.update(hidden)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the folder; None for others."""
        if name == _PACKAGE:
            return _package(name, [self._folder])
        if name in _PARENTS:
            return PathFinder.find_spec(name, path) or _package(name, [])
        found = PathFinder.find_spec(name, [self._folder]) if name in self._names else None
        return found if found is not None and found.loader is not None else None

    def _take_out(self) -> dict[str, ModuleType]:
        """Remove the modules of this folder, or of another with the same names, from `sys.modules`."""
        names = [
            name
            for name, module in sys.modules.items()
            if name.partition(".")[0] in self._names
            or name.startswith(_PACKAGE)
            or (name in _PARENTS and getattr(module, "__file__", None) is None)
        ]
        return {name: sys.modules.pop(name) for name in names}


def _package(name: str, places: list[str]) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = places
    return spec


# ---- tokenizers ----------------------------------------------------------------------------------------------------


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer from its folder, from the local Hugging Face cache, or downloaded.

    The hub is asked once whether it has the model: without a network the library would try file after file.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 only plug-ins need them
    from transformers import AutoTokenizer  # noqa: PLC0415

    path = os.path.expanduser(name)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # noqa: BLE001 it raises many kinds
        if os.path.isdir(path):
            raise _bad_tokenizer(name, "the tokenizer cannot be loaded", error) from None
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except Exception as error:  # noqa: BLE001
        remedy = "If the id is right, check the network, HF_HUB_OFFLINE and HF_TOKEN"
        why = f"there is no such folder here, and no model of that id could be found. {remedy}"
        raise _bad_tokenizer(name, why, error) from None
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001
        raise _bad_tokenizer(name, "the tokenizer cannot be loaded", error) from None


def _bad_tokenizer(name: str, why: str, error: Exception | None = None) -> UserError:
    first_line = str(error).strip().partition("\n")[0][:300]
    cause = "" if error is None else f" ({type(error).__name__}: {first_line})"
    return UserError(f"tokenizer = {shown(name)}: {why}{cause}")
