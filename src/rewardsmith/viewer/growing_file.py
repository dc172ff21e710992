"""Lines that a run adds to a file, read once each; a file that was cut, as by a resumed run, is read again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_TAIL = 1_024


@dataclass
class Position:
    """How far a file has been read; `tail` is the hash of the bytes before `offset`."""

    offset: int = 0
    tail: str = ""


def is_continued(path: Path, position: Position) -> bool:
    """Whether a file still holds what was read of it: it was not cut, or has the same bytes again."""
    try:
        with path.open("rb") as file:
            return position.offset == 0 or _tail(file, position.offset) == position.tail
    except FileNotFoundError:
        return position.offset == 0


def new_lines(path: Path, position: Position, *, max_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the complete lines after a position with their offsets, and move the position behind them at the end."""
    if not path.exists():
        return
    start = offset = position.offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or (max_bytes is not None and offset - start >= max_bytes):
                break
            yield offset, line
            offset += len(line)
        position.offset, position.tail = offset, _tail(file, offset)


def read_line(path: Path, offset: int, size: int) -> bytes:
    """Return the line at an offset."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _tail(file: IO[bytes], offset: int) -> str:
    start = max(0, offset - _TAIL)
    file.seek(start)
    read = file.read(offset - start)
    return hashlib.sha256(read).hexdigest() if len(read) == offset - start else ""
