"""The file that new scores are kept in: it grows group by group, and the same command goes on where it was stopped.

Beside it lies `FILE.made-by.json`, which says what reward made the scores, so that a file never mixes two of them. That
the rollouts are the same needs no note: every line holds its whole group, and is compared with what is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rewardsmith import __version__
from rewardsmith.config import Chosen
from rewardsmith.data.readers import jsonl_rows, parse_line
from rewardsmith.data.rows import RowError, printable
from rewardsmith.engines.settings import INCIDENTAL
from rewardsmith.errors import UserError
from rewardsmith.recipe import explain, places
from rewardsmith.records import dumps, from_json
from rewardsmith.runs.changes import changes
from rewardsmith.runs.rescoring.stored import Stored
from rewardsmith.storage import write_atomically, writing
from rewardsmith.trainers.protocol import GroupRecord
from rewardsmith.types import ScoredGroup

ANEW = "add --fresh to start anew, or name another file with --out"

# When a command gives up is no part of what a score is: who was stopped by these may change them and go on.
_PATIENCE = ("failure.share", "failure.window", "failure.least", "failure.wait", "request.deadline")


@dataclass(frozen=True)
class Maker:
    """What made the scores of a file.

    Attributes:
        reward: the resolved table, as JSON values, with those of the models that it asks.
        code: digest of the source of each `module:Name` in it: a user's own code may change under its name.
        version: of this package.
    """

    reward: dict[str, Any]
    code: dict[str, str] = field(default_factory=dict)
    version: str = __version__

    @classmethod
    def of(cls, chosen: Chosen, models: Mapping[str, Chosen]) -> Maker:
        """Return what is known of a reward and of the models that it asks."""
        own = [(c.name, c.target) for _, c in places(chosen) if isinstance(c, Chosen) and ":" in c.name]
        table = tomllib.loads(explain(chosen))
        told = {name: tomllib.loads(explain(model)) for name, model in models.items()}
        if told:
            table["models"] = {n: {k: v for k, v in t.items() if k not in INCIDENTAL} for n, t in told.items()}
        table = json.loads(json.dumps(table, default=str))  # as it will be read back: JSON has no dates
        return cls(table, {name: _digest(target) for name, target in own})

    def differs(self, before: Maker) -> Iterator[str]:
        """Yield what is not as it was, one line each."""
        if self.version != before.version:
            yield f"rewardsmith: {before.version} -> {self.version}"
        for path, change in changes(before.reward, self.reward).items():
            if not path.endswith(_PATIENCE):
                yield f"reward.{path}: {change}"
        for name, digest in self.code.items():
            if before.code.get(name, digest) != digest:
                yield f"the file of {name} has changed"


def _digest(target: Any) -> str:
    try:
        return hashlib.sha256(Path(inspect.getfile(target)).read_bytes()).hexdigest()
    except (OSError, TypeError):  # it has no file of its own
        return ""


def note_of(file: Path) -> Path:
    """Return the file that says what reward made the scores of another; only this package's own scores have one."""
    return file.with_name(f"{file.name}.made-by.json")


class KeptScores:
    """Scores on disk. Use it inside `open`.

    Args:
        file: where they go.
        maker: what makes them.
        sources: files that are read, which must not be written to.
        fresh: forget what is there.
    """

    def __init__(self, file: Path, maker: Maker, sources: list[Path], *, fresh: bool = False) -> None:
        self.file = file
        self._maker = maker
        self._fresh = fresh
        self._note = note_of(file)
        self._handle: IO[bytes] | None = None
        if file.is_dir() or not file.name:
            raise UserError(f"--out {str(file)!r} is a folder: name a file in it")
        if file.suffix.lower() == ".parquet":
            raise UserError(f"--out {str(file)!r}: scores are written as JSON lines; name a .jsonl file")
        for source in sources:
            if file.resolve() == source.resolve():
                raise UserError(f"--out {str(file)!r} is one of the files that are read: name another")
            if source.parent.name == "rollouts" and file.resolve().parent == source.resolve().parent:
                raise UserError(f"--out {str(file)!r} would become one of the run's own files: name another folder")

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the file, after cutting off a line that was not finished; a `UserError` if it is of another reward."""
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = self.file.open("ab+")
        try:
            self._lock(handle)
            self._take_over(handle)
            self._handle = handle
            yield
            with writing(self.file):
                os.fsync(handle.fileno())
        finally:
            with suppress(OSError):  # what could not be written has been reported by then
                handle.close()

    def _lock(self, handle: IO[bytes]) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is writing to {str(self.file)!r}: stop it, or name another file with --out"
            ) from None

    def _take_over(self, handle: IO[bytes]) -> None:
        size = handle.seek(0, os.SEEK_END)
        before = self._before() if size else None
        if size and before is None:
            raise UserError(
                f"{str(self.file)!r} is there already, and this command did not write it: name another file with --out"
            )
        if before is not None and not self._fresh:
            different = list(self._maker.differs(before))
            if different:
                lines = "\n".join(f"  {printable(line, 300)}" for line in different)
                raise UserError(
                    f"the scores in {str(self.file)!r} were made by another reward:\n{lines}\nTo go on, {ANEW}"
                )
        with writing(self.file):
            handle.truncate(0 if self._fresh else _complete(handle, size))
            if before is None or self._fresh:
                note = {"rewardsmith": self._maker.version, "reward": self._maker.reward, "code": self._maker.code}
                write_atomically(self._note, json.dumps(note, indent=2, ensure_ascii=False) + "\n")

    def _before(self) -> Maker | None:
        """Return what made the scores that are there; None when it was not this command."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            code = {str(name): str(digest) for name, digest in note["code"].items()}
            maker = Maker(dict(note["reward"]), code, str(note["rewardsmith"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"cannot read {str(self._note)!r} ({error!r}): remove it and {str(self.file)!r}") from None
        return maker

    def scores(self, stored: Iterator[Stored]) -> Iterator[tuple[Stored, ScoredGroup]]:
        """Yield the groups that have scores already, each beside what is read of it: the first ones of `stored`."""
        if not self.file.stat().st_size:
            return
        for place, line in jsonl_rows([self.file], limit=None, rng=None):
            where = f"{printable(str(self.file), 200)}, line {place.number}"
            read = next(stored, None)
            if read is None:
                raise UserError(f"{where}: there are fewer groups to score than scores: {ANEW}")
            try:
                row = parse_line(line)
                kept = from_json(GroupRecord, row).scored if "scored" in row else from_json(ScoredGroup, row)
            except (RowError, UserError) as error:
                raise UserError(f"{where}: {printable(str(error))}: {ANEW}") from None
            if kept.group != read.group:
                raise UserError(
                    f"{where} is about other rollouts than {read.place} (prompt"
                    f" {printable(kept.group.prompt.id, 100)} and {printable(read.group.prompt.id, 100)}):"
                    f" the rollouts, or the choice among them, have changed; {ANEW}"
                )
            yield read, kept

    def add(self, record: GroupRecord | ScoredGroup) -> None:
        """Write one more group."""
        assert self._handle is not None
        with writing(self.file):
            self._handle.write(f"{dumps(record)}\n".encode("utf-8", "backslashreplace"))
            self._handle.flush()


def _complete(handle: IO[bytes], size: int) -> int:
    """Return how many bytes there are up to the end of the last line that is complete."""
    end, step = size, 1 << 16
    while end > 0:
        start = max(0, end - step)
        handle.seek(start)
        at = handle.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
