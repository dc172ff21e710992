"""Records in the order of their keys, more of them than memory holds.

    with Shuffle(folder) as shuffle:
        for record in records:
            shuffle.add(key, record)     # a key of 64 random bits: the order is random, and depends on the keys alone
        for record in shuffle.sorted():
            ...

What does not fit goes to files by the first bits of its key; each is sorted on its own.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from rewardsmith.data.preparing.output import unwritten

MOST_BYTES = 8 * 2**20
"""Bytes of records that are held in memory at once."""

_BITS = 6  # of the key that choose among the files of one level
_HEAD = struct.Struct("<QI")
_BUFFER = 64 * 2**10
_OVERHEAD = 120  # bytes that Python needs for a record beside its own


class Shuffle:
    """Sorts records by key. A context: what it has written is removed at the end.

    Args:
        folder: where records go that do not fit; it is made when it is needed, and must be ours alone: see `beside`.
        most_bytes: how much is held in memory.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._pile = _Pile(folder, most_bytes, 64)
        self.count = 0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the files."""
        self._pile.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, key: int, record: bytes) -> None:
        """Take a record with a key of 64 bits."""
        self._pile.add(key, record)
        self.count += 1

    def sorted(self) -> Iterator[bytes]:
        """Yield all records once, by ascending keys; those of one key by their bytes."""
        return self._pile.sorted()


class _Pile:
    """Records that agree in the first bits of their keys; `bits` is how many bits are left."""

    def __init__(self, folder: Path, most_bytes: int, bits: int) -> None:
        self._folder, self._most, self._bits = folder, most_bytes, bits
        self._held: list[tuple[int, bytes]] = []
        self._bytes = 0
        self._spilled = False
        self._files: dict[int, BinaryIO] = {}

    def add(self, key: int, record: bytes) -> None:
        if self._spilled:
            self._put(key, record)
            return
        self._held.append((key, record))
        self._bytes += len(record) + _OVERHEAD
        if self._bytes > self._most and self._bits >= _BITS:  # those of one key alone cannot be divided
            self._spilled = True
            for one in self._held:
                self._put(*one)
            self._held.clear()

    def _put(self, key: int, record: bytes) -> None:
        first = key >> (self._bits - _BITS) & (2**_BITS - 1)
        try:
            file = self._files.get(first) or self._open(first)
            file.write(_HEAD.pack(key, len(record)) + record)
        except OSError as error:
            raise unwritten(self._folder, error) from None

    def _open(self, first: int) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files[first] = (self._folder / f"{first:02d}").open("w+b", buffering=_BUFFER)
        return self._files[first]

    def sorted(self) -> Iterator[bytes]:
        self._held.sort()
        yield from (record for _, record in self._held)
        self._held.clear()
        for first, file in sorted(self._files.items()):
            inner = _Pile(self._folder / f"{first:02d}.more", self._most, self._bits - _BITS)
            try:
                for key, record in _records(file):
                    inner.add(key, record)
                file.close()
                (self._folder / f"{first:02d}").unlink()
                yield from inner.sorted()
            finally:
                inner.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    file.seek(0)
    while head := file.read(_HEAD.size):
        key, size = _HEAD.unpack(head)
        yield key, file.read(size)


__all__ = ["MOST_BYTES", "Shuffle"]
