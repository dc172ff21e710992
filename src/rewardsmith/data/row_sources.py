"""Prompts, demonstrations, pairs, groups and grades from rows: JSON lines, Parquet, or tables of a Python program.

    source = Jsonl(path="data/train.jsonl", system="Reason step by step.")
    source.check()                       # every row once; a `UserError` names the bad ones
    for prompt in source.prompts(seed=0):
        ...                              # every row once, in an order that the seed decides

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from rewardsmith.data.readers import Place, find_files, names_of, parse_table, provenance_of, read_rows, where
from rewardsmith.data.row_items import GradedRows, PreferenceRows, RankingRows, RowItem
from rewardsmith.data.rows import (
    ANSWER,
    ID,
    PROMPT,
    RESPONSE,
    SOURCE,
    BadRows,
    Columns,
    Layout,
    Row,
    RowError,
    printable,
)
from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_prompts import PromptIdentity
from rewardsmith.types import Demonstration, Graded, Message, Preference, Prompt, Ranking

_ONE_ROW_PER_PROMPT = ("prompts", "demonstrations")


@dataclass(frozen=True)
class OpenRows:
    """One pass over rows: each with its place, the names of the files for ids, and a place for messages."""

    rows: Iterable[tuple[Place, Row | RowError]]
    names: Sequence[str]
    where: Callable[[Place], str]


def _path(value: object) -> object:
    """Refuse in one sentence: of a union, pydantic reports what is wrong with each of its members."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return value
    raise ValueError("must be a path, or a list of paths")


@dataclass(kw_only=True, eq=False)
class RowSource:
    """Rows in the schema that verl uses. One pass per call: every row once, then the end."""

    system: Annotated[str | None, Field(description="system message of every prompt, instead of its own")] = None
    limit: Annotated[int | None, Field(ge=1, description="read only the first rows")] = None
    shuffle: Annotated[bool, Field(description="a new order for each pass; false: as in the files")] = True
    source: Annotated[str | None, Field(description="source of every prompt, instead of the column")] = None
    prompt_column: Annotated[str, Field(min_length=1, description="messages, or text")] = PROMPT
    answer_column: Annotated[str, Field(min_length=1, description="ground truth; rows may lack it")] = ANSWER
    source_column: Annotated[str, Field(min_length=1, description="name of the data set or task")] = SOURCE
    response_column: Annotated[str, Field(min_length=1, description="answer to imitate")] = RESPONSE
    id_column: Annotated[str, Field(description='unique name of a row; "" numbers the rows')] = ID
    columns: Annotated[
        dict[str, str] | None,
        Field(description="other names for the columns of pairs, groups and grades, such as { chosen = 'good' }"),
    ] = None
    out_of: Annotated[float, Field(gt=0, description="grades: points in all, in rows that do not say")] = 1.0

    def __post_init__(self) -> None:
        self.layout = layout = Layout(
            prompt=self.prompt_column,
            answer=self.answer_column,
            source=self.source_column,
            response=self.response_column,
            id=self.id_column,
            system=None if self.system is None else Message("system", self.system),
            named=self.source,
        )
        named = Columns(self.columns)
        self._converters: dict[Reads, Callable[[Row, str, int], RowItem]] = {
            "prompts": layout.prompt_of,
            "demonstrations": layout.demonstration_of,
            "preferences": PreferenceRows(layout, named).read,
            "rankings": RankingRows(layout, named).read,
            "graded": GradedRows(layout, named, self.out_of).read,
        }

    def _open(self, rng: random.Random | None) -> OpenRows:
        """Return the rows of one pass, in order or shuffled."""
        raise NotImplementedError

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the prompt of every row once; the same seed gives the same order."""
        return self._pass(seed, "prompts")

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield every row once, as a prompt with an answer to imitate."""
        return self._pass(seed, "demonstrations")

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield every row once, as a pair of answers."""
        return self._pass(seed, "preferences")

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield every row once, as a group of answers with scores."""
        return self._pass(seed, "rankings")

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield every row once, as an answer with a grade."""
        return self._pass(seed, "graded")

    def check(self, *, of: Reads = "prompts") -> None:
        """Read every row once, and report what is wrong with the first bad ones in one `UserError`."""
        opened = self._open(None)
        rows, bad = 0, BadRows(skip=False)
        answered, last = False, None
        for place, item in self._items(opened, of):
            rows += 1
            if isinstance(item, RowError):
                bad.note(opened.where(place), item)
            else:
                last = _prompt_in(item)
                answered = answered or last.answer is not None
        bad.settle(rows, remedy="")
        if last is not None and not answered and self.layout.answer != ANSWER:
            raise UserError(
                f'answer_column is "{printable(self.layout.answer, 60)}", but no row has a value there.'
                f"{nearest(self.layout.answer, [printable(name, 60) for name in last.info])}"
            )

    def _pass(self, seed: int, of: Reads) -> Iterator[Any]:
        opened = self._open(random.Random(seed) if self.shuffle else None)
        for place, item in self._items(opened, of):
            if isinstance(item, RowError):
                raise UserError(f"{opened.where(place)}: {item}")
            yield item

    def _items(self, opened: OpenRows, of: Reads) -> Iterator[tuple[Place, RowItem | RowError]]:
        """Yield the item of each row, or what is wrong with it; ids must be unique, or name one prompt."""
        convert, unique = self._converters[of], of in _ONE_ROW_PER_PROMPT
        known: dict[str, tuple[Place, int]] = {}
        for place, row in opened.rows:
            try:
                if isinstance(row, RowError):
                    raise row
                item = convert(row, opened.names[place.file], place.number)
                prompt = _prompt_in(item)
                content = 0 if unique else hash(tuple((m.role, m.content) for m in prompt.messages))
                other, same = known.setdefault(prompt.id, (place, content))
                if other is not place and (unique or same != content):
                    raise RowError(
                        f'the id "{prompt.id[:100]}" is also that of {opened.where(other)}: make the ids unique, or'
                        ' set id_column = "" to number the rows'
                    )
            except RowError as error:
                yield place, error
            else:
                yield place, item


def _prompt_in(item: RowItem) -> Prompt:
    return item if isinstance(item, Prompt) else item.prompt


@dataclass(kw_only=True, eq=False)
class FileSettings:
    """Which files have the rows."""

    path: Annotated[
        str | list[str],
        BeforeValidator(_path),
        Field(description="a file, a folder, a pattern such as data/*.jsonl, or a list of those"),
    ]
    made_by: Annotated[str, Field(description="how the files are made; shown where they are missing")] = ""


@dataclass(kw_only=True, eq=False)
class RowFileSource(RowSource, FileSettings):
    """Rows of files."""

    suffixes: ClassVar[Sequence[str]]

    def _open(self, rng: random.Random | None) -> OpenRows:
        files = self.files()
        return OpenRows(read_rows(files, limit=self.limit, rng=rng), names_of(files), partial(where, files))

    def files(self) -> list[Path]:
        """Return the files that `path` means; a `UserError` says that there are none."""
        return find_files(self.path, self.suffixes, made_by=self.made_by)

    def facts(self) -> dict[str, Any]:
        """Return path, size and hash of the files, for the record of a run."""
        return {"files": [file_facts(file) for file in self.files()], **self.judge_prompt()}

    def judge_prompt(self) -> PromptIdentity:
        """Return with which prompt a judge is called that learned from these files; {} if none is known for all.

        `rewardsmith prepare` writes it into the provenance, which counts as long as the file has the size of then.
        """
        found = [provenance_of(file).get("judge_prompt", {}) for file in self.files()]
        return found[0] if all(one == found[0] for one in found) else {}


class Jsonl(RowFileSource):
    """Rows of JSON lines files, in verl's schema."""

    suffixes = (".jsonl", ".ndjson")


