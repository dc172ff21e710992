"""A model behind one or several OpenAI-compatible servers: it writes, rates or embeds, whatever it was started for."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.client import finding, payloads, replies
from rewardsmith.engines.client.faults import Fault
from rewardsmith.engines.client.finding import WORK_SECONDS, Finder
from rewardsmith.engines.client.probes import probe_replies, without_sampling
from rewardsmith.engines.client.sending import Reply, Request, Sender
from rewardsmith.engines.client.wire import Base
from rewardsmith.engines.settings import ClientSettings, ServerSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, Usage
from rewardsmith.masking import UnsetVariableError, resolved
from rewardsmith.types import Message

T = TypeVar("T")

_PROBES = [(Message("user", "1 + 1 ="), Message("assistant", text)) for text in ("2", "I do not know.")]


class ServedModel:
    """A model that servers have: `Asked`, `Rater` or `Embedder`, by `settings.serves`.

    It may be made anywhere; connections are opened when it is first used, in the event loop that uses it, and opened
    anew in another one. They are closed by `close`, or with the event loop.

    Args:
        settings: how it is spoken to.
        urls: base addresses; the load is shared among them.
        model: as the servers name it; None takes the only one that they have.
        name: what the recipe calls it.
        get_key: from the name of an environment variable to the API key in it.

    Attributes:
        name: what the recipe calls it.
        usage: what was asked of it so far.
    """

    def __init__(
        self,
        settings: ClientSettings,
        urls: Sequence[str],
        *,
        model: str | None = None,
        name: str = "model",
        get_key: Callable[[str], str | None] = os.environ.get,
    ) -> None:
        self.name = name
        self.usage = Usage()
        self._settings = settings
        self._get_key = get_key
        self._sender = Sender(settings, _bases(urls), self.key, self.usage, lambda: self._body()[1])
        self._finder = Finder(self._sender, settings, model, name)
        self._limit = "max_tokens"
        self._asleep: bool | None = None  # nobody knows: a run before this one may have let the servers sleep

    @classmethod
    def of(cls, settings: ServerSettings, *, name: str = "model") -> ServedModel:
        """Return the model of a `[models.NAME]` table of kind `server`."""
        return cls(settings, settings.urls, model=settings.model, name=name)

    def replace_urls(self, urls: Sequence[str], model: str | None = None) -> None:
        """Ask elsewhere from now on; what is in flight and fails is sent to the new addresses.

        Args:
            urls: base addresses.
            model: as the servers there name it; None leaves that as it is.
        """
        self._sender.bases = _bases(urls)
        self._finder.forget(model)

    @property
    def away(self) -> tuple[str, ...]:
        """Addresses that did not answer at the last check; the others do their work."""
        return self._finder.away

    async def identity(self) -> str:
        """Return what a cache knows it by: the model's name, its version, what each request says, and where it goes."""
        settings = self._settings
        known = {"model": await self._finder.model(), "version": settings.version, "body": settings.body}
        known["serves"] = settings.serves
        return json.dumps(known, sort_keys=True, ensure_ascii=False, default=str)

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return the replies of one of the servers to fixed probes; () where `version` says which weights these are.

        They are not counted in `usage`.

        Args:
            deadline: seconds for each request that asks for text.

        Raises:
            ModelCallError: there are none.
        """
        if self._settings.version:
            return ()
        settings = self._settings.model_copy(update={"body": without_sampling(self._settings.body)})
        urls = [str(base.url) for base in self._sender.bases]
        model = await self._finder.model()
        async with ServedModel(settings, urls, model=model, name=self.name, get_key=self._get_key) as probed:
            return await probe_replies(probed, settings.serves, deadline)

    async def check(self) -> None:
        """Raise if it cannot work: every address that answers must have the model, and one must answer."""
        try:
            await self._finder.check()
        except ModelCallError as error:
            remedy = "start the server, or correct urls"
            raise ModelCallError(error.kind, f"models.{self.name}: {error}: {remedy}", error.attempts) from None
        if self._settings.serves == "chat" or self._asleep:
            return
        if self._asleep is None and getattr(self._settings, "sleeps", False):
            await self.wake()
        try:
            if self._settings.serves == "embed":
                await self.embed(["1 + 1 = 2"])
            else:
                values = await self.rate(_PROBES)
                if values == [1.0, 1.0]:
                    raise ModelCallError("refused", "it gives 1 to everything: a softmax over one output")
        except ModelCallError as error:
            if error.kind in ("unreachable", "timeout"):
                raise
            raise UserError(f"models.{self.name}: {finding.REMEDY[self._settings.serves]}: {error}") from None

    async def close(self) -> None:
        """Close all connections. It may be used again."""
        await self._sender.close()

    async def __aenter__(self) -> ServedModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer.

        Raises:
            ModelCallError: there is none within the deadline.
        """
        chat = not isinstance(question.prompt, str)
        model = await self._named()
        request = Request(
            path="chat/completions" if chat else "completions",
            payload=lambda: payloads.question(question, model, self._limit, self._filled()),
            deadline=question.deadline,
            tokens=payloads.expected(question),
            mend=self._other_limit,
        )
        reply = await self._sender.call(
            request, lambda body: replies.written(body, chat=chat, logprobs=question.logprobs)
        )
        written = reply.value
        return ChatReply(
            text=written.text,
            truncated=written.truncated,
            thought=written.thought,
            prompt_tokens=reply.prompt_tokens,
            tokens=reply.tokens,
            logprobs=written.logprobs,
            seconds=reply.seconds,
            attempts=reply.attempts,
        )

    def _other_limit(self, fault: Fault, payload: Mapping[str, Any]) -> bool:
        """Newer servers know the token limit by another name, and say so."""
        if fault.status != 400 or "max_tokens" not in payload or "max_completion_tokens" not in str(fault):
            return False
        self._limit = "max_completion_tokens"
        return True

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one finite number for each conversation: the raw one, before any squashing, where a server gives it.

        Raises:
            ModelCallError: one of them has none.
        """
        model = await self._named()
        if self._settings.serves == "score":
            if any(conversation[-1].role != "assistant" for conversation in conversations):
                self.usage.failed += len(conversations)
                raise ModelCallError(
                    "refused",
                    'serves = "score" gives the number of the last message, and that is not the answer here: use a'
                    ' server that serves = "classify", or a model in this process',
                )
            batches = [
                self._score_batch(model, conversations[i : i + self._settings.batch])
                for i in range(0, len(conversations), self._settings.batch)
            ]
            return [value for values in await _all(batches) for value in values]
        return await _all([self._classify(model, conversation) for conversation in conversations])

    async def _classify(self, model: str, conversation: Conversation) -> float:
        body = payloads.classify(conversation, model, self._filled())
        size = payloads.size_of([conversation])
        reply = await self._call("classify", body, size, replies.classes, root=True)
        if len(reply.value) != 1:
            many = len(reply.value)
            raise ModelCallError("refused", f"the model has {many} classes: a reward needs one with a single output")
        return reply.value[0]

    async def _score_batch(self, model: str, conversations: Sequence[Conversation]) -> list[float]:
        body = payloads.score(conversations, model, self._filled())
        size = payloads.size_of(conversations)
        reply = await self._call(
            "score", body, size, lambda found: replies.scores(found, len(conversations)), root=True
        )
        return reply.value

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, [n, D].

        Raises:
            ModelCallError: one of them has none.
        """
        model = await self._named()
        step = self._settings.batch
        parts = await _all([self._embed_batch(model, texts[i : i + step]) for i in range(0, len(texts), step)])
        if len({part.shape[1] for part in parts}) > 1:
            raise ModelCallError("unparsable", "the vectors of one batch are longer than those of another")
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    async def _embed_batch(self, model: str, texts: Sequence[str]) -> NDArray[np.float32]:
        body = {"model": model, "input": list(texts), "encoding_format": "float", **self._filled().body}
        size = sum(map(len, texts))
        reply = await self._call("embeddings", body, size, lambda found: replies.vectors(found, len(texts)))
        return reply.value

    async def _call(
        self, path: str, body: Mapping[str, Any], size: int, read: Callable[[Any], T], *, root: bool = False
    ) -> Reply[T]:
        request = Request(path, lambda: body, self._settings.deadline, tokens=size / 4, root=root)
        return await self._sender.call(request, read)

    async def sleep(self) -> None:
        """Let the servers give their memory back; what they are asked meanwhile fails (vLLM)."""
        await self._finder.order("sleep?level=1", WORK_SECONDS)
        self._asleep = True

    async def wake(self) -> None:
        """Let the servers take their memory again (vLLM)."""
        await self._finder.order("wake_up", WORK_SECONDS)
        self._asleep = False

    async def _named(self) -> str:
        """Return the model's name; a user's mistake is no exception of a kind of its own here."""
        try:
            return await self._finder.model()
        except UserError as error:
            self.usage.failed += 1
            raise ModelCallError("refused", str(error)) from None
        except ModelCallError:
            self.usage.failed += 1
            raise

    def _body(self) -> tuple[dict[str, Any], list[str]]:
        """Return the further fields of each request, and the secrets among them.

        Raises:
            UserError: an environment variable that one of them names is not set.
        """
        try:
            body, secrets = resolved(self._settings.body, self._get_key)
        except UnsetVariableError as error:
            raise UserError(f"models.{self.name}.body: the environment variable {error} is not set: set it") from None
        return body, secrets

    def _filled(self) -> ClientSettings:
        """Return the settings with what is sent instead of the names of environment variables."""
        body, secrets = self._body()
        return self._settings.model_copy(update={"body": body}) if secrets else self._settings

    def key(self) -> str | None:
        """Return the API key, None if none is sent.

        Raises:
            UserError: it is not where the settings say, or cannot be sent.
        """
        variable = self._settings.key_from
        if variable is None:
            return None
        key = (self._get_key(variable) or "").strip()
        if not key:
            raise UserError(
                f"models.{self.name}.key_from: the environment variable {variable} is not set: "
                f"put the API key in it, or leave key_from out if the server needs none"
            )
        if not key.isascii() or not key.isprintable():
            raise UserError(f"models.{self.name}.key_from: what {variable} holds cannot be sent as a key")
        return key


def _bases(urls: Sequence[str]) -> list[Base]:
    if isinstance(urls, str) or not urls:
        raise UserError("a served model needs a list of at least one address")
    return [Base.of(url) for url in urls]


async def _all(tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results; the first failure ends the others."""
    if len(tasks) == 1:
        return [await tasks[0]]
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        return list(await asyncio.gather(*running))
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
