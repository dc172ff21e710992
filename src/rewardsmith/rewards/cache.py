"""Model middleware that stores replies on disk, so that nothing is computed twice.

The key is the SHA-256 of everything that a reply depends on: the model's identity, the messages, the sampling settings
and the attempt. A resumed or replayed run gets the same replies, unparsable ones included. Failures are never stored.

A served model may have other weights behind the same name. It gets a few fixed probes when it is first used and after
each `check`; replies that are like stored ones identify the weights of that time, all others are new weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, WrappedModel
from rewardsmith.rewards.cache_file import CacheRow, CacheUsage, VerdictCache, cache_folder

V = TypeVar("V")

FORMAT = 2
"""Part of every key: a change of what is packed or of what a key is made of makes all older replies unknown."""

PROBE_SECONDS = 120.0
"""Deadline of a probe where the request has none."""

TOLERANCE = 0.03
"""Probe numbers are alike if the length of their difference is at most this share of the longer one."""

MAX_TOKENS = 2**40
"""A server may claim any number of tokens; their sum must fit an SQLite integer."""

# Not as ASCII: two halves of a surrogate pair would become the same escapes as the letter that they make.
_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _encoded(value: object) -> bytes:
    return _JSON.encode(value).encode("utf-8", "surrogatepass")


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
            earlier = await asyncio.wrap_future(self.cache.keep_soon([row]))
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
            self.cache.forget_soon([key_of(identity, "chat", question.prompt, question) for question in questions])

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
            earlier = await asyncio.wrap_future(self.cache.keep_soon(rows))
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
        flight, first = self._flights.get(place), False
        if flight is None:
            flight, first = _Flight(asyncio.ensure_future(send())), True
            self._flights[place] = flight
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
        except UserError as error:
            self.usage.failed += 1
            raise ModelCallError("refused", str(error)) from None
        except ModelCallError:
            self.usage.failed += 1
            raise

    async def _probe(self, base: str, deadline: float) -> str:
        try:
            replies = [_digest(reply) for reply in await self.fingerprint(deadline)]
        except ModelCallError as error:
            if error.kind != "refused":
                raise
            self.cache.say_once(
                f"models.{self.name}: the server refuses the probes by which the verdict cache notices other weights."
                f" Set models.{self.name}.version, and change it with the weights. Its reply: {str(error)[:300]}"
            )
            return f"unprobed:{base}"
        return await asyncio.to_thread(self._recognize, base, replies) if replies else base

    def _recognize(self, base: str, replies: Sequence[ProbeReply]) -> str:
        """Return the identity of the stored weights whose probe replies are like these; if there are none, store these.

        Text is stored as a hash.
        """
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
            self.cache.say_once(
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
    if len(one) != len(other):
        return False
    return sum(not _same(a, b) for a, b in zip(one, other, strict=True)) <= len(one) // 4


def _same(one: ProbeReply, other: ProbeReply) -> bool:
    if one.text != other.text:
        return False
    if not one.numbers or not other.numbers:
        return bool(one.text)
    if len(one.numbers) != len(other.numbers):
        return False
    distance = math.dist(one.numbers, other.numbers)
    return distance <= TOLERANCE * max(math.hypot(*one.numbers), math.hypot(*other.numbers))


def _digest(reply: ProbeReply) -> ProbeReply:
    data = reply.text.encode("utf-8", "surrogatepass")
    return replace(reply, text=hashlib.sha256(data).hexdigest()) if data else reply


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


__all__ = ["CacheUsage", "CachedModel", "VerdictCache", "alike", "cache_folder", "key_of"]
