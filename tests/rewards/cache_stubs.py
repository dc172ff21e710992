"""A model that counts its calls, and rows that need no model: for the tests of the cache."""

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, Usage
from rewardsmith.rewards.cache_file import FILE, CacheRow
from rewardsmith.types import Message


class CountingModel:
    """Replies with the number of the call, and records what it got; `gate` holds the replies back."""

    def __init__(self, name: str = "judge", reply: Callable[[ChatRequest], ChatReply] | None = None) -> None:
        self.name = name
        self.usage = Usage()
        self.calls: list[ChatRequest | Conversation | str] = []
        self.requests = self.cancelled = 0
        self.weights = "weights-1"
        self.reply = reply or (lambda request: ChatReply(f"reply {len(self.calls)}", tokens=3, prompt_tokens=5))
        self.gate = asyncio.Event()
        self.gate.set()

    async def identity(self) -> str:
        return self.weights

    async def check(self) -> None:
        self.checked = True

    async def _open(self) -> None:
        self.requests += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def chat(self, question: ChatRequest) -> ChatReply:
        self.calls.append(question)
        await self._open()
        self.usage.calls += 1
        return self.reply(question)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        self.calls += conversations
        await self._open()
        if any("bad" in message.content for conversation in conversations for message in conversation):
            raise ModelCallError("refused", "too long")
        return [len(conversation[-1].content) / 3 for conversation in conversations]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += texts
        await self._open()
        rows = [np.random.default_rng(len(text)).standard_normal(8) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 8)


def talk(*texts: str) -> list[Message]:
    return [Message("user", text) for text in texts]


REQUEST = ChatRequest(talk("Is it right?"), temperature=0.7, stop=("a", "b"))


def row(number: int, value: bytes | None = None, **changes: object) -> CacheRow:
    key = hashlib.sha256(str(number).encode()).digest()
    new = CacheRow(key, "judge", "m@1", "chat", 1000 + number, 10, 2, b"j%d" % number if value is None else value)
    return replace(new, **changes)  # type: ignore[arg-type]


def count(folder: Path) -> int:
    """Return how many rows there are, after SQLite has checked every page."""
    with sqlite3.connect(folder / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = connection.execute("SELECT count(*) FROM verdicts").fetchone()[0]
    connection.close()
    return int(found)


def raising(message: str) -> None:
    raise AssertionError(message)
