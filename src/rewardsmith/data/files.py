"""Prompts, demonstrations, pairs, groups and grades from files: JSON lines and Parquet, in the schema that verl uses.

    source = Jsonl(path="data/train.jsonl", system="Reason step by step.")
    source.check()                       # every row once; a `UserError` names the bad ones
    for prompt in source.prompts(seed=0):
        ...                              # every row once, in an order that the seed decides

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BeforeValidator, Field

from rewardsmith.data.columns import Columns
from rewardsmith.data.graded_rows import GradedRows
from rewardsmith.data.preference_rows import PreferenceRows
from rewardsmith.data.ranking_rows import RankingRows
from rewardsmith.data.readers import Place, find_files, jsonl_rows, names_of, parquet_rows, parse_line, parse_row
from rewardsmith.data.rows import ANSWER, ID, PROMPT, RESPONSE, SOURCE, Layout, Row, RowError, printable
from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import file_facts
from rewardsmith.types import Demonstration, Graded, Message, Preference, Prompt, Ranking

MOST_SHOWN = 10
"""Bad rows that `check` shows; it counts them all."""

Noun = TypeVar("Noun", Prompt, Demonstration, Preference, Ranking, Graded)
AnyNoun = Prompt | Demonstration | Preference | Ranking | Graded


@dataclass(frozen=True)
class Form(Generic[Noun]):
    """How rows become nouns of one kind.

    Attributes:
        require: raises a `RowError` if a table with these columns cannot hold them.
        make: makes one of a row, the name of its file and its number there.
        repeats: whether several rows may be about one prompt, and share its id.
    """

    require: Callable[[Collection[str]], None]
    make: Callable[[Row, str, int], Noun]
    repeats: bool = False


def _path(value: object) -> object:
    """Say it in one sentence: of a union, pydantic reports what is wrong with each of its members."""
    if isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
        return list(value) if isinstance(value, tuple) else value
    raise ValueError("must be a path, or a list of paths")


class _Files(ABC):
    """Rows of files. One pass per call: every row once, then the end."""

    kind: ClassVar[str]
    unit: ClassVar[str]
    suffixes: ClassVar[Sequence[str]]

    def __init__(
        self,
        *,
        path: Annotated[
            str | list[str],
            BeforeValidator(_path),
            Field(description="a file, a folder, a pattern such as data/*.jsonl, or a list of those"),
        ],
        system: Annotated[str | None, Field(description="system message of every prompt, instead of its own")] = None,
        limit: Annotated[int | None, Field(ge=1, description="read only the first rows")] = None,
        shuffle: Annotated[bool, Field(description="a new order for each pass; false: as in the files")] = True,
        source: Annotated[str | None, Field(description="source of every prompt, instead of the column")] = None,
        prompt_column: Annotated[str, Field(min_length=1, description="messages, or text")] = PROMPT,
        answer_column: Annotated[str, Field(min_length=1, description="ground truth; rows may lack it")] = ANSWER,
        source_column: Annotated[str, Field(min_length=1, description="name of the data set or task")] = SOURCE,
        response_column: Annotated[str, Field(min_length=1, description="answer to imitate")] = RESPONSE,
        id_column: Annotated[str, Field(description='unique name of a row; "" numbers the rows')] = ID,
        columns: Annotated[
            dict[str, str] | None,
            Field(description="other names for the columns of pairs, groups and grades, such as { chosen = 'good' }"),
        ] = None,
        out_of: Annotated[
            float | None, Field(gt=0, description="grades: points that there are in all, in rows that do not say")
        ] = None,
    ) -> None:
        self.path = path
        self.limit = limit
        self.shuffle = shuffle
        self.layout = Layout(
            prompt=prompt_column,
            answer=answer_column,
            source=source_column,
            response=response_column,
            id=id_column,
            system=None if system is None else Message("system", system),
            named=source,
        )

        self.columns = Columns(columns)
        self._forms = _forms(self.layout, self.columns, out_of)

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the prompt of every row once; the same seed gives the same order."""
        return self._pass(seed, "prompts")

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield every row once, as a prompt with an answer to imitate; the same seed gives the same order."""
        return self._pass(seed, "demonstrations")

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield every row once, as a pair of answers; the same seed gives the same order."""
        return self._pass(seed, "preferences")

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield every row once, as a group of answers with scores; the same seed gives the same order."""
        return self._pass(seed, "rankings")

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield every row once, as an answer with a grade; the same seed gives the same order."""
        return self._pass(seed, "graded")

    def each(self, of: Reads | Form[Any]) -> Iterator[tuple[str, AnyNoun | RowError]]:
        """Yield every row once, in the order of the files: where it is, and what it holds or what is wrong with it.

        This is for who goes on after a bad row, or counts them.

        Args:
            of: what every row must be, or how it is read.
        """
        files = self.files()
        form = of if isinstance(of, Form) else self._forms[of]
        return ((self._where(files, place), noun) for place, noun in self._read(files, None, form))

    def check(self, *, of: Reads = "prompts") -> None:
        """Read every row once, and report what is wrong with the first bad ones in one `UserError`.

        Args:
            of: what every row must be.
        """
        rows, bad = 0, 0
        shown: dict[str, list[str]] = {}  # what is wrong -> where: often it is one thing in many rows
        answered, last = False, None
        for where, noun in self.each(of):
            rows += 1
            if isinstance(noun, RowError):
                if bad < MOST_SHOWN:
                    shown.setdefault(str(noun), []).append(where)
                bad += 1
                continue
            last = prompt_in(noun)
            answered = answered or last.answer is not None
        if bad:
            first = f"; the first {MOST_SHOWN}" if bad > MOST_SHOWN else ""
            lines = [line for what, where in shown.items() for line in (*(f"  {w}" for w in where), f"    {what}")]
            raise UserError("\n".join([f"{bad:,} of {rows:,} rows cannot be used{first}:", *lines]))
        if last is not None and not answered and self.layout.answer != ANSWER:
            raise UserError(
                f'answer_column is "{printable(self.layout.answer, 60)}", but no row has a value there.'
                f"{nearest(self.layout.answer, [printable(name, 60) for name in last.info])}"
            )

    @abstractmethod
    def _rows(
        self, files: Sequence[Path], rng: random.Random | None, require: Callable[[Collection[str]], None]
    ) -> Iterator[tuple[Place, Any]]:
        """Yield what `_parse` understands of each row, with its place; `require` may see the columns first."""

    @abstractmethod
    def _parse(self, raw: Any) -> Row:
        """Return a row, or raise a `RowError`."""

    def _pass(self, seed: int, of: Reads) -> Iterator[Any]:
        files = self.files()
        rng = random.Random(seed) if self.shuffle else None
        for place, noun in self._read(files, rng, self._forms[of]):
            if isinstance(noun, RowError):
                raise UserError(f"{self._where(files, place)}: {noun}")
            yield noun

    def _read(
        self, files: Sequence[Path], rng: random.Random | None, form: Form[Any]
    ) -> Iterator[tuple[Place, AnyNoun | RowError]]:
        """Yield each row as what the form makes of it, or as what is wrong with it."""
        names = names_of(files)
        seen: dict[str, tuple[Place, int]] = {}
        for place, raw in self._rows(files, rng, form.require):
            try:
                noun = form.make(self._parse(raw), names[place.file], place.number)
                prompt = prompt_in(noun)
                asked = hash(tuple((m.role, m.content) for m in prompt.messages)) if form.repeats else 0
                other, same = seen.setdefault(prompt.id, (place, asked))
                if other is not place and not (form.repeats and same == asked):
                    what = ", which has another prompt" if form.repeats else ""
                    raise RowError(
                        f'the id "{prompt.id[:100]}" is also that of {self._where(files, other)}{what}: make the ids'
                        ' unique, or set id_column = "" to number the rows'
                    )
            except RowError as error:
                yield place, error
            else:
                yield place, noun

    def files(self) -> list[Path]:
        """Return the files that `path` means; a `UserError` says that there are none."""
        return find_files(self.path, self.suffixes, self.kind)

    def facts(self) -> dict[str, Any]:
        """Return what tells the files again, for the record of a run."""
        return {"files": [file_facts(file) for file in self.files()]}

    def _where(self, files: Sequence[Path], place: Place) -> str:
        return f"{printable(str(files[place.file]), 200)}, {self.unit} {place.number}"


