"""What is sent: the bodies of requests. The recipe's `body` has the last word on every field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rewardsmith.engines.settings import ClientSettings
from rewardsmith.llm import ChatRequest, Conversation


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in conversation]


def question(asked: ChatRequest, model: str, limit: str, settings: ClientSettings) -> dict[str, Any]:
    """Return the body that asks for one text.

    Args:
        asked: the question.
        model: as the server names it.
        limit: the field that limits the tokens; servers have two names for it.
        settings: of the client. If the beginning of an answer has a deadline, it is streamed: else it would begin
            when it is finished.
    """
    body: dict[str, Any] = {"model": model, limit: asked.max_tokens, "temperature": asked.temperature}
    chat = not isinstance(asked.prompt, str)
    if isinstance(asked.prompt, str):
        body["prompt"] = asked.prompt
    else:
        body["messages"] = _messages(asked.prompt)
    # What has no effect is left out: some servers refuse fields that they do not know.
    if asked.temperature > 0:
        body["seed"] = asked.seed
    if asked.top_p < 1:
        body["top_p"] = asked.top_p
    if asked.stop:
        body["stop"] = list(asked.stop)
    if asked.logprobs:
        body["logprobs"] = True if chat else 1
    if settings.first_byte is not None:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | settings.body


def expected(asked: ChatRequest) -> float:
    """Return the tokens that a question will need at most, by the rule of thumb of four characters each."""
    prompt = asked.prompt
    return (len(prompt) if isinstance(prompt, str) else size_of([prompt])) / 4 + asked.max_tokens


def classify(conversation: Conversation, model: str, settings: ClientSettings) -> dict[str, Any]:
    """Return the body that asks a classifier for its raw output; the server applies its chat template."""
    return {"model": model, "messages": _messages(conversation), "use_activation": False, **settings.body}


def score(conversations: Sequence[Conversation], model: str, settings: ClientSettings) -> dict[str, Any]:
    """Return the body that asks a cross-encoder how well each last message goes with what is before it."""
    return {
        "model": model,
        "text_1": ["\n\n".join(message.content for message in each[:-1]) for each in conversations],
        "text_2": [each[-1].content for each in conversations],
        "use_activation": False,
        **settings.body,
    }


def size_of(conversations: Iterable[Conversation]) -> int:
    """Return the characters of conversations."""
    return sum(len(message.content) for each in conversations for message in each)
