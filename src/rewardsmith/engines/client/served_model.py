"""A model behind one or several OpenAI-compatible servers: it writes, rates or embeds, by `settings.serves`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from yarl import URL

from rewardsmith.engines.client import replies
from rewardsmith.engines.client.conversation_tokens import ConversationTokens
from rewardsmith.engines.client.dispatcher import Dispatcher, ServerReply
from rewardsmith.engines.client.probes import probe_replies, without_sampling
from rewardsmith.engines.client.replies import ABSENT, parse_models
from rewardsmith.engines.client.server_sleep import ServerSleep
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.http.http_client import Endpoint
from rewardsmith.http.request_errors import RequestError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, Usage
from rewardsmith.masking import UnsetVariableError, resolved
from rewardsmith.types import Message

T = TypeVar("T")

LIST_TIMEOUT = 30.0  # seconds in which a server must list its models
ATTEMPTS, PAUSE = 3, 0.5  # of these requests, which need no slot

_CHECKED = [(Message("user", "1 + 1 ="), Message("assistant", text)) for text in ("2", "I do not know.")]
_REMEDY = {
    "classify": "the server does not rate conversations (vLLM: a sequence-classification model, --runner pooling;"
    " SGLang: --is-embedding)",
    "score": "the server does not score pairs of texts (vLLM: a cross-encoder, --runner pooling)",
    "embed": "the server does not embed texts (vLLM: an embedding model, --runner pooling; SGLang: --is-embedding)",
}


class ServedModel:
    """A `ChatModel`, `Rater` or `Embedder` on servers.

    Connections are opened by the first call in an event loop. They are closed by `close`, or with the event loop.
    Without `model`, the servers have only one.
    """

    def __init__(
        self, settings: ClientSettings, urls: Sequence[str], *, model: str | None = None, name: str = "model"
    ) -> None:
        self.name = name
        self.usage = Usage()
        self.away: tuple[str, ...] = ()  # addresses that did not respond at the last check, while others did
        self._settings = settings
        self._dispatcher = Dispatcher(
            settings, _endpoints(urls), lambda: (self.key(), self._extra_fields()[1]), self.usage
        )
        self._model = model
        self._discovered: str | None = None
        self._discovery: asyncio.Task[str] | None = None
        self._limit_field = "max_tokens"
        self._tokens = ConversationTokens(settings, model, name)
        self._sleep = ServerSleep(self, settings.api)
        # None: unknown, an earlier run may have left vLLM asleep.
        self._asleep: bool | None = False if settings.api == "sglang" else None

    def replace_urls(self, urls: Sequence[str], model: str | None = None) -> None:
        """Use other servers from now on; requests in flight that fail are sent to the new ones."""
        self._dispatcher.endpoints = _endpoints(urls)
        self._discovered = None
        self._model = model or self._model
        self.forget_sleep()

    async def identity(self) -> str:
        """Return the model's identity in the cache: its name, version, verb, and the extra fields of requests."""
        settings = self._settings
        known = {"model": await self._model_name(), "version": settings.version, "body": settings.body}
        return json.dumps(known | {"serves": settings.serves}, sort_keys=True, ensure_ascii=False, default=str)

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return the replies to fixed probes, not counted in `usage`; () where `version` names the weights."""
        if self._settings.version:
            return ()
        settings = self._settings.model_copy(update={"body": without_sampling(self._settings.body)})
        urls = [str(endpoint.url) for endpoint in self._dispatcher.endpoints]
        async with ServedModel(settings, urls, model=await self._model_name(), name=self.name) as probed:
            return await probe_replies(probed, settings.serves, deadline)

    async def check(self) -> None:
        """Raise if it cannot work: an address must respond, and each that does must have the model."""
        try:
            await self._discover()
        except ModelCallError as error:
            remedy = "start the server, or correct urls"
            raise ModelCallError(error.kind, f"models.{self.name}: {error}: {remedy}", error.attempts) from None
        serves, offload = self._settings.serves, getattr(self._settings, "offload", False)
        if offload:
            await _all([self._sleep.check(endpoint) for endpoint in self._dispatcher.endpoints])
        if serves == "chat" or self._asleep:
            return
        if self._asleep is None and offload:
            await self.wake()
        try:
            if serves == "embed":
                await self.embed(["1 + 1 = 2"])
            elif await self.rate(_CHECKED) == [1.0, 1.0]:
                raise ModelCallError("refused", "it rates everything 1: a softmax over one output")
        except ModelCallError as error:
            if error.kind in ("unreachable", "timeout"):
                raise
            raise UserError(f"models.{self.name}: {_REMEDY[serves]}: {error}") from None

    async def close(self) -> None:
        """Close all connections. The model may be used again. SGLang servers do not stay asleep."""
        if self._sleep.sleepers:
            with suppress(ModelCallError, UserError):
                await self.wake()
        await self._dispatcher.close()

    async def __aenter__(self) -> ServedModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sleep(self) -> None:
        """Let the servers release their device memory; calls fail until `wake`."""
        await self._set_sleeping(True)

    async def wake(self) -> None:
        """Let the servers take their device memory again."""
        await self._set_sleeping(False)

    def forget_sleep(self) -> None:
        """Take the servers to be awake: they are others, or about to be stopped."""
        self._sleep.sleepers.clear()

    async def _set_sleeping(self, asleep: bool) -> None:
        await _all([self._sleep.move(endpoint, asleep=asleep) for endpoint in self._dispatcher.endpoints])
        self._asleep = asleep

    # ---- which model the servers have ------------------------------------------------------------------------------

    async def _model_name(self) -> str:
        """Return the model's name; if it is not set, query the servers once for all callers."""
        known = self._model or self._discovered
        if known is not None:
            return known
        task = self._discovery
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._discovery = asyncio.ensure_future(self._discover())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was retrieved
        return await asyncio.shield(task)

    async def _discover(self) -> str:
        """Return the model's name; raise unless an address responds, and all that do have the same model."""
        await self._dispatcher.http()
        pool = self._dispatcher.pool()
        results = await asyncio.gather(*(self._list(address.endpoint) for address in pool.addresses))
        errors: dict[str, RequestError] = {}
        found: dict[str, str] = {}
        for address, result in zip(pool.addresses, results, strict=True):
            where = address.endpoint.shown
            if isinstance(result, RequestError):
                address.cool_down(asyncio.get_running_loop().time())
                errors[where] = result
            else:
                address.end_cooldown()
                found.setdefault(self._choose(where, result), where)
        pool.serve()
        self.away = tuple(errors)
        if not found:
            raise ModelCallError("unreachable", "; ".join(map(str, errors.values())))
        if len(found) > 1:
            each = ", ".join(f"{where} has {model!r}" for model, where in found.items())
            raise UserError(f"models.{self.name}: the addresses serve different models: {each}: set model")
        self._discovered = next(iter(found))
        return self._discovered

    def _choose(self, url: str, served: Sequence[str] | None) -> str:
        where = f"models.{self.name}.model: {url}"
        if self._model is not None:
            if served is not None and self._model not in served:
                hint = nearest(self._model, served)
                raise UserError(f"{where} has no model {self._model!r}.{hint} It has: {listing(served)}")
            return self._model
        if served is None or len(served) != 1:
            many = "does not list its models" if served is None else f"has {len(served)} models: {listing(served)}"
            raise UserError(f"{where} {many}: set model to one of them")
        return served[0]

    async def _list(self, endpoint: Endpoint) -> list[str] | RequestError | None:
        """Return the models of an address, None if it has no list, or the error of an address that may come back."""
        try:
            return await self.request(endpoint, endpoint.at("models"), parse_models, LIST_TIMEOUT, attempts=ATTEMPTS)
        except RequestError as error:
            if error.retryable and error.kind != "unparsable":
                return error
            remedy = ""
            if error.status in ABSENT:
                try:
                    await self.request(endpoint, endpoint.at("v1/models"), parse_models, LIST_TIMEOUT)
                except RequestError:  # many services list no models, and have paths of their own
                    return None
                remedy = f"; did you mean {endpoint.shown}/v1?"
            if error.status in (401, 403):
                key = self._settings.api_key_env
                remedy = f"; check the key in {key}" if key else "; set api_key_env to a variable with the key"
            raise UserError(f"models.{self.name}: {error}{remedy}") from None

    async def request(
        self,
        endpoint: Endpoint,
        url: URL,
        parse: Callable[[Any], T],
        timeout: float,
        *,
        payload: Mapping[str, Any] | None = None,
        attempts: int = 1,
    ) -> T:
        """Send a request outside the slots; a temporary error is retried, unless the server is gone."""
        http = await self._dispatcher.http()
        until = asyncio.get_running_loop().time() + timeout
        for left in reversed(range(attempts)):
            try:
                return await http.send(endpoint, url, payload, parse, until)
            except RequestError as error:
                if not left or not error.retryable or error.unreachable or error.kind == "timeout":
                    raise
                await asyncio.sleep(min(error.retry_after or PAUSE, 5.0))
        raise AssertionError("the last attempt returns or raises")

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply to a conversation, or its continuation of a text.

        Fields without effect are left out of the request: some servers refuse unknown ones.
        """
        prompt, chat = question.prompt, not isinstance(question.prompt, str)
        body: dict[str, Any] = {self._limit_field: question.max_tokens, "temperature": question.temperature}
        body |= {"prompt": prompt} if isinstance(prompt, str) else {"messages": _messages(prompt)}
        if question.temperature > 0:
            body["seed"] = question.seed
        if question.top_p < 1:
            body["top_p"] = question.top_p
        if question.stop:
            body["stop"] = list(question.stop)
        if question.logprobs:
            body["logprobs"] = True if chat else 1
        path = "chat/completions" if chat else "completions"
        parse = partial(replies.parse_completion, chat=chat, logprobs=question.logprobs)
        try:
            reply = await self._call(path, body, parse, question.deadline)
        except ModelCallError as error:
            if "max_tokens" not in body or "max_completion_tokens" not in str(error):
                raise
            self._limit_field = "max_completion_tokens"  # newer servers refuse the old name, and name the new one
            self.usage.failed -= 1
            return await self.chat(question)
        value = replace(reply.value, prompt_tokens=reply.prompt_tokens, tokens=reply.tokens)
        return replace(value, seconds=reply.seconds, attempts=reply.attempts)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one finite number for each conversation: the raw output, where a server gives it."""
        if self._settings.serves != "score":
            return await _all([self._classify(each) for each in conversations])
        if any(conversation[-1].role != "assistant" for conversation in conversations):
            self.usage.failed += len(conversations)
            reason = 'serves = "score" rates the last message, which is not the response: use serves = "classify"'
            raise ModelCallError("refused", reason)
        parts = await _all([self._score(part) for part in self._batches(conversations)])
        return [value for values in parts for value in values]

    async def _classify(self, conversation: Conversation) -> float:
        if self._settings.api == "sglang":
            tokens = lambda: {"input_ids": self._tokens.encode(conversation)}  # noqa: E731
            return (await self._call("classify", tokens, replies.parse_reward)).value
        body: dict[str, Any] = {"messages": _messages(conversation), "use_activation": False}
        return (await self._call("classify", body, replies.parse_class)).value

    async def _score(self, conversations: Sequence[Conversation]) -> list[float]:
        body = {
            "text_1": ["\n\n".join(message.content for message in each[:-1]) for each in conversations],
            "text_2": [each[-1].content for each in conversations],
            "use_activation": False,
        }
        return (await self._call("score", body, partial(replies.parse_scores, count=len(conversations)))).value

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, [n, D]."""
        parts = await _all([self._embed(part) for part in self._batches(texts)])
        if len({part.shape[1] for part in parts}) > 1:
            raise ModelCallError("unparsable", "the embeddings of one batch are longer than those of another")
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        body = {"input": list(texts), "encoding_format": "float"}
        return (await self._call("embeddings", body, partial(replies.parse_embeddings, count=len(texts)))).value

    async def _call(
        self,
        path: str,
        body: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        parse: Callable[[Any], T],
        deadline: float | None = None,
    ) -> ServerReply[T]:
        """Send a request with the model's name and the extra fields; a user's mistake is a failure like others."""
        try:
            fields = body() if callable(body) else body
            payload = {"model": await self._model_name(), **fields, **self._extra_fields()[0]}
            root = path in ("classify", "score")  # these are not below /v1
            deadline = deadline or self._settings.deadline
            return await self._dispatcher.call(path, payload, parse, deadline=deadline, root=root)
        except (UserError, ModelCallError) as error:
            self.usage.failed += 1
            raise error if isinstance(error, ModelCallError) else ModelCallError("refused", str(error)) from None

    def _batches(self, items: Sequence[T]) -> list[Sequence[T]]:
        size = self._settings.batch
        return [items[i : i + size] for i in range(0, len(items), size)]

    # ---- secrets ---------------------------------------------------------------------------------------------------

    def _extra_fields(self) -> tuple[dict[str, Any], list[str]]:
        """Return the `body` of the recipe with its environment variables filled in, and the secrets in it."""
        try:
            return resolved(self._settings.body)
        except UnsetVariableError as error:
            raise UserError(f"models.{self.name}.body: the environment variable {error} is not set: set it") from None

    def key(self) -> str | None:
        """Return the API key, None if none is sent; a `UserError` if it is missing or cannot be sent."""
        variable = self._settings.api_key_env
        if variable is None:
            return None
        key = os.environ.get(variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            problem = "cannot be sent as a key" if key else "is not set: put the API key in it"
            raise UserError(f"models.{self.name}.api_key_env: the environment variable {variable} {problem}")
        return key


def _endpoints(urls: Sequence[str]) -> list[Endpoint]:
    if isinstance(urls, str) or not urls:
        raise UserError("a served model needs a list of at least one base URL")
    return list(dict.fromkeys(map(Endpoint.parse, urls)))


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in conversation]


async def _all(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results; the first failure cancels the others."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
