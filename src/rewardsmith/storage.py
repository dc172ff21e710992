"""Files and folders that are there as a whole or not at all, whatever happens while they are written.

`write_sums` and `damaged` find files that have changed since.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rewardsmith.errors import UserError

SUMS = "SHA256SUMS"
"""The file with the hashes of all others in its folder, in the form that `sha256sum --check` reads."""

_HASHING_THREADS = 4  # hashing releases the interpreter lock


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


def write_sums(folder: Path) -> None:
    """Write the hash of every file below a folder to its `SHA256SUMS`."""
    lines = [f"{digest}  {name}\n" for name, digest in _digests(folder).items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def damaged(folder: Path) -> str:
    """Return which file below a folder is not as `write_sums` found it, and why; "" when all are.

    Files that were added since do not count. A folder without `SHA256SUMS` cannot be checked; ask for it first.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        found = _digests(folder)
    except (OSError, UnicodeDecodeError) as error:
        return f"{folder / SUMS} cannot be read ({error})"
    for name, digest in known.items():
        if name not in found:
            return f"{folder / name} is missing"
        if found[name] != digest:
            return f"{folder / name} is damaged: it is not as it was written (its SHA-256 differs from {SUMS})"
    return "" if known else f"{folder / SUMS} is damaged: it is empty"


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder but `SHA256SUMS`, by its relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        digests = list(threads.map(_digest, files))
    return {path.relative_to(folder).as_posix(): digest for path, digest in zip(files, digests, strict=True)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Make sure that a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