def prompt_in(noun: AnyNoun) -> Prompt:
    """Return the prompt that a noun is about."""
    return noun if isinstance(noun, Prompt) else noun.prompt


def _forms(layout: Layout, columns: Columns, out_of: float | None) -> Mapping[Reads, Form[Any]]:
    pairs, groups, grades = (
        PreferenceRows(layout, columns),
        RankingRows(layout, columns),
        GradedRows(layout, columns, out_of),
    )
    return {
        "prompts": Form(partial(layout.require, demonstrations=False), layout.prompt_of),
        "demonstrations": Form(partial(layout.require, demonstrations=True), layout.demonstration_of),
        "preferences": Form(pairs.require, pairs.read, repeats=True),
        "rankings": Form(groups.require, groups.read, repeats=True),
        "graded": Form(grades.require, grades.read, repeats=True),
    }


class Jsonl(_Files):
    """Rows of JSON lines files, in verl's schema."""

    kind = "jsonl"
    unit = "line"
    suffixes = (".jsonl", ".ndjson")

    def _rows(
        self, files: Sequence[Path], rng: random.Random | None, require: Callable[[Collection[str]], None]
    ) -> Iterator[tuple[Place, Any]]:
        return jsonl_rows(files, limit=self.limit, rng=rng)

    def _parse(self, raw: Any) -> Row:
        return parse_line(raw)


class Parquet(_Files):
    """Rows of Parquet files, in verl's schema."""

    kind = "parquet"
    unit = "row"
    suffixes = (".parquet",)

    def _rows(
        self, files: Sequence[Path], rng: random.Random | None, require: Callable[[Collection[str]], None]
    ) -> Iterator[tuple[Place, Any]]:
        def check(file: Path, columns: list[str]) -> None:
            try:
                require(columns)
            except RowError as error:
                raise UserError(f"{printable(str(file), 200)}: {error}") from None

        return parquet_rows(files, limit=self.limit, rng=rng, check=check)

    def _parse(self, raw: Any) -> Row:
        return parse_row(raw)
