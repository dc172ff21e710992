"""Files of rows that are there as a whole or not at all, in JSON lines or Parquet, without holding them in memory.

    with rows_to("train.parquet") as write:
        for row in rows:
            write(row)                   # a table of JSON values; all rows have the same fields
    write_provenance("train.parquet", {"command": "prepare …", "seed": 0})

What is written lies beside its place, under a hidden name, until the block has ended without an error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import write_atomically

Write = Callable[[Mapping[str, Any]], None]
"""Takes one row."""

BATCH_ROWS = 256
"""Rows that become columns at once."""

GROUP_BYTES = 16 * 2**20
"""Unpacked bytes of a row group: readers hold one in memory, and shuffle large files by row group."""

SUFFIXES = (".jsonl", ".parquet")


@contextmanager
def rows_to(path: str | Path, *, overwrite: bool = False, schema: Any = None) -> Iterator[Write]:
    """Give a function that writes one row; the file appears when the block ends without an error.

    Args:
        path: ends in .jsonl or .parquet; missing folders are made.
        overwrite: replace a file that is there; else it is refused before anything is done.
        schema: a `pyarrow.Schema` for Parquet, where the first 256 rows do not tell the types (a column may be null in
            all of them); None takes the types from those rows.

    Raises:
        UserError: the file cannot be written, or is there already; a row has other fields than the first, or, in
            Parquet, a value that its column cannot hold.
    """
    with all_rows_to([path], overwrite=overwrite, schema=schema) as (write,):
        yield write


@contextmanager
def all_rows_to(
    paths: Sequence[str | Path], *, overwrite: bool = False, schema: Any = None
) -> Iterator[tuple[Write, ...]]:
    """Give one function for each of several files; all of them appear at the end, or none.

    Args:
        paths: of the files.
        overwrite: whether a file that is there may be replaced.
        schema: of Parquet files: one for all, or a list with one for each; None takes it from the first rows.
    """
    schemas = schema if isinstance(schema, list) else [schema] * len(paths)
    files = [_place(path, overwrite) for path in paths]
    if len({file.resolve() for file in files}) < len(files):
        raise UserError(f"two outputs have one name, {_quoted(files[0])}: give each its own")
    outputs: list[_Output] = []
    try:
        for file, mine in zip(files, schemas, strict=True):
            with writing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                outputs.append(_KINDS[file.suffix.lower()](file, mine))
        yield tuple(output.write for output in outputs)
        for output in outputs:
            output.seal()
        for output in outputs:
            output.publish(overwrite)
    finally:
        for output in outputs:
            output.discard()


def require_output(out: str | Path, sources: Iterable[Path]) -> None:
    """Raise a `UserError` if a file cannot be the output of a command that reads these, before anything is done.

    What is made of a file must not take its place: `overwrite` is about what was made before.
    """
    file = _place(out, overwrite=True)
    if any(_is_same(file, source) for source in sources):
        raise UserError(f"{_quoted(file)} is one of the files that are read: name another")


def _is_same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except OSError:  # one of them is not there
        return file.resolve() == other.resolve()


def beside(file: Path, kind: str) -> Path:
    """Return a hidden name in the folder of a file that no other process uses, for what is not finished."""
    return file.with_name(f".{file.name[:40]}.{secrets.token_hex(8)}.{kind}")


def _place(path: str | Path, overwrite: bool) -> Path:
    file = Path(path).expanduser()
    if file.suffix.lower() not in SUFFIXES:
        hint = nearest(file.suffix.lower(), SUFFIXES)
        raise UserError(f"{_quoted(file)} does not end in {' or '.join(SUFFIXES)}: the ending says the format.{hint}")
    if file.is_dir():
        raise UserError(f"{_quoted(file)} is a folder: name a file")
    if file.exists() and not overwrite:
        raise _there(file)
    return file


def _there(file: Path) -> UserError:
    return UserError(f"{_quoted(file)} is there already: use --overwrite to replace it, or another name")


def _quoted(path: str | Path) -> str:
    return f'"{printable(str(path), 200)}"'


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn what goes wrong while writing a file into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise unwritten(file, error) from None


def unwritten(file: Path, error: OSError) -> UserError:
    """Return what a user is told when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"the disk of {_quoted(file)} is full: make room and start again")
    return UserError(f"cannot write {_quoted(file)}: {printable(error.strerror or str(error), 300)}")


