"""Files of rows: which ones a path means, and their rows, in order or shuffled, without holding them all.

Files are untrusted, and may be larger than memory. JSON lines are found again by their place in the file; Parquet is
read by row groups. What is wrong with a file is a `UserError`, what is wrong with one row a `RowError` of its parser.
"""

from __future__ import annotations

import datetime
import decimal
import glob
import json
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

from rewardsmith.data.rows import Row, RowError, printable
from rewardsmith.errors import UserError, listing, nearest

MAX_LINE = 64 * 2**20
"""Bytes of the longest line that is read; a longer one is not a row but a file of another kind."""

WINDOW = 256 * 2**20
"""Bytes of Parquet rows that are shuffled together. Larger files are shuffled by row group, and then in windows."""

# A time in nanoseconds, a date after the year 9999, an unknown time zone, text that is not UTF-8.
_CANNOT_READ = (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError)

_BOM = b"\xef\xbb\xbf"
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_TYPES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


class Place(NamedTuple):
    """Where a row is: the number of its file, and the number of the line or row in it, from 1."""

    file: int
    number: int


# ---- which files a path means ------------------------------------------------------------------------------------


def find_files(path: str | Sequence[str], suffixes: Sequence[str], kind: str) -> list[Path]:
    """Return the files of a path, a list of paths, folders or patterns, in the order of their names within each.

    Args:
        path: relative paths start at the current folder.
        suffixes: of the files that are taken from a folder.
        kind: the name of the data source, to tell apart files of another one.
    """
    entries = [path] if isinstance(path, str) else path
    if not entries:
        raise UserError("path is an empty list: name at least one file")
    files: dict[Path, Path] = {}
    for entry in entries:
        try:
            found = _expand(entry, suffixes)
        except UserError:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # no right to look, no home folder, no such name
            raise UserError(f"cannot look for {_quoted(entry)}: {printable(str(error))}") from None
        for file in found:
            whole = file.resolve()
            if whole in files:
                raise UserError(f"path names the file {_quoted(file)} twice: its rows would be read twice")
            _require_kind(file, kind)
            files[whole] = file
    return list(files.values())


def _expand(entry: str, suffixes: Sequence[str]) -> list[Path]:
    if not entry:
        raise UserError("path is empty: name a file, a folder, or a pattern such as data/*.jsonl")
    here = Path(entry).expanduser()
    if here.is_file():
        return [here]
    if here.is_dir():
        names = [p.name for p in here.iterdir() if not p.name.startswith(".") and p.is_file()]
        found = [here / name for name in sorted(names) if Path(name).suffix in suffixes]
        if not found:
            has = listing(printable(name, 40) for name in sorted(names)[:10])
            raise UserError(
                f"the folder {_quoted(entry)} has no file that ends in {' or '.join(suffixes)}. It has: {has}"
            )
        return found
    if here.exists():
        raise UserError(f"{_quoted(entry)} is neither a file nor a folder")
    if glob.has_magic(entry):
        found = [Path(name) for name in sorted(glob.glob(str(here), recursive=True)) if Path(name).is_file()]
        if not found:
            raise UserError(f"no file matches the pattern {_quoted(entry)}.{_start(here)}")
        return found
    raise _no_file(entry, here)


def _no_file(entry: str, here: Path) -> UserError:
    if not here.parent.is_dir():
        return UserError(
            f"there is no file {_quoted(entry)}, and no folder {_quoted(here.parent)} either.{_start(here)}"
        )
    others = [printable(p.name, 80) for p in islice(here.parent.iterdir(), 1_000)]
    return UserError(f"there is no file {_quoted(entry)}.{nearest(here.name, others)}{_start(here)}")


def _start(here: Path) -> str:
    return "" if here.is_absolute() else f" Relative paths start at the current folder, {_quoted(Path.cwd())}"


def _require_kind(file: Path, kind: str) -> None:
    suffix = file.suffix.lower()
    if suffix in _PACKED:
        raise UserError(f"{_quoted(file)} is compressed: unpack it first")
    if _TYPES.get(suffix, kind) != kind:
        raise UserError(f'{_quoted(file)} is no file for type = "{kind}": use type = "{_TYPES[suffix]}"')


def names_of(files: Sequence[Path]) -> list[str]:
    """Return a short name for each file, for the ids of its rows: its stem, with as many folders as tell it apart."""
    parts = [file.with_suffix("").parts for file in files]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def _quoted(path: str | Path) -> str:
    return f'"{printable(str(path), 200)}"'


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {_quoted(file)}: {printable(error.strerror or str(error), 300)}") from None


# ---- JSON lines --------------------------------------------------------------------------------------------------


