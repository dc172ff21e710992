"""The client of the reward server, and the reward of a recipe that is behind one."""

import asyncio
from typing import Any

import numpy as np
import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.errors import UserError
from rewardsmith.integrations.reward_client import RewardClient
from rewardsmith.rewards import component, make_reward
from rewardsmith.rewards.base import score
from rewardsmith.rewards.tree import check, close
from tests.engines.faulty import FaultyServer, raw, status
from tests.integrations.serving import MATH, serving

FAILS = {"type": "tests.integrations.slow_rewards:Fails"}
SLOW = {"type": "tests.integrations.slow_rewards:Slow", "seconds": 0.2}
PROMPT = Prompt("p", [Message("user", "6 · 7?")], source="s", answer="42")
GROUP = RolloutGroup(PROMPT, [Rollout("\\boxed{42}"), Rollout("x", tokens=[1, 2], logprobs=[-1.0, -2.0])])


class Tokens:
    """Gives each token its place as a reward."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(1.0, token_values=np.arange(len(one.tokens))) for one in group.rollouts]


def remote(url: str, **settings: Any) -> dict[str, Any]:
    return {"type": "remote", "url": url, **settings}


def test_a_remote_reward_gives_the_scores_and_failures_of_the_local_one() -> None:
    async def run() -> None:
        for table in (MATH, FAILS, {"type": "sum", "parts": {"bad": FAILS, "good": MATH}},
                      {"type": "tests.integrations.test_reward_client:Tokens"}):  # fmt: skip
            local = make_reward(table)
            expected = await score(local, GROUP)
            async with serving(table) as served:
                reward = make_reward(remote(served.url))
                await check(reward)
                assert (await score(reward, GROUP)).scores == expected.scores
                parts = {"far": remote(served.url), "near": MATH}
                both = await score(make_reward({"type": "sum", "parts": parts}), GROUP)
                assert [one.parts["far"] for one in both.scores] == list(expected.scores)
                await close(reward)

    asyncio.run(run())


def test_the_client_from_a_loop_and_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TOKEN", "a-long-token")

    async def run() -> None:
        async with serving(MATH, token="a-long-token") as served:
            client = RewardClient(served.url, api_key_env="REWARD_TOKEN")
            await client.check()
            assert [one.value for one in (await client.score_group(GROUP)).scores] == [1.0, 0.0]
            scored = await asyncio.to_thread(client.score_groups, [GROUP] * 5)
            assert [[one.value for one in group.scores] for group in scored] == [[1.0, 0.0]] * 5
            assert scored[0].group == GROUP
            await client.aclose()
            await asyncio.to_thread(client.close)
            monkeypatch.setenv("REWARD_TOKEN", "another-token")
            wrong = RewardClient(served.url, api_key_env="REWARD_TOKEN")
            (failure, _) = [one.failure for one in (await wrong.score_group(GROUP)).scores]
            assert failure is not None
            assert failure.kind == "refused"
            assert "another-token" not in failure.detail
            monkeypatch.delenv("REWARD_TOKEN")
            with pytest.raises(UserError, match="REWARD_TOKEN"):
                await RewardClient(served.url, api_key_env="REWARD_TOKEN").check()

    asyncio.run(run())


def test_a_busy_server_is_called_again_until_it_has_room() -> None:
    async def run() -> None:
        async with serving(SLOW, max_in_flight=2) as served:
            client = RewardClient(served.url, deadline=30.0)
            scored = await asyncio.gather(*(client.score_group(GROUP) for _ in range(4)))
            assert [[one.value for one in group.scores] for group in scored] == [[10.0, 1.0]] * 4
            _, text = await served.get("/metrics")
            assert 'status="429"' in text
            await client.aclose()

    asyncio.run(run())


def test_deadlines_of_client_and_server() -> None:
    async def run() -> None:
        async with serving({**SLOW, "seconds": 60.0}) as served:
            (failure, _) = [
                one.failure for one in (await RewardClient(served.url, deadline=1.0).score_group(GROUP)).scores
            ]
            assert failure is not None
            assert (failure.kind, failure.detail) == ("timeout", "no scores within 0.5 s")  # the server's own words

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (raw(b'{"scores": [{"value": 1.0}]}'), "unparsable"),  # one score for two rollouts
        (raw(b'{"scores": [{"value": NaN}, {"value": 1.0}]}'), "unparsable"),
        (raw(b'{"scores": [{"value": null}, {"value": 1.0}]}'), "unparsable"),
        (raw(b'{"scores": [{"value": true}, {"value": 1.0}]}'), "unparsable"),
        (raw(b'{"scores": [{"value": 1e40}, {"value": 1.0}]}'), "invalid"),
        (raw(b'{"scores": 5}'), "unparsable"),
        (raw(b'{"scores": [{"value": 1.0}, {"value": 1.0}], "error": "no judge"}'), "unparsable"),
        (raw(b'{"scores": [], "scores": [{"value": 1.0}, {"value": 1.0}]}'), "unparsable"),
        (raw(b'{"scores": [{"value": 0.0, "value": 1.0}, {"value": 1.0}]}'), "unparsable"),
        (raw(b"<html>"), "unparsable"),
        (raw(b"[" * 100_000), "unparsable"),
        (status(404), "refused"),
        (status(400), "refused"),
        (status(503), "unreachable"),
        ("reset", "unreachable"),
        ("drip", "timeout"),
    ],
)
def test_replies_that_are_no_scores(fault: Any, kind: str) -> None:
    async def run() -> None:
        async with FaultyServer() as server:
            server.plan(*[fault] * 10)
            url = server.url.removesuffix("/v1")
            client = RewardClient(url, deadline=2.0, retries=1)
            failures = [one.failure and one.failure.kind for one in (await client.score_group(GROUP)).scores]
            assert failures[0] == kind
            await client.aclose()

    asyncio.run(run())


def test_a_server_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "FIRST_PAUSE", 0.02)

    async def run() -> None:
        async with serving(MATH) as served:
            opened, served.server._reward = served.server._reward, None
            reward = make_reward(remote(served.url, deadline=1.0, failure={"wait": 30.0}))
            messages: list[str] = []
            reward.log = messages.append

            async def later() -> None:
                while not messages:
                    await asyncio.sleep(0.02)
                served.server._reward = opened

            task = asyncio.create_task(later())
            assert [one.value for one in (await score(reward, GROUP)).scores] == [1.0, 0.0]
            await task
            assert "is unreachable" in messages[0]
            await close(reward)

    asyncio.run(run())


def test_an_address_that_is_no_reward_server() -> None:
    async def run() -> None:
        async with FaultyServer() as server:
            server.plan(raw(b'{"ready": "perhaps"}'))
            with pytest.raises(UserError, match="no reward server"):
                await check(make_reward(remote(server.url)))
        with pytest.raises(UserError, match="address cannot be used"):
            make_reward(remote("ftp://x"))

    asyncio.run(run())
