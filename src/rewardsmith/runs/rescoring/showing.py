"""What a model is asked and what it says, word for word, for a person to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rewardsmith.llm import ChatReply, ChatRequest, Conversation


@dataclass
class Shows:
    """Shows the first questions; called with a model, it returns one that is watched.

    Attributes:
        left: how many are still to be shown, of all models together.
        say: where they go.
    """

    left: int
    say: Callable[[str], None]
    number: int = 0

    def __call__(self, model: Any) -> Showing:
        """Return what stands in the place of a model."""
        return Showing(model, self)

    def next(self) -> int | None:
        """Return the number of a question, from 1; None when enough were shown."""
        if self.left <= 0:
            return None
        self.left -= 1
        self.number += 1
        return self.number

    def show(self, number: int, model: Any, how: str, asked: Conversation | str, said: str) -> None:
        """Say a question and its answer together: those that are asked at the same time do not mix."""
        turns = [("", asked)] if isinstance(asked, str) else [(turn.role, turn.content) for turn in asked]
        text = "\n".join(f"[{role}]\n{content}" if role else content for role, content in turns)
        self.say(f"--- {number}, {model.name} is asked{how}:\n{text}\n--- {number}, {model.name} says:\n{said}\n---")


class Showing:
    """A model whose questions and answers are shown; all else passes through."""

    def __init__(self, model: Any, shows: Shows) -> None:
        self._model = model
        self._shows = shows

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer."""
        number = self._shows.next()
        if number is None:
            answer: ChatReply = await self._model.chat(question)
            return answer
        said = "(nothing)"
        try:
            answer = await self._model.chat(question)
            said = _told(answer)
        except BaseException as error:
            said = f"(no answer: {error or type(error).__name__})"
            raise
        finally:
            again = f" again (try {question.attempt + 1})" if question.attempt else ""
            how = f"{again}, temperature {question.temperature:g}, at most {question.max_tokens} tokens"
            self._shows.show(number, self._model, how, question.prompt, said)
        return answer

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the model's numbers."""
        values: list[float] = await self._model.rate(conversations)
        for conversation, value in zip(conversations, values, strict=False):
            number = self._shows.next()
            if number is None:
                break
            self._shows.show(number, self._model, " for a number", conversation, f"{value:g}")
        return values


def _told(answer: ChatReply) -> str:
    thought = f"(thought)\n{answer.thought}\n(answer)\n" if answer.thought else ""
    notes = [note for note, holds in (("cut off", answer.truncated), ("from the cache", answer.cached)) if holds]
    return f"{thought}{answer.text}" + (f"\n({', '.join(notes)})" if notes else "")
