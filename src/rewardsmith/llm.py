"""Language models as rewards and data preparation use them: the protocols, and `Asker`, which sends requests.

Rewards know models by the names in a recipe and get them from the run (`Models`). A model writes text (`ChatModel`),
rates a conversation (`Rater`), embeds texts (`Embedder`) or returns log-probabilities (`LogprobModel`). A call without
a result raises `ModelCallError` with a kind; a failure is never a text or a number.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.config import Settings
from rewardsmith.errors import UserError
from rewardsmith.text.judge_replies import Unparsable, after_thinking
from rewardsmith.text.quoting import shortened
from rewardsmith.types import FailureKind, Message, RolloutGroup

T = TypeVar("T")
V = TypeVar("V")

Conversation = Sequence[Message]

# ---- requests and replies ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatRequest:
    """A request for one text.

    Attributes:
        prompt: a conversation, to which the model's chat template is applied; or text that is continued as it is.
        temperature: 0 is greedy.
        attempt: number of the try. It changes only the cache key: a cached first reply is not the second reply.
        deadline: seconds after it is first sent; waiting for a free connection does not count.
    """

    prompt: Conversation | str
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    seed: int = 0
    attempt: int = 0
    logprobs: bool = False
    deadline: float = 120.0


@dataclass(frozen=True)
class ChatReply:
    """What a model wrote; `truncated` by the token limit, `thought` before it where a server separates the two.

    It read `prompt_tokens`, 0 if unknown, and wrote `tokens`. `seconds` count from when it was first sent.
    """

    text: str
    truncated: bool = False
    thought: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    logprobs: tuple[float, ...] = ()
    seconds: float = 0.0
    attempts: int = 1
    cached: bool = False


class ModelCallError(Exception):
    """A model call without a usable result; `replies` is what the model wrote in all tries, for people."""

    def __init__(self, kind: FailureKind, detail: str, attempts: int = 1, replies: str = "") -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind
        self.attempts = attempts
        self.replies = replies


@dataclass
class Usage:
    """Totals of one model: `calls` have a reply, `failed` have none; `tokens` were written by the model."""

    calls: int = 0
    cached: int = 0
    retries: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def since(self, before: Usage) -> Usage:
        """Return what was added since a copy was taken."""
        return Usage(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


# ---- protocols -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeReply:
    """A model's reply to a fixed probe, which other weights would not give: text, probabilities, scores, a vector."""

    text: str = ""
    numbers: tuple[float, ...] = ()


class Model(Protocol):
    """A model that rewards may use.

    A model whose weights are unknown may also have `fingerprint(deadline)`, which returns its replies to fixed probes,
    or () where `identity` is enough. A cached model has `forget(requests)`, which removes replies from the cache.
    """

    name: str
    usage: Usage

    async def identity(self) -> str:
        """Return the cache key of the model: it changes with the weights, not with the address."""
        ...

    async def check(self) -> None:
        """Raise `UserError` for what a user must fix, and `ModelCallError` while the model is unreachable."""
        ...


class ChatModel(Model, Protocol):
    """A model that writes text."""

    async def chat(self, request: ChatRequest, /) -> ChatReply:
        """Return its reply, or raise `ModelCallError`."""
        ...


class Rater(Model, Protocol):
    """A model that gives a conversation, which ends with an answer, a number."""

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one finite number per conversation, or raise `ModelCallError`."""
        ...


class Embedder(Model, Protocol):
    """A model that maps texts to vectors."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a unit vector for each text, [n, D], or raise `ModelCallError`."""
        ...


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of a rollout's tokens at temperature 1, float32 [T]; `ends` are their last characters, [T]."""

    logprobs: NDArray[np.float32]
    ends: NDArray[np.int32]


