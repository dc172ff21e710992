"""Rewards that do what they should not."""

import asyncio
import errno
import importlib
import subprocess
import urllib.error
import urllib.request
from typing import Any

import aiohttp

from rewardsmith import Failure, Prompt, RolloutGroup, Score
from rewardsmith.rewards import CannotScore, Halt


def raising(error: BaseException) -> type:
    """Return a reward class whose `score` raises this."""

    async def score(self: Any, group: RolloutGroup) -> Any:
        raise error

    return type("Raising", (), {"score": score})


def returning(*values: Any) -> type:
    """Return a reward class that returns these, for each group."""

    async def score(self: Any, group: RolloutGroup) -> Any:
        return list(values) if values else None

    return type("Returning", (), {"score": score})


def chained(error: Exception, **attributes: Any) -> Exception:
    """Return an exception with a cause or a context."""
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class _Silent(CannotScore):
    def __str__(self) -> str:
        raise RuntimeError


_Silent.__name__ = "SilentCannotScore"
_Connection = type("APIConnectionError", (Exception,), {})
_Timeout = type("APITimeoutError", (_Connection,), {})

UnknownKind = raising(CannotScore("http 500", "the judge is ill"))  # type: ignore[arg-type]
SilentCannotScore = raising(_Silent("timeout", "?"))
WithReason = raising(urllib.error.URLError(ConnectionRefusedError("port 9")))
NoRoute = raising(OSError(errno.EHOSTUNREACH, "no route"))
Exits = raising(SystemExit(3))
Expired = raising(subprocess.TimeoutExpired("judge", 3))
WithCause = raising(chained(RuntimeError("my client"), __cause__=ConnectionResetError("port 9")))
Wrapped = raising(chained(RuntimeError("my client"), __context__=ConnectionResetError("port 9")))
TooLate = raising(_Timeout("slow"))
InAGroup = raising(ExceptionGroup("tasks", [ConnectionRefusedError("port 9")]))
HaltsInAGroup = raising(ExceptionGroup("tasks", [ValueError("first"), Halt("enough")]))

SaysSkipped = returning(*[Score(failure=Failure("skipped", "no time"))] * 2)
Floats = returning(1.0, 1.0)
TooFew = returning(Score(1.0))
Nothing = returning()
Huge = returning(Score(1e31), Score(1e31))
FailsWithoutParts = returning(Score(1.0, parts={"style": Score(1.0)}), Score(failure=Failure("timeout")))
Dense = returning(Score(3.0, token_values=[1.0, 2.0]))  # type: ignore[arg-type]  # a reward per token


class NotAsync:
    def score(self, group: RolloutGroup) -> Any:
        return [Score(1.0) for _ in group.rollouts]


class CancelsItself:
    async def score(self, group: RolloutGroup) -> Any:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        return await task


class Picky(returning(Score(1.0))):  # type: ignore[misc]
    def require(self, prompt: Prompt) -> None:
        raise KeyError("nothing")


class Unconnectable(returning(Score(1.0))):  # type: ignore[misc]
    def connect(self, models: Any) -> None:
        raise KeyError("judge")


def truth(prompt: Prompt, text: str) -> Any:
    raise KeyError("nothing")


class Furnished(returning(Score(1.0))):  # type: ignore[misc]
    """Has attributes that mean something in our own classes."""

    components = ("wheel", "axle")
    streams = 5
    parts = "many"
    by_source = True
    learn = 3

    def find(self, a: int, b: int) -> None: ...


class Service:
    """Calls a service by HTTP, as users do with the common clients."""

    def __init__(self, *, url: str, client: str) -> None:
        self.url, self.client = url, client

    async def score(self, group: RolloutGroup) -> list[Score]:
        if self.client == "aiohttp":
            limit = aiohttp.ClientTimeout(total=0.5)
            session = aiohttp.ClientSession(raise_for_status=True, timeout=limit)
            async with session, session.get(self.url) as reply:
                value = await reply.text()
        else:
            value = await asyncio.to_thread(self._read)
        return [Score(float(value)) for _ in group.rollouts]

    def _read(self) -> str:
        if self.client == "urllib":
            with urllib.request.urlopen(self.url, timeout=0.5) as reply:
                return str(reply.read().decode())
        response = importlib.import_module(self.client).get(self.url, timeout=0.5)
        response.raise_for_status()
        return str(response.text)


class DiesWithin:
    """Answers the first rollout of each group, and is gone for the others for a while."""

    def __init__(self) -> None:
        self._calls = 0

    async def score(self, group: RolloutGroup) -> Any:
        self._calls += 1
        if self._calls > 12:
            return [Score(1.0) for _ in group.rollouts]
        gone = Score(failure=Failure("unreachable", "port 9"))
        return [Score(1.0) if len(group.rollouts) == 3 and i == 0 else gone for i in range(len(group.rollouts))]


class SlowAfterOutage:
    """Is back after a moment, and then takes its time."""

    def __init__(self) -> None:
        self._checks = 0

    async def check(self) -> None:
        self._checks += 1
        if self._checks < 2:
            raise ConnectionError

    async def score(self, group: RolloutGroup) -> Any:
        if self._checks < 2:
            raise ConnectionError
        await asyncio.sleep(0.2)
        return [Score(1.0) for _ in group.rollouts]


class Poisoned(raising(ConnectionResetError("when it reads this rollout"))):  # type: ignore[misc]
    async def check(self) -> None: ...


class HangsWhenChecked(Poisoned):
    async def check(self) -> None:
        await asyncio.sleep(3600)


class SlowWithOwnDeadline:
    """Takes longer than the deadline of the recipe, and has one of its own."""

    deadline = 5.0

    async def score(self, group: RolloutGroup) -> Any:
        await asyncio.sleep(0.1)
        return [Score(1.0) for _ in group.rollouts]
