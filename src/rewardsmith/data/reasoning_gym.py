"""Prompts from reasoning-gym: about a hundred families of puzzles that make any number of questions.

    source = ReasoningGym(task={"chain_sum": 2, "mini_sudoku": 1}, config={"chain_sum": {"min_terms": 3}})
    for prompt in source.prompts(seed=0):
        ...                              # without end; with `size`, a fixed set, every prompt once

The rule `reasoning_gym` scores the answers with the task's own scorer. These were written for answers of friendly
models: some hand the answer to Python's `eval`, some can be made to run for hours, and some give full marks to what is
wrong. So an answer reaches a scorer only in a form that is harmless there, and tasks whose scorer cannot be trusted
even then are listed in `UNSOUND`. `docs/data.md` has the settings.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import math
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rewardsmith.data.distractors import distractors
from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.data.source import HeldOut, Reads, Split, is_held_out, require_share
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.types import Message, Prompt

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

MAX_ANSWER = 10_000
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

UNSEEDED: Mapping[str, str] = {
    "codeio": "it runs programs to make its entries, and they do not follow from the seed",
    "isomorphic_strings": "its questions do not follow from the seed",
    "ransom_note": "its questions do not follow from the seed",
}
"""Tasks that are refused because a run with them could not be repeated or resumed."""

INSTALL = 'pip install "rewardsmith[reasoning-gym]"'

_CHUNK = 100  # entries of one data set: some tasks read files, or draw all their entries, when it is made
_PATIENCE = 2_000  # entries without a prompt; with the smallest share of 0.01, bad luck that long has probability 2e-9
_FIXED = 0  # the seed of a fixed set


# ---- tasks and their scorers ---------------------------------------------------------------------------------------


class BrokenEntryError(ValueError):
    """An entry whose own answer does not get full marks: no verdict on it can be believed."""


@dataclass(frozen=True)
class Entry:
    """A question, one right answer (None where the task gives none), and JSON values that the scorer needs."""

    question: str
    answer: str | None
    metadata: Mapping[str, Any]


class Task:
    """A task of reasoning-gym with its settings; it raises any exception for settings that it refuses."""

    def __init__(self, name: str, config: Mapping[str, Any], *, seed: int = 0, size: int = 1) -> None:
        dataset, kind = _registry()[name]
        defaults, values = kind(), _as_json(config)
        for key, value in values.items():  # a table within the settings, such as board_format_opts
            table: type[Any] = type(getattr(defaults, key, None))
            if is_dataclass(table) and isinstance(value, dict):
                values[key] = table(**value)
        self.name = name
        with _quiet():
            self._dataset = dataset(config=kind(**values, seed=seed, size=size))

    def entry(self, index: int) -> Entry:
        """Return an entry, made again."""
        with _quiet():
            made = self._dataset[index]
        return Entry(str(made["question"]), _as_json(made["answer"]), _as_json(made["metadata"]))

    def score(self, answer: str, entry: Entry) -> float:
        """Return the marks for an untrusted answer; 0 for one that the scorer must not see, or that it fails on.

        `BrokenEntryError` when less than full marks cannot be believed: the entry's own answer does not get them.
        """
        try:
            marks = self._run_scorer(answer, entry)
        except (BrokenEntryError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 either the answer cannot be read, or the entry is broken: see below
            marks = 0.0
        if not marks >= 1:
            self.require_sound(entry)
        return marks

    def require_sound(self, entry: Entry) -> None:
        """Raise a `BrokenEntryError` unless the entry's own answer gets full marks."""
        answer = "[]" if entry.answer is None else entry.answer  # a plan without moves, which their scorers can read
        try:
            marks = self._run_scorer(answer, entry)
        except (BrokenEntryError, MemoryError):
            raise
        except Exception as error:
            raise BrokenEntryError(f"the scorer of {self.name} fails: {type(error).__name__}: {error}") from error
        if entry.answer is not None and not marks >= 1 - 1e-9:
            raise BrokenEntryError(f"the scorer of {self.name} gives {marks:g} to the entry's own answer")

    def _run_scorer(self, answer: str, entry: Entry) -> float:
        """Return what the scorer gives; 0 for an answer that it must not see."""
        form = FORMS.get(self.name)
        too_long = len(answer) > MAX_ANSWER + 4 * len(entry.answer or "")
        if too_long or (form is not None and form.fullmatch(answer) is None):
            return 0.0
        if (self.name == "bitwise_arithmetic" and not _PROBLEM.fullmatch(str(entry.metadata.get("problem")))) or (
            self.name == "number_sorting" and not _NUMBERS.fullmatch(entry.answer or "")
        ):
            raise BrokenEntryError(f"the scorer of {self.name} would evaluate more than numbers")
        metadata = _as_json(entry.metadata)
        if self.name in _TUPLES:
            key = _TUPLES[self.name]
            metadata[key] = tuple(tuple(row) for row in metadata[key])
        made = {"question": entry.question, "answer": entry.answer, "metadata": metadata}
        with _quiet():
            return float(self._dataset.score_answer(answer=answer, entry=made))


