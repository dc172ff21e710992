"""Tasks of reasoning-gym: how an entry travels as JSON, and how the task's own scorer is asked about an answer.

An entry is what reasoning-gym makes: a question, an answer (None where many are right) and metadata. Its scorers were
written for answers of friendly models. Some hand the answer to Python's `eval`, some can be made to run for hours, and
some give full marks to what is wrong. So an answer reaches a scorer only in a form that is harmless there, and tasks
whose scorer cannot be trusted even then are listed in `UNSOUND`. Imports nothing of ours.
"""

from __future__ import annotations

import importlib
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

UNSOUND: Mapping[str, str] = {
    "coin_flip": 'its scorer gives full marks to "0" for nearly every probability',
    "composite": "it is no task of its own: name its tasks instead",
    "game_of_life_halting": "its scorer gives full marks to any text",
    "intermediate_integration": "its scorer evaluates the answer as a program (sympy's parse_expr)",
    "polynomial_multiplication": "its scorer evaluates the answer as a program (sympy's parse_expr)",
    "propositional_logic": 'its scorer gives full marks to "P ∨ Q" for most questions',
    "puzzle24": "its scorer gives full marks to any four numbers that make 24, and not only to those of the question",
    "simple_integration": "its scorer evaluates the answer as a program (sympy's parse_expr)",
}
"""Tasks that are refused because of their scorer, and why."""

LONGEST = 10_000
"""Characters of the longest answer that a scorer sees; where the entry's own answer is long, four times that more."""

_LISTS = r"\s,\[\]'\""
_SMALL = re.compile(r"(?:\D|(?<!\d)\d{1,2}(?!\d)){0,1000}")
FORMS: Mapping[str, re.Pattern[str]] = {
    # The scorer evaluates the answer. Of these characters no program can be made but a list, or a sum.
    "binary_matrix": re.compile(rf"[0-9{_LISTS}]*"),
    "spiral_matrix": re.compile(rf"[0-9{_LISTS}]*"),
    "string_insertion": re.compile(rf"[A-E{_LISTS}]*"),
    "n_queens": re.compile(rf"[Q_{_LISTS}]*"),
    "countdown": re.compile(r"(?:[0-9\s+\-/()]|\*(?!\s*\*)){0,1000}"),  # no powers: 9**9**9 has 370 million digits
    # "nan" has full marks.
    "complex_arithmetic": re.compile(r"[0-9\s.()+\-*ij]*", re.IGNORECASE),
    # A move may be repeated any number of times: R999999999.
    "rubiks_cube": _SMALL,
    "rush_hour": _SMALL,
}
"""Tasks whose scorer may see only answers of that form; any other answer is 0."""

