"""The verdict cache file: one SQLite database of model replies, shared by all runs of a machine.

Any number of processes and threads may use it at once; each process has one writer thread. The cache never stops a run
that works: where it cannot be read or written, one message says so and the models are called instead.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from rewardsmith.errors import UserError

logger = logging.getLogger(__name__)

FILE = "verdicts.sqlite"

APPLICATION_ID = 0x52574D53
"""In the header of our files; files of other programs are refused."""

BUSY_SECONDS = 30.0
"""How long a writer waits for a writer of another process."""

RETRY_SECONDS = 60.0
"""Pause after a failed write: a full disk may be cleaned up while the run goes on."""

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS verdicts (
    key BLOB PRIMARY KEY, model TEXT NOT NULL, identity TEXT NOT NULL, verb TEXT NOT NULL, time INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, tokens INTEGER NOT NULL, value BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS fingerprints (
    identity TEXT PRIMARY KEY, base TEXT NOT NULL, time INTEGER NOT NULL, value BLOB NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
COMMIT;
"""

_SELECTED = "(?1 IS NULL OR model = ?1 OR identity = ?1) AND (?2 IS NULL OR time < ?2)"


@dataclass(frozen=True)
class CacheRow:
    """One packed reply; `time` in seconds since 1970, tokens 0 where unknown."""

    key: bytes
    model: str
    identity: str
    verb: str
    time: int
    prompt_tokens: int
    tokens: int
    value: bytes


@dataclass(frozen=True)
class CacheUsage:
    """What is stored for one model and verb; `bytes` are those of the packed replies, times in seconds since 1970."""

    model: str
    identity: str
    verb: str
    verdicts: int
    bytes: int
    prompt_tokens: int
    tokens: int
    oldest: int
    newest: int


def cache_folder() -> Path:
    """Return the default folder: $REWARDSMITH_CACHE, else `rewardsmith` in the user's cache folder."""
    if chosen := os.environ.get("REWARDSMITH_CACHE"):
        return Path(chosen).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "rewardsmith"


