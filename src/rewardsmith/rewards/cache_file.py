"""The file that keeps what models said: one SQLite database for all runs of a machine.

Any number of processes and threads may use it at the same time. It is a convenience and never a reason for a run to
fail: where it cannot be written to, that is told once, and the models are asked instead. Only a file that is not what
it should be is refused when it is opened, because a user must decide what becomes of it.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from rewardsmith.errors import UserError
from rewardsmith.rewards.cache_tables import (
    FILE,
    READ_BUSY,
    Fingerprint,
    Holding,
    Kept,
    alone_in,
    connected,
    damaged,
    prepared,
    read_only,
    said,
    shrink,
    to_users,
)

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds without an attempt to write, after one that failed: a full disk may be cleaned up while a run goes on."""

_row = attrgetter(*(field.name for field in fields(Kept)))

_CHOSEN = "(?1 IS NULL OR model = ?1 OR identity = ?1) AND (?2 IS NULL OR time < ?2)"


def cache_folder() -> Path:
    """Return where verdicts are kept: $REWARDSMITH_CACHE, else `rewardsmith` in the user's folder for caches."""
    if chosen := os.environ.get("REWARDSMITH_CACHE"):
        return Path(chosen).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (caches if caches.is_absolute() else Path.home() / ".cache") / "rewardsmith"
    except RuntimeError:
        raise UserError("there is no home folder to keep verdicts in: set REWARDSMITH_CACHE to a folder") from None


