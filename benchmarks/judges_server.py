"""A judge whose every verdict is known, behind an OpenAI-compatible server of fixed latency and capacity.

    python benchmarks/judges_server.py          # prints its port, and serves until it is stopped

An answer takes `latency` seconds in one of `slots` places; who finds none waits. The verdict on a rollout is a pure
function of the number that stands in it (`truth`), so a reward that differs from it is false. A share of the requests
fails in one of eight ways (`fault`): which ones depends on the seed, the rollout and how often it was asked about, so
all clients meet the same faults.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
import urllib.request
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, field
from string import ascii_uppercase
from typing import Any

from aiohttp import web

FAULTS = ("429", "500", "reset", "stall", "half JSON", "no choices", "cut off", "no verdict")
AT_ONCE = frozenset({"429", "500", "reset", "stall"})
"""Faults that come before the request has a slot; the others come after the latency."""

MARK = re.compile(r"rollout-(\d{6})")
STALL = 60.0
"""Seconds that a stalled request is kept; every client gives up before."""


@dataclass(frozen=True)
class Behaviour:
    """How the server behaves.

    Attributes:
        latency: seconds that an answer takes.
        slots: answers in the making at a time.
        faults: share of the requests that fail.
        seed: of the faults.
    """

    latency: float = 0.5
    slots: int = 256
    faults: float = 0.0
    seed: int = 0


@dataclass
class Counts:
    """What happened since the behaviour was last set.

    Attributes:
        requests: that came.
        waited: seconds until the first request came.
        busy: share of the slots that were taken, from the first request until the last one came: what is idle later is
            idle because there is nothing left to ask. A slot counts for the latency alone, not for a slow server.
        read: tokens of all prompts, four characters each.
        written: tokens of all answers, likewise.
        faults: how often each was met.
    """

    requests: int = 0
    waited: float = 0.0
    busy: float = 0.0
    read: int = 0
    written: int = 0
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))


def mark(number: int) -> str:
    """Return what a rollout must contain to be known."""
    return f"rollout-{number:06d}"


def truth(number: int) -> int:
    """Return the points that a rollout deserves, 1 to 10: never 0, which is what a lost verdict often becomes."""
    return 1 + zlib.crc32(f"points of {number}".encode()) % 10


def fault(behaviour: Behaviour, number: int, before: int) -> str | None:
    """Return the fault that a request meets, if any, when a rollout was asked about so many times before.

    Of so many rollouts in a row that the share makes eight of them, each fault meets one.
    """
    if not behaviour.faults:
        return None
    row, place = divmod(number, round(len(FAULTS) / behaviour.faults))
    draw = random.Random(f"{behaviour.seed} {row} {before}")
    places = draw.sample(range(round(len(FAULTS) / behaviour.faults)), len(FAULTS))
    return FAULTS[places.index(place)] if place in places else None


def verdict(numbers: list[int]) -> str:
    """Return what the judge writes about one rollout, or about several candidates in their order."""
    if len(numbers) == 1:
        return (
            "The steps were compared with the criteria one after the other, and what is missing was taken off.\n"
            f"Total Score: {truth(numbers[0])}/10"
        )
    points = {letter: truth(number) for letter, number in zip(ascii_uppercase, numbers, strict=False)}
    levels = [[letter for letter in points if points[letter] == level] for level in sorted({*points.values()})[::-1]]
    ranking = " > ".join(" = ".join(level) for level in levels)
    scores = ", ".join(f"{letter}: {points[letter]}" for level in levels for letter in level)
    return (
        "The candidates were compared with each other, step by step, and what is missing was taken off.\n\n"
        f"### Final Ranking:\n\n{ranking}\n\n### Scores:\n\n{scores}"
    )


class Judge:
    """Answers requests and counts them.

    Attributes:
        counts: so far.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self._set(behaviour)

    def _set(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.counts = Counts()
        self._asked: Counter[int] = Counter()
        self._slots = asyncio.Semaphore(behaviour.slots)
        self._begun: list[float] = []
        self._set_at = time.monotonic()
        self._first = self._last = 0.0

    def application(self) -> web.Application:
        """Return the server."""
        made = web.Application(client_max_size=1 << 24)
        made.router.add_get("/v1/models", self.models)
        made.router.add_post("/v1/chat/completions", self.answer)
        made.router.add_post("/behaviour", self.behave)
        made.router.add_get("/counts", self.count)
        return made

    async def models(self, _request: web.Request) -> web.Response:
        """List the one model."""
        return web.json_response({"object": "list", "data": [{"id": "judge", "object": "model"}]})

    async def behave(self, request: web.Request) -> web.Response:
        """Take a behaviour, and count from 0."""
        self._set(Behaviour(**await request.json()))
        return web.json_response({})

    async def count(self, _request: web.Request) -> web.Response:
        """Return the counts."""
        seconds = sum(min(self._behaviour.latency, max(0.0, self._last - begun)) for begun in self._begun)
        offered = self._behaviour.slots * (self._last - self._first)
        self.counts.busy = seconds / offered if offered else 0.0
        self.counts.waited = max(0.0, self._first - self._set_at)
        return web.json_response(asdict(self.counts))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, or fail as the seed says."""
        begun = time.monotonic()
        asked = "".join(message["content"] for message in json.loads(await request.read())["messages"])
        numbers = list(dict.fromkeys(map(int, MARK.findall(asked))))
        if not numbers:  # a probe of the cache
            return web.Response(body=_body(asked, "4", None), content_type="application/json")
        self._last = begun
        self._first = self._first or begun
        counts, behaviour = self.counts, self._behaviour
        wrong = fault(behaviour, numbers[0], self._asked[numbers[0]])
        self._asked[numbers[0]] += 1
        counts.requests += 1
        counts.read += len(asked) // 4
        if wrong:
            counts.faults[wrong] += 1
        if wrong in AT_ONCE:
            return await _fail(request, wrong)
        async with self._slots:
            self._begun.append(time.monotonic())
            await asyncio.sleep(behaviour.latency)
        text = "I would rather talk about the weather." if wrong == "no verdict" else verdict(numbers)
        if wrong == "cut off":
            text = text[: -1 - numbers[0] % 6]  # somewhere in the total
        counts.written += len(text) // 4
        return web.Response(body=_body(asked, text, wrong), content_type="application/json")


async def _fail(request: web.Request, wrong: str) -> web.StreamResponse:
    if wrong == "429":
        body = {"error": {"message": "too many requests", "type": "rate_limit"}}
        return web.json_response(body, status=429, headers={"Retry-After": "1"})
    if wrong == "500":
        return web.json_response({"error": {"message": "something broke", "type": "server_error"}}, status=500)
    if wrong == "stall":
        await asyncio.sleep(STALL)
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _body(asked: str, text: str, wrong: str | None) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "length" if wrong == "cut off" else "stop",
    }
    read, written = len(asked) // 4, len(text) // 4
    body: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [] if wrong == "no choices" else [choice],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
    made = json.dumps(body).encode()
    return made[: len(made) // 2] if wrong == "half JSON" else made


def behave(address: str, behaviour: Behaviour) -> None:
    """Set how the server at this address (`http://127.0.0.1:PORT`) behaves, and let it count from 0."""
    body = json.dumps(asdict(behaviour)).encode()
    urllib.request.urlopen(urllib.request.Request(f"{address}/behaviour", body, method="POST")).read()


def counted(address: str) -> Counts:
    """Return what the server at this address has counted."""
    return Counts(**json.loads(urllib.request.urlopen(f"{address}/counts").read()))


async def serve() -> None:
    """Serve on a free port of the loopback, which is printed."""
    runner = web.AppRunner(Judge(Behaviour()).application(), access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