class VerdictCache:
    """Packed replies on disk by key; the file is opened when it is first needed."""

    def __init__(self, folder: Path | str | None = None, say: Callable[[str], object] = logger.warning) -> None:
        self.folder = cache_folder() if folder is None else Path(folder).expanduser()
        self.file = self.folder / FILE
        self._say = say
        self._messages: set[str] = set()
        self._opening, self._reading, self._writing = threading.Lock(), threading.Lock(), threading.Lock()
        self._open = False
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._next_write = 0.0  # on the monotonic clock
        self._thread: ThreadPoolExecutor | None = None

    def check(self) -> None:
        """Open the file; raise a `UserError` if it is damaged or belongs to another program."""
        with self._opening:
            if self._open:
                return
            with self._user_errors():
                self._connect()
            # Writing may wait for other processes or for the disk, and an event loop must not.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="verdicts")
            self._open = True

    def _connect(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder):
                self._writer = self._connection(str(self.file))
                self._writer.execute("PRAGMA journal_mode = WAL").fetchall()
                self._writer.execute("PRAGMA synchronous = NORMAL")
                tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
                if self._writer.execute(tables).fetchone()[0] < 2:
                    self._writer.executescript(_TABLES)
            self._reader = self._connection(str(self.file))
        except (OSError, sqlite3.OperationalError) as error:
            self._disconnect()
            # A disk that cannot be written has no place for the index of a write-ahead log: `immutable` needs none.
            for mode in ("mode=ro", "mode=ro&immutable=1"):
                with suppress(sqlite3.OperationalError):
                    self._reader = self._connection(f"{self.file.absolute().as_uri()}?{mode}", uri=True)
                    break
            use = "" if self._reader is None else "; those that it has are used"
            self.say_once(f"{self.file} cannot be written ({_reason(error)}): verdicts are not stored{use}")

    def _connection(self, file: str, *, uri: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(file, BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)
        try:
            (program,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and program != APPLICATION_ID:
                raise sqlite3.DatabaseError("it is a database of another program")
        except BaseException:
            connection.close()
            raise
        return connection

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def close(self) -> None:
        """Finish what is being written and close the file; it is opened again when it is needed."""
        if self._thread is not None:
            self._thread.shutdown()
        with self._opening, self._reading, self._writing:
            self._disconnect()
            self._open = False

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UserError(self._damaged(error)) from None

    def _damaged(self, error: Exception) -> str:
        return (
            f"{str(self.file)!r} is damaged or in use ({error}): remove it, and {FILE}-wal and {FILE}-shm next to it,"
            " or choose another folder with REWARDSMITH_CACHE or --folder"
        )

    def say_once(self, message: str) -> None:
        """Show a message, unless it was shown before."""
        if message not in self._messages:
            self._messages.add(message)
            self._say(message)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the packed replies of the keys that are known."""
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
            except sqlite3.Error as error:
                with self._writing:
                    self._disconnect()
                self.say_once(f"the run goes on without the verdict cache: {self._damaged(error)}")
        return found

    def keep(self, rows: Sequence[CacheRow]) -> dict[bytes, bytes]:
        """Store replies, all or none; return the packed replies that other processes stored first, which stay."""
        earlier: dict[bytes, bytes] = {}

        def write(writer: sqlite3.Connection) -> None:
            for row in rows:
                insert = "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
                if not writer.execute(insert, astuple(row)).rowcount:
                    found = writer.execute("SELECT value FROM verdicts WHERE key = ?", (row.key,))
                    earlier[row.key] = found.fetchone()[0]

        self._write(write)
        return earlier

    def keep_soon(self, rows: Sequence[CacheRow]) -> Future[dict[bytes, bytes]]:
        """Do what `keep` does in the writer thread."""
        self.check()
        assert self._thread is not None
        return self._thread.submit(self.keep, rows)

    def forget_soon(self, keys: Sequence[bytes]) -> None:
        """Remove replies in the writer thread."""
        self.check()
        assert self._thread is not None
        rows = [(key,) for key in keys]
        self._thread.submit(self._write, lambda writer: writer.executemany("DELETE FROM verdicts WHERE key = ?", rows))

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do some work in one transaction; where that is not possible, say so and do nothing."""
        self.check()
        with self._writing:
            if self._writer is None or time.monotonic() < self._next_write:
                return
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                work(self._writer)
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                self._next_write = time.monotonic() + RETRY_SECONDS
                self.say_once(f"verdicts are not stored until {self.file} can be written again: {_reason(error)}")
            finally:
                if self._writer.in_transaction:
                    with suppress(sqlite3.Error):
                        self._writer.execute("ROLLBACK")

    def weights(self, base: str) -> list[tuple[str, int, bytes]]:
        """Return (identity, time, packed probe replies) of the weights behind a base identity, the oldest first."""
        self.check()
        select = "SELECT identity, time, value FROM fingerprints WHERE base = ? ORDER BY time, identity"
        with self._reading, suppress(sqlite3.Error):
            return [] if self._reader is None else self._reader.execute(select, (base,)).fetchall()
        return []

    def keep_weights(self, identity: str, base: str, value: bytes) -> None:
        """Store newly probed weights."""
        insert = "INSERT INTO fingerprints VALUES (?, ?, ?, ?) ON CONFLICT (identity) DO NOTHING"
        self._write(lambda writer: writer.execute(insert, (identity, base, int(time.time()), value)))

    def size(self) -> int:
        """Return the bytes that the file and the log of SQLite take on the disk."""
        files = [self.file.with_name(FILE + ending) for ending in ("", "-wal", "-shm")]
        return sum(file.stat().st_size for file in files if file.exists())

    def contents(self, model: str | None = None, before: float | None = None) -> list[CacheUsage]:
        """Return what is stored by models of this name or identity, written `before` this time, the largest first."""
        if not self.file.exists():
            return []
        self.check()
        count = (
            "SELECT model, identity, verb, count(*), sum(length(value)), sum(prompt_tokens), sum(tokens), min(time),"
            f" max(time) FROM verdicts WHERE {_SELECTED} GROUP BY model, identity, verb"
            " ORDER BY sum(length(value)) DESC, model, identity, verb"
        )
        with self._reading, self._user_errors():
            if self._reader is None:
                raise UserError(f"cannot read {str(self.file)!r}: check its permissions")
            return [CacheUsage(*row) for row in self._reader.execute(count, (model, before))]

    def clear(self, model: str | None = None, before: float | None = None) -> int:
        """Remove replies, selected as by `contents`, and give the space back to the disk; return how many."""
        if not self.file.exists():
            return 0
        self.check()
        with self._writing, self._user_errors():
            if self._writer is None:
                raise UserError(f"cannot write to {str(self.file)!r}: check its permissions and the space on the disk")
            removed = self._writer.execute(f"DELETE FROM verdicts WHERE {_SELECTED}", (model, before)).rowcount
            self._writer.execute("DELETE FROM fingerprints WHERE identity NOT IN (SELECT identity FROM verdicts)")
            with suppress(sqlite3.OperationalError):  # another process is reading: it gives the space back when it ends
                self._writer.execute("VACUUM")
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return removed


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from creating the file at the same time, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
