"""The tables of the verdict cache: what they hold, and how a file with them is opened or refused."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rewardsmith.errors import UserError

FILE = "verdicts.sqlite"
SCHEMA = 1
"""Version of the tables; a file with a higher one was written by a newer program."""

OURS = 0x52574D53
"""What SQLite calls the application id: tells our files from those of other programs."""

BUSY = 30.0
"""Seconds that a writer waits for another one."""

READ_BUSY = 5.0
"""Seconds that a reader waits, which it must only while another process puts the file in order after a crash."""

SHRINK = 3.0
"""Seconds during which space is asked back, while other processes are using the file."""

_TABLES = """
CREATE TABLE verdicts (
    key BLOB PRIMARY KEY, model TEXT NOT NULL, identity TEXT NOT NULL, verb TEXT NOT NULL, time INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, tokens INTEGER NOT NULL, value BLOB NOT NULL
)"""

_FINGERPRINTS = """
CREATE TABLE IF NOT EXISTS fingerprints (
    identity TEXT PRIMARY KEY, base TEXT NOT NULL, time INTEGER NOT NULL, value BLOB NOT NULL
)"""
"""Came later than the other table: files without it get it."""


@dataclass(frozen=True)
class Fingerprint:
    """By which the weights behind the name of a served model are known again.

    Attributes:
        identity: under which their verdicts are kept.
        base: what the model is known by apart from its weights.
        time: when it was first seen, in seconds since 1970.
        value: the packed replies to the probes.
    """

    identity: str
    base: str
    time: int
    value: bytes


@dataclass(frozen=True)
class Kept:
    """What is kept of one question.

    Attributes:
        key: SHA-256 of all that the answer depends on.
        model: what the recipe called the model.
        identity: what the model is known by.
        verb: what was asked of it: `ask`, `rate` or `embed`.
        time: when it was written, in seconds since 1970.
        prompt_tokens: that the model read; 0 where that is not known.
        tokens: that it wrote; 0 where that is not known.
        value: the packed answer.
    """

    key: bytes
    model: str
    identity: str
    verb: str
    time: int
    prompt_tokens: int
    tokens: int
    value: bytes


@dataclass(frozen=True)
class Holding:
    """What is kept of one model.

    Attributes:
        model: what the recipe called it.
        identity: what it is known by.
        verb: what was asked of it.
        verdicts: how many.
        bytes: of the packed answers.
        prompt_tokens: that the model read for them.
        tokens: that it wrote.
        oldest: when the first one was written, in seconds since 1970.
        newest: when the last one was.
    """

    model: str
    identity: str
    verb: str
    verdicts: int
    bytes: int
    prompt_tokens: int
    tokens: int
    oldest: int
    newest: int


def connected(file: str, timeout: float, *, uri: bool = False) -> sqlite3.Connection:
    """Return a connection that waits so many seconds for others, and begins no transaction by itself."""
    return sqlite3.connect(file, timeout=timeout, isolation_level=None, check_same_thread=False, uri=uri)


def prepared(file: Path) -> sqlite3.Connection:
    """Return a connection that writes to a file with our tables."""
    connection = connected(str(file), BUSY)
    try:
        _refuse_others(connection, file)
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        if _version(connection) == 0:
            connection.execute("BEGIN IMMEDIATE")
            if _version(connection) == 0:  # else another process was faster
                connection.execute(_TABLES)
                connection.execute(f"PRAGMA application_id = {OURS}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        connection.execute(_FINGERPRINTS)
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_others(connection: sqlite3.Connection, file: Path) -> None:
    connection.execute("BEGIN")  # three looks at one state: another process may be making the tables
    version = _version(connection)
    (program,) = connection.execute("PRAGMA application_id").fetchone()
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    connection.execute("COMMIT")
    elsewhere = "name another folder, in REWARDSMITH_CACHE or in the command"
    if program != OURS and not (empty and version == 0):
        raise UserError(f"{str(file)!r} is a database of another program: {elsewhere}")
    if version > SCHEMA:
        newer = f"was written by a newer rewardsmith (format {version}; this one knows {SCHEMA})"
        raise UserError(f"{str(file)!r} {newer}: use that one, or {elsewhere}")


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work side by side."""
    give_up = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)  # another process does the same; here SQLite does not wait by itself


def shrink(connection: sqlite3.Connection) -> None:
    """Give the space of a file that was just put together anew back to the disk; raise if others do not let it."""
    give_up = time.monotonic() + SHRINK
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # it was busy
        if time.monotonic() > give_up:
            raise sqlite3.OperationalError("another process is using it, and gives the space back when it ends")
        time.sleep(0.02)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes that want the same out of a folder, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a process that was forked has it open too
        os.close(handle)


def read_only(file: Path) -> sqlite3.Connection | None:
    """Return a connection to a file that cannot be written to, if it can at least be read."""
    # A disk that cannot be written to has no place for the index of a log either, and needs none if there is no log.
    logged = (log := file.with_name(f"{FILE}-wal")).exists() and log.stat().st_size > 0
    for how in ("mode=ro", *(() if logged else ("mode=ro&immutable=1",))):
        with suppress(sqlite3.OperationalError, OSError):
            connection = connected(f"{file.absolute().as_uri()}?{how}", READ_BUSY, uri=True)
            try:
                _refuse_others(connection, file)
                connection.execute("SELECT key FROM verdicts LIMIT 1").fetchall()
            except BaseException:
                connection.close()
                raise
            return connection
    return None


@contextmanager
def to_users(file: Path) -> Iterator[None]:
    """Turn what SQLite says of a file into what a user reads."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UserError(f"cannot use {str(file)!r}: {said(error)}") from None
    except sqlite3.DatabaseError as error:
        raise UserError(damaged(file, error)) from None


def said(error: Exception) -> str:
    """Return what went wrong, without numbers and names that a user has no use for."""
    return str(getattr(error, "strerror", None) or error)


def damaged(file: Path, error: Exception) -> str:
    """Return what a user reads about a file that cannot be mended."""
    beside = f"remove it, and {FILE}-wal and {FILE}-shm beside it"
    return f"{str(file)!r} is damaged ({error}): {beside}, or name another folder. What it knew is asked anew"
