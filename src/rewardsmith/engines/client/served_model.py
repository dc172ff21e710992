"""A model behind one or several OpenAI-compatible servers: it writes, rates or embeds, by `settings.serves`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.client import replies
from rewardsmith.engines.client.discovery import ModelDiscovery
from rewardsmith.engines.client.dispatcher import Dispatcher, ServerRequest
from rewardsmith.engines.client.http_client import Endpoint
from rewardsmith.engines.client.probes import probe_replies, without_sampling
from rewardsmith.engines.client.replies import RequestError
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, Usage
from rewardsmith.masking import UnsetVariableError, resolved
from rewardsmith.types import Message

T = TypeVar("T")

_CHECKED = [(Message("user", "1 + 1 ="), Message("assistant", text)) for text in ("2", "I do not know.")]
_REMEDY = {
    "classify": "the server does not rate conversations (vLLM: a sequence-classification model, --runner pooling)",
    "score": "the server does not score pairs of texts (vLLM: a cross-encoder, --runner pooling)",
    "embed": "the server does not embed texts (vLLM: an embedding model, --runner pooling)",
}


class ServedModel:
    """A `ChatModel`, `Rater` or `Embedder` on servers.

    Connections are opened by the first call in an event loop. They are closed by `close`, or with the event loop.
    Without `model`, the servers have only one. `get_key` returns the value of an environment variable.
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
        self._dispatcher = Dispatcher(
            settings, _endpoints(urls), lambda: (self.key(), self._extra_fields()[1]), self.usage
        )
        self._discovery = ModelDiscovery(self._dispatcher, settings, model, name)
        self._limit_field = "max_tokens"
        self._asleep: bool | None = None  # unknown: an earlier run may have left the servers asleep

    def replace_urls(self, urls: Sequence[str], model: str | None = None) -> None:
        """Use other servers from now on; requests in flight that fail are sent to the new ones."""
        self._dispatcher.endpoints = _endpoints(urls)
        self._discovery.reset(model)

    @property
    def away(self) -> tuple[str, ...]:
        """Addresses that did not respond at the last check, while others did."""
        return self._discovery.away

    async def identity(self) -> str:
        """Return the model's identity in the cache: its name, version, verb, and the extra fields of requests."""
        settings = self._settings
        known = {"model": await self._discovery.model(), "version": settings.version, "body": settings.body}
        return json.dumps(known | {"serves": settings.serves}, sort_keys=True, ensure_ascii=False, default=str)

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return the replies to fixed probes, not counted in `usage`; () where `version` names the weights."""
        if self._settings.version:
            return ()
        settings = self._settings.model_copy(update={"body": without_sampling(self._settings.body)})
        urls = [str(endpoint.url) for endpoint in self._dispatcher.endpoints]
        model = await self._discovery.model()
        async with ServedModel(settings, urls, model=model, name=self.name, get_key=self._get_key) as probed:
            return await probe_replies(probed, settings.serves, deadline)

    async def check(self) -> None:
        """Raise if it cannot work: an address must respond, and each that does must have the model."""
        try:
            await self._discovery.check()
        except ModelCallError as error:
            remedy = "start the server, or correct urls"
            raise ModelCallError(error.kind, f"models.{self.name}: {error}: {remedy}", error.attempts) from None
        serves = self._settings.serves
        if serves == "chat" or self._asleep:
            return
        if self._asleep is None and getattr(self._settings, "offload", False):
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
        """Close all connections. The model may be used again."""
        await self._dispatcher.close()

    async def __aenter__(self) -> ServedModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sleep(self) -> None:
        """Let the servers release their device memory; calls fail until `wake` (vLLM)."""
        await self._discovery.set_sleeping(True)
        self._asleep = True

    async def wake(self) -> None:
        """Let the servers take their device memory again (vLLM)."""
        await self._discovery.set_sleeping(False)
        self._asleep = False

    async def get(self, endpoint: Endpoint, path: str, timeout: float, *, any_body: bool = False) -> Any:
        """Send one GET request to any server, with the model's key and without retries; may raise `RequestError`."""
        http = await self._dispatcher.http()
        until = asyncio.get_running_loop().time() + timeout
        return await http.send(endpoint, endpoint.at(path), None, until, any_body=any_body)

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply to a conversation, or its continuation of a text."""
        model, prompt = await self._model_name(), question.prompt
        chat = not isinstance(prompt, str)
        size = len(prompt) if isinstance(prompt, str) else _size([prompt])
        request = ServerRequest(
            path="chat/completions" if chat else "completions",
            payload=lambda: self._chat_payload(question, model),
            parse=lambda body: replies.parse_completion(body, chat=chat, logprobs=question.logprobs),
            deadline=question.deadline,
            tokens=size / 4 + question.max_tokens,  # about four characters a token
            adjust=self._use_other_limit_field,
        )
        reply = await self._dispatcher.call(request)
        value = replace(reply.value, prompt_tokens=reply.prompt_tokens, tokens=reply.tokens)
        return replace(value, seconds=reply.seconds, attempts=reply.attempts)

    def _chat_payload(self, question: ChatRequest, model: str) -> dict[str, Any]:
        """Return the body of a request. Fields without effect are left out: some servers refuse unknown ones."""
        body = {"model": model, self._limit_field: question.max_tokens, "temperature": question.temperature}
        chat = not isinstance(question.prompt, str)
        if isinstance(question.prompt, str):
            body["prompt"] = question.prompt
        else:
            body["messages"] = _messages(question.prompt)
        if question.temperature > 0:
            body["seed"] = question.seed
        if question.top_p < 1:
            body["top_p"] = question.top_p
        if question.stop:
            body["stop"] = list(question.stop)
        if question.logprobs:
            body["logprobs"] = True if chat else 1
        if self._settings.first_token_timeout is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | self._extra_fields()[0]

    def _use_other_limit_field(self, error: RequestError, payload: Mapping[str, Any]) -> bool:
        """Newer servers refuse `max_tokens`, and name the field that they want."""
        if error.status != 400 or "max_tokens" not in payload or "max_completion_tokens" not in str(error):
            return False
        self._limit_field = "max_completion_tokens"
        return True

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one finite number for each conversation: the raw output, where a server gives it."""
        model = await self._model_name()
        if self._settings.serves != "score":
            return await _all([self._classify(model, each) for each in conversations])
        if any(conversation[-1].role != "assistant" for conversation in conversations):
            self.usage.failed += len(conversations)
            reason = 'serves = "score" rates the last message, which is not the response: use serves = "classify"'
            raise ModelCallError("refused", reason)
        parts = await _all([self._score(model, part) for part in self._batches(conversations)])
        return [value for values in parts for value in values]

    async def _classify(self, model: str, conversation: Conversation) -> float:
        body = {"model": model, "messages": _messages(conversation), "use_activation": False}
        return await self._pool("classify", body, _size([conversation]), replies.parse_class)

    async def _score(self, model: str, conversations: Sequence[Conversation]) -> list[float]:
        body = {
            "model": model,
            "text_1": ["\n\n".join(message.content for message in each[:-1]) for each in conversations],
            "text_2": [each[-1].content for each in conversations],
            "use_activation": False,
        }
        count = len(conversations)
        return await self._pool("score", body, _size(conversations), lambda reply: replies.parse_scores(reply, count))

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, [n, D]."""
        model = await self._model_name()
        parts = await _all([self._embed(model, part) for part in self._batches(texts)])
        if len({part.shape[1] for part in parts}) > 1:
            raise ModelCallError("unparsable", "the embeddings of one batch are longer than those of another")
        return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)

    async def _embed(self, model: str, texts: Sequence[str]) -> NDArray[np.float32]:
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        size = sum(map(len, texts))
        return await self._pool("embeddings", body, size, lambda reply: replies.parse_embeddings(reply, len(texts)))

    async def _pool(self, path: str, body: dict[str, Any], size: int, parse: Callable[[Any], T]) -> T:
        """Call a pooling endpoint; `classify` and `score` are not below /v1."""
        payload, deadline, root = lambda: body | self._extra_fields()[0], self._settings.deadline, path != "embeddings"
        request = ServerRequest(path, payload, parse, deadline, tokens=size / 4, root=root)
        return (await self._dispatcher.call(request)).value

    def _batches(self, items: Sequence[T]) -> list[Sequence[T]]:
        size = self._settings.batch
        return [items[i : i + size] for i in range(0, len(items), size)]

    async def _model_name(self) -> str:
        """Return the model's name; in a call, a user's mistake is a failure like others."""
        try:
            return await self._discovery.model()
        except (UserError, ModelCallError) as error:
            self.usage.failed += 1
            raise error if isinstance(error, ModelCallError) else ModelCallError("refused", str(error)) from None

    # ---- secrets ---------------------------------------------------------------------------------------------------

    def _extra_fields(self) -> tuple[dict[str, Any], list[str]]:
        """Return the `body` of the recipe with its environment variables filled in, and the secrets in it."""
        try:
            return resolved(self._settings.body, self._get_key)
        except UnsetVariableError as error:
            raise UserError(f"models.{self.name}.body: the environment variable {error} is not set: set it") from None

    def key(self) -> str | None:
        """Return the API key, None if none is sent; a `UserError` if it is missing or cannot be sent."""
        variable = self._settings.api_key_env
        if variable is None:
            return None
        key = (self._get_key(variable) or "").strip()
        where = f"models.{self.name}.api_key_env"
        if not key:
            raise UserError(f"{where}: the environment variable {variable} is not set: put the API key in it")
        if not key.isascii() or not key.isprintable():
            raise UserError(f"{where}: the value of {variable} cannot be sent as a key")
        return key


def _endpoints(urls: Sequence[str]) -> list[Endpoint]:
    if isinstance(urls, str) or not urls:
        raise UserError("a served model needs a list of at least one base URL")
    return list(dict.fromkeys(map(Endpoint.parse, urls)))


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in conversation]


def _size(conversations: Sequence[Conversation]) -> int:
    return sum(len(message.content) for each in conversations for message in each)


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
