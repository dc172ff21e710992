"""Files and folders that are there as a whole or not at all, whatever happens while they are written.

`write_sums` and `damaged` find files that have changed since. `ResumableJsonl` is a results file that grows by lines.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from rewardsmith.errors import UserError

SUMS = "SHA256SUMS"
"""The file with the hashes of all others in its folder, in the form that `sha256sum --check` reads."""

HASHING_THREADS = 8  # hashing releases the interpreter lock, and so does waiting for the disk


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error while writing below `path` into a `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors keeps of the system's error its text only
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if full:
            remedy = "Make room and run the same command: it resumes from the last checkpoint, which is complete"
            raise UserError(f"the disk of {str(path)!r} is full. {remedy}") from None
        raise UserError(f"cannot write to {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def write_atomically(file: Path, text: str) -> None:
    """Write a text file to a temporary path, sync it, and rename it."""
    temp_path = file.with_name(f".{file.name}.part")
    try:
        with temp_path.open("w", encoding="utf-8", errors="backslashreplace") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temp_path.replace(file)
    except OSError:
        temp_path.unlink(missing_ok=True)
        raise
    _sync(file.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder to write into that appears as `folder` when the block ends without an error, complete and synced.

    A process that dies inside the block leaves a hidden folder behind, which the next one to try removes.
    """
    temp_path = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temp_path, ignore_errors=True)
    temp_path.mkdir(parents=True)
    try:
        yield temp_path
        with ThreadPoolExecutor(HASHING_THREADS) as threads:
            list(threads.map(_sync, [temp_path, *temp_path.rglob("*")]))
        old = folder.with_name(f".{folder.name}.old")
        if folder.exists():  # a folder cannot be replaced in one step; the old one moves out of the way first
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)  # `recover` puts it back if we die here
        temp_path.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temp_path, ignore_errors=True)
        raise
    _sync(folder.parent)


