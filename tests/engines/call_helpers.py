"""What the tests of served models share: a quick client, a question, and the two ways in which it ends."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.types import Message
from tests.engines.faulty import FaultyServer


def client(*servers: FaultyServer | str, model: str | None = "tiny", **settings: Any) -> ServedModel:
    """Return a model at these servers that hardly pauses between attempts."""
    urls = [server if isinstance(server, str) else server.url for server in servers]
    return ServedModel(ClientSettings(**({"backoff": 0.001} | settings)), urls, model=model, name="judge")


def question(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest([Message("user", text)], **({"deadline": 20.0} | fields))


async def outcome(model: ServedModel, request: ChatRequest) -> ChatReply | ModelCallError:
    """Return the answer, or why there is none; any other exception passes."""
    try:
        return await model.chat(request)
    except ModelCallError as error:
        return error


def kind_of(result: ChatReply | ModelCallError) -> str:
    """Return `ok`, or the kind of the failure."""
    return result.kind if isinstance(result, ModelCallError) else "ok"


def run_async(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test; if its first argument is called `server`, with a `FaultyServer`."""
    parameters = list(inspect.signature(test).parameters.values())
    served = bool(parameters) and parameters[0].name == "server"

    async def main(arguments: dict[str, Any]) -> None:
        if not served:
            return await test(**arguments)
        async with FaultyServer() as server:
            await test(server, **arguments)

    def run(**arguments: Any) -> None:
        asyncio.run(main(arguments))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = inspect.Signature(parameters[served:])  # type: ignore[attr-defined]
    return run
