"""What SGLang does otherwise than vLLM: reward models are given tokens, and a server that sleeps is not robust.

`POST /classify` takes `input_ids`, or text to which special tokens are added again, and returns the raw output as
`{"embedding": [1.5], "meta_info": …}`. `POST /release_memory_occupation` ends a server that is not idle, and
`/resume_memory_occupation` one that is awake; the weights survive only with `--enable-weights-cpu-backup`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rewardsmith.engines.client.replies import RequestError
from rewardsmith.engines.model_settings import ClientSettings, ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation

if TYPE_CHECKING:
    from rewardsmith.engines.client.http_client import Endpoint
    from rewardsmith.engines.client.served_model import ServedModel
    from rewardsmith.engines.embedded.model_text import ModelText

SLEEP_FLAGS = "--enable-memory-saver --enable-weights-cpu-backup"
INFO_TIMEOUT = 30.0  # seconds for /server_info, and for one look whether the server is idle
IDLE_TIMEOUT, IDLE_PAUSE = 60.0, 0.25  # seconds to wait for requests that were given up, and between two looks
ABSENT = (404, 405, 501)


class ConversationTokens:
    """Renders conversations as the tokens of a reward model; its tokenizer is loaded for the first one."""

    def __init__(self, settings: ClientSettings, model: str | None, name: str) -> None:
        self._init, self._name = settings.tokenizer or model, name
        self._text: ModelText | None = None

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the tokens of a conversation; `ModelCallError` if the chat template refuses it."""
        if self._text is None:
            self._text = self._load()
        tokens: list[int] = self._text.encode_conversation(conversation).tolist()
        return tokens

    def _load(self) -> ModelText:
        from rewardsmith.engines.embedded.model_files import ModelFolder, quiet  # noqa: PLC0415 they import torch
        from rewardsmith.engines.embedded.model_text import ModelText  # noqa: PLC0415

        where = f"models.{self._name}.tokenizer"
        if self._init is None:
            raise UserError(f"{where} is not set: SGLang rates tokens; name the folder or the id of the reward model")
        try:
            folder = ModelFolder(self._init, weights=False)
            with quiet():
                text = ModelText(folder.tokenizer(folder.config("scalar")), ModelSettings(init=self._init), self._name)
            text.require_chat_template()
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return text


async def check_sleep(model: ServedModel, endpoint: Endpoint) -> None:
    """Raise a `UserError` if the server was started without what its sleep needs."""
    info: Any = None
    for path in ("server_info", "get_server_info"):
        try:
            info = await model.request(endpoint, endpoint.at(path, root=True), _as_is, INFO_TIMEOUT)
            break
        except RequestError as error:
            if error.status not in ABSENT:
                return  # it is away, or does not tell
    flags = {"enable_memory_saver": "it could not sleep", "enable_weights_cpu_backup": "it would wake without weights"}
    for flag, why in flags.items() if isinstance(info, dict) else ():
        if info.get(flag) is False:
            raise UserError(f"models.{model.name}.offload: {endpoint.shown}: {why}: start SGLang with {SLEEP_FLAGS}")


async def wait_until_idle(model: ServedModel, endpoint: Endpoint) -> None:
    """Wait for requests that were given up and still run: a server that is not idle would die of falling asleep."""
    until = asyncio.get_running_loop().time() + IDLE_TIMEOUT
    while True:
        try:
            return await model.request(
                endpoint, endpoint.at("flush_cache", root=True), _as_is, INFO_TIMEOUT, payload={}
            )
        except RequestError as error:
            if error.status in ABSENT:
                return None
            if error.status != 400 or asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(IDLE_PAUSE)


def _as_is(body: Any) -> Any:
    return body
