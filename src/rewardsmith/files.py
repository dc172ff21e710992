"""Files and folders that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(file: Path, text: str) -> None:
    """Write a text file: beside its place, synced, then renamed."""
    beside = file.with_name(f".{file.name}.part")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync(file.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to write into that appears as `folder` when the block ends without an error, complete and synced.

    A process that dies inside the block leaves a hidden folder behind, which the next one to try removes.
    """
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [beside, *beside.rglob("*")]:
            _sync(path)
        if folder.exists():  # a folder cannot be replaced in one step; the old one moves out of the way first
            old = folder.with_name(f".{folder.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            beside.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sync(folder.parent)


def _sync(path: Path) -> None:
    """Make sure that a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