def jsonl_rows(files: Sequence[Path], *, limit: int | None, rng: random.Random | None) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines of the first `limit` rows with their places: as they come, or shuffled."""
    every = ((i, *line) for i, file in enumerate(files) for line in _lines(file))
    if rng is None:
        for i, number, _, line in islice(every, limit):
            yield Place(i, number), line
        return
    # 24 bytes per row, whatever its size.
    starts, numbers, counts = array("Q"), array("Q"), [0] * len(files)
    for i, number, start, _ in islice(every, limit):
        starts.append(start)
        numbers.append(number)
        counts[i] += 1
    ends = list(accumulate(counts))
    order = array("Q", range(len(starts)))
    rng.shuffle(order)
    for row in order:
        i = bisect_right(ends, row)
        with _reading(files[i]), files[i].open("rb") as stream:
            stream.seek(starts[row])
            line = stream.readline(MAX_LINE)
        yield Place(i, numbers[row]), line


def _lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, start, bytes) of each line that is not blank."""
    number, start, rows = 0, 0, 0
    with _reading(file), file.open("rb") as stream:
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise UserError(
                    f"{_quoted(file)}, line {number}: longer than {MAX_LINE:,} bytes. A file of JSON lines has one row"
                    " in each line"
                )
            skip = len(_BOM) if start == 0 and line.startswith(_BOM) else 0
            if not line[skip:].isspace() and line[skip:]:
                rows += 1
                yield number, start + skip, line[skip:]
            start += len(line)
    if not rows:
        raise _empty(file)


def parse_line(line: bytes) -> Row:
    """Return the row that a line of JSON holds."""
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_table, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        hint = ": one object in each line, not one array or table over many" if line.strip() in (b"[", b"{") else ""
        raise RowError(f"not JSON: {error.msg.rstrip(': ')} at character {error.colno}{hint}") from None
    except ValueError:
        raise RowError("not usable JSON: an integer of thousands of digits; keep it as text") from None
    except RecursionError:
        raise RowError("not usable JSON: nested too deeply") from None
    if not isinstance(row, dict):
        kind = "an array" if isinstance(row, list) else "a single value"
        raise RowError(f"the line holds {kind}: a row is an object, one in each line")
    return row


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RowError(f"the key {printable(twice, 60)} is there twice in one object: none of the two can be trusted")
    return table


def _no_constant(name: str) -> None:
    raise RowError(f"{name} is no JSON: use null for a missing number")


# ---- Parquet -----------------------------------------------------------------------------------------------------


def parquet_rows(
    files: Sequence[Path],
    *,
    limit: int | None,
    rng: random.Random | None,
    check: Callable[[Path, list[str]], None],
) -> Iterator[tuple[Place, Any]]:
    """Yield tables of one row with their places: in order, or shuffled. `check` sees the columns of each file first."""
    groups = list(_groups(files, limit, check))
    if rng is None:
        for group in groups:
            table = _read_group(files, group)
            yield from (_row(group, table, i) for i in range(len(table)))
        return
    rng.shuffle(groups)
    window: list[tuple[_Group, Any]] = []
    for last, group in enumerate(groups, start=1):
        window.append((group, _read_group(files, group)))
        # What the file says of its size may be far less than what it unpacks to: count what is there.
        if last == len(groups) or sum(table.nbytes for _, table in window) >= WINDOW:
            order = [(j, i) for j, (_, table) in enumerate(window) for i in range(len(table))]
            rng.shuffle(order)
            yield from (_row(*window[j], i) for j, i in order)
            window.clear()


class _Group(NamedTuple):
    """A row group: the number of its file and its own, the rows of the file before it, and how many of it count."""

    file: int
    number: int
    before: int
    rows: int


def _row(group: _Group, table: Any, i: int) -> tuple[Place, Any]:
    return Place(group.file, group.before + i + 1), table.slice(i, 1)


def _groups(files: Sequence[Path], limit: int | None, check: Callable[[Path, list[str]], None]) -> Iterator[_Group]:
    left = limit
    for i, file in enumerate(files):
        with _parquet(file) as opened:
            names = list(opened.schema_arrow.names)
            sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.metadata.num_row_groups)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"{_quoted(file)} has two columns {_quoted(twice)}: rename one")
        if not sum(sizes):
            raise _empty(file)
        check(file, names)
        for number, size in enumerate(sizes):
            rows = size if left is None else min(size, left)
            if rows:
                yield _Group(i, number, sum(sizes[:number]), rows)
            left = None if left is None else left - rows


def _read_group(files: Sequence[Path], group: _Group) -> Any:
    with _parquet(files[group.file]) as opened:
        return opened.read_row_group(group.number).slice(0, group.rows)


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
    try:
        row: Row = table.to_pylist()[0]
    except _CANNOT_READ as error:
        raise RowError(f"{_unreadable(table)} cannot be read: {error}") from None
    return {name: _plain(name, value) for name, value in row.items()}


def _unreadable(table: Any) -> str:
    for name in table.column_names:
        try:
            table[name].to_pylist()
        except _CANNOT_READ:
            return str(name)
    return "the row"


def _plain(name: str, value: object) -> Any:
    """Return a value of Parquet as JSON has it: dates as ISO text, decimals as text, bytes as the text they hold."""
    if isinstance(value, dict):
        return {key: _plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
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


def _empty(file: Path) -> UserError:
    return UserError(f"{_quoted(file)} has no rows: leave it out of path, or fill it")
