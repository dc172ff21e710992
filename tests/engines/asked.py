"""What the tests of served models share: a quick client, a question, and the two ways in which it ends."""

from __future__ import annotations

from typing import Any

from rewardsmith.asking import Answer, CannotAnswer, Question
from rewardsmith.engines.server import ServedModel
from rewardsmith.engines.settings import ClientSettings
from rewardsmith.types import Message
from tests.engines.faulty import FaultyServer


def client(*servers: FaultyServer | str, model: str | None = "tiny", **settings: Any) -> ServedModel:
    """Return a model that is asked for at these servers, and that hardly pauses between tries."""
    urls = [server if isinstance(server, str) else server.url for server in servers]
    return ServedModel(ClientSettings(**({"backoff": 0.001} | settings)), urls, model=model, name="judge")


def question(text: str = "hi", **fields: Any) -> Question:
    return Question([Message("user", text)], **({"deadline": 20.0} | fields))


async def outcome(model: ServedModel, asked: Question) -> Answer | CannotAnswer:
    """Return the answer, or why there is none; any other exception passes."""
    try:
        return await model.ask(asked)
    except CannotAnswer as error:
        return error


def kind_of(result: Answer | CannotAnswer) -> str:
    """Return `ok`, or the kind of the failure."""
    return result.kind if isinstance(result, CannotAnswer) else "ok"