class ResumableJsonl:
    """JSON lines that are appended as results come, so that the same command resumes after a stop or a kill.

        results = ResumableJsonl(Path("scores.jsonl"))
        with results.open():
            results.claim({"reward": table})     # refuses a file that something else made
            done = [entry for _, entry in results.entries()]
            results.append({"id": "7", "score": 0.5})

    A note of what made the entries is in `scores.jsonl.made-by.json`. One process holds the file at a time, and a last
    line that a killed process left incomplete is cut off.
    """

    def __init__(self, file: Path, *, remedy: str = "add --fresh to start again, or name another output") -> None:
        self.file = file
        self.note_file = file.with_name(f"{file.name}.made-by.json")
        self._remedy = remedy
        self._handle: IO[bytes] | None = None

    @contextmanager
    def open(self, *, fresh: bool = False) -> Iterator[None]:
        """Lock the file and cut off an incomplete last line; `fresh` removes all entries."""
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = self.file.open("ab+")
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                message = f"another process is writing to {str(self.file)!r}: stop it, or name another output"
                raise UserError(message) from None
            if handle.tell() and not self.note_file.exists():
                raise UserError(f"{str(self.file)!r} exists, and this command did not write it: name another output")
            with writing(self.file):
                handle.truncate(0 if fresh else _end_of_last_line(handle))
            self._handle = handle
            yield
            with writing(self.file):
                os.fsync(handle.fileno())
        finally:
            self._handle = None
            with suppress(OSError):  # what could not be written has been reported by then
                handle.close()

    def check(self, note: Mapping[str, Any], compare: Callable[[Any, Any], Iterable[str]] | None = None) -> None:
        """Raise a `UserError` with the differences if the entries were made under another note."""
        if not self.file.stat().st_size:
            return
        before = self.note
        shared = {name: before.get(name) for name in note}
        lines = [f"  {line}" for line in (compare or differences)(shared, json.loads(json.dumps(note)))]
        if lines:
            heading = f"{str(self.file)!r} was made with other settings:"
            raise UserError("\n".join([heading, *lines, f"To continue, {self._remedy}"]))

    def claim(self, note: Mapping[str, Any], compare: Callable[[Any, Any], Iterable[str]] | None = None) -> None:
        """Check the note of the entries, or write it where there are none."""
        self.check(note, compare)
        if not self.file.stat().st_size:
            with writing(self.note_file):
                write_atomically(self.note_file, json.dumps(note, indent=2, ensure_ascii=False) + "\n")

    @property
    def note(self) -> dict[str, Any]:
        """What made the entries."""
        try:
            return dict(json.loads(self.note_file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {str(self.note_file)!r} ({error}): {self._remedy}") from None

    def entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each entry with its position, for `read`."""
        position = 0
        with self.file.open("rb") as lines:
            for line in lines:
                yield position, self._parse(line, position)
                position += len(line)

    def read(self, position: int) -> dict[str, Any]:
        """Return the entry at a position."""
        assert self._handle is not None
        self._handle.seek(position)
        return self._parse(self._handle.readline(), position)

    def append(self, entry: Mapping[str, Any] | str) -> int:
        """Write an entry, as JSON or as a line of JSON, and return its position."""
        assert self._handle is not None
        text = entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False, allow_nan=False)
        with writing(self.file):
            position = self._handle.seek(0, os.SEEK_END)
            self._handle.write(f"{text}\n".encode("utf-8", "backslashreplace"))
            self._handle.flush()
        return position

    def _parse(self, line: bytes, position: int) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except ValueError:
            raise UserError(f"{str(self.file)!r} is damaged at byte {position}: {self._remedy}") from None


def changes(before: Any, now: Any) -> dict[str, str]:
    """Return `old -> new` for each value that differs between two JSON tables, by its path."""
    old, new = flat(before), flat(now)
    return {
        path: f"{old.get(path, 'not set')[:300]} -> {new.get(path, 'not set')[:300]}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    }


def flat(table: Any) -> dict[str, str]:
    """Return each value of a JSON table as JSON, by its path."""
    return {path: json.dumps(value, ensure_ascii=False, default=str) for path, value in leaves(table)}


def differences(before: Any, now: Any) -> list[str]:
    """Return `path: old -> new` for each value that differs between two JSON tables."""
    return [f"{path}: {change}" for path, change in changes(before, now).items()]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested tables with its path, and the order of parts and routes, in which it counts."""
    if isinstance(value, dict) and value:
        if path.endswith(("parts", "routes")):
            yield f"order of {path}", list(value)
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{i}")
    else:
        yield path, value


def _end_of_last_line(handle: IO[bytes]) -> int:
    """Return the size of a file without an incomplete last line."""
    handle.seek(0)
    return sum(len(line) for line in handle if line.endswith(b"\n"))


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
    """Write the hash of every file below a folder to its `SHA256SUMS`; the disk writes them meanwhile."""
    lines = [f"{digest}  {name}\n" for name, digest in _digests(folder, synced=True).items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def damaged(folder: Path) -> str:
    """Return which file below a folder is not as `write_sums` found it, and why; "" when all are.

    Files that were added since do not count.
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


def _digests(folder: Path, *, synced: bool = False) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder but `SHA256SUMS`, by its relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    with ThreadPoolExecutor(HASHING_THREADS) as hashing, ThreadPoolExecutor(HASHING_THREADS) as syncing:
        syncs = syncing.map(_sync, files if synced else [])
        digests = list(hashing.map(_digest, files))
        list(syncs)  # raises what went wrong
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


def file_facts(file: Path, rows: int | None = None) -> dict[str, Any]:
    """Return what identifies a file: its path, bytes, SHA-256, and how many rows it has, where known."""
    try:
        return {"path": str(file), "bytes": file.stat().st_size, "sha256": _digest(file), "rows": rows}
    except OSError as error:
        raise UserError(f"cannot read {str(file)!r}: {error.strerror or error}") from None