class Parquet(RowFileSource):
    """Rows of Parquet files, in verl's schema."""

    suffixes = (".parquet",)


@dataclass(kw_only=True, eq=False)
class Rows(RowSource):
    """Rows that a Python program gives: a list of tables, a pandas frame or a `datasets.Dataset`."""

    given: ClassVar[str] = "rows"

    rows: Any = field(kw_only=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if hasattr(self.rows, "to_dict") and hasattr(self.rows, "columns"):  # a frame, in which a missing value is NaN
            rows = self.rows.to_dict("records")
            self.rows = [{name: value for name, value in row.items() if not _is_nan(value)} for row in rows]
        is_table = isinstance(self.rows, str | bytes | Mapping)
        if is_table or not (hasattr(self.rows, "__getitem__") and hasattr(self.rows, "__len__")):
            kinds = "a list of tables, a pandas frame, a datasets.Dataset, or an object with prompts(seed)"
            raise UserError(f"data is of type {type(self.rows).__name__}: it must be {kinds}")

    def facts(self) -> dict[str, Any]:
        """Return how many rows there are, and their hash, for the record of a run."""
        digest = hashlib.sha256()
        for _, row in self._open(None).rows:
            digest.update(json.dumps(row if isinstance(row, dict) else str(row), sort_keys=True, default=str).encode())
        return {"rows": len(self.rows), "sha256": digest.hexdigest()}

    def _open(self, rng: random.Random | None) -> OpenRows:
        order = list(range(min(len(self.rows), self.limit or len(self.rows))))
        if not order:
            raise UserError("data has no rows: give at least one")
        if rng is not None:
            rng.shuffle(order)
        rows = ((Place(0, i + 1), parse_table(self.rows[i])) for i in order)
        return OpenRows(rows, ["rows"], lambda place: f"row {place.number}")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
