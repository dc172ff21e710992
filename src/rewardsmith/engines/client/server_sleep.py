"""Servers that release their device memory while other models use it: vLLM's sleep mode, and SGLang's memory saver.

vLLM's requests may be repeated. SGLang ends when it is sent to sleep while a request runs or to wake while it is awake,
has no state to look at, and loses its weights without `--enable-weights-cpu-backup`. So its servers are taken to be
awake at first, and what was requested is remembered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rewardsmith.engines.client.replies import ABSENT, parse_models
from rewardsmith.errors import UserError
from rewardsmith.http.http_client import Endpoint
from rewardsmith.http.request_errors import RequestError
from rewardsmith.llm import ModelCallError

if TYPE_CHECKING:
    from rewardsmith.engines.client.served_model import ServedModel

SLEEP_TIMEOUT = 300.0  # seconds for a request that moves weights
ATTEMPTS = 3  # of such a request to vLLM
INFO_TIMEOUT = 30.0  # seconds for any other request
IDLE_TIMEOUT, IDLE_PAUSE = 60.0, 0.25  # seconds to wait for requests that were given up, and between two looks

_PATHS = {  # to fall asleep, and to wake
    "vllm": ("sleep", "wake_up"),
    "sglang": ("release_memory_occupation", "resume_memory_occupation"),
}
_REMEDY = {
    "vllm": "start vLLM with --enable-sleep-mode and the environment variable VLLM_SERVER_DEV_MODE=1",
    "sglang": "start SGLang with --enable-memory-saver --enable-weights-cpu-backup",
}


class ServerSleep:
    """The sleep of the servers of a model; `sleepers` are those of SGLang that are asleep."""

    def __init__(self, model: ServedModel, api: str) -> None:
        self._model, self._api = model, api
        self.sleepers: set[Endpoint] = set()

    async def move(self, endpoint: Endpoint, *, asleep: bool) -> None:
        """Let a server fall asleep, or wake."""
        path = _PATHS[self._api][not asleep]
        url = endpoint.at(path, root=True)
        try:
            if self._api == "vllm":
                url = url.update_query(level=1) if asleep else url
                await self._model.request(endpoint, url, _as_is, SLEEP_TIMEOUT, payload={}, attempts=ATTEMPTS)
            elif (endpoint in self.sleepers) != asleep:
                if asleep:
                    await self._wait_until_idle(endpoint)
                await self._model.request(endpoint, url, _as_is, SLEEP_TIMEOUT, payload={})  # one attempt
                (self.sleepers.add if asleep else self.sleepers.discard)(endpoint)
        except RequestError as error:
            if error.status in ABSENT:
                raise UserError(f"models.{self._model.name}.offload: /{path}: {error}; {_REMEDY[self._api]}") from None
            if self._api == "sglang" and not error.status and await self._responds(endpoint):
                lost = f"/{path}: {error}: it is unknown whether the server at {endpoint.shown} sleeps: restart it"
                raise ModelCallError("crashed", lost) from None
            raise ModelCallError(error.kind, f"/{path}: {error}") from None

    async def check(self, endpoint: Endpoint) -> None:
        """Raise a `UserError` if an SGLang server was started without what its sleep needs."""
        info: Any = None
        for path in ("server_info", "get_server_info") if self._api == "sglang" else ():
            try:
                info = await self._model.request(endpoint, endpoint.at(path, root=True), _as_is, INFO_TIMEOUT)
                break
            except RequestError as error:
                if error.status not in ABSENT:
                    return  # it is away, or does not tell
        flags = {"enable_memory_saver": "could not sleep", "enable_weights_cpu_backup": "would wake without weights"}
        for flag, why in flags.items() if isinstance(info, dict) else ():
            if info.get(flag) is False:
                where = f"models.{self._model.name}.offload: {endpoint.shown}"
                raise UserError(f"{where} {why}: {_REMEDY['sglang']}")

    async def _wait_until_idle(self, endpoint: Endpoint) -> None:
        """Wait for requests that were given up and still run: SGLang flushes its cache only when it is idle."""
        until = asyncio.get_running_loop().time() + IDLE_TIMEOUT
        while True:
            try:
                url = endpoint.at("flush_cache", root=True)
                await self._model.request(endpoint, url, _as_is, INFO_TIMEOUT, payload={})
                return
            except RequestError as error:
                if error.status in ABSENT:
                    return
                if error.status != 400 or asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(IDLE_PAUSE)

    async def _responds(self, endpoint: Endpoint) -> bool:
        try:
            await self._model.request(endpoint, endpoint.at("models"), parse_models, INFO_TIMEOUT)
        except RequestError:
            return False
        return True


def _as_is(body: Any) -> Any:
    return body
