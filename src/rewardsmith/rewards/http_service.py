"""A service that a reward calls over HTTP: retries inside one deadline, bounded replies, typed failures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from rewardsmith.errors import UserError
from rewardsmith.http.http_client import Endpoint, HttpClient
from rewardsmith.http.request_errors import RequestError, malformed, pause_before_retry
from rewardsmith.records import read_json
from rewardsmith.rewards.base import CannotScore

BACKOFF, MAX_BACKOFF = 0.25, 8.0
"""Seconds before the first retry at most, and before any; the pause is random and doubles."""


class HttpService:
    """The address of a service, and how long a reward waits for its reply.

        service = HttpService("http://127.0.0.1:9000", deadline=30)
        reply = await service.post({"texts": texts}, path="grade")     # JSON; CannotScore if there is none

    A request is repeated while the service is overloaded (429, or 503 with Retry-After), and up to `retries` times
    after a lost connection, a timeout or another 5xx, all within `deadline` seconds. Each event loop has connections of
    its own; they are closed with the loop, or by `close`.

    Args:
        url: where the service is; paths are below it. It holds no key.
        deadline: seconds for a call with all its retries.
        timeout: seconds for one request; not set: what is left of the deadline.
        retries: repeated requests at most, not counting those that the service refused as too many.
        connect_timeout: seconds for connecting.
        api_key_env: environment variable whose value is sent as a bearer token.
        max_reply: bytes of a reply at most.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline: float = 60.0,
        timeout: float | None = None,
        retries: int = 4,
        connect_timeout: float = 5.0,
        api_key_env: str | None = None,
        max_reply: int = 8 * 2**20,
    ) -> None:
        self._endpoint = Endpoint.parse(url, base=False)
        self.deadline, self._timeout, self._retries = deadline, timeout, retries
        self._connect_timeout, self._api_key_env, self._max_reply = connect_timeout, api_key_env, max_reply
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, HttpClient] = WeakKeyDictionary()

    @property
    def url(self) -> str:
        """The address without a query."""
        return self._endpoint.shown

    async def post(self, payload: Any, *, path: str = "", deadline: float | None = None) -> Any:
        """Send JSON and return the JSON of the reply."""
        return await self._call(payload, path, deadline)

    async def get(self, path: str = "", *, deadline: float | None = None) -> Any:
        """Return the JSON at a path."""
        return await self._call(None, path, deadline)

    async def close(self) -> None:
        """Close the connections of the running event loop; it may be used again."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def _client(self) -> HttpClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or not client.usable:
            key = None
            if self._api_key_env is not None and not (key := os.environ.get(self._api_key_env)):
                raise UserError(f"the environment variable {self._api_key_env} (api_key_env) is not set")
            client = HttpClient(
                self._connect_timeout, key, max_body=self._max_reply, body_errors=False, read_json=read_json
            )
            self._clients[loop] = client
            await client.open()
        return client

    async def _call(self, payload: Any, path: str, deadline: float | None) -> Any:
        """Send until there is a reply; raise `CannotScore` if there is none in time."""
        client, now = await self._client(), asyncio.get_running_loop().time
        url = self._endpoint.at(path) if path else self._endpoint.url
        limit = self.deadline if deadline is None else min(deadline, self.deadline)
        until, attempts, retries = now() + limit, 0, 0
        last: RequestError | None = None
        while True:
            attempts += 1
            try:
                return await client.send(self._endpoint, url, payload, _json, until, timeout=self._timeout)
            except RequestError as error:
                left = until - now()
                if left <= 0 and last is not None:  # what kept it from a reply until the last request was cut off
                    raise _failure(last, attempts, f"no reply within {limit:g} s: ") from None
                after = error.retry_after or 0.0
                doubled = retries if after else attempts - 1  # a service that names no time is called ever less often
                pause = pause_before_retry(doubled, after, left, backoff=BACKOFF, max_backoff=MAX_BACKOFF)
                exhausted = retries >= self._retries and not error.overloaded
                if not error.retryable or exhausted or pause >= left:
                    raise _failure(error, attempts) from None
                retries += not error.overloaded
                last = error
            await asyncio.sleep(pause)


def _json(body: Any) -> Any:
    if isinstance(body, str):
        raise malformed("the reply is not JSON, or repeats a key", body)
    return body


def _failure(error: RequestError, attempts: int, before: str = "") -> CannotScore:
    """Return the failure: a service that has too many requests is waited for, as one that is unreachable."""
    tries = f" ({attempts} attempts)" if attempts > 1 else ""
    kind = "unreachable" if error.overloaded else error.kind
    return CannotScore(kind, f"{before}{error}{tries}", attempts)


def as_list(reply: Any, name: str, count: int) -> list[Any]:
    """Return the list of a reply that has one entry per answer; raise `CannotScore` if it is something else."""
    values = reply.get(name) if isinstance(reply, Mapping) else None
    if not isinstance(values, list) or len(values) != count:
        raise CannotScore("unparsable", f"the reply has no list {name!r} with {count} entries: {str(reply)[:200]}")
    return values