# What scorers evaluate of an entry, which may come from a file that somebody else wrote.
_PROBLEM = re.compile(r"[0-9a-fx\s()+\-*<>&|^~]{1,2000}", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9e\s.,'\"\[\]+\-]*", re.IGNORECASE)

_TUPLES: Mapping[str, str] = {"arc_agi": "output", "rearc": "output"}  # what scorers compare with tuples, unlike JSON
_BITS = 4_096  # of an integer that a prompt can keep


class BrokenEntryError(ValueError):
    """An entry whose own answer does not get full marks: no verdict on it can be believed."""


@dataclass(frozen=True)
class Entry:
    """What a task asks.

    Attributes:
        question: the text.
        answer: one right answer; None where the task gives none.
        metadata: what the scorer needs to know, as JSON values.
    """

    question: str
    answer: str | None
    metadata: Mapping[str, Any]


class Task:
    """A task of reasoning-gym with its settings.

    Args:
        name: one of `known_tasks()`.
        config: its own settings, as JSON values; those that are not given have the task's defaults.
        seed: what its entries follow from; a scorer does not depend on it.
        size: number of entries.

    Raises:
        Exception: of any kind, for settings that the task refuses.
    """

    def __init__(self, name: str, config: Mapping[str, Any], *, seed: int = 0, size: int = 1) -> None:
        dataset, kind = _registry()[name]
        defaults = kind()
        values = {key: _thawed(value) for key, value in config.items()}
        for key, value in values.items():  # a table within the settings, such as board_format_opts
            table: type[Any] = type(getattr(defaults, key, None))
            if is_dataclass(table) and isinstance(value, dict):
                values[key] = table(**value)
        self.name = name
        with _quiet():
            self._dataset = dataset(config=kind(**values, seed=seed, size=size))

    def entry(self, index: int) -> Entry:
        """Return an entry, made anew; tuples become lists, and what JSON does not have becomes text."""
        with _quiet():
            made = self._dataset[index]
        return Entry(str(made["question"]), _plain(made["answer"]), _plain(made["metadata"]))

    def score(self, answer: str, entry: Entry) -> float:
        """Return the marks that the task's scorer gives for an untrusted answer.

        Returns:
            0 for an answer that the scorer must not see, or that it fails on.

        Raises:
            BrokenEntryError: when less than full marks cannot be believed: the entry's own answer has not got them.
        """
        try:
            marks = self._ask(answer, entry) if self._may_see(answer, entry) else 0.0
        except (BrokenEntryError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 either the answer cannot be read, or the entry is broken: the next lines tell
            marks = 0.0
        if not marks >= 1:
            self.require_sound(entry)
        return marks

    def require_sound(self, entry: Entry) -> None:
        """Raise a `BrokenEntryError` unless the entry's own answer gets full marks."""
        answer = "[]" if entry.answer is None else entry.answer  # a plan without moves, which their scorers can read
        try:
            marks = self._ask(answer, entry) if self._may_see(answer, entry) else 0.0
        except (BrokenEntryError, MemoryError):
            raise
        except Exception as error:
            raise BrokenEntryError(f"the scorer of {self.name} fails: {type(error).__name__}: {error}") from error
        if entry.answer is not None and not marks >= 1 - 1e-9:
            raise BrokenEntryError(f"the scorer of {self.name} gives {marks:g} to the entry's own answer")

    def _may_see(self, answer: str, entry: Entry) -> bool:
        if len(answer) > LONGEST + 4 * len(entry.answer or ""):
            return False
        form = FORMS.get(self.name)
        return form is None or form.fullmatch(answer) is not None

    def _ask(self, answer: str, entry: Entry) -> float:
        _require_harmless(self.name, entry)
        metadata = _thawed(entry.metadata)
        if self.name in _TUPLES:
            key = _TUPLES[self.name]
            metadata[key] = tuple(tuple(row) for row in metadata[key])
        made = {"question": entry.question, "answer": entry.answer, "metadata": metadata}
        with _quiet():
            return float(self._dataset.score_answer(answer=answer, entry=made))


def _require_harmless(task: str, entry: Entry) -> None:
    """Refuse an entry of which the scorer would evaluate more than numbers."""
    if (task == "bitwise_arithmetic" and not _PROBLEM.fullmatch(str(entry.metadata.get("problem")))) or (
        task == "number_sorting" and not _NUMBERS.fullmatch(entry.answer or "")
    ):
        raise BrokenEntryError(f"the scorer of {task} would evaluate more than numbers")


def known_tasks() -> list[str]:
    """Return the names of all tasks that the installed reasoning-gym has, in alphabetical order."""
    return sorted(_registry())


def config_fields(task: str) -> list[str]:
    """Return the names of a task's own settings, without `seed` and `size`."""
    return [field.name for field in fields(_registry()[task][1]) if field.name not in ("seed", "size")]


@lru_cache(maxsize=1)
def _registry() -> Mapping[str, tuple[Any, Any]]:
    """Return class and settings class of each task by name. Loading reasoning-gym takes a second."""
    with _quiet():
        registry: Mapping[str, tuple[Any, Any]] = importlib.import_module("reasoning_gym.factory").DATASETS
    return registry


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what tasks print, and their warnings, out of the console."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's numbers, texts and arrays
        value = value.tolist()
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _thawed(value: Any) -> Any:
    """Return JSON values, frozen or not, as the dictionaries and lists that scorers expect, and may change."""
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_thawed(item) for item in value]
    return value
