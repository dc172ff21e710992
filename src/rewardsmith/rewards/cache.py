"""Nothing is asked twice: a model whose answers are kept on disk.

A question is known by the SHA-256 of all that the answer depends on: the model's identity, the messages, how the
answer is sampled, and which attempt it is. A run that is resumed or replayed gets the same answers, those that cannot
be read included, and so goes the same way. Failures are never kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, Usage
from rewardsmith.rewards.cache_file import VerdictCache, cache_folder
from rewardsmith.rewards.cache_packing import ASK, EMBED, MOST, RATE, Unpackable, Verb, encoded
from rewardsmith.rewards.cache_tables import Holding, Kept
from rewardsmith.rewards.cache_weights import Weights

V = TypeVar("V")

FORMAT = 1
"""Part of every key: a change in what is kept, or in what a key is made of, makes all older verdicts unknown."""

PROBE_SECONDS = 120.0
"""Seconds for a probe where a question does not say."""

MOST_TOKENS = 2**40
"""A server may claim any number of tokens; the sum over all answers must stay a number that SQLite knows."""


def key_of(
    identity: str,
    verb: str,
    prompt: Conversation | str,
    question: ChatRequest | None = None,
    *,
    call: Set[bytes] = frozenset(),
) -> bytes:
    """Return what an answer is known by: 32 bytes that depend on all that the answer depends on.

    Args:
        identity: of the model.
        verb: what is asked of it: `ask`, `rate` or `embed`.
        prompt: a conversation or a text.
        question: how an answer is to be written; its deadline is left out, because it changes no answer.
        call: keys of all that is asked in the same call, where the answer depends on these.
    """
    asked: dict[str, Any] = {"format": FORMAT, "model": identity, "verb": verb}
    if call:
        asked["call"] = hashlib.sha256(b"".join(sorted(call))).hexdigest()
    asked["prompt"] = prompt if isinstance(prompt, str) else [[turn.role, turn.content] for turn in prompt]
    if question is not None:
        asked |= {
            "temperature": float(question.temperature) + 0.0,  # -0.0 is 0.0
            "top_p": float(question.top_p),
            "max_tokens": int(question.max_tokens),
            "stop": list(question.stop),
            "seed": int(question.seed),
            "attempt": int(question.attempt),
            "logprobs": bool(question.logprobs),
        }
    return hashlib.sha256(encoded(asked)).digest()


@dataclass(frozen=True)
class _Request(Generic[V]):
    """What a call wants of a model.

    Attributes:
        verb: what is asked.
        identity: of the model.
        send: from keys to the answers of the model, in order.
        deadline: seconds that it may take.
    """

    verb: Verb[V]
    identity: str
    send: Callable[[Sequence[bytes]], Awaitable[Sequence[V]]]
    deadline: float = math.inf


@dataclass
class _Flight(Generic[V]):
    """A request that is under way, for all who want its answers.

    Attributes:
        task: gives the answers by key, after they were kept.
        keys: of all its questions.
        deadline: seconds that it was given.
        waiting: how many wait for it; when the last one has gone, it is cancelled.
    """

    task: asyncio.Task[dict[bytes, V]]
    keys: frozenset[bytes]
    deadline: float
    waiting: int = 0

    def speaks_for(self, keys: Set[bytes], deadline: float) -> bool:
        """Whether its failure is that of a call with these keys too: it holds no others, and had as much time."""
        return self.keys <= keys and self.deadline >= deadline

    def failed(self) -> bool:
        """Whether it has ended without answers."""
        return self.task.cancelled() or self.task.exception() is not None


async def _landed(flights: Iterable[_Flight[Any]]) -> None:
    """Wait until all have ended, well or not. Who stops waiting takes with him the requests that nobody else wants."""
    flights = list(flights)
    for flight in flights:
        flight.waiting += 1
    try:
        await asyncio.wait({flight.task for flight in flights})
    finally:
        for flight in flights:
            flight.waiting -= 1
        unwanted = {flight.task for flight in flights if not flight.waiting and not flight.task.done()}
        for task in unwanted:
            task.cancel()
        if unwanted:
            await asyncio.wait(unwanted)


class Cached:
    """A model that looks up what it has said before, and asks only for the rest.

    The same question asked twice at the same time is asked once. Where two processes ask it at the same time, the
    answer that was kept first counts for both. All else (`sleep`, `wake`, `close` …) is the model's own.

    Args:
        model: any of `rewardsmith.llm`.
        cache: where its answers are kept.

    Attributes:
        name: the model's.
        usage: the model's; here `cached` is counted.
        uncached: the model itself, which is asked anew each time.
    """

    def __init__(self, model: Any, cache: VerdictCache) -> None:
        self._model = self.uncached = model
        self._cache = cache
        self._weights = Weights(model, cache)
        self._flights: dict[bytes, _Flight[Any]] = {}
        self.name: str = model.name
        self.usage: Usage = model.usage

    def __getattr__(self, name: str) -> Any:
        """Return what only the model has."""
        if name == "_model":  # a copy that is being made has nothing yet
            raise AttributeError(name)
        return getattr(self._model, name)

    async def identity(self) -> str:
        """Return what the model is known by."""
        return str(await self._model.identity())

    async def check(self) -> None:
        """Raise if the cache is damaged or the model cannot work."""
        await asyncio.to_thread(self._cache.check)
        await self._model.check()
        self._weights.forget()

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer; one that was known took no time, and says that it is `cached`."""
        identity = await self._identified(question.deadline)
        key = key_of(identity, "chat", question.prompt, question)

        async def send(_: Sequence[bytes]) -> list[ChatReply]:
            return [await self._model.chat(question)]

        found, sent = await self._answers(_Request(ASK, identity, send, question.deadline), [key])
        return found[key] if sent else replace(found[key], cached=True)

    async def forget(self, questions: Sequence[ChatRequest]) -> None:
        """Remove the answers to questions that led to no verdict: a judge that was mended is asked anew."""
        with suppress(ModelCallError):
            identity = await self._identified()
            self._cache.forget_soon([key_of(identity, "chat", question.prompt, question) for question in questions])

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return a number for each conversation; only those that are not known are asked for."""
        identity = await self._identified()
        keys = self._keys(identity, "rate", conversations)
        by_key = dict(zip(keys, conversations, strict=True))

        async def send(wanted: Sequence[bytes]) -> list[float]:
            sent = self._sent(wanted, by_key)
            found = dict(zip(sent, await self._model.rate([by_key[key] for key in sent]), strict=True))
            return [found[key] for key in wanted]

        found, _ = await self._answers(_Request(RATE, identity, send), keys)
        return [found[key] for key in keys]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector for each text, [n, D]; only those that are not known are asked for."""
        if not texts:  # only the model knows how long its vectors are
            return np.asarray(await self._model.embed(texts), np.float32)
        identity = await self._identified()
        keys = self._keys(identity, "embed", texts)
        by_key = dict(zip(keys, texts, strict=True))

        async def send(wanted: Sequence[bytes]) -> list[NDArray[np.float32]]:
            sent = self._sent(wanted, by_key)
            vectors = np.asarray(await self._model.embed([by_key[key] for key in sent]), np.float32)
            found = dict(zip(sent, vectors, strict=True))
            return [found[key] for key in wanted]

        found, _ = await self._answers(_Request(EMBED, identity, send), keys)
        return np.stack([found[key] for key in keys])

    def _keys(self, identity: str, verb: str, items: Sequence[Conversation | str]) -> list[bytes]:
        """Return the keys of what is asked in one call; the whole call is part of them where numbers depend on it."""
        keys = [key_of(identity, verb, item) for item in items]
        if not getattr(self._model, "rates_together", False):
            return keys
        return [key_of(identity, verb, item, call=frozenset(keys)) for item in items]

    def _sent(self, wanted: Sequence[bytes], call: Iterable[bytes]) -> list[bytes]:
        """Return for which keys of a call the model is asked: those that are wanted, or all that belong together."""
        return list(call) if getattr(self._model, "rates_together", False) else list(wanted)

    async def _identified(self, deadline: float = PROBE_SECONDS) -> str:
        """Return what the model is known by; a user's mistake is no exception of a kind of its own here."""
        try:
            self._cache.check()
            return await self._weights.identity(await self.identity(), deadline)
        except UserError as error:
            self.usage.failed += 1
            raise ModelCallError("refused", str(error)) from None
        except ModelCallError:
            self.usage.failed += 1
            raise

    async def _answers(self, request: _Request[V], keys: Sequence[bytes]) -> tuple[dict[bytes, V], int]:
        """Return the answer to each key, and for how many of them the model was asked by this call."""
        wanted = frozenset(keys)
        found = self._known(request.verb, keys)
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        asked, any_flight = 0, True
        while missing:
            under_way = {key: flight for key in missing if (flight := self._under_way(key)) is not None}
            others = {k: f for k, f in under_way.items() if any_flight or f.speaks_for(wanted, request.deadline)}
            sent = [key for key in missing if key not in others]
            own = [self._start(request, sent)] if sent else []
            await _landed([*own, *others.values()])
            for flight in own:
                found |= flight.task.result()
            asked += len(sent)
            # Again: what shared a request with questions that are not ours, had less time, or was given up.
            missing = [
                key
                for key, f in others.items()
                if f.task.cancelled() or (f.failed() and not f.speaks_for(wanted, request.deadline))
            ]
            found |= {key: others[key].task.result()[key] for key in others.keys() - set(missing)}
            any_flight = False  # else those who have ever more time would fail one after the other
        self.usage.cached += len(keys) - asked
        return found, asked

    def _known(self, verb: Verb[V], keys: Sequence[bytes]) -> dict[bytes, V]:
        found = {}
        for key, packed in self._cache.find(dict.fromkeys(keys)).items():
            try:
                found[key] = verb.unpack(packed)
            except Unpackable:
                self._cache.forget_soon([key], packed)
        return found

    def _under_way(self, key: bytes) -> _Flight[Any] | None:
        flight = self._flights.get(key)
        if flight is None or flight.task.done() or flight.task.cancelling():
            return None
        return flight if flight.task.get_loop() is asyncio.get_running_loop() else None

    def _start(self, request: _Request[V], keys: Sequence[bytes]) -> _Flight[V]:
        flight = _Flight(asyncio.create_task(self._fetched(request, keys)), frozenset(keys), request.deadline)
        self._flights |= dict.fromkeys(keys, flight)

        def landed(_: asyncio.Task[dict[bytes, V]]) -> None:
            flight.failed()  # it was looked at: asyncio need not report a failure that nobody waits for any more
            for key in keys:
                if self._flights.get(key) is flight:
                    del self._flights[key]

        flight.task.add_done_callback(landed)
        return flight

    async def _fetched(self, request: _Request[V], keys: Sequence[bytes]) -> dict[bytes, V]:
        """Ask the model and keep what it says; where another process was faster, return what that one kept."""
        answers = dict(zip(keys, await request.send(keys), strict=True))
        kept = [row for key, answer in answers.items() if (row := self._kept(request, key, answer)) is not None]
        if kept:
            earlier = await asyncio.wrap_future(self._cache.keep_soon(kept))
            with suppress(Unpackable):
                answers |= {key: request.verb.unpack(earlier[key]) for key in answers.keys() & earlier.keys()}
        return answers

    def _kept(self, request: _Request[V], key: bytes, answer: V) -> Kept | None:
        verb, packed = request.verb.name, request.verb.pack(answer)
        if packed is None:
            self._cache.say(f"an answer of {self.name} is not kept: it has more than {MOST} bytes, or is not finite")
            return None
        read, written = (answer.prompt_tokens, answer.tokens) if isinstance(answer, ChatReply) else (0, 0)
        return Kept(
            key=key,
            model=_text(self.name),
            identity=_text(request.identity),
            verb=verb,
            time=int(time.time()),
            prompt_tokens=min(max(int(read), 0), MOST_TOKENS),
            tokens=min(max(int(written), 0), MOST_TOKENS),
            value=packed,
        )


def _text(text: str) -> str:
    """Return text that can be stored as such, whatever it is."""
    return text.encode("utf-8", "backslashreplace").decode()


__all__ = ["Cached", "Holding", "VerdictCache", "cache_folder", "key_of"]