class LogprobModel(Model, Protocol):
    """A model that returns the log-probabilities of answers."""

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return the log-probabilities of each rollout, or raise `ModelCallError`.

        A rollout without tokens is tokenised from its text. Without `adapter` the model's adapter is switched off.
        """
        ...


Models = Callable[[str], Any]
"""From the name of a model in the recipe to the model."""


@dataclass
class UnconnectedModel:
    """Placeholder of a model before `connect()`."""

    name: str
    usage: Usage = field(default_factory=Usage)

    def __getattr__(self, verb: str) -> Any:
        """Name the missing step."""
        raise RuntimeError(f"the reward has not been given its model {self.name!r}: call connect() first")


class WrappedModel:
    """Middleware around a model (cache, offload, printing): passes every call on; a subclass overrides some of them.

    Attributes:
        model: the wrapped model, any of this module; `name` and `usage` are its own.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name: str = model.name
        self.usage: Usage = model.usage

    @property
    def uncached(self) -> Any:
        """The same model without a cache; `self` if there is none."""
        return getattr(self.model, "uncached", self)

    @property
    def rates_together(self) -> bool:
        """Whether the numbers of one call depend on all that is in the call."""
        return bool(getattr(self.model, "rates_together", False))

    @property
    def away(self) -> tuple[str, ...]:
        """Server addresses that did not respond at the last check."""
        return getattr(self.model, "away", ())

    async def identity(self) -> str:
        """Return the model's identity."""
        return str(await self.model.identity())

    def during_call(self) -> AbstractAsyncContextManager[None]:
        """Return what is entered around each call of the model."""
        return nullcontext()

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return replies to fixed probes; () for a model whose identity is enough."""
        probe = getattr(self.model, "fingerprint", None)
        if probe is None:
            return ()
        async with self.during_call():
            return await probe(deadline)  # type: ignore[no-any-return]

    async def check(self) -> None:
        """Raise if the model cannot work."""
        await self.model.check()

    async def close(self) -> None:
        """Close the model, if it has something to close."""
        close = getattr(self.model, "close", None)
        if close is not None:
            await close()

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply."""
        async with self.during_call():
            return await self.model.chat(question)  # type: ignore[no-any-return]

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one number for each conversation."""
        async with self.during_call():
            return await self.model.rate(conversations)  # type: ignore[no-any-return]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector for each text."""
        async with self.during_call():
            return await self.model.embed(texts)  # type: ignore[no-any-return]

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return the log-probabilities of each rollout."""
        return await self.model.read(group, adapter=adapter)  # type: ignore[no-any-return]

    async def forget(self, questions: Sequence[ChatRequest]) -> None:
        """Remove replies from the cache, if there is one."""
        forget = getattr(self.model, "forget", None)
        if forget is not None:
            await forget(questions)


def unwrapped(model: Any) -> Any:
    """Return the model inside all middleware, whose methods are its abilities."""
    while isinstance(model, WrappedModel):
        model = model.model
    return model


# ---- requests until a reply parses ---------------------------------------------------------------------------------

MAX_REPLY_CHARS = 20_000
"""Characters of a reply that are kept for people."""

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Seconds between two requests to an unreachable server."""


class RequestSettings(Settings):
    """How a model is called."""

    temperature: float = Field(default=0.0, ge=0, description="of the first try; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling: total probability of the kept tokens")
    max_tokens: int = Field(default=2048, ge=1, description="token limit of a reply; a truncated reply is not parsed")
    seed: int = Field(default=0, ge=0, lt=2**31, description="sampling seed, for servers that accept one")
    tries: int = Field(default=3, ge=1, description="replies that may be unparsable or truncated until it is a failure")
    temperature_step: float = Field(default=0.3, ge=0, description="added to the temperature after each such reply")
    max_temperature: float = Field(default=1.0, ge=0, description="limit of the raised temperature")
    deadline: float = Field(default=120.0, gt=0, description="seconds for one parsed reply, all tries together")


@dataclass(frozen=True)
class Parsed(Generic[V]):
    """A reply that could be parsed: its value, its text without the reasoning, and `feedback`, all of it, for people.

    It took `attempts` replies; `prompt_tokens` and `tokens` are the sums over these.
    """

    value: V
    text: str
    feedback: str
    attempts: int = 1
    prompt_tokens: int = 0
    tokens: int = 0