class VerdictCache:
    """Verdicts on disk, by the SHA-256 of their question. The file is opened when it is first needed.

    Args:
        folder: where the file is; None takes `cache_folder()`.
        say: called, once for each reason, when verdicts cannot be kept or read.

    Attributes:
        folder: where the file is.
        file: the database.
    """

    def __init__(self, folder: Path | str | None = None, say: Callable[[str], None] = logger.warning) -> None:
        self.folder = cache_folder() if folder is None else Path(folder).expanduser()
        self.file = self.folder / FILE
        self._say = say
        self._told: set[str] = set()
        self._left: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._reading, self._writing, self._opening = threading.Lock(), threading.Lock(), threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._open = False
        self._inode = 0  # of the file that is open
        self._write_again = 0.0  # by the monotonic clock
        self._pending: deque[tuple[Sequence[Kept], Future[dict[bytes, bytes]]]] = deque()
        self._soon = False  # whether the thread will look at them
        # Writing may wait for other processes or for the disk: an event loop lets this thread do it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    def _after_fork(self) -> None:
        if self._process != os.getpid():  # connections, locks and threads are the parent's: never close them here
            self._left += [self._reader, self._writer, self._thread]
            self._begin()

    def check(self) -> None:
        """Open the file.

        Raises:
            UserError: it is damaged, from a newer version, or of another program.
        """
        self._after_fork()
        with self._opening:
            if self._open:
                return
            with to_users(self.file):
                self._connect()
            self._open = True

    def _connect(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with alone_in(self.folder):
                if not self.file.exists():  # what lies beside belongs to a file that was removed
                    for ending in ("-wal", "-shm"):
                        self.file.with_name(FILE + ending).unlink(missing_ok=True)
                self._writer = prepared(self.file)
                self._inode = _inode(self.file)
            self._reader = connected(str(self.file), READ_BUSY)
        except (OSError, sqlite3.OperationalError) as error:
            self._reader = read_only(self.file)
            known = "" if self._reader is None else "; those that it has are used"
            self.say(f"{self.file} cannot be written to ({said(error)}): verdicts are not kept{known}")

    def _follow(self) -> None:
        """Open the file anew if another is in its place, or none: what is written to a removed file is lost."""
        if self._writer is None or self._inode == _inode(self.file):
            return
        with self._opening, self._reading, self._writing:
            self._disconnect()
            self.say(f"{self.file} was removed or replaced meanwhile: verdicts go to the one that is there now")
            try:
                with to_users(self.file):
                    self._connect()
            except UserError as error:
                self.say(f"the run goes on without kept verdicts: {error}")

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def find(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the packed answers of those keys that are known."""
        self.check()
        found: dict[bytes, bytes] = {}
        with self._reading:
            if self._reader is None:
                return found
            try:
                for key in keys:
                    row = self._reader.execute("SELECT value FROM verdicts WHERE key = ?", (key,)).fetchone()
                    if row is not None:
                        found[key] = row[0]
            except sqlite3.OperationalError as error:
                self.say(f"a verdict cannot be read from {self.file}; the model is asked: {error}")
            except sqlite3.DatabaseError as error:
                self._reader.close()
                self._reader, self._write_again = None, math.inf
                self.say(f"the run goes on without kept verdicts: {damaged(self.file, error)}")
        return found

    def fingerprints(self, base: str) -> list[Fingerprint]:
        """Return the fingerprints of models that are known by this apart from their weights, the oldest first."""
        self.check()
        select = "SELECT identity, base, time, value FROM fingerprints WHERE base = ? ORDER BY time, identity"
        with self._reading:
            try:
                rows = [] if self._reader is None else self._reader.execute(select, (base,)).fetchall()
            except sqlite3.Error:  # an older file that cannot be written to has none
                rows = []
        return [Fingerprint(*row) for row in rows]

    def keep_fingerprint(self, new: Fingerprint) -> None:
        """Store a fingerprint, unless it is known."""
        insert = "INSERT INTO fingerprints VALUES (?, ?, ?, ?) ON CONFLICT (identity) DO NOTHING"
        self._write(lambda writer: writer.execute(insert, (new.identity, new.base, new.time, new.value)))

    def keep(self, verdicts: Sequence[Kept]) -> dict[bytes, bytes]:
        """Store verdicts, all or none; return the packed answers of those that were known already, and stay."""
        insert = "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
        earlier: dict[bytes, bytes] = {}

        def work(writer: sqlite3.Connection) -> None:
            for verdict in verdicts:
                if not writer.execute(insert, _row(verdict)).rowcount:
                    found = writer.execute("SELECT value FROM verdicts WHERE key = ?", (verdict.key,))
                    earlier[verdict.key] = found.fetchone()[0]

        self._write(work)
        return earlier

    def keep_soon(self, verdicts: Sequence[Kept]) -> Future[dict[bytes, bytes]]:
        """Return at once what `keep` will give, which is done in a thread; what comes meanwhile is written together."""
        self._after_fork()
        future: Future[dict[bytes, bytes]] = Future()
        self._pending.append((verdicts, future))
        if not self._soon:
            self._soon = True
            self._thread.submit(self._keep_pending)
        return future

    def _keep_pending(self) -> None:
        self._soon = False  # before they are taken: what comes from now on needs another round
        pending = [self._pending.popleft() for _ in range(len(self._pending))]
        waiting = [future for _, future in pending if future.set_running_or_notify_cancel()]
        if not pending:
            return
        try:
            earlier = self.keep([verdict for verdicts, _ in pending for verdict in verdicts])
        except BaseException as error:  # noqa: BLE001 it belongs to those who wait
            for future in waiting:
                future.set_exception(error)
        else:
            for future in waiting:
                future.set_result(earlier)

    def forget_soon(self, keys: Sequence[bytes], packed: bytes | None = None) -> None:
        """Remove verdicts, in a thread; with a packed answer only those that have it: a new one may have come."""
        delete = "DELETE FROM verdicts WHERE key = ? AND value = coalesce(?, value)"
        rows = [(key, packed) for key in keys]
        self._thread.submit(self._write, lambda writer: writer.executemany(delete, rows))

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do some work in one transaction; where that is not possible, say so and do nothing."""
        self.check()
        self._follow()
        with self._writing:
            writer = self._writer
            if writer is None or time.monotonic() < self._write_again:
                return
            try:
                writer.execute("BEGIN IMMEDIATE")
                work(writer)
                writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._write_again = max(self._write_again, time.monotonic() + PAUSE)
                self.say(f"verdicts are not kept until {self.file} can be written to again: {said(error)}")
            finally:
                if writer.in_transaction:
                    with suppress(sqlite3.Error):
                        writer.execute("ROLLBACK")

    def say(self, message: str) -> None:
        """Say something to the user, unless it was said before."""
        if message not in self._told:
            self._told.add(message)
            self._say(message)

    def size(self) -> int:
        """Return the bytes that the file and what SQLite keeps beside it take on the disk."""
        beside = [self.file.with_name(FILE + ending) for ending in ("", "-wal", "-shm")]
        return sum(path.stat().st_size for path in beside if path.exists())

    def holdings(self, model: str | None = None, before: float | None = None) -> list[Holding]:
        """Return what is kept, for each model and verb, the largest first.

        Args:
            model: only of the model with this name or identity.
            before: only what was written earlier, in seconds since 1970.

        Raises:
            UserError: the file cannot be read.
        """
        if not self.file.exists():
            return []
        self.check()
        count = (
            "SELECT model, identity, verb, count(*), sum(length(value)), sum(prompt_tokens), sum(tokens), min(time),"
            f" max(time) FROM verdicts WHERE {_CHOSEN} GROUP BY model, identity, verb"
            " ORDER BY sum(length(value)) DESC, model, identity, verb"
        )
        with self._reading, to_users(self.file):
            if self._reader is None:
                raise UserError(f"cannot read {str(self.file)!r}: see that this user may")
            return [Holding(*row) for row in self._reader.execute(count, (model, before))]

    def clear(self, model: str | None = None, before: float | None = None) -> int:
        """Remove verdicts and give the space back to the disk; return how many went.

        Args:
            model: only of the model with this name or identity.
            before: only what was written earlier, in seconds since 1970.

        Raises:
            UserError: the file cannot be written to.
        """
        if not self.file.exists():
            return 0
        self.check()
        with self._writing, to_users(self.file):
            if self._writer is None:
                raise UserError(
                    f"cannot write to {str(self.file)!r}: see that this user may, and that the disk has room"
                )
            gone = self._writer.execute(f"DELETE FROM verdicts WHERE {_CHOSEN}", (model, before)).rowcount
            self._writer.execute("DELETE FROM fingerprints WHERE identity NOT IN (SELECT identity FROM verdicts)")
            try:
                self._writer.execute("VACUUM")
                shrink(self._writer)
            except sqlite3.OperationalError as error:
                self.say(f"the verdicts are gone, but their space stays with {self.file} for new ones: {error}")
            return gone

    def close(self) -> None:
        """Finish what is being written and close the file; it is opened again when it is needed."""
        if self._process == os.getpid():
            self._thread.shutdown()
            with self._opening, self._reading, self._writing:
                self._disconnect()
        self._begin()


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except OSError:
        return 0
