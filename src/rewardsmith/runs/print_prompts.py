"""Print the first prompts and replies of a run, word for word, for a person to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rewardsmith.llm import ChatReply, ChatRequest, Conversation, WrappedModel


@dataclass
class PromptPrinter:
    """Prints the first calls; called with a model, it returns one whose calls are printed.

    Attributes:
        left: calls still to print, of all models together.
        write: where they go.
    """

    left: int
    write: Callable[[str], None]
    number: int = 0

    def __call__(self, model: Any) -> PrintedModel:
        """Wrap a model."""
        return PrintedModel(model, self)

    def next(self) -> int | None:
        """Return the number of a call, from 1; None when enough were printed."""
        if self.left <= 0:
            return None
        self.left -= 1
        self.number += 1
        return self.number

    def show(self, number: int, model: str, details: str, prompt: Conversation | str, reply: str) -> None:
        """Print a prompt and its reply together, so that concurrent calls do not mix."""
        messages = [("", prompt)] if isinstance(prompt, str) else [(one.role, one.content) for one in prompt]
        text = "\n".join(f"[{role}]\n{content}" if role else content for role, content in messages)
        self.write(f"--- prompt {number} to {model}{details}:\n{text}\n--- reply {number} of {model}:\n{reply}\n---")


class PrintedModel(WrappedModel):
    """A model whose first calls are printed."""

    def __init__(self, model: Any, printer: PromptPrinter) -> None:
        super().__init__(model)
        self._printer = printer

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply, and print both."""
        number = self._printer.next()
        if number is None:
            return await super().chat(question)
        text = "(nothing)"
        try:
            reply = await super().chat(question)
            text = _reply_text(reply)
        except BaseException as error:
            text = f"(no reply: {error or type(error).__name__})"
            raise
        finally:
            retry = f" (attempt {question.attempt + 1})" if question.attempt else ""
            details = f"{retry}, temperature {question.temperature:g}, max_tokens {question.max_tokens}"
            self._printer.show(number, self.name, details, question.prompt, text)
        return reply

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the model's numbers, and print them with the conversations."""
        values = await super().rate(conversations)
        for conversation, value in zip(conversations, values, strict=False):
            number = self._printer.next()
            if number is None:
                break
            self._printer.show(number, self.name, " (rate)", conversation, f"{value:g}")
        return values


def _reply_text(reply: ChatReply) -> str:
    thought = f"(thought)\n{reply.thought}\n(answer)\n" if reply.thought else ""
    notes = [note for note, holds in (("truncated", reply.truncated), ("from the cache", reply.cached)) if holds]
    return f"{thought}{reply.text}" + (f"\n({', '.join(notes)})" if notes else "")
