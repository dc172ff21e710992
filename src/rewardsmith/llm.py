"""What may be asked of a model, and what comes back: the seam between rewards and whatever runs a model.

Rewards know models by the names that a recipe gives them, and get them from the trainer (`Models`). A model answers
questions (`ChatModel`), gives a conversation a number (`Rater`), turns texts into vectors (`Embedder`), or gives the
log-probabilities of answers (`LogprobModel`); a server may do the first three. What cannot be answered is a
`ModelCallError` with a kind, never a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rewardsmith.types import FailureKind, Message, RolloutGroup

Conversation = Sequence[Message]


@dataclass(frozen=True)
class ChatRequest:
    """A request for one text.

    Attributes:
        prompt: a conversation, to which the model's chat template is applied; or text that is continued as it is.
        temperature: 0 is greedy.
        top_p: keep the likeliest tokens of this total probability.
        max_tokens: longest answer.
        stop: texts that end it; they are not part of it.
        seed: of the sampling, where a model takes one.
        attempt: which try this is, from 0. It changes nothing but the identity of the question: a cache that knows
            the answer to the first try does not know that to the second.
        logprobs: whether the log-probabilities of the answer's tokens are wanted.
        deadline: seconds from when it is first sent; waiting for a free place does not count.
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
    """What a model wrote.

    Attributes:
        text: the answer.
        truncated: whether the token limit ended it.
        thought: what it wrote before, where a server tells the two apart.
        prompt_tokens: tokens that it read; 0 where that is not known.
        tokens: tokens that it wrote; 0 where that is not known.
        logprobs: of the written tokens, if they were asked for.
        seconds: from when it was first sent.
        attempts: how often it was sent.
        cached: whether it was known already, and nobody was asked.
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
    """Raised by a model that has no answer; a reward that lets it pass has failed for that reason.

    Attributes:
        kind: why.
        attempts: how often it was tried.
    """

    def __init__(self, kind: FailureKind, detail: str, attempts: int = 1) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind
        self.attempts = attempts


@dataclass
class Usage:
    """What was asked of a model so far.

    Attributes:
        calls: requests that were answered.
        cached: questions that needed no request.
        retries: requests that were sent again.
        failed: questions that stayed without an answer.
        prompt_tokens: read by the model.
        tokens: written by it.
        seconds: waited for answers, all requests together.
        cost: in the currency of the prices that the recipe gives.
    """

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


@dataclass(frozen=True)
class ProbeReply:
    """What a model replies to a fixed probe: other weights reply something else.

    Attributes:
        text: what it wrote at temperature 0; "" for a model that gives numbers.
        numbers: probabilities of the written tokens, or scores, or a vector; () where there are none.
    """

    text: str = ""
    numbers: tuple[float, ...] = ()


class Model(Protocol):
    """A model that rewards may use.

    A model whose weights are not known may also have `fingerprint(deadline)`, which returns its replies to fixed
    probes, or () where its identity is enough. It raises `ModelCallError`.

    Attributes:
        name: what the recipe calls it.
        usage: what was asked of it so far.
    """

    name: str
    usage: Usage

    async def identity(self) -> str:
        """Return what a cache knows it by: other weights have another identity, another address has not."""
        ...

    async def check(self) -> None:
        """Raise if it cannot work: `UserError` for what a user must mend, `ModelCallError` while it is out of reach."""
        ...


class ChatModel(Model, Protocol):
    """A model that writes."""

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return its answer; raise `ModelCallError` if there is none."""
        ...


class Rater(Model, Protocol):
    """A model that gives a conversation, which ends with an answer, a number."""

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one finite number for each conversation; raise `ModelCallError` if it cannot be done."""
        ...


class Embedder(Model, Protocol):
    """A model that turns texts into vectors."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, [n, D]; raise `ModelCallError` if it cannot be done."""
        ...


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a model finds an answer, token by token.

    Attributes:
        logprobs: float32 [T], log-probability of each token at temperature 1, given the prompt and the tokens before.
        ends: int32 [T], how many characters of the answer's text there are up to the end of each token.
    """

    logprobs: NDArray[np.float32]
    ends: NDArray[np.int32]


class LogprobModel(Model, Protocol):
    """A model that says how likely it finds answers."""

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return what it makes of each rollout; raise `ModelCallError` if it cannot be done.

        A rollout that has tokens is read as these tokens; one that has none as the model would write its text. Without
        `adapter` the model is read with its adapter switched off.
        """
        ...


Models = Callable[[str], Any]
"""From the name of a model to the model."""


@dataclass
class UnconnectedModel:
    """Stands where a model will be: a reward that was made, but not given its models."""

    name: str
    usage: Usage = field(default_factory=Usage)

    def __getattr__(self, verb: str) -> Any:
        """Say what is missing."""
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

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return replies to fixed probes; () for a model whose identity is enough."""
        probe = getattr(self.model, "fingerprint", None)
        return () if probe is None else await probe(deadline)

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
        return await self.model.chat(question)  # type: ignore[no-any-return]

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one number for each conversation."""
        return await self.model.rate(conversations)  # type: ignore[no-any-return]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector for each text."""
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
    """Return the model inside all middleware, whose methods tell what it can do."""
    while isinstance(model, WrappedModel):
        model = model.model
    return model
