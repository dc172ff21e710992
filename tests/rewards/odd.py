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


UnknownKind = raising(CannotScore("http 500", "the judge is ill"))  # type: ignore[arg-type]
WithReason = raising(urllib.error.URLError(ConnectionRefusedError("port 9")))
NoRoute = raising(OSError(errno.EHOSTUNREACH, "no route"))
Exits = raising(SystemExit(3))
Expired = raising(subprocess.TimeoutExpired("judge", 3))


class SilentCannotScore:
    async def score(self, group: RolloutGroup) -> Any:
        class SilentCannotScore(CannotScore):
            def __str__(self) -> str:
                raise RuntimeError

        raise SilentCannotScore("timeout", "?")


class WithCause:
    async def score(self, group: RolloutGroup) -> Any:
        raise RuntimeError("my client") from ConnectionResetError("port 9")


class TooLate:
    async def score(self, group: RolloutGroup) -> Any:
        connection = type("APIConnectionError", (Exception,), {})
        raise type("APITimeoutError", (connection,), {})("slow")


class Wrapped:
    """An exception raised while another one was handled, without `from`."""

    async def score(self, group: RolloutGroup) -> Any:
        try:
            raise ConnectionResetError("port 9")
        except ConnectionResetError:
            raise RuntimeError("my client")  # noqa: B904


class Service:
    """Calls a service by HTTP, as users do with the common clients."""

    def __init__(self, *, url: str, client: str) -> None:
        self.url, self.client = url, client

    async def score(self, group: RolloutGroup) -> list[Score]:
        if self.client == "aiohttp":
            limit = aiohttp.ClientTimeout(total=0.2)
            session = aiohttp.ClientSession(raise_for_status=True, timeout=limit)
            async with session, session.get(self.url) as reply:
                value = await reply.text()
        else:
            value = await asyncio.to_thread(getattr(self, f"_{self.client}"))
        return [Score(float(value)) for _ in group.rollouts]

    def _requests(self) -> str:
        reply = importlib.import_module("requests").get(self.url, timeout=0.2)
        reply.raise_for_status()
        return str(reply.text)

    def _httpx(self) -> str:
        return str(importlib.import_module("httpx").get(self.url, timeout=0.2).raise_for_status().text)

    def _urllib(self) -> str:
        with urllib.request.urlopen(self.url, timeout=0.2) as reply:
            return str(reply.read().decode())


SaysSkipped = returning(*[Score(failure=Failure("skipped", "no time"))] * 2)


class Picky(returning(Score(1.0))):  # type: ignore[misc]
    def require(self, prompt: Prompt) -> None:
        raise KeyError("nothing")


class Unconnectable(returning(Score(1.0))):  # type: ignore[misc]
    def connect(self, models: Any) -> None:
        raise KeyError("judge")


def truth(prompt: Prompt, text: str) -> Any:
    raise KeyError("nothing")


class NotAsync:
    def score(self, group: RolloutGroup) -> Any:
        return [Score(1.0) for _ in group.rollouts]


Floats = returning(1.0, 1.0)


TooFew = returning(Score(1.0))
Nothing = returning()
Huge = returning(Score(1e31), Score(1e31))


class CancelsItself:
    async def score(self, group: RolloutGroup) -> Any:
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        return await task


class InAGroup:
    error: Exception = ConnectionRefusedError("port 9")

    async def score(self, group: RolloutGroup) -> Any:
        async def fail() -> None:
            raise self.error

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())


class HaltsInAGroup(InAGroup):
    error = Halt("enough")


class Furnished:
    """Has attributes that mean something in our own classes."""

    components = ("wheel", "axle")
    streams = 5
    parts = "many"
    routes = True

    def find(self, a: int, b: int) -> None: ...

    async def score(self, group: RolloutGroup) -> Any:
        return [Score(1.0) for _ in group.rollouts]


FailsWithoutParts = returning(Score(1.0, parts={"style": Score(1.0)}), Score(failure=Failure("timeout")))


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


class Poisoned:
    async def check(self) -> None: ...

    async def score(self, group: RolloutGroup) -> Any:
        raise ConnectionResetError("when it reads this rollout")


class HangsWhenChecked(Poisoned):
    async def check(self) -> None:
        await asyncio.sleep(3600)


class Dense:
    """Gives a reward per token."""

    async def score(self, group: RolloutGroup) -> Any:
        return [Score(3.0, token_values=[1.0, 2.0]) for _ in group.rollouts]


class SlowWithOwnDeadline:
    """Takes longer than the deadline of the recipe, and has one of its own."""

    deadline = 5.0

    async def score(self, group: RolloutGroup) -> Any:
        await asyncio.sleep(0.1)
        return [Score(1.0) for _ in group.rollouts]
