"""Files of rows: which ones a path means, and their rows, in order or shuffled, without holding them all.

    files = find_files("data/*.jsonl")
    for place, row in read_rows(files, limit=1_000, rng=random.Random(0)):
        ...                              # a row, or a `RowError` with what is wrong with it

Files are untrusted, and may be larger than memory. What is wrong with a whole file is a `UserError`.
"""

from __future__ import annotations

import datetime
import decimal
import glob
import json
import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rewardsmith.data.rows import Row, RowError, printable
from rewardsmith.errors import UserError, listing, nearest

MAX_LINE = 64 * 2**20
"""Bytes of the longest line that is read; a longer one is not a row but a file of another kind."""

SHUFFLE_BYTES = 256 * 2**20
"""Bytes of Parquet rows that are shuffled together. Larger files are shuffled by row group, and then in windows."""

# A time in nanoseconds, a date after the year 9999, an unknown time zone, text that is not UTF-8.
_CANNOT_READ = (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError)

_BOM = b"\xef\xbb\xbf"
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


class Place(NamedTuple):
    """Where a row is: the number of its file, and the number of the line or row in it, from 1."""

    file: int
    number: int


def read_rows(
    files: Sequence[Path], *, limit: int | None = None, rng: random.Random | None = None
) -> Iterator[tuple[Place, Row | RowError]]:
    """Yield the first `limit` rows, or what is wrong with each: in order, or files of one format shuffled."""
    raw: Iterator[tuple[Place, Any]]
    if rng is None:
        every = ((_parquet_rows if is_parquet(file) else _lines)(i, file) for i, file in enumerate(files))
        raw = islice(((place, found) for rows in every for place, found, *_ in rows), limit)
    else:
        raw = (_shuffled_parquet if is_parquet(files[0]) else _shuffled_lines)(files, limit, rng)
    for place, found in raw:
        try:
            yield place, parse_line(found) if isinstance(found, bytes) else parse_row(found)
        except RowError as error:
            error.unfinished = isinstance(found, bytes) and not found.endswith(b"\n")
            yield place, error


def where(files: Sequence[Path], place: Place) -> str:
    """Return the file and the number of a row, for messages."""
    file = files[place.file]
    return f"{printable(str(file), 200)}, {'row' if is_parquet(file) else 'line'} {place.number}"


def is_parquet(file: Path) -> bool:
    """Whether a file is Parquet, by its name."""
    return file.suffix.lower() == ".parquet"


# ---- which files a path means ------------------------------------------------------------------------------------


SUFFIXES = (".jsonl", ".ndjson", ".parquet")


def find_files(path: str | Sequence[str], suffixes: Sequence[str] = SUFFIXES, *, made_by: str = "") -> list[Path]:
    """Return the files of a path, or of a list of paths, folders or patterns, in the order of their names within each.

    Only files with these suffixes are taken from a folder.
    """
    files: dict[Path, Path] = {}
    for entry in [path] if isinstance(path, str) else path:
        try:
            found = _expand(entry, suffixes, made_by)
        except UserError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # no permission, no home folder, no such name
            raise UserError(f"cannot look for {_quoted(entry)}: {printable(str(error))}") from None
        for file in found:
            files.setdefault(file.resolve(), file)
            if file.suffix.lower() in _PACKED:
                raise UserError(f"{_quoted(file)} is compressed: unpack it first")
            if is_parquet(file) and ".parquet" not in suffixes:
                raise UserError(f'{_quoted(file)} is no JSON lines file: use type = "parquet"')
            if not is_parquet(file) and suffixes == (".parquet",):
                raise UserError(f'{_quoted(file)} does not end in .parquet: use type = "jsonl"')
    if not files:
        raise UserError("path is an empty list: name at least one file")
    return list(files.values())