class _Output(ABC):
    """A file on its way. `seal` makes it complete, `publish` gives it its name, `discard` removes what is left."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.slot = beside(file, "part")
        self._stream = self.slot.open("xb")
        self._fields: tuple[str, ...] | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        fields = tuple(row)
        if self._fields is None:
            self._fields = fields
        elif fields != self._fields and set(fields) != set(self._fields):
            odd = printable(", ".join(sorted({*fields} ^ {*self._fields})), 200)
            raise UserError(
                f"a row for {_quoted(self.file)} differs from the first in the fields {odd}: all rows need all"
            )
        self._add(row)

    @abstractmethod
    def _add(self, row: Mapping[str, Any]) -> None:
        """Keep a row whose fields are those of all others."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is still in memory."""

    def seal(self) -> None:
        """Bring everything to the disk."""
        with writing(self.file):
            self._finish()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def publish(self, overwrite: bool) -> None:
        """Put the sealed file in its place."""
        if self.file.exists() and not overwrite:  # it has come while we wrote
            raise _there(self.file)
        with writing(self.file):
            self.slot.replace(self.file)
            folder = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Close and remove what was not published."""
        with suppress(OSError):  # what is in the buffer may not fit on the disk; it is thrown away in any case
            self._stream.close()
        self.slot.unlink(missing_ok=True)


class _Jsonl(_Output):
    """One object in each line."""

    def __init__(self, file: Path, schema: Any) -> None:
        super().__init__(file)
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

    def _add(self, row: Mapping[str, Any]) -> None:
        try:  # no context: there are millions of rows
            self._stream.write(self._encode(row).encode("utf-8") + b"\n")
        except OSError as error:
            raise unwritten(self.file, error) from None
        except ValueError as error:  # NaN, or a lone surrogate
            raise UserError(f"a row for {_quoted(self.file)} is no JSON: {printable(str(error), 300)}") from None

    def _finish(self) -> None:
        pass  # the stream has it all


class _Parquet(_Output):
    """Row groups of about `GROUP_BYTES`."""

    def __init__(self, file: Path, schema: Any) -> None:
        super().__init__(file)
        self._schema = schema
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._tables: list[Any] = []
        self._bytes = 0

    def _add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._columns()
            if self._bytes >= GROUP_BYTES:
                self._group()

    def _columns(self) -> None:
        """Turn the rows in hand into columns."""
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 JSON lines do without it

        try:
            if self._schema is None:
                self._schema = pa.Table.from_pylist(self._rows).schema
            check = _knows(pa.struct(self._schema))
            assert check is not None
            _each(check, self._rows)
            # Column by column: `Table.from_pylist` takes three times as long.
            arrays = [pa.array([row.get(kept.name) for row in self._rows], type=kept.type) for kept in self._schema]
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            what = printable(str(error), 300)
            raise UserError(
                f"rows for {_quoted(self.file)} do not fit one table: {what}. JSON lines can hold them"
            ) from None
        self._rows = []
        self._tables.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._bytes += self._tables[-1].nbytes

    def _group(self) -> None:
        """Write the columns in hand as a row group."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

        table = pa.concat_tables(self._tables) if self._tables else self._schema.empty_table()
        with writing(self.file):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._stream, self._schema)
            if len(table):
                self._writer.write_table(table, row_group_size=len(table))
        self._tables, self._bytes = [], 0

    def _finish(self) -> None:
        if self._rows:
            self._columns()
        if self._schema is None:
            raise UserError(f"no rows for {_quoted(self.file)}: a Parquet file needs at least one to know its columns")
        self._group()
        self._writer.close()

    def discard(self) -> None:
        """Also let go of the writer, which would else complain when it is collected."""
        if self._writer is not None and self._writer.is_open:
            with suppress(OSError):
                self._writer.close()
        super().discard()


_KINDS: dict[str, Callable[[Path, Any], _Output]] = {".jsonl": _Jsonl, ".parquet": _Parquet}


def _knows(kind: Any, path: str = "") -> Callable[[Any], None] | None:
    """Return what raises a `UserError` for a table with a field that its type does not have.

    Arrow would leave such a field out without a word. None where a type has no tables in it.
    """
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_list(kind):
        item = _knows(kind.value_type, path)
        return None if item is None else partial(_each, item)
    if not pa.types.is_struct(kind):
        return None
    inner = {field.name: _knows(field.type, f"{path}{field.name}.") for field in kind}
    deeper = [(name, check) for name, check in inner.items() if check is not None]
    return partial(_require_known, frozenset(inner), deeper, path)


def _each(check: Callable[[Any], None], values: Sequence[Any] | None) -> None:
    for value in values or ():
        check(value)


def _require_known(
    known: frozenset[str], deeper: Sequence[tuple[str, Callable[[Any], None]]], path: str, table: Any
) -> None:
    if table is not None:
        if not known.issuperset(table):
            name = printable(f"{path}{min({*table} - known)}", 100)
            raise UserError(
                f"there is no {name} in the rows before, so that Parquet has no column for it: use JSON lines"
            )
        for name, check in deeper:
            check(table.get(name))


# ---- where data came from -----------------------------------------------------------------------------------------


def provenance_path(path: str | Path) -> Path:
    """Return where the provenance of a file lies: `train.parquet.provenance.json` beside `train.parquet`."""
    file = Path(path).expanduser()
    return file.with_name(f"{file.name}.provenance.json")


def write_provenance(path: str | Path, facts: Mapping[str, Any]) -> Path:
    """Write beside a prepared file how it was made, and return where.

    Args:
        path: of the prepared file.
        facts: JSON values: the command, all settings, the seed, the inputs as `file_facts` gives them, rows read,
            written and skipped, versions of template and parser. The version of rewardsmith is added.
    """
    from rewardsmith import __version__  # noqa: PLC0415 the package is complete only now

    place = provenance_path(path)
    text = json.dumps({"rewardsmith": __version__, **facts}, indent=2, ensure_ascii=False, allow_nan=False)
    with writing(place):
        write_atomically(place, text + "\n")
    return place


def file_facts(path: str | Path, rows: int | None = None) -> dict[str, Any]:
    """Return what tells a file again: its path as given, bytes, SHA-256, and how many rows it has, where known."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = file.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read {_quoted(file)}: {error.strerror or error}") from None
    return {"path": str(path), "bytes": size, "sha256": digest, "rows": rows}


__all__ = [
    "BATCH_ROWS",
    "GROUP_BYTES",
    "Write",
    "all_rows_to",
    "beside",
    "file_facts",
    "provenance_path",
    "require_output",
    "rows_to",
    "unwritten",
    "write_provenance",
    "writing",
]
