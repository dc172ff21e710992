"""Models for tests that say what they are told to say, and remember what they were asked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rewardsmith.llm import ChatReply, ChatRequest, Usage

Said = str | ChatReply | BaseException
"""A text, an answer with all its fields, or what is raised instead of one."""


@dataclass
class Scripted:
    """A model that writes what a script says: each answer once and in order, or whatever a function of the question is.

    Attributes:
        script: the answers, or a function of the question; it may be async, and may raise.
        name: what the recipe calls it.
        ill: what `check` raises, if anything.
        asked: the questions so far, in the order in which they came.
        most: how many questions were open at a time.
    """

    script: Sequence[Said] | Callable[[ChatRequest], Said | Awaitable[Said]]
    name: str = "judge"
    ill: BaseException | None = None
    asked: list[ChatRequest] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    most: int = 0
    _open: int = 0

    async def identity(self) -> str:
        """Return its name."""
        return self.name

    async def check(self) -> None:
        """Raise what it is told to."""
        if self.ill is not None:
            raise self.ill

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return what the script says."""
        place = len(self.asked)
        self.asked.append(question)
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            await asyncio.sleep(0)  # others get their turn, as they would with a server
            if callable(self.script):
                said = self.script(question)
                if inspect.isawaitable(said):
                    said = await said
            else:
                said = self.script[place]
            if isinstance(said, BaseException):
                raise said
        finally:
            self._open -= 1
        self.usage.calls += 1
        return said if isinstance(said, ChatReply) else ChatReply(said, tokens=len(said.split()), seconds=0.01)

    @property
    def seen(self) -> list[str]:
        """The text of each question, its messages one after the other."""
        return [text_of(question) for question in self.asked]


def text_of(question: ChatRequest) -> str:
    """Return all that a question says."""
    if isinstance(question.prompt, str):
        return question.prompt
    return "\n\n".join(message.content for message in question.prompt)