def _expand(entry: str, suffixes: Sequence[str], made_by: str) -> list[Path]:
    if not entry:
        raise UserError("path is empty: name a file, a folder, or a pattern such as data/*.jsonl")
    here = Path(entry).expanduser()
    start = "" if here.is_absolute() else f" Relative paths start at the current folder, {_quoted(Path.cwd())}"
    start += f"{'.' * bool(start)} How to make it: {printable(made_by)}" if made_by else ""
    if here.is_file():
        return [here]
    if here.is_dir():
        names = sorted(p.name for p in here.iterdir() if not p.name.startswith(".") and p.is_file())
        found = [here / name for name in names if Path(name).suffix in suffixes]
        if not found:
            has = listing(printable(name, 40) for name in names[:10])
            raise UserError(f"the folder {_quoted(entry)} has no {' or '.join(suffixes)} file. It has: {has}")
        return found
    if glob.has_magic(entry):
        found = [Path(name) for name in sorted(glob.glob(str(here), recursive=True)) if Path(name).is_file()]
        if not found:
            raise UserError(f"no file matches the pattern {_quoted(entry)}.{start}")
        return found
    others = [printable(p.name, 80) for p in islice(here.parent.glob("*"), 1_000)]
    raise UserError(f"there is no file {_quoted(entry)}.{nearest(here.name, others)}{start}")


def names_of(files: Sequence[Path]) -> list[str]:
    """Return a short name for each file, for the ids of its rows: its stem, with as many folders as make it unique."""
    parts = [file.with_suffix("").parts for file in files]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def provenance_file(file: Path) -> Path:
    """Return where a file that `rewardsmith prepare` wrote has its provenance."""
    return file.with_name(f"{file.name}.provenance.json")


def provenance_of(file: Path) -> dict[str, Any]:
    """Return the provenance of a file; {} without one, or if the file has another size than it had then."""
    try:
        found = json.loads(provenance_file(file).read_bytes())
        known = found["output"]["bytes"] == file.stat().st_size
    except (OSError, ValueError, KeyError, TypeError):  # another program's file may have that name
        return {}
    return dict(found) if known else {}


def _quoted(path: str | Path) -> str:
    return f'"{printable(str(path), 200)}"'


def _empty(file: Path) -> UserError:
    return UserError(f"{_quoted(file)} has no rows: leave it out of path, or fill it")


# ---- JSON lines --------------------------------------------------------------------------------------------------


def numbered_lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, start, bytes) of each line that is not blank, without a byte order mark."""
    number, start = 0, 0
    with _reading(file), file.open("rb") as stream:
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise UserError(
                    f"{_quoted(file)}, line {number}: longer than {MAX_LINE:,} bytes, so this is not one row per line"
                )
            skip = len(_BOM) if start == 0 and line.startswith(_BOM) else 0
            if line[skip:].strip():
                yield number, start + skip, line[skip:]
            start += len(line)


def _lines(i: int, file: Path) -> Iterator[tuple[Place, bytes, int]]:
    line = None
    for number, start, line in numbered_lines(file):
        yield Place(i, number), line, start
    if line is None:
        raise _empty(file)


def _shuffled_lines(files: Sequence[Path], limit: int | None, rng: random.Random) -> Iterator[tuple[Place, bytes]]:
    """Yield shuffled lines, found again by their place in the file: 24 bytes per row, whatever its size."""
    starts, numbers, counts = array("Q"), array("Q"), [0] * len(files)
    every = (line for i, file in enumerate(files) for line in _lines(i, file))
    for place, _, start in islice(every, limit):
        starts.append(start)
        numbers.append(place.number)
        counts[place.file] += 1
    ends = list(accumulate(counts))
    order = array("Q", range(len(starts)))
    rng.shuffle(order)
    for row in order:
        i = bisect_right(ends, row)
        with _reading(files[i]), files[i].open("rb") as stream:
            stream.seek(starts[row])
            line = stream.readline(MAX_LINE)
        yield Place(i, numbers[row]), line


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {_quoted(file)}: {printable(error.strerror or str(error), 300)}") from None


def parse_line(line: bytes) -> Row:
    """Return the row that a line of JSON holds."""
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_table, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg.rstrip(': ')} at character {error.colno}"
        raise RowError(f"not JSON: {what}; a file has one object in each line") from None
    except (ValueError, RecursionError):
        raise RowError("not usable JSON: nested too deeply, or an integer of thousands of digits") from None
    if not isinstance(row, dict):
        kind = "an array" if isinstance(row, list) else "a single value"
        raise RowError(f"the line holds {kind}: a row is an object, one in each line")
    return row


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RowError(f"the key {printable(twice, 60)} is there twice in one object: none of the two can be trusted")
    return table


def _no_constant(name: str) -> None:
    raise RowError(f"{name} is no JSON: use null for a missing number")


# ---- Parquet -----------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A row group: the number of its file and its own, the rows of the file before it, and how many it has."""

    file: int
    number: int
    before: int
    rows: int


