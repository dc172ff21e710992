"""Rows in and out: input files with bad-row reports, output files that appear complete or not at all, provenance.

files = RowFiles("problems/*.jsonl")
with open_outputs([Path("train.parquet")]) as (write,):
    for read in files:
        write(read.row)
write_provenance(Path("train.parquet"), {"command": "prepare …"})
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rewardsmith.data.readers import find_files, names_of, read_rows, where
from rewardsmith.data.rows import ABSENT, Row, RowError, describe, find, no_column, printable
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import file_facts, write_atomically, writing

BATCH_ROWS = 256
"""Rows that become Arrow columns at once."""

SCHEMA_BYTES = 128 * 2**20
"""Arrow bytes that decide the schema of a Parquet file: a column may be null in the first rows."""

GROUP_BYTES = 16 * 2**20
"""Arrow bytes of a row group: readers hold one in memory, and shuffle large files by row group."""

# ---- input --------------------------------------------------------------------------------------------------------


class ReadRow(NamedTuple):
    """A row, or what is wrong with it; `where` is for messages, `file` and `number` name a row without an id."""

    where: str
    file: str
    number: int
    row: Row | RowError


class RowFiles:
    """The first `limit` rows of JSONL and Parquet files, in order; each pass reads the files again."""

    def __init__(self, path: str, limit: int | None = None) -> None:
        self.files = find_files(path)
        self.counts: Counter[Path] = Counter()
        self.columns: dict[str, None] = {}
        self._limit = limit

    def __iter__(self) -> Iterator[ReadRow]:
        """Yield each row, and count the rows of each file."""
        self.counts.clear()
        names = names_of(self.files)
        for place, row in read_rows(self.files, limit=self._limit):
            if not isinstance(row, RowError):
                self.columns |= dict.fromkeys(row)
            self.counts[self.files[place.file]] += 1
            yield ReadRow(where(self.files, place), names[place.file], place.number, row)

    def facts(self) -> list[dict[str, Any]]:
        """Return path, size, SHA-256 and row count of each file, for the provenance."""
        return [file_facts(file, self.counts[file]) for file in self.files]


class Duplicates:
    """Refuses a row whose name, such as its id or a digest of its contents, an earlier row has."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}

    def refuse(self, where: str, **names: str) -> None:
        """Raise a `RowError` if an earlier row has one of the names; keywords are what the names are of."""
        for what, name in names.items():
            if (other := self._first.setdefault((what, name), where)) is not where:
                raise RowError(f"the same {what} as in {other}: leave one of them out")


RESPONSES = ("responses", "response")
"""Columns of responses, unless one is named."""


def responses_of(row: Row, column: str | None) -> tuple[str, list[str], bool]:
    """Return the column with the responses of a row, a list or one, the texts, and whether it is a list."""
    names = RESPONSES if column is None else (column,)
    name = next((name for name in names if find(row, name) is not ABSENT), None)
    if name is None:
        also = "" if column else f" and no {RESPONSES[1]}"
        raise no_column(names[0], row, "response_column says where a row has its responses", also=also)
    value = find(row, name)
    texts = value if isinstance(value, list) else [value]
    if not texts:
        raise RowError(f"{name} is an empty list: a row needs at least one response")
    for text in texts:
        if not isinstance(text, str):
            raise RowError(f"{name} has {describe(text)}: a response is text")
    return name, texts, isinstance(value, list)


# ---- output -------------------------------------------------------------------------------------------------------

Write = Callable[[Mapping[str, Any]], None]


def require_outputs(outs: Sequence[Path], inputs: Sequence[Path], *, replace: bool) -> None:
    """Raise a `UserError` if a file cannot be an output of a command that reads these inputs."""
    if len({out.resolve() for out in outs}) < len(outs):
        raise UserError(f"two outputs have one name, {str(outs[0])!r}: give each its own")
    for out in outs:
        if out.suffix.lower() not in _OUTPUTS:
            hint = nearest(out.suffix.lower(), _OUTPUTS)
            raise UserError(f"{str(out)!r} does not end in {' or '.join(_OUTPUTS)}: the ending is the format.{hint}")
        if out.is_dir():
            raise UserError(f"{str(out)!r} is a folder: name a file")
        if any(out.resolve() == file.resolve() or (out.exists() and out.samefile(file)) for file in inputs):
            raise UserError(f"{str(out)!r} is one of the input files: name another")
        if out.exists() and not replace:
            raise UserError(f"{str(out)!r} exists: use --fresh to replace it, or name another")