def known_tasks() -> list[str]:
    """Return the names of all tasks that the installed reasoning-gym has, in alphabetical order."""
    return sorted(_registry())


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


def _as_json(value: Any) -> Any:
    """Return a value, frozen or not, as JSON has it, which scorers may change; what JSON lacks becomes text."""
    if hasattr(value, "tolist"):  # numpy's numbers, texts and arrays
        value = value.tolist()
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _BITS else hex(value)
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return str(value)


# ---- the source ----------------------------------------------------------------------------------------------------


def _weights(task: object) -> dict[str, float]:
    """Return the weight of each task; one sentence, where pydantic would report each member of the union."""
    names: Any = [task] if isinstance(task, str) else task
    weights: Mapping[Any, Any] = names if isinstance(names, Mapping) else Counter(names) if _is_texts(names) else {}
    if not weights or not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in weights.values()):
        raise ValueError("must be a task, a list of tasks, or a table of tasks with weights above 0")
    return {name: float(weight) for name, weight in weights.items()}


def _is_texts(names: Any) -> bool:
    return isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)


class ReasoningGym:
    """Puzzles of reasoning-gym, made from the seed."""

    def __init__(
        self,
        *,
        task: Annotated[
            str | list[str] | dict[str, float],
            BeforeValidator(lambda task: _weights(task) and task),
            Field(description="a task, a list of tasks, or a table of tasks with weights"),
        ],
        config: Annotated[
            dict[str, Any] | None,
            Field(description="the task's own settings; with several tasks, a table of settings for each"),
        ] = None,
        size: Annotated[
            int | None, Field(ge=1, description="a fixed set of so many prompts; not set: new ones without end")
        ] = None,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        system: Annotated[str | None, Field(description="system message of every prompt")] = None,
    ) -> None:
        require_share(split, held_out, 0.01)
        self.weights = _weights(task)
        self.config = _configs(config or {}, self.weights)
        self.size = size
        self.split = split
        self.held_out = held_out
        self._system = [] if system is None else [Message("system", system)]
        self._set: list[Prompt] = []
        for name in self.weights:
            with self._refusals(name):
                Task(name, self.config[name])

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts of this split without end; of a fixed set each once, in an order that the seed decides."""
        if self.size is None:
            return self._draw(seed)
        if not self._set:
            self._set = list(islice(self._draw(_FIXED, distinct=True), self.size))
        return iter(random.Random(seed).sample(self._set, len(self._set)))

    def known_answers(self, prompt: Prompt, rng: random.Random) -> Iterator[KnownAnswer]:
        """Yield the answer of a prompt's entry, and others that the scorer of its task does not give full marks."""
        if prompt.answer is None:
            return
        name, answer = prompt.info["task"], str(prompt.answer)
        entry = Entry(prompt.messages[-1].content, answer, prompt.info["metadata"])
        task = Task(name, prompt.info["config"])
        yield KnownAnswer("reference", answer, right=True, sound=True)
        for text in distractors(answer, rng, 2):
            if task.score(text, entry) < 1:
                yield KnownAnswer("wrong-answer", text, right=False, sound=False)

    def check(self, *, of: Reads = "prompts") -> None:
        """Make a fixed set, or one prompt of each task, and report what is wrong in a `UserError`."""
        if self.size is not None:
            self.prompts(_FIXED)
            return
        for name in self.weights:
            next(self._task_prompts(name, _FIXED))

    def _draw(self, seed: int, *, distinct: bool = False) -> Iterator[Prompt]:
        rng = random.Random(seed)
        streams = {name: self._task_prompts(name, seed, distinct=distinct) for name in self.weights}
        names, weights = list(self.weights), list(self.weights.values())
        while True:
            yield next(streams[rng.choices(names, weights)[0]])

    def _task_prompts(self, name: str, seed: int, *, distinct: bool = False) -> Iterator[Prompt]:
        drawn: set[str] = set()
        misses = 0
        for task, entry in self._entries(name, seed):
            held_out = is_held_out(f"{name}\n{entry.question}", self.held_out)
            usable = held_out == (self.split == "held-out") and entry.answer != "" and entry.question not in drawn
            try:
                if usable:
                    task.require_sound(entry)
            except BrokenEntryError:
                usable = False
            misses = 0 if usable else misses + 1
            if misses == _PATIENCE:
                break
            if usable:
                drawn |= {entry.question} if distinct else set()
                yield self._prompt(name, entry)
        found = f"only {len(drawn)} different questions of {name} are" if distinct else f"no question of {name} is"
        raise UserError(
            f"{found} in the split {self.split!r} with held_out = {self.held_out}: hold out more or less, set a smaller"
            " size, or let config make the questions more varied"
        )

    def _entries(self, name: str, seed: int) -> Iterator[tuple[Task, Entry]]:
        rng = random.Random(f"{name} {seed}")
        while True:
            with self._refusals(name):
                task = Task(name, self.config[name], seed=rng.getrandbits(31), size=_CHUNK)
            for index in range(_CHUNK):
                with self._refusals(name):
                    entry = task.entry(index)
                yield task, entry

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise UserError(
                f"the task {name} of reasoning-gym refuses config {self.config[name]}: {type(error).__name__}: {error}"
            ) from error

    def _prompt(self, name: str, entry: Entry) -> Prompt:
        text = f"{name}\n{entry.question}".encode("utf-8", "replace")
        return Prompt(
            f"{name}-{hashlib.blake2b(text, digest_size=8).hexdigest()}",
            [*self._system, Message("user", entry.question)],
            source=f"reasoning-gym/{name}",
            answer=entry.answer,
            info={"task": name, "config": self.config[name], "metadata": entry.metadata},
        )


