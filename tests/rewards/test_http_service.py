"""A service that a reward calls: retries inside one deadline, bounded replies, the right kind of failure."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.errors import UserError
from rewardsmith.http import request_errors
from rewardsmith.rewards import CannotScore, HttpService, make_reward
from rewardsmith.rewards.base import score
from rewardsmith.rewards.tree import close
from tests.engines.faulty import FaultyServer, raw, status

GROUP = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout("a"), Rollout("bb")])
LENGTHS = raw(b'{"scores": [1.0, 2.0], "error": 0.5}')  # a field `error` of a service may be anything


class Lengths:
    """Asks a service for one number per answer."""

    def __init__(self, *, url: str) -> None:
        self.service = HttpService(url, deadline=5.0)

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        reply = await self.service.post({"texts": [one.text for one in group.rollouts]}, path="grade")
        return [Score(value) for value in reply["scores"]]

    async def close(self) -> None:
        await self.service.close()


def outcome(*plan: Any, **settings: Any) -> tuple[Any, int]:
    """Return the reply or the kind of failure, and the number of requests."""

    async def run() -> tuple[Any, int]:
        async with FaultyServer() as server:
            server.plan(*plan, *[LENGTHS] * 3)
            service = HttpService(server.url, **{"deadline": 10.0, **settings})
            try:
                found: Any = await service.post({"x": 1})
            except CannotScore as error:
                found = error.kind if error.attempts == len(server.requests) else error
            await service.close()
            return found, len(server.requests)

    return asyncio.run(run())


REPLY = {"scores": [1.0, 2.0], "error": 0.5}


@pytest.mark.parametrize("fault", ["429", "429-after", "503", "502", "500", "408", "reset", "reset-midway", "half"])
def test_what_may_pass_is_retried(fault: str) -> None:
    assert outcome(fault, fault) == (REPLY, 3)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("400", "refused"), ("401", "refused"), ("404", "refused"), ("quota", "refused"), ("redirect", "refused"),
     ("huge", "unparsable")],
)  # fmt: skip
def test_what_does_not_pass_is_not_retried(fault: str, kind: str) -> None:
    assert outcome(fault) == (kind, 1)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("503", "unreachable"), ("502", "unreachable"), ("reset", "unreachable"), ("500", "refused"),
     ("html", "unparsable"), ("half", "unparsable")],
)  # fmt: skip
def test_retries_are_limited(fault: str, kind: str) -> None:
    assert outcome(*[fault] * 20, retries=2) == (kind, 3)


def test_an_overloaded_service_is_called_until_the_deadline() -> None:
    busy = status(429, Retry_After="0")
    assert outcome(*[busy] * 4, retries=0) == (REPLY, 5)
    begun = time.monotonic()
    assert outcome(*[status(503, Retry_After="100")] * 9)[0] == "unreachable"  # it would come too late
    assert time.monotonic() - begun < 9
    kind, count = outcome(*[busy] * 10_000, deadline=0.7)
    assert kind == "unreachable"
    assert count > 1


@pytest.mark.parametrize(
    "fault", [status(429), status(429, Retry_After="0"), status(429, Retry_After="-1"), status(503, Retry_After="0")]
)
def test_an_overloaded_service_that_names_no_time_is_called_ever_less_often(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_errors.random, "uniform", lambda low, high: high)  # the longest pauses
    kind, count = outcome(*[fault] * 100, deadline=2.0)
    assert kind == "unreachable"
    assert 1 < count <= 4  # after 0.25, 0.5 and 1 s


def test_a_service_that_stalls_is_a_timeout_within_one_deadline() -> None:
    begun = time.monotonic()
    assert outcome("stall", deadline=0.4) == ("timeout", 1)
    assert outcome("stall", "drip", timeout=0.2) == (REPLY, 3)
    assert outcome(*["stall"] * 9, timeout=0.1, retries=1) == ("timeout", 2)
    assert time.monotonic() - begun < 20


def test_replies_are_bounded_and_an_unused_port_is_unreachable() -> None:
    assert outcome(raw(b'"' + b"x" * 3_000 + b'"'), max_reply=2_000) == ("unparsable", 1)

    async def run() -> str:
        async with FaultyServer() as server:
            url = server.url
        with pytest.raises(CannotScore) as caught:
            await HttpService(url, deadline=2.0, retries=1).get("health")
        return caught.value.kind

    assert asyncio.run(run()) == "unreachable"


def test_a_reward_with_a_service_in_several_event_loops() -> None:
    """Each loop has connections of its own, and all are closed with it: an open one would be a warning."""
    reward = make_reward({"type": "tests.rewards.test_http_service:Lengths", "url": "http://127.0.0.1:1"})

    async def run() -> list[float | None]:
        async with FaultyServer() as server:
            server.plan(LENGTHS, "503", LENGTHS)
            reward.reward.service = HttpService(server.url)  # type: ignore[attr-defined]
            found = [one.value for _ in range(2) for one in (await score(reward, GROUP)).scores]
            assert server.requests[0][0] == "/v1/grade"
            assert server.bodies[0] == {"texts": ["a", "bb"]}
            await close(reward)
            return found

    for _ in range(2):
        assert asyncio.run(run()) == [1.0, 2.0, 1.0, 2.0]


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "secret-0123456789")

    async def run() -> None:
        async with FaultyServer(key="secret-0123456789") as server:
            server.plan(LENGTHS)
            service = HttpService(server.url, api_key_env="SERVICE_KEY")
            assert await service.post({}) == REPLY
            server.plan(status(401, "not secret-0123456789"))
            with pytest.raises(CannotScore) as caught:
                await service.post({})
            assert "secret" not in str(caught.value)
            await service.close()
            monkeypatch.delenv("SERVICE_KEY")
            with pytest.raises(UserError, match="SERVICE_KEY"):
                await HttpService(server.url, api_key_env="SERVICE_KEY").post({})

    asyncio.run(run())
    for url in ("http://user:password@host", "http://host?api_key=abcdef", "host:80", "http://host/#x"):
        with pytest.raises(UserError):
            HttpService(url)