def _parquet_rows(i: int, file: Path) -> Iterator[tuple[Place, Any]]:
    for group in _groups(i, file):
        with _parquet(file) as opened:
            table = opened.read_row_group(group.number)
        for row in range(len(table)):
            yield Place(i, group.before + row + 1), table.slice(row, 1)


def _shuffled_parquet(files: Sequence[Path], limit: int | None, rng: random.Random) -> Iterator[tuple[Place, Any]]:
    groups, left = list[_Group](), limit
    for group in (group for i, file in enumerate(files) for group in _groups(i, file)):
        rows = group.rows if left is None else min(group.rows, left)
        groups += [group._replace(rows=rows)] if rows else []
        left = None if left is None else left - rows
    rng.shuffle(groups)
    window: list[tuple[_Group, Any]] = []
    for last, group in enumerate(groups, start=1):
        with _parquet(files[group.file]) as opened:
            window.append((group, opened.read_row_group(group.number).slice(0, group.rows)))
        # The size that a file declares may be far less than what it unpacks to: count what is there.
        if last < len(groups) and sum(table.nbytes for _, table in window) < SHUFFLE_BYTES:
            continue
        order = [(j, i) for j, (_, table) in enumerate(window) for i in range(len(table))]
        rng.shuffle(order)
        for j, i in order:
            of, table = window[j]
            yield Place(of.file, of.before + i + 1), table.slice(i, 1)
        window.clear()


def _groups(i: int, file: Path) -> Iterator[_Group]:
    with _parquet(file) as opened:
        columns = Counter(opened.schema_arrow.names)
        sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.metadata.num_row_groups)]
    twice = next((name for name, count in columns.items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{_quoted(file)} has two columns {_quoted(twice)}: rename one")
    if not sum(sizes):
        raise _empty(file)
    for number, size in enumerate(sizes):
        yield _Group(i, number, sum(sizes[:number]), size)


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    # Here, so that a recipe without Parquet never loads it.
    import pyarrow  # type: ignore[import-untyped]  # noqa: PLC0415
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            yield opened
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # corrupt, or column names that are no text
        raise UserError(f"cannot read {_quoted(file)} as Parquet: {printable(str(error), 300)}") from None


def parse_row(table: Any) -> Row:
    """Return the row that a table of one row holds, with JSON values only."""
    row = {}
    for name in table.column_names:
        try:
            (value,) = table[name].to_pylist()
        except _CANNOT_READ as error:
            raise RowError(f"{name} cannot be read: {error}") from None
        row[name] = _json_value(name, value)
    return row


def parse_table(row: object) -> Row | RowError:
    """Return a row that a Python program gives with JSON values only, or what is wrong with it."""
    if not isinstance(row, Mapping):
        return RowError(f"it is of type {type(row).__name__}: a row is a table")
    try:
        return {str(name): _json_value(str(name), value) for name, value in row.items()}
    except RowError as error:
        return error


def _json_value(name: str, value: Any) -> Any:
    """Return a value as JSON has it: arrays as lists, dates as ISO text, decimals as text, bytes as their text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _json_value(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise RowError(f"{name} holds {len(value)} bytes that are no text: leave the column out") from None
    return value
