"""Files and folders that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rewardsmith.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while writing below `path` into a `UserError` that says so plainly."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors keeps of the system's error its text only
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full:
            remedy = "Make room and run the same command: it goes on from the last checkpoint, which is complete"
            raise UserError(f"the disk of {str(path)!r} is full. {remedy}") from None
        raise UserError(f"cannot write to {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


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
            folder.rename(old)  # `recover` puts it back if we die here
            beside.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sync(folder.parent)


def recover(parent: Path) -> None:
    """Put back or remove what a process that died in `new_folder` or `remove` has left in a folder."""
    for path in parent.glob(".*.old"):
        target = path.with_name(path.name[1:-4])
        if target.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(target)
    for path in [*parent.glob(".*.part"), *parent.glob(".*.gone")]:
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder: it is there as a whole, or gone."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(path: Path) -> None:
    """Make sure that a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
