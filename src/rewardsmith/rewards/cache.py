"""The verdict cache: model replies on disk, so that nothing is computed twice.

The key is the SHA-256 of everything that a reply depends on: the model's identity, the messages, the sampling settings
and the attempt. A resumed or replayed run gets the same replies, unparsable ones included. Failures are never stored.

A served model may have other weights behind the same name. It gets a few fixed probes when it is first used and after
each `check`; replies that are like stored ones identify the weights of that time, all others are new weights.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, WrappedModel

V = TypeVar("V")

FORMAT = 2
"""Part of every key: a change of what is packed or of what a key is made of makes all older replies unknown."""

FILE = "verdicts.sqlite"

BUSY_SECONDS = 30.0
"""How long a writer waits for a writer of another process."""

RETRY_SECONDS = 60.0
"""Pause after a failed write: a full disk may be cleaned up while the run goes on."""

PROBE_SECONDS = 120.0
"""Deadline of a probe where the request has none."""

TOLERANCE = 0.03
"""Probe numbers are alike if the length of their difference is at most this share of the longer one."""

MAX_TOKENS = 2**40
"""A server may claim any number of tokens; their sum must fit an SQLite integer."""

_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS verdicts (
    key BLOB PRIMARY KEY, model TEXT NOT NULL, identity TEXT NOT NULL, verb TEXT NOT NULL, time INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, tokens INTEGER NOT NULL, value BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS fingerprints (
    identity TEXT PRIMARY KEY, base TEXT NOT NULL, time INTEGER NOT NULL, value BLOB NOT NULL
);
"""
_VALUE = "SELECT value FROM verdicts WHERE key = ?"
_SELECTED = "(?1 IS NULL OR model = ?1 OR identity = ?1) AND (?2 IS NULL OR time < ?2)"

# Not as ASCII: two halves of a surrogate pair would become the same escapes as the letter that they make.
_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def cache_folder() -> Path:
    """Return the default folder: $REWARDSMITH_CACHE, else `rewardsmith` in the user's cache folder."""
    if chosen := os.environ.get("REWARDSMITH_CACHE"):
        return Path(chosen).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path("~/.cache").expanduser()) / "rewardsmith"


# ---- the file -------------------------------------------------------------------------------------------------------


class CacheRow(NamedTuple):
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


