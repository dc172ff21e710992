"""A plug-in file as a worker process has it: loaded together with its folder, and called. All that it returns is JSON.

While a plug-in is loaded or called, the Python files of its folder can be imported: by name, as relative imports,
and as modules of `verl.workers.reward_function`, where files of this kind come from; verl itself need not be installed.
Between the calls its modules are put away, so that plug-ins of other folders may have files of the same names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.hook_calls import unless_halted
from rewardsmith.rewards.judges.hooks import number
from rewardsmith.rewards.judges.tokenizers import load_tokenizer
from rewardsmith.text.judge_replies import Unparsable

PREPROCESS, POSTPROCESS = "rm_preprocess", "rm_postprocess"
_PACKAGE = "verl.workers.reward_function"
_PARENTS = ("verl", "verl.workers")


def load_plugin(path: str, *, tokenizer: str | None = None) -> Callable[[tuple[str, str, list[str]], str], list[Any]]:
    """Return a function that calls one of the two functions of a plug-in file.

    It takes `(name of the function, question, texts)`, and returns for each text `[value]` or `[kind, detail]`.
    `rm_preprocess` is given the question with each text, and the tokenizer.

    Raises:
        UserError: the file lacks one of the two, or there is no such tokenizer.
    """
    folder = Siblings(Path(path).parent)
    with folder.importable():
        module = _load(Path(path))
    missing = [name for name in (PREPROCESS, POSTPROCESS) if not callable(getattr(module, name, None))]
    if missing:
        raise UserError(f"it has no function {missing[0]}")
    given = None if tokenizer is None else load_tokenizer(tokenizer)

    def call(task: tuple[str, str, list[str]], _: str) -> list[Any]:
        with folder.importable():
            return unless_halted(_called, module, given, *task)

    return call


def _called(module: ModuleType, tokenizer: Any, name: str, question: str, texts: list[str]) -> list[Any]:
    function = getattr(module, name)
    if name == PREPROCESS:
        return [_text(one) for one in _each(function([question] * len(texts), texts, tokenizer), len(texts), name)]
    return [_value(one) for one in _each(function(texts), len(texts), name)]


def _each(made: object, count: int, name: str) -> list[Any]:
    """Return what a function gave as a list, if it has the right length."""
    if isinstance(made, str) or not isinstance(made, Iterable):
        raise TypeError(f"{name} returned a {type(made).__name__}: it must return a list")
    found = list(islice(made, count + 1))
    if len(found) != count:
        raise TypeError(f"{name} returned {'more' if len(found) > count else len(found)} values for {count} texts")
    return found


def _text(one: object) -> list[str]:
    if isinstance(one, str):
        return [one]
    return ["crashed", f"TypeError: {PREPROCESS} returned a {type(one).__name__} as a prompt: it must be text"]


def _value(one: object) -> list[Any]:
    try:
        return [number(one, POSTPROCESS)]
    except Unparsable as error:
        return ["invalid", str(error)]
    except TypeError as error:
        return ["crashed", f"TypeError: {error}"]


def _load(file: Path) -> ModuleType:
    name = f"{_PACKAGE}.{file.stem}"  # as it is called where it comes from: relative imports then work
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Siblings:
    """The Python files of a folder.

    Args:
        folder: of a plug-in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        files = [path.stem for path in folder.glob("*.py")] + [
            path.parent.name for path in folder.glob("*/__init__.py")
        ]
        self._names = {*files} - sys.stdlib_module_names
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let them be imported meanwhile."""
        hidden = self._put_away()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)  # it has what is needed of a finder
        sys.path.append(self._folder)  # last, so that nothing is shadowed
        try:
            yield
        finally:
            sys.path.remove(self._folder)
            sys.meta_path.remove(self)
            self._modules = self._put_away()
            sys.modules.update(hidden)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return where a module is; None where it is none of ours."""
        if name == _PACKAGE:
            return _package(name, [self._folder])
        if name in _PARENTS:
            return PathFinder.find_spec(name, path) or _package(name, [])
        found = PathFinder.find_spec(name, [self._folder]) if name in self._names else None
        return found if found is not None and found.loader is not None else None

    def _put_away(self) -> dict[str, ModuleType]:
        """Take the modules of this folder, or of another that have the same names, out of those that are imported."""
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


__all__ = ["POSTPROCESS", "PREPROCESS", "load_plugin"]
