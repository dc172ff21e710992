"""An answer that comes in pieces (server-sent events), put together into what it would have been in one piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.engines.client.faults import Fault, garbage, of_error

_GOODBYE = 1.0
"""Seconds in which a server may end a stream whose last piece has come; then the connection is closed."""

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


async def gather_stream(content: AsyncIterator[bytes], where: str, begin: float | None) -> dict[str, Any]:
    """Return the body that the server would have sent in one piece.

    Args:
        content: of the response, in pieces.
        where: the address, for errors.
        begin: when the first piece of the answer must have come, on the event loop's clock; None: whenever.

    Raises:
        Fault: the stream is broken off, malformed, or holds an error.
    """
    pieces = _Pieces(where)
    open_line: list[bytes] = []
    clock = asyncio.timeout_at(begin)
    try:
        async with clock:
            async for part in content:
                first, *others = part.split(b"\n")
                open_line.append(first)
                if not others:
                    continue
                lines = [b"".join(open_line), *others[:-1]]
                open_line = [others[-1]]
                if sum(pieces.add(line) for line in lines):
                    clock.reschedule(_now() + _GOODBYE if pieces.done else None)
    except TimeoutError:
        if not clock.expired():
            raise
        if not pieces.done:
            raise Fault("timeout", f"{where} did not begin its answer in time", gone=True) from None
    pieces.add(b"".join(open_line))
    return pieces.whole()


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class _Pieces:
    """What came of one answer so far."""

    where: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    usage: Any = None
    finish: Any = None
    done: bool = False
    plain: bool = False  # a continued text, not a chat

    def add(self, line: bytes) -> bool:
        """Take a line; return whether something of the answer was in it."""
        if not line.startswith(b"data:"):
            return False  # blank lines, comments and names of events
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return True
        try:
            piece = json.loads(data)
        except (ValueError, RecursionError):
            raise garbage(f"{self.where} sent a piece that is no JSON", data) from None
        if not isinstance(piece, dict):
            raise garbage(f"{self.where} sent a piece that is no object", data)
        if piece.get("error"):
            raise of_error(piece["error"], self.where)
        self.usage = piece.get("usage") or self.usage
        choices = piece.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        return self._add_choice(choices[0])

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            self.plain, delta = True, {"content": choice.get("text")}
        found = False
        for name in _TEXTS:
            text = delta.get(name)
            if isinstance(text, str):
                self.texts.setdefault(name, []).append(text)
                found = found or bool(text)
        if isinstance(choice.get("logprobs"), dict):
            many = choice["logprobs"].get("token_logprobs" if self.plain else "content")
            self.logprobs.extend(many if isinstance(many, list) else [])
        return found

    def whole(self) -> dict[str, Any]:
        if self.finish is None and not self.done:
            raise Fault("unreachable", f"{self.where} broke its answer off")
        message = {name: "".join(parts) for name, parts in self.texts.items()}
        choice: dict[str, Any] = {"finish_reason": self.finish, "message": message}
        if self.plain:
            choice["text"] = message.pop("content", None)
        if self.logprobs:
            choice["logprobs"] = {"token_logprobs" if self.plain else "content": self.logprobs}
        # A stream that ended properly without a choice is what an answer without choices is.
        empty = self.finish is None and not self.texts
        return {"choices": [] if empty else [choice], "usage": self.usage}
