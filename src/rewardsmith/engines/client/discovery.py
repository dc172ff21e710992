"""Which model the servers have, whether they respond, and vLLM's /sleep and /wake_up."""

from __future__ import annotations

import asyncio
from typing import Any

from yarl import URL

from rewardsmith.engines.client.dispatcher import Dispatcher
from rewardsmith.engines.client.http_client import Endpoint
from rewardsmith.engines.client.replies import RequestError, parse_models
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.engines.urls import without_verb
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import ModelCallError

LIST_TIMEOUT = 30.0  # seconds in which a server must list its models
SLEEP_TIMEOUT = 300.0  # seconds for /sleep and /wake_up, which move weights
_ATTEMPTS, _PAUSE = 3, 0.5
_ABSENT = (404, 405, 501)
_SLEEP_MODE = "start vLLM with --enable-sleep-mode and the environment variable VLLM_SERVER_DEV_MODE=1"


class ModelDiscovery:
    """Finds the name of the model on the servers; without `model`, the only one that they have."""

    def __init__(self, dispatcher: Dispatcher, settings: ClientSettings, model: str | None, name: str) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._model = model
        self._name = name
        self._discovered: str | None = None
        self._task: asyncio.Task[str] | None = None
        self.away: tuple[str, ...] = ()  # addresses that did not respond at the last check, while others did

    def reset(self, model: str | None) -> None:
        """Query the servers again; use another model, if one is given."""
        self._discovered = None
        self._model = model or self._model

    async def model(self) -> str:
        """Return the model's name; if it is not set, query the servers once for all callers."""
        known = self._model or self._discovered
        if known is not None:
            return known
        task = self._task
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._task = asyncio.ensure_future(self.check())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was retrieved
        return await asyncio.shield(task)

    async def check(self) -> str:
        """Return the model's name; raise unless an address responds, and all that do have the same model."""
        pool = self._dispatcher.pool()
        replies = await asyncio.gather(*(self._list(address.endpoint) for address in pool.addresses))
        errors: dict[str, RequestError] = {}
        found: dict[str, Endpoint] = {}
        for address, reply in zip(pool.addresses, replies, strict=True):
            endpoint = address.endpoint
            if isinstance(reply, RequestError):
                address.cool_down(asyncio.get_running_loop().time())
                errors[endpoint.shown] = reply
            else:
                address.end_cooldown()
                found.setdefault(self._choose(endpoint, reply), endpoint)
        pool.serve()
        self.away = tuple(errors)
        if not found:
            raise ModelCallError("unreachable", "; ".join(map(str, errors.values())))
        if len(found) > 1:
            each = ", ".join(f"{endpoint.shown} has {model!r}" for model, endpoint in found.items())
            raise UserError(f"models.{self._name}: the addresses serve different models: {each}: set model")
        self._discovered = next(iter(found))
        return self._discovered

    def _choose(self, endpoint: Endpoint, served: dict[str, str] | None) -> str:
        where = f"models.{self._name}.model: {endpoint.shown}"
        if self._model is not None:
            if served is not None and self._model not in served:
                hint = nearest(self._model, served)
                raise UserError(f"{where} has no model {self._model!r}.{hint} It has: {listing(served)}")
            return self._model
        if served is None or len(served) != 1:
            many = "does not list its models" if served is None else f"has {len(served)} models: {listing(served)}"
            raise UserError(f"{where} {many}: set model to one of them")
        return next(iter(served))

    async def _list(self, endpoint: Endpoint) -> dict[str, str] | RequestError | None:
        """Return the models of an address, None if it has no list, or the error of an address that may come back."""
        where = f"models.{self._name}"
        try:
            return parse_models(await self._request(endpoint, endpoint.at("models"), LIST_TIMEOUT))
        except RequestError as error:
            if error.status in _ABSENT:
                hint = await self._intended_url(endpoint)
                if hint or self._model is None:
                    raise UserError(f"{where}: {error}{hint}") from None
                return None
            if error.retryable and error.kind != "unparsable":
                return error
            key = self._settings.api_key_env
            remedy = f"; check the key in {key}" if key else "; set api_key_env to a variable with the key"
            raise UserError(f"{where}: {error}{remedy if error.status in (401, 403) else ''}") from None

    async def _intended_url(self, endpoint: Endpoint) -> str:
        """Return a hint at the right base URL, where /models does not exist; "" if the URL may be right."""
        bare = without_verb(endpoint.url)
        if bare != endpoint.url:
            return f"; did you mean {bare.with_query(None)}?"
        if endpoint.url.path.rstrip("/").endswith("/v1"):
            return ""
        if self._model is not None:  # many services list no models, and have paths of their own
            try:
                parse_models(await self._request(endpoint, endpoint.at("v1/models"), LIST_TIMEOUT))
            except RequestError:
                return ""
        return f"; did you mean {endpoint.shown}/v1?"

    async def _request(self, endpoint: Endpoint, url: URL, timeout: float, payload: Any = None) -> Any:
        """Send a request outside the slots; a temporary error is retried twice, unless the server is gone."""
        http = await self._dispatcher.http()
        until = asyncio.get_running_loop().time() + timeout
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await http.send(endpoint, url, payload, until, any_body=payload is not None)
            except RequestError as error:
                if not left or not error.retryable or error.unreachable or error.kind == "timeout":
                    raise
                await asyncio.sleep(min(error.retry_after or _PAUSE, 5.0))
        raise AssertionError("the last attempt returns or raises")

    async def set_sleeping(self, asleep: bool) -> None:
        """Let all servers release their device memory, or take it again (vLLM)."""
        path = "sleep" if asleep else "wake_up"

        async def send(endpoint: Endpoint) -> None:
            url = endpoint.at(path, root=True)
            await self._request(endpoint, url.update_query(level=1) if asleep else url, SLEEP_TIMEOUT, {})

        results = await asyncio.gather(*map(send, self._dispatcher.endpoints), return_exceptions=True)
        for error in results:
            if isinstance(error, RequestError) and error.status in _ABSENT:
                raise UserError(f"models.{self._name}.offload: /{path}: {error}; {_SLEEP_MODE}")
            if isinstance(error, RequestError):
                raise ModelCallError(error.kind, f"/{path}: {error}")
            if error is not None:
                raise error