def _configs(config: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the settings of each task, after checking the names of tasks and settings."""
    for name in weights:
        _require_task(name)
    first = next(iter(weights))
    tables = {first: config} if len(weights) == 1 else config
    for name, table in tables.items():
        if name not in weights or not isinstance(table, Mapping):
            raise UserError(
                f"config.{name} is not a table of one of the tasks: with several tasks, config has a table for each,"
                f" config.{first} = {{ … }}.{nearest(name, weights)}"
            )
        known = [field.name for field in fields(_registry()[name][1]) if field.name not in ("seed", "size")]
        for key in table.keys() - set(known):
            raise UserError(
                f"config.{key} is no setting of the task {name}.{nearest(key, known)} Known: {listing(known)}"
            )
    return {name: dict(tables.get(name, {})) for name in weights}


def _require_task(name: str) -> None:
    try:
        known = known_tasks()
    except ImportError as error:
        raise UserError(
            f"the data source reasoning-gym needs a package that is not there ({error}): {INSTALL}"
        ) from None
    if name not in known:
        usable = [task for task in known if task not in UNSOUND and task not in UNSEEDED]
        raise UserError(f"reasoning-gym has no task {name!r}.{nearest(name, usable)} Known: {listing(usable)}")
    why = UNSOUND.get(name) or UNSEEDED.get(name)
    if why:
        raise UserError(f"the task {name} of reasoning-gym cannot be used: {why}")
