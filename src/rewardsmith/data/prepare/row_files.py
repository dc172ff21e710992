"""Responses of a row, output files that appear complete or not at all, and their provenance."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from rewardsmith.data.readers import provenance_file
from rewardsmith.data.rows import ABSENT, Row, RowError, describe, find, no_column, printable
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import write_atomically, writing

BATCH_ROWS = 256
"""Rows that become Arrow columns at once."""

GROUP_BYTES = 64 * 2**20
"""Arrow bytes of a row group: readers hold one in memory, and shuffle large files by row group."""

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
    """Row groups of about `GROUP_BYTES`; the first decides the types of the columns."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._tables: list[Any] = []

    def write(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._write(GROUP_BYTES)

    def _write(self, min_bytes: int) -> None:
        """Convert the rows to Arrow columns, and write them once they have this size."""
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 JSON lines do without it
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            names = dict.fromkeys(name for row in self._rows for name in row)
            # Column by column: `Table.from_pylist` takes three times as long.
            self._tables.append(pa.table({name: [row.get(name) for row in self._rows] for name in names}))
            self._rows = []
            if sum(table.nbytes for table in self._tables) < min_bytes:
                return
            before = [self._writer.schema.empty_table()] if self._writer else []
            table = pa.concat_tables([*before, *self._tables], promote_options="permissive")
            self._tables = []
            self._writer = self._writer or pq.ParquetWriter(self._stream, table.schema)
            if table.schema != self._writer.schema:
                raise pa.ArrowInvalid("later rows have fields or types that the first ones do not have")
            with writing(self.file):
                self._writer.write_table(table, row_group_size=max(1, len(table)))
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
            what = printable(str(error), 300)
            raise UserError(f"rows for {str(self.file)!r} do not fit one table: {what}. Use JSON lines") from None

    def finish(self) -> None:
        if self._rows or self._tables:
            self._write(0)
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

    place = provenance_file(out)
    text = json.dumps({"rewardsmith": __version__, **facts}, indent=2, ensure_ascii=False, default=str)
    with writing(place):
        write_atomically(place, text + "\n")
