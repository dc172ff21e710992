"""A model that counts what it is asked, and verdicts that need no model: for the tests of the cache."""

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, Usage
from rewardsmith.rewards.cache import VerdictCache
from rewardsmith.rewards.cache_tables import FILE, Kept
from rewardsmith.types import Message


class Model:
    """Answers with the number of the request, and remembers what it was asked."""

    def __init__(self, name: str = "judge", reply: Callable[[ChatRequest], ChatReply] | None = None) -> None:
        self.name = name
        self.usage = Usage()
        self.asked: list[ChatRequest | Conversation | str] = []
        self.requests = 0
        self.weights = "weights-1"
        self.reply = reply or (lambda question: ChatReply(f"answer {len(self.asked)}", tokens=3, prompt_tokens=5))
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self.awake = True

    async def identity(self) -> str:
        return self.weights

    async def check(self) -> None:
        self.checked = True

    async def sleep(self) -> None:
        self.awake = False

    async def _open(self) -> None:
        self.requests += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def chat(self, question: ChatRequest) -> ChatReply:
        self.asked.append(question)
        await self._open()
        self.usage.calls += 1
        return self.reply(question)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        self.asked += conversations
        await self._open()
        if any("bad" in turn.content for conversation in conversations for turn in conversation):
            raise ModelCallError("refused", "too long")
        return [len(conversation[-1].content) / 3 for conversation in conversations]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        await self._open()
        rows = [np.random.default_rng(len(text)).standard_normal(8) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 8)


def talk(*texts: str) -> list[Message]:
    return [Message("user", text) for text in texts]


QUESTION = ChatRequest(talk("Is it right?"), temperature=0.7, stop=("a", "b"))


def verdict(number: int, value: bytes | None = None, **changes: object) -> Kept:
    key = hashlib.sha256(str(number).encode()).digest()
    kept = Kept(key, "judge", "m@1", "chat", 1000 + number, 10, 2, b"j%d" % number if value is None else value)
    return replace(kept, **changes)  # type: ignore[arg-type]


def opened(folder: Path) -> VerdictCache:
    return VerdictCache(folder, say=pytest.fail)


def count(folder: Path) -> int:
    """Return how many verdicts there are, after SQLite has looked at every page."""
    with sqlite3.connect(folder / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = connection.execute("SELECT count(*) FROM verdicts").fetchone()[0]
    connection.close()
    return int(found)


def raising(message: str) -> None:
    raise AssertionError(message)