class VerdictCache:
    """Packed replies by key, in one SQLite file that any number of threads and processes may use at once.

    The file is opened when it is first needed. One thread of each process writes: writing may wait for other processes
    or for the disk, and an event loop must not. The cache never ends a run that works: where it cannot be read or
    written, one message is logged and the models are called instead.
    """

    def __init__(self, folder: Path | str | None = None, log: Callable[[str], object] | None = None) -> None:
        self.folder = cache_folder() if folder is None else Path(folder).expanduser()
        self.file = self.folder / FILE
        self._log = log or logging.getLogger(__name__).warning
        self._messages: set[str] = set()
        self._opening, self._reading = threading.Lock(), threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._next_write = 0.0  # on the monotonic clock

    def log_once(self, message: str) -> None:
        """Log a message, unless it was logged before."""
        if message not in self._messages:
            self._messages.add(message)
            self._log(message)

    def check(self) -> ThreadPoolExecutor:
        """Open the file and return the writer thread; raise a `UserError` if the file is damaged."""
        with self._opening:
            if self._thread is None:
                with self._user_errors():
                    self._connect()
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="verdicts")
            return self._thread

    def _connect(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder):
                self._writer = _connection(str(self.file))
                self._writer.executescript(_TABLES)
            self._reader = _connection(str(self.file))
        except (OSError, sqlite3.OperationalError) as error:
            self._disconnect()
            # A disk that cannot be written has no place for the index of a write-ahead log: `immutable` needs none.
            for mode in ("mode=ro", "mode=ro&immutable=1"):
                with suppress(sqlite3.OperationalError):
                    self._reader = _connection(f"{self.file.absolute().as_uri()}?{mode}", uri=True)
                    self._reader.execute("SELECT count(*) FROM verdicts").fetchone()
                    break
                self._disconnect()
            use = "" if self._reader is None else "; those that it has are used"
            self.log_once(f"{self.file} cannot be written ({error}): verdicts are not stored{use}")

    def close(self) -> None:
        """Finish what is being written and close the file; it is opened again when it is needed."""
        with self._opening, self._reading:
            if self._thread is not None:
                self._thread.shutdown()
            self._disconnect()
            self._thread = None

    def _disconnect(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

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

    def find(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the packed replies of the keys that are known."""
        self.check()
        with self._reading:
            if self._reader is None:
                return {}
            try:
                rows = {key: self._reader.execute(_VALUE, (key,)).fetchone() for key in keys}
            except sqlite3.Error as error:
                self._reader = self._writer = None
                self.log_once(f"the run goes on without the verdict cache: {self._damaged(error)}")
                return {}
            return {key: row[0] for key, row in rows.items() if row is not None}

    def keep(self, rows: Sequence[CacheRow]) -> Future[dict[bytes, bytes]]:
        """Store replies, all or none; the result has those that other processes stored first, which stay."""

        def insert(writer: sqlite3.Connection) -> dict[bytes, bytes]:
            writer.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            stored = {row: writer.execute(_VALUE, (row.key,)).fetchone()[0] for row in rows}
            return {row.key: value for row, value in stored.items() if value != row.value}

        return self.check().submit(self._write, insert, {})

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove replies."""
        delete = "DELETE FROM verdicts WHERE key = ?"
        self.check().submit(self._write, lambda writer: writer.executemany(delete, [(key,) for key in keys]), None)

    def _write(self, work: Callable[[sqlite3.Connection], V], otherwise: V) -> V:
        """Return the result of some work in one transaction; where it is not possible, log that and do nothing."""
        writer = self._writer
        if writer is None or time.monotonic() < self._next_write:
            return otherwise
        try:
            with writer:
                writer.execute("BEGIN IMMEDIATE")
                return work(writer)
        except sqlite3.Error as error:
            self._next_write = time.monotonic() + RETRY_SECONDS
            self.log_once(f"verdicts are not stored until {self.file} can be written again: {error}")
            return otherwise

    def weights(self, base: str) -> list[tuple[str, int, bytes]]:
        """Return (identity, time, packed probe replies) of the weights behind a base identity, the oldest first."""
        self.check()
        select = "SELECT identity, time, value FROM fingerprints WHERE base = ? ORDER BY time, identity"
        with self._reading, suppress(sqlite3.Error):
            return [] if self._reader is None else self._reader.execute(select, (base,)).fetchall()
        return []

    def keep_weights(self, identity: str, base: str, value: bytes) -> None:
        """Store newly probed weights."""
        insert, row = (
            "INSERT OR IGNORE INTO fingerprints VALUES (?, ?, ?, ?)",
            (identity, base, int(time.time()), value),
        )
        self.check().submit(self._write, lambda writer: writer.execute(insert, row), None).result()

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
        with self._user_errors():
            return self.check().submit(self._clear, model, before).result()

    def _clear(self, model: str | None, before: float | None) -> int:
        if self._writer is None:
            raise UserError(f"cannot write to {str(self.file)!r}: check its permissions and the space on the disk")
        removed = self._writer.execute(f"DELETE FROM verdicts WHERE {_SELECTED}", (model, before)).rowcount
        self._writer.execute("DELETE FROM fingerprints WHERE identity NOT IN (SELECT identity FROM verdicts)")
        with suppress(sqlite3.OperationalError):  # another process is reading: it gives the space back when it ends
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return removed


def _connection(file: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(file, BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)


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


# ---- the model ------------------------------------------------------------------------------------------------------


def key_of(
    identity: str,
    verb: str,
    prompt: Conversation | str,
    request: ChatRequest | None = None,
    *,
    batch: Collection[bytes] = (),
) -> bytes:
    """Return the 32-byte key of a reply; `batch` has the keys of the whole call, where the reply depends on these.

    The deadline of a request is left out, because it changes no reply.
    """
    parts: dict[str, Any] = {"format": FORMAT, "model": identity, "verb": verb}
    if batch:
        parts["batch"] = hashlib.sha256(b"".join(sorted(set(batch)))).hexdigest()
    parts["prompt"] = prompt if isinstance(prompt, str) else [[message.role, message.content] for message in prompt]
    if request is not None:
        parts |= {
            "temperature": float(request.temperature) + 0.0,  # -0.0 is 0.0
            "top_p": float(request.top_p),
            "max_tokens": int(request.max_tokens),
            "stop": list(request.stop),
            "seed": int(request.seed),
            "attempt": int(request.attempt),
            "logprobs": bool(request.logprobs),
        }
    return hashlib.sha256(_encoded(parts)).digest()


@dataclass
class _Flight:
    """A call that is under way, and how many wait for it; when the last one leaves, it is cancelled."""

    task: asyncio.Task[Any]
    waiting: int = 0


class CachedModel(WrappedModel):
    """A model that looks up its replies, and is called only for the rest.

    The same request at the same time is sent once. Where two processes send it at the same time, the reply that is
    stored first counts for both.
    """

    def __init__(self, model: Any, cache: VerdictCache) -> None:
        super().__init__(model)
        self.cache = cache
        self._identities: dict[str, str] = {}  # from the model's own to the one that includes the probed weights
        self._flights: dict[Hashable, _Flight] = {}

    @property
    def uncached(self) -> Any:
        """The model itself, which is called each time."""
        return self.model

    async def check(self) -> None:
        """Raise if the cache is damaged or the model cannot work; its weights are probed again after this."""
        await asyncio.to_thread(self.cache.check)
        await super().check()
        self._identities = {}

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply; a stored one took no time and is marked `cached`."""
        identity = await self._cache_identity(question.deadline)
        key = key_of(identity, "chat", question.prompt, question)
        if packed := self.cache.find([key]).get(key):
            self.usage.cached += 1
            return _unpack_reply(packed)

        async def send() -> ChatReply:
            reply: ChatReply = await self.model.chat(question)
            row = self._row(key, identity, "chat", _pack_reply(reply), reply.prompt_tokens, reply.tokens)
            earlier = await asyncio.wrap_future(self.cache.keep([row]))
            return _unpack_reply(earlier[key]) if key in earlier else reply

        # A failure is shared too, but only by those who gave the call as much time.
        reply, first = await self._join(("chat", key, question.deadline), send)
        if first:
            return reply
        self.usage.cached += 1
        return replace(reply, cached=True)

    async def forget(self, questions: Sequence[ChatRequest]) -> None:
        """Remove the replies to requests that led to no verdict, so that a fixed judge is called again."""
        with suppress(ModelCallError):
            identity = await self._cache_identity()
            self.cache.forget([key_of(identity, "chat", question.prompt, question) for question in questions])

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return a number for each conversation; only unknown ones are sent."""

        async def send(items: Sequence[Any]) -> NDArray[np.float64]:
            return np.array(await self.model.rate(items), np.float64)[:, None]

        return [float(number) for (number,) in await self._batch("rate", conversations, send, np.float64)]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector for each text, [n, D]; only unknown ones are sent."""

        async def send(items: Sequence[Any]) -> NDArray[np.float32]:
            return np.asarray(await self.model.embed(items), np.float32)

        if not texts:  # only the model knows the length of its vectors
            return await send(texts)
        return np.stack(await self._batch("embed", texts, send, np.float32))

    async def _batch(
        self, verb: str, items: Sequence[Any], send: Callable[[Sequence[Any]], Awaitable[NDArray[Any]]], dtype: type
    ) -> list[NDArray[Any]]:
        """Return an array for each item: the stored one, or the model's."""
        identity = await self._cache_identity()
        keys = [key_of(identity, verb, item) for item in items]
        if self.rates_together:
            keys = [key_of(identity, verb, item, batch=keys) for item in items]
        item_of = dict(zip(keys, items, strict=True))
        found: dict[bytes, NDArray[Any]] = {
            key: np.frombuffer(packed, dtype) for key, packed in self.cache.find(item_of).items()
        }
        missing = tuple(key for key in item_of if key not in found)

        async def fetch() -> dict[bytes, NDArray[Any]]:
            sent = list(item_of) if self.rates_together else list(missing)
            values = dict(zip(sent, await send([item_of[key] for key in sent]), strict=True))
            rows = [self._row(key, identity, verb, values[key].tobytes()) for key in missing]
            earlier = await asyncio.wrap_future(self.cache.keep(rows))
            return values | {key: np.frombuffer(packed, dtype) for key, packed in earlier.items()}

        first = False
        if missing:
            values, first = await self._join((verb, missing), fetch)
            found |= {key: values[key] for key in missing}
        self.usage.cached += len(keys) - len(missing) * first
        return [found[key] for key in keys]

    async def _join(self, call: Hashable, send: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """Return the result of a call, which is sent once for all who wait for it, and whether this one sent it."""
        place = (asyncio.get_running_loop(), call)
        first = place not in self._flights
        if first:
            self._flights[place] = _Flight(asyncio.ensure_future(send()))
        flight = self._flights[place]
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), first
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                del self._flights[place]
                if not flight.task.done():
                    flight.task.cancel()
                    await asyncio.wait({flight.task})
                if not flight.task.cancelled():
                    flight.task.exception()  # nobody may be left to look at it

    def _row(self, key: bytes, identity: str, verb: str, value: bytes, read: int = 0, written: int = 0) -> CacheRow:
        read, written = (min(max(int(count), 0), MAX_TOKENS) for count in (read, written))
        return CacheRow(key, _storable(self.name), _storable(identity), verb, int(time.time()), read, written, value)

    async def _cache_identity(self, deadline: float = PROBE_SECONDS) -> str:
        """Return the identity under which replies are stored: the model's own, and which weights were probed."""
        try:
            self.cache.check()
            base = await self.identity()
            if base not in self._identities:
                self._identities[base], _ = await self._join(("probe", base), lambda: self._probe(base, deadline))
            return self._identities[base]
        except (UserError, ModelCallError) as error:
            self.usage.failed += 1
            raise error if isinstance(error, ModelCallError) else ModelCallError("refused", str(error)) from None

    async def _probe(self, base: str, deadline: float) -> str:
        try:
            replies = await self.fingerprint(deadline)
        except ModelCallError as error:
            if error.kind != "refused":
                raise
            self.cache.log_once(
                f"models.{self.name}: the server refuses the probes by which the verdict cache notices other weights."
                f" Set models.{self.name}.version, and change it with the weights. Its reply: {str(error)[:300]}"
            )
            return f"unprobed:{base}"
        return await asyncio.to_thread(self._recognize, base, replies) if replies else base

    def _recognize(self, base: str, replies: Sequence[ProbeReply]) -> str:
        """Return the identity of the stored weights whose probe replies are like these; if there are none, store these.

        Text is stored as a hash.
        """
        replies = [replace(reply, text=_hashed(reply.text)) for reply in replies]
        known = self.cache.weights(_storable(base))
        for identity, _, value in known:
            if alike([ProbeReply(text, tuple(numbers)) for text, numbers in json.loads(value)], replies):
                return identity
        value = _encoded([[reply.text, [round(number, 6) for number in reply.numbers]] for reply in replies])
        identity = f"probed-{hashlib.sha256(value).hexdigest()[:12]}:{_storable(base)}"
        self.cache.keep_weights(identity, _storable(base), value)
        unused = sum(one.verdicts for other, _, _ in known for one in self.cache.contents(other))
        if unused:
            day = datetime.fromtimestamp(max(when for _, when, _ in known)).strftime("%Y-%m-%d %H:%M")
            self.cache.log_once(
                f"warning: models.{self.name}: the server's replies to fixed probes are not those of {day}: there seem"
                f" to be other weights behind the same name. The {unused:,} verdicts of the others are not used. If the"
                f" weights are the same, and the replies vary by themselves, set models.{self.name}.version: then there"
                " are no probes"
            )
        return identity


def alike(one: Sequence[ProbeReply], other: Sequence[ProbeReply]) -> bool:
    """Whether two lists of probe replies come from the same weights, but for the noise of batches and kernels.

    Texts must be equal and numbers close. One of four replies may differ: where two tokens are almost equally likely,
    noise decides.
    """
    return len(one) == len(other) and sum(map(_differ, one, other)) <= len(one) // 4


def _differ(one: ProbeReply, other: ProbeReply) -> bool:
    if one.text != other.text:
        return True
    if not one.numbers or not other.numbers:
        return not one.text
    if len(one.numbers) != len(other.numbers):
        return True
    distance = math.dist(one.numbers, other.numbers)
    return distance > TOLERANCE * max(math.hypot(*one.numbers), math.hypot(*other.numbers))


def _encoded(value: object) -> bytes:
    return _JSON.encode(value).encode("utf-8", "surrogatepass")


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else ""


def _pack_reply(reply: ChatReply) -> bytes:
    fields = {
        "text": reply.text,
        "truncated": bool(reply.truncated),
        "thought": reply.thought,
        "prompt_tokens": int(reply.prompt_tokens),
        "tokens": int(reply.tokens),
        "logprobs": [float(number) for number in reply.logprobs],
    }
    return zlib.compress(_encoded(fields), 1)


def _unpack_reply(packed: bytes) -> ChatReply:
    fields = json.loads(zlib.decompress(packed).decode("utf-8", "surrogatepass"))
    return ChatReply(**fields | {"logprobs": tuple(fields["logprobs"]), "cached": True})


def _storable(text: str) -> str:
    """Return text that SQLite can store: a server may claim any name."""
    return text.encode("utf-8", "backslashreplace").decode()
