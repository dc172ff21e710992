"""Files of groups: JSON lines or Parquet, row by row."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewardsmith.data.gqm.reading import GroupReader
from rewardsmith.data.readers import find_files, jsonl_rows, names_of, parquet_rows, parse_line, parse_row
from rewardsmith.data.rows import Row, RowError, printable
from rewardsmith.errors import UserError

_CHUNK = 2**20


@dataclass(frozen=True)
class Raw:
    """A row as it was found.

    Attributes:
        at: the number of its file.
        file: the path of that.
        number: the number of the line or row in it, from 1.
        name: what it is called if it has no id of its own.
        found: a line, a row, or what is wrong with it.
    """

    at: int
    file: str
    number: int
    name: str
    found: bytes | Row | RowError

    def row(self) -> Row:
        """Return the row, or raise a `RowError`."""
        if isinstance(self.found, RowError):
            raise self.found
        return parse_line(self.found) if isinstance(self.found, bytes) else self.found


class Inputs:
    """The rows of one or several files, in order.

    Args:
        path: a file, a folder, a pattern, or several.
        reader: knows which columns there must be.
    """

    def __init__(self, path: str | Sequence[str], reader: GroupReader) -> None:
        self._reader = reader
        self._parquet = _is_parquet(path)
        if self._parquet:
            self.files = find_files(path, (".parquet",), "parquet")
        else:
            self.files = find_files(path, (".jsonl", ".ndjson"), "jsonl")

    def rows(self) -> Iterator[Raw]:
        """Yield each row."""
        files, names = [str(file) for file in self.files], names_of(self.files)
        found: bytes | Row | RowError
        if not self._parquet:
            for place, found in jsonl_rows(self.files, limit=None, rng=None):
                yield Raw(place.file, files[place.file], place.number, f"{names[place.file]}-{place.number}", found)
            return
        for place, table in parquet_rows(self.files, limit=None, rng=None, check=self._check):
            try:
                found = parse_row(table)
            except RowError as error:
                found = error
            yield Raw(place.file, files[place.file], place.number, f"{names[place.file]}-{place.number}", found)

    def where(self, raw: Raw) -> str:
        """Return the file and the number of a row, for messages."""
        return f"{raw.file}, {'row' if self._parquet else 'line'} {raw.number}"

    def count(self) -> int:
        """Return about how many rows there are: blank lines count, files that cannot be read do not."""
        return sum(map(_rows_of if self._parquet else _lines_of, self.files))

    def _check(self, file: Path, columns: list[str]) -> None:
        try:
            self._reader.require(columns)
        except RowError as error:
            raise UserError(f"{printable(str(file), 200)}: {error}") from None


def _is_parquet(path: str | Sequence[str]) -> bool:
    entries = [path] if isinstance(path, str) else path
    found = (name for entry in entries for name in (entry, *glob.iglob(entry), *glob.iglob(f"{entry}/*.parquet")))
    return any(name.endswith(".parquet") for name in found)


def _rows_of(file: Path) -> int:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 JSON lines do without it
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError, ValueError):  # whoever reads the rows will say so
        return 0


def _lines_of(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(_CHUNK), b""))
    except OSError:
        return 0


__all__ = ["Inputs", "Raw"]
