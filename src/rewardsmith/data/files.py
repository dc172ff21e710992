"""Prompts and demonstrations from files: JSON lines and Parquet, in the schema that verl uses.

    source = Jsonl(path="data/train.jsonl", system="Reason step by step.")
    source.check()                       # every row once; a `UserError` names the bad ones
    for prompt in source.prompts(seed=0):
        ...                              # every row once, in an order that the seed decides

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field

from rewardsmith.data.protocol import Reads
from rewardsmith.data.readers import Place, find_files, jsonl_rows, names_of, parquet_rows, parse_line, parse_row
from rewardsmith.data.rows import ANSWER, ID, PROMPT, RESPONSE, SOURCE, Layout, Row, RowError, printable
from rewardsmith.errors import UserError, nearest
from rewardsmith.types import Demonstration, Message, Prompt

MOST_SHOWN = 10
"""Bad rows that `check` shows; it counts them all."""

Noun = TypeVar("Noun", Prompt, Demonstration)


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

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the prompt of every row once; the same seed gives the same order."""
        return self._pass(seed, self.layout.prompt_of, demonstrations=False)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield every row once, as a prompt with an answer to imitate; the same seed gives the same order."""
        return self._pass(seed, self.layout.demonstration_of, demonstrations=True)

    def check(self, *, of: Reads = "prompts") -> None:
        """Read every row once, and report what is wrong with the first bad ones in one `UserError`.

        Args:
            of: what every row must be.
        """
        demonstrations = of == "demonstrations"
        files = self._files()
        rows, bad = 0, 0
        shown: dict[str, list[str]] = {}  # what is wrong -> where: often it is one thing in many rows
        answered, last = False, None
        make: Callable[..., Any] = self.layout.demonstration_of if demonstrations else self.layout.prompt_of
        for place, noun in self._read(files, None, make, demonstrations=demonstrations):
            rows += 1
            if isinstance(noun, RowError):
                if bad < MOST_SHOWN:
                    shown.setdefault(str(noun), []).append(self._where(files, place))
                bad += 1
                continue
            last = noun.prompt if isinstance(noun, Demonstration) else noun
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
        self, files: Sequence[Path], rng: random.Random | None, *, demonstrations: bool
    ) -> Iterator[tuple[Place, Any]]:
        """Yield what `_parse` understands of each row, with its place."""

    @abstractmethod
    def _parse(self, raw: Any) -> Row:
        """Return a row, or raise a `RowError`."""

    def _pass(self, seed: int, make: Callable[[Row, str, int], Noun], *, demonstrations: bool) -> Iterator[Noun]:
        files = self._files()
        rng = random.Random(seed) if self.shuffle else None
        for place, noun in self._read(files, rng, make, demonstrations=demonstrations):
            if isinstance(noun, RowError):
                raise UserError(f"{self._where(files, place)}: {noun}")
            yield noun

    def _read(
        self,
        files: Sequence[Path],
        rng: random.Random | None,
        make: Callable[[Row, str, int], Noun],
        *,
        demonstrations: bool,
    ) -> Iterator[tuple[Place, Noun | RowError]]:
        """Yield each row as what `make` makes of it, or as what is wrong with it."""
        names = names_of(files)
        seen: dict[str, Place] = {}
        for place, raw in self._rows(files, rng, demonstrations=demonstrations):
            try:
                noun = make(self._parse(raw), names[place.file], place.number)
                prompt = noun.prompt if isinstance(noun, Demonstration) else noun
                other = seen.setdefault(prompt.id, place)
                if other is not place:
                    raise RowError(
                        f'the id "{prompt.id[:100]}" is also that of {self._where(files, other)}: make the ids unique,'
                        ' or set id_column = "" to number the rows'
                    )
            except RowError as error:
                yield place, error
            else:
                yield place, noun

    def _files(self) -> list[Path]:
        return find_files(self.path, self.suffixes, self.kind)

    def _where(self, files: Sequence[Path], place: Place) -> str:
        return f"{printable(str(files[place.file]), 200)}, {self.unit} {place.number}"


class Jsonl(_Files):
    """Rows of JSON lines files, in verl's schema."""

    kind = "jsonl"
    unit = "line"
    suffixes = (".jsonl", ".ndjson")

    def _rows(
        self, files: Sequence[Path], rng: random.Random | None, *, demonstrations: bool
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
        self, files: Sequence[Path], rng: random.Random | None, *, demonstrations: bool
    ) -> Iterator[tuple[Place, Any]]:
        def check(file: Path, columns: list[str]) -> None:
            try:
                self.layout.require(columns, demonstrations=demonstrations)
            except RowError as error:
                raise UserError(f"{printable(str(file), 200)}: {error}") from None

        return parquet_rows(files, limit=self.limit, rng=rng, check=check)

    def _parse(self, raw: Any) -> Row:
        return parse_row(raw)
