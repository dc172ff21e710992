"""Print the first requests to models with their replies, for a person to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rewardsmith.llm import ChatReply, ChatRequest, Conversation


class PromptPrinter:
    """Wraps models; prints the first `limit` requests of all of them together with `log`."""

    def __init__(self, limit: int, log: Callable[[str], None]) -> None:
        self._numbers = iter(range(1, limit + 1))
        self._log = log

    def __call__(self, model: Any) -> PrintedModel:
        """Return a wrapper of a model."""
        return PrintedModel(model, self)

    def next_number(self) -> int | None:
        """Return the number of a request that is to be printed; None when enough were."""
        return next(self._numbers, None)

    def print(self, number: int, name: str, options: str, prompt: Conversation | str, reply: str) -> None:
        """Print a request and its reply together, so that concurrent ones do not mix."""
        text = prompt if isinstance(prompt, str) else "\n".join(f"[{turn.role}]\n{turn.content}" for turn in prompt)
        self._log(f"--- request {number} to {name}{options}:\n{text}\n--- reply {number} of {name}:\n{reply}\n---")


class PrintedModel:
    """A model whose requests are printed; everything else is passed through."""

    def __init__(self, model: Any, printer: PromptPrinter) -> None:
        self._model = model
        self._printer = printer

    def __getattr__(self, name: str) -> Any:
        """Return what the model has: not every model rates, embeds or reads."""
        return getattr(self._model, name)

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply."""
        number = self._printer.next_number()
        reply: ChatReply
        if number is None:
            reply = await self._model.chat(request)
            return reply
        text = "(none)"
        try:
            reply = await self._model.chat(request)
            text = _format(reply)
            return reply
        except BaseException as error:
            text = f"(none: {error or type(error).__name__})"
            raise
        finally:
            attempt = f", attempt {request.attempt + 1}" if request.attempt else ""
            options = f"{attempt}, temperature {request.temperature:g}, max_tokens {request.max_tokens}"
            self._printer.print(number, self._model.name, options, request.prompt, text)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the model's numbers."""
        values: list[float] = await self._model.rate(conversations)
        for conversation, value in zip(conversations, values, strict=False):
            number = self._printer.next_number()
            if number is None:
                break
            self._printer.print(number, self._model.name, " for a rating", conversation, f"{value:g}")
        return values


def _format(reply: ChatReply) -> str:
    thought = f"(thought)\n{reply.thought}\n(answer)\n" if reply.thought else ""
    notes = [note for note, holds in (("truncated", reply.truncated), ("from the cache", reply.cached)) if holds]
    return f"{thought}{reply.text}" + (f"\n({', '.join(notes)})" if notes else "")
