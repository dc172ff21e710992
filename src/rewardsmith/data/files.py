"""Prompts, demonstrations, pairs, groups and grades from files: JSON lines and Parquet, in the schema that verl uses.

    source = Jsonl(path="data/train.jsonl", system="Reason step by step.")
    source.check()                       # every row once; a `UserError` names the bad ones
    for prompt in source.prompts(seed=0):
        ...                              # every row once, in an order that the seed decides

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from rewardsmith.data.readers import Place, find_files, names_of, read_rows, where
from rewardsmith.data.row_items import Convert, RowItem, converters
from rewardsmith.data.rows import ANSWER, ID, PROMPT, RESPONSE, SOURCE, BadRows, Columns, Layout, RowError, printable
from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import file_facts
from rewardsmith.types import Demonstration, Graded, Message, Preference, Prompt, Ranking

_ONE_ROW_PER_PROMPT = ("prompts", "demonstrations")


def _path(value: object) -> object:
    """Refuse in one sentence: of a union, pydantic reports what is wrong with each of its members."""
    if isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
        return list(value) if isinstance(value, tuple) else value
    raise ValueError("must be a path, or a list of paths")


class RowFileSource:
    """Rows of files. One pass per call: every row once, then the end."""

    kind: ClassVar[str]
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
        self._converters = converters(self.layout, self.columns, out_of)

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

    def each(self, of: Reads | Convert) -> Iterator[tuple[str, RowItem | RowError]]:
        """Yield where each row is, in the order of the files, and its item or what is wrong with it."""
        files = self.files()
        return ((where(files, place), item) for place, item in self._items(files, None, of))

    def check(self, *, of: Reads = "prompts") -> None:
        """Read every row once, and report what is wrong with the first bad ones in one `UserError`."""
        files = self.files()
        rows, bad = 0, BadRows(skip=False)
        answered, last = False, None
        for place, item in self._items(files, None, of):
            rows += 1
            if isinstance(item, RowError):
                bad.note(where(files, place), item)
            else:
                last = _prompt_in(item)
                answered = answered or last.answer is not None
        bad.settle(rows, remedy="")
        if last is not None and not answered and self.layout.answer != ANSWER:
            raise UserError(
                f'answer_column is "{printable(self.layout.answer, 60)}", but no row has a value there.'
                f"{nearest(self.layout.answer, [printable(name, 60) for name in last.info])}"
            )

    def files(self) -> list[Path]:
        """Return the files that `path` means; a `UserError` says that there are none."""
        return find_files(self.path, self.suffixes, self.kind)

    def facts(self) -> dict[str, Any]:
        """Return path, size and hash of the files, for the record of a run."""
        return {"files": [file_facts(file) for file in self.files()]}

    def _pass(self, seed: int, of: Reads) -> Iterator[Any]:
        files = self.files()
        rng = random.Random(seed) if self.shuffle else None
        for place, item in self._items(files, rng, of):
            if isinstance(item, RowError):
                raise UserError(f"{where(files, place)}: {item}")
            yield item

    def _items(
        self, files: Sequence[Path], rng: random.Random | None, of: Reads | Convert
    ) -> Iterator[tuple[Place, RowItem | RowError]]:
        """Yield the item of each row, or what is wrong with it; ids must be unique, or name one prompt."""
        convert, names = of if callable(of) else self._converters[of], names_of(files)
        unique = of in _ONE_ROW_PER_PROMPT
        known: dict[str, tuple[Place, int]] = {}
        for place, row in read_rows(files, limit=self.limit, rng=rng, parquet=self.kind == "parquet"):
            try:
                if isinstance(row, RowError):
                    raise row
                item = convert(row, names[place.file], place.number)
                prompt = _prompt_in(item)
                content = 0 if unique else hash(tuple((m.role, m.content) for m in prompt.messages))
                other, same = known.setdefault(prompt.id, (place, content))
                if other is not place and (unique or same != content):
                    what = "" if unique else ", which has another prompt"
                    raise RowError(
                        f'the id "{prompt.id[:100]}" is also that of {where(files, other)}{what}: make the ids'
                        ' unique, or set id_column = "" to number the rows'
                    )
            except RowError as error:
                yield place, error
            else:
                yield place, item


def _prompt_in(item: RowItem) -> Prompt:
    return item if isinstance(item, Prompt) else item.prompt


class Jsonl(RowFileSource):
    """Rows of JSON lines files, in verl's schema."""

    kind = "jsonl"
    suffixes = (".jsonl", ".ndjson")


class Parquet(RowFileSource):
    """Rows of Parquet files, in verl's schema."""

    kind = "parquet"
    suffixes = (".parquet",)