class Asker:
    """Sends requests to one chat model until a reply can be parsed.

        asker = Asker(model, RequestSettings(temperature=0.7, max_tokens=4096), wait=300, log=print)
        parsed = await asker.request(messages, parse)        # parse(text) -> value, raises Unparsable(reason, detail)
        parsed.value, parsed.attempts, parsed.tokens
        votes = await asker.votes(messages, parse, 5)        # 5 requests at once, of which 3 or more must be parsed
        mean = sum(vote.value for vote in votes) / len(votes)

    A failure is a `ModelCallError` whose `kind` is `unparsable`, `invalid`, `truncated`, `timeout`, or the model's
    own. Replies that led to a failure are removed from the model's cache, so that the same request is sent again later.

    Args:
        model: a chat model, or its name, which `connect` resolves.
        wait: seconds to wait for an unreachable server. Judges leave it at 0: `failure.wait` covers the whole reward.
        log: receives one message when an outage begins and one when it ends.
    """

    def __init__(
        self,
        model: ChatModel | str,
        settings: RequestSettings,
        *,
        wait: float = 0.0,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.model: ChatModel = UnconnectedModel(model) if isinstance(model, str) else model
        self.settings = settings
        self._wait, self._log, self._outage = wait, log, False

    def connect(self, models: Models) -> None:
        """Replace the name of the model by the model."""
        self.model = models(self.model.name)

    async def request(
        self,
        messages: Conversation | str,
        parse: Callable[[str], V | Awaitable[V]],
        *,
        sample: int = 0,
        revise: Callable[[str, Unparsable], Conversation] | None = None,
    ) -> Parsed[V]:
        """Return the first reply that can be parsed.

        `parse` may be a coroutine function; its time does not count against the deadline. `sample` distinguishes
        requests with the same messages. `revise` returns the messages of the next try from the last reply ("" if
        truncated) and its error; without it the same messages are sent again.
        """
        left, prompt = self.settings.deadline, messages
        requests, replies, errors = list[ChatRequest](), list[ChatReply](), list[Unparsable]()
        try:
            while len(replies) < self.settings.tries and left > 0:
                requests.append(self._chat_request(prompt, len(replies), sample, left))
                replies.append(await (self.send(requests[-1]) if self._wait else self.model.chat(requests[-1])))
                left -= replies[-1].seconds
                text = ""
                try:
                    text = _complete(replies[-1], self.settings.max_tokens)
                    value = parse(text)
                    value = cast("V", await value if inspect.isawaitable(value) else value)
                except Unparsable as error:
                    errors.append(error)
                    prompt = prompt if revise is None else revise(text, error)
                else:
                    read, written = sum(one.prompt_tokens for one in replies), sum(one.tokens for one in replies)
                    return Parsed(value, text, _for_people(replies[-1]), len(replies), read, written)
            raise self._failure(replies[-1], errors[-1], timed_out=left <= 0)
        except UserError:
            raise
        except Exception as failure:  # of the model, or of `parse`
            if forget := getattr(self.model, "forget", None):
                await forget(requests)
            if not hasattr(failure, "kind"):  # the boundary of rewards knows the kinds of other exceptions
                raise
            attempts = max(getattr(failure, "attempts", 1), len(replies))
            notes = [
                f"[try {i}{f': {shortened(str(error), 300)}' if error else ''}]\n{_for_people(reply)}"
                for i, (reply, error) in enumerate(zip_longest(replies, errors), 1)
            ]
            raise ModelCallError(failure.kind, str(failure), attempts, joined_replies(notes)) from failure

    def _failure(self, last: ChatReply, error: Unparsable, *, timed_out: bool) -> ModelCallError:
        detail = f"{error}; it ends: {last.text[-300:]!r}"
        if timed_out:
            detail = f"no parsable reply within {self.settings.deadline:g} s; the last try: {detail}"
            return ModelCallError("timeout", detail)
        kind: FailureKind = "truncated" if last.truncated else "invalid" if error.invalid else "unparsable"
        return ModelCallError(kind, detail)

    async def votes(
        self, messages: Conversation | str, parse: Callable[[str], V | Awaitable[V]], count: int
    ) -> list[Parsed[V]]:
        """Send `count` requests at once and return the parsed replies, which must be more than half.

        Else the first failure is raised, or `unreachable` if one is: an outage is waited for.
        """
        found = await settle(self.request(messages, parse, sample=sample) for sample in range(count))
        parsed = [one for one in found if isinstance(one, Parsed)]
        if 2 * len(parsed) > count:
            return parsed
        errors = [one for one in found if isinstance(one, Exception)]
        cause = next((error for error in errors if getattr(error, "kind", "") == "unreachable"), errors[0])
        if not isinstance(cause, ModelCallError):
            raise cause
        notes = [
            f"[vote {i} of {count}]\n{one.feedback if isinstance(one, Parsed) else getattr(one, 'replies', '')}"
            for i, one in enumerate(found, 1)
        ]
        raise ModelCallError(cause.kind, str(cause), cause.attempts, joined_replies(notes))

    def _chat_request(self, prompt: Conversation | str, attempt: int, sample: int, left: float) -> ChatRequest:
        settings = self.settings
        raised = min(settings.max_temperature, settings.temperature + attempt * settings.temperature_step)
        number = sample * settings.tries + attempt
        return ChatRequest(
            prompt=prompt,
            temperature=max(settings.temperature, raised),
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            seed=settings.seed + number,
            attempt=number,
            deadline=left,
        )

    async def send(self, request: ChatRequest) -> ChatReply:
        """Send a request, again and again for `wait` seconds while the server is unreachable."""
        until, pause = None, FIRST_PAUSE
        while True:
            try:
                reply = await self.model.chat(request)
            except ModelCallError as error:
                until = until or time.monotonic() + self._wait
                left = until - time.monotonic()
                if error.kind != "unreachable" or left <= 0:
                    raise
                if not self._outage:
                    self._outage = True
                    self._log(f"the model {self.model.name} is unreachable, waiting up to {left:.0f} s: {error}")
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, MAX_PAUSE)
            else:
                if self._outage:
                    self._outage = False
                    self._log(f"the model {self.model.name} replies again")
                return reply