@contextmanager
def open_outputs(outs: Sequence[Path]) -> Iterator[tuple[Write, ...]]:
    """Give a function for each file that writes one row; all files appear when the block ends, or none."""
    with ExitStack() as stack:
        outputs = []
        for out in outs:
            with writing(out):
                out.parent.mkdir(parents=True, exist_ok=True)
                outputs.append(_OUTPUTS[out.suffix.lower()](out))
            stack.callback(outputs[-1].discard)
        yield tuple(output.write for output in outputs)
        for output in outputs:
            output.finish()
        for output in outputs:
            with writing(output.file):
                output.temp_file.replace(output.file)


class _JsonlOutput:
    """One object per line, in a hidden file until it is complete."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.temp_file = file.with_name(f".{file.name[:40]}.{secrets.token_hex(8)}.part")
        self._stream: BinaryIO = self.temp_file.open("xb")
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

    def write(self, row: Mapping[str, Any]) -> None:
        try:
            line = self._encode(row).encode("utf-8") + b"\n"
        except ValueError as error:  # NaN, or half of a surrogate pair
            raise UserError(f"a row for {str(self.file)!r} is not JSON: {printable(str(error), 300)}") from None
        with writing(self.file):
            self._stream.write(line)

    def finish(self) -> None:
        with writing(self.file):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def discard(self) -> None:
        """Close and remove what was not published."""
        with suppress(OSError):
            self._stream.close()
        self.temp_file.unlink(missing_ok=True)


class _ParquetOutput(_JsonlOutput):
    """Row groups of about `GROUP_BYTES`; the first `SCHEMA_BYTES` decide the types of the columns."""

    def __init__(self, file: Path) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 JSON lines do without it

        super().__init__(file)
        self._pq = pq
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._tables: list[Any] = []

    def write(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._pack()
            if sum(table.nbytes for table in self._tables) >= (GROUP_BYTES if self._writer else SCHEMA_BYTES):
                self._write_group()

    def _pack(self) -> None:
        with self._fitting() as pa:
            names = dict.fromkeys(name for row in self._rows for name in row)
            # Column by column: `Table.from_pylist` takes three times as long.
            self._tables.append(pa.table({name: [row.get(name) for row in self._rows] for name in names}))
        self._rows = []

    def _write_group(self) -> None:
        with self._fitting() as pa, writing(self.file):
            before = [self._writer.schema.empty_table()] if self._writer else []
            table = pa.concat_tables([*before, *self._tables], promote_options="permissive")
            if self._writer is None:
                self._writer = self._pq.ParquetWriter(self._stream, table.schema)
            elif table.schema != self._writer.schema:
                raise pa.ArrowInvalid("later rows have fields or types that the first ones do not have")
            rows = max(1, len(table) * GROUP_BYTES // max(1, table.nbytes))
            self._writer.write_table(table, row_group_size=rows)
        self._tables = []

    @contextmanager
    def _fitting(self) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415

        try:
            yield pa
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            what = printable(str(error), 300)
            raise UserError(f"rows for {str(self.file)!r} do not fit one table: {what}. Use JSON lines") from None

    def finish(self) -> None:
        if self._rows:
            self._pack()
        if self._tables:
            self._write_group()
        if self._writer is None:
            raise UserError(f"no rows for {str(self.file)!r}: a Parquet file needs at least one")
        with writing(self.file):
            self._writer.close()
        super().finish()

    def discard(self) -> None:
        if self._writer is not None and self._writer.is_open:
            with suppress(OSError):
                self._writer.close()
        super().discard()


_OUTPUTS: dict[str, type[_JsonlOutput]] = {".jsonl": _JsonlOutput, ".parquet": _ParquetOutput}

# ---- provenance ---------------------------------------------------------------------------------------------------


def write_provenance(out: Path, facts: Mapping[str, Any]) -> None:
    """Write `OUT.provenance.json`: settings, inputs, counts, and the versions of whatever made the file."""
    from rewardsmith import __version__  # noqa: PLC0415 the package imports this module

    place = out.with_name(f"{out.name}.provenance.json")
    text = json.dumps({"rewardsmith": __version__, **facts}, indent=2, ensure_ascii=False, default=str)
    with writing(place):
        write_atomically(place, text + "\n")


__all__ = ["Duplicates", "ReadRow", "RowFiles", "Write", "open_outputs", "require_outputs", "write_provenance"]
