"""The rows of JSON lines and Parquet files alike, each with its place; as often as one likes, never all in memory."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rewardsmith.data.readers import find_files, jsonl_rows, names_of, parquet_rows, parse_line, parse_row
from rewardsmith.data.rows import Row, RowError, printable

SUFFIXES = (".jsonl", ".ndjson", ".parquet")


class Read(NamedTuple):
    """A row that was read, or what is wrong with it.

    Attributes:
        where: file and line or row, for messages.
        file: a short name of its file, for ids.
        number: of the line or row in its file, from 1.
        row: the row; a `RowError` where it cannot be read.
    """

    where: str
    file: str
    number: int
    row: Row | RowError


class RowFiles:
    """Rows of files, in order. Each pass reads them anew.

    Args:
        path: a file, a folder or a pattern.
        limit: how many rows at most; None takes all.

    Attributes:
        files: in the order in which they are read.
        counts: rows of each file in the last pass.
        columns: names of all columns at the top of these rows.
    """

    def __init__(self, path: str, limit: int | None = None) -> None:
        self.files = _files(path)
        self.counts: Counter[Path] = Counter()
        self.columns: dict[str, None] = {}
        self._names = names_of(self.files)
        self._limit = limit

    def __iter__(self) -> Iterator[Read]:
        """Yield each row."""
        self.counts.clear()
        self.columns.clear()
        return islice(self._every(), self._limit)

    def _every(self) -> Iterator[Read]:
        for file, name in zip(self.files, self._names, strict=True):
            for read in _rows(file, name):
                self.counts[file] += 1
                if not isinstance(read.row, RowError):
                    self.columns |= dict.fromkeys(read.row)
                yield read


def _files(path: str) -> list[Path]:
    """Return the files of a path in the order of their names; a folder or a pattern may have both formats."""
    here = Path(path).expanduser()
    names: list[str] = []
    with suppress(OSError, ValueError):  # below it is said what is wrong
        if here.is_dir():
            every = sorted(entry for entry in here.iterdir() if entry.is_file() and not entry.name.startswith("."))
            names = [str(entry) for entry in every if entry.suffix in SUFFIXES]
        elif glob.has_magic(path) and not here.exists():
            names = [name for name in sorted(glob.glob(str(here), recursive=True)) if Path(name).is_file()]
    return [file for name in names or [path] for file in find_files(name, SUFFIXES, _kind(name))]


def _kind(name: str) -> str:
    return "parquet" if name.lower().endswith(".parquet") else "jsonl"


def _rows(file: Path, name: str) -> Iterator[Read]:
    packed = file.suffix.lower() == ".parquet"
    lines: Iterator[tuple[Any, Any]]
    if packed:
        lines = parquet_rows([file], limit=None, rng=None, check=lambda *_: None)
    else:
        lines = jsonl_rows([file], limit=None, rng=None)
    for place, raw in lines:
        row: Row | RowError
        try:
            row = parse_row(raw) if packed else parse_line(raw)
        except RowError as error:
            row = error
        yield Read(
            f"{printable(str(file), 200)}, {'row' if packed else 'line'} {place.number}", name, place.number, row
        )


__all__ = ["SUFFIXES", "Read", "RowFiles"]