async def settle(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | Exception]:
    """Await all calls at once; return what each returned or raised, in order. A `UserError` stops the run."""
    return settled(await asyncio.gather(*calls, return_exceptions=True))


def settled(results: Sequence[Any]) -> list[Any]:
    """Return what a gather returned, cancelled calls as failures; raise the first `UserError`."""
    for one in results:
        if isinstance(one, UserError):
            raise one
    cancelled = ModelCallError("cancelled", "the call was cancelled")
    return [cancelled if isinstance(one, asyncio.CancelledError) else one for one in results]


def joined_replies(texts: Sequence[str]) -> str:
    """Join several replies for people, each cut so that all together stay within `MAX_REPLY_CHARS`."""
    limit = MAX_REPLY_CHARS // max(1, len(texts))
    return "\n\n".join(
        text if len(text) <= limit else f"{text[: limit // 2]}\n…\n{text[-limit // 2 :]}" for text in texts
    )


def _for_people(reply: ChatReply) -> str:
    text = f"<think>{reply.thought}</think>\n{reply.text}" if reply.thought else reply.text
    return shortened(text, MAX_REPLY_CHARS)


def _complete(reply: ChatReply, max_tokens: int) -> str:
    """Return a reply without its reasoning; `Unparsable` if it was truncated."""
    if not reply.truncated:
        return after_thinking(reply.text)
    detail = f"after {reply.tokens} tokens, max_tokens = {max_tokens}"
    if 0 < reply.tokens < 0.9 * max_tokens:
        detail += ": prompt and reply fill the model's context (max_length of a managed model); max_chars shows less"
    raise Unparsable("truncated", detail)
