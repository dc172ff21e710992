"""A plug-in file: `rm_preprocess` makes the judge's prompts, `rm_postprocess` reads its answers.

    rm_preprocess(text_prompts, text_responses, tgt_tokenizer) -> list[str]
    rm_postprocess(results) -> list[float]

Both work on whole lists. Where one raises, it is called again with one entry at a time, so that one bad text fails
alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.hooks import number
from rewardsmith.rewards.judges.tokenizers import load_tokenizer, require_tokenizer
from rewardsmith.rewards.protocol import CannotScore, Halt, failure_of
from rewardsmith.text.quoting import harmless
from rewardsmith.text.reading import Unreadable

PREPROCESS, POSTPROCESS = "rm_preprocess", "rm_postprocess"


class PluginFile:
    """A plug-in file and the tokenizer that it is given.

    Args:
        path: of the file.
        tokenizer: folder or Hugging Face id of the judge's tokenizer; None gives the plug-in None.

    Raises:
        UserError: the file cannot be loaded, or lacks one of the two functions; or there can be no such tokenizer.
    """

    def __init__(self, path: str, tokenizer: str | None = None) -> None:
        module = _load(path)
        missing = [name for name in (PREPROCESS, POSTPROCESS) if not callable(getattr(module, name, None))]
        if missing:
            raise UserError(f"the plug-in {path} has no function {missing[0]}")
        self._before: Callable[..., Any] = getattr(module, PREPROCESS)
        self._after: Callable[..., Any] = getattr(module, POSTPROCESS)
        if tokenizer is not None:
            require_tokenizer(tokenizer)
        self._name = tokenizer
        self._tokenizer: Any = None
        self._loading = threading.Lock()

    async def ready(self) -> None:
        """Load the tokenizer, once."""
        if self._name is not None and self._tokenizer is None:
            await asyncio.to_thread(self._load, self._name)

    def _load(self, name: str) -> None:
        with self._loading:
            self._tokenizer = self._tokenizer if self._tokenizer is not None else load_tokenizer(name)

    def prompts(self, question: str, responses: Sequence[str]) -> list[str | Exception]:
        """Return the text that the judge continues, one for each response, or what was raised instead.

        The plug-in writes the turns of the chat itself, so the role tokens in a response are broken before.
        """
        texts = [harmless(response) for response in responses]

        def made(some: Sequence[str]) -> list[Any]:
            return _each(self._before([question] * len(some), list(some), self._tokenizer), len(some), PREPROCESS)

        return [self._explained(_text(one)) for one in _all_or_one_by_one(made, texts)]

    def _explained(self, prompt: str | Exception) -> str | Exception:
        """Say what is missing where the plug-in wanted to use the tokenizer that it was not given.

        It gets None rather than something that explains itself: plug-ins ask whether it is None, and do without.
        """
        missed = isinstance(prompt, AttributeError | TypeError) and "NoneType" in str(prompt)
        if self._tokenizer is not None or not missed:
            return prompt
        assert isinstance(prompt, Exception)
        why = failure_of(prompt)
        return CannotScore(
            why.kind, f'{why.detail}. The plug-in was given no tokenizer: tokenizer = "…" names that of the judge'
        )

    def values(self, results: Sequence[str]) -> list[float | Exception]:
        """Return the value of each answer of the judge, or what was raised instead."""

        def read(some: Sequence[str]) -> list[Any]:
            return _each(self._after(list(some)), len(some), POSTPROCESS)

        return [_value(one) for one in _all_or_one_by_one(read, results)]


def _all_or_one_by_one(work: Callable[[Sequence[str]], list[Any]], texts: Sequence[str]) -> list[Any]:
    if not texts:
        return []
    try:
        return work(texts)
    except Halt:
        raise
    except Exception as error:  # noqa: BLE001 the user's code may raise anything
        if len(texts) == 1:
            return [error]
    except SystemExit as error:
        if len(texts) == 1:
            why = failure_of(error)
            return [CannotScore(why.kind, why.detail)]
    return [_all_or_one_by_one(work, [text])[0] for text in texts]


def _each(made: object, count: int, name: str) -> list[Any]:
    """Return what a function gave as a list, if it has the right length."""
    if isinstance(made, str) or not isinstance(made, Iterable):
        raise TypeError(f"{name} returned a {type(made).__name__}: it must return a list")
    found = list(islice(made, count + 1))
    if len(found) != count:
        raise TypeError(f"{name} returned {'more' if len(found) > count else len(found)} values for {count} texts")
    return found


def _text(one: object) -> str | Exception:
    if isinstance(one, str | Exception):
        return one
    return TypeError(f"{PREPROCESS} returned a {type(one).__name__} as a prompt: it must be text")


def _value(one: object) -> float | Exception:
    if isinstance(one, Exception):
        return one
    try:
        return number(one, POSTPROCESS)
    except Unreadable as error:
        return CannotScore("invalid", str(error))
    except TypeError as error:
        return error


def _load(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise UserError(f"there is no plug-in {path!r}: give the path of a Python file")
    # Two files of the same name are two modules, and neither hides an installed one.
    name = f"rewardsmith_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"the plug-in {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may do anything while it is imported
        del sys.modules[name]
        raise UserError(f"the plug-in {path!r} cannot be loaded ({type(error).__name__}: {error})") from error
    return module


__all__ = ["PluginFile"]
