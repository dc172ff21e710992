"""Models that share a device: one set of models on it at a time, no request starves; `offload` alone is refused."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.config import Choice
from rewardsmith.engines.offload import DeviceScheduler
from rewardsmith.errors import RecipeError
from rewardsmith.llm import ModelCallError
from rewardsmith.recipe import parse_models, parse_recipe


class Sleepers:
    """Models that note when they sleep and wake, and insist that no other is awake."""

    def __init__(self, scheduler, names):
        self.awake, self.log = set(), []
        for name in names:
            scheduler.add(name, self.act(name, wake=False), self.act(name, wake=True))

    def act(self, name, *, wake):
        async def rest():
            await asyncio.sleep(0)
            assert (name in self.awake) != wake
            (self.awake.add if wake else self.awake.remove)(name)
            self.log.append(f"{'wake' if wake else 'sleep'} {name}")

        return rest


async def used(scheduler, sleepers, work):
    """Do pieces of work, each (party, pauses before, pauses within), at the same time."""

    async def one(party, before, within):
        for _ in range(before):
            await asyncio.sleep(0)
        async with scheduler.on_device(*party):
            for _ in range(within + 1):
                assert set(party) <= sleepers.awake
                await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(*(one(*piece) for piece in work)), timeout=20)


PARTIES = st.sampled_from([("a",), ("b",), ("c",), ("a", "b")])


@given(st.lists(st.tuples(PARTIES, st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=20))
def test_models_in_use_are_loaded_and_every_request_is_admitted(work):
    async def main():
        scheduler = DeviceScheduler()
        await used(scheduler, Sleepers(scheduler, "abc"), work)

    asyncio.run(main())


def test_those_who_wait_together_are_admitted_together():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy", "judge"])
        await used(scheduler, sleepers, [(("policy",), 0, 9), *[(("judge",), 1, i % 5) for i in range(50)]])
        return sleepers.log

    assert asyncio.run(main()) == ["wake policy", "sleep policy", "wake judge"]


def test_cancelling_a_user_or_a_waiter_frees_the_device():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy", "judge"])

        async def hold(name):
            async with scheduler.on_device(name):
                await asyncio.sleep(60)

        holder = asyncio.create_task(hold("policy"))
        await asyncio.sleep(0.01)
        waiter = asyncio.create_task(hold("judge"))
        await asyncio.sleep(0.01)
        for task in (waiter, holder):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await used(scheduler, sleepers, [(("judge",), 0, 1), (("policy",), 0, 1)])

    asyncio.run(main())


def test_a_server_that_is_gone_blocks_no_other_model():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy"])
        woken = []

        async def sleep():
            raise ModelCallError("unreachable", "it is gone")

        scheduler.add("judge", sleep, lambda: woken.append("judge"))
        for _ in range(2):
            await used(scheduler, sleepers, [(("policy",), 0, 1)])
            async with scheduler.on_device("judge"):
                pass
        await used(scheduler, sleepers, [(("policy",), 0, 1)])
        return woken

    assert asyncio.run(main()) == ["judge", "judge"]  # it is woken for its next call


@pytest.mark.parametrize("interrupted", ["wake", "sleep"])
def test_an_interrupted_move_is_repeated(interrupted):
    async def main():
        scheduler, log = DeviceScheduler(), []

        def act(name, deed):
            async def rest():
                log.append(f"{name} {deed}")
                if (name, deed) == ("judge", interrupted) and log.count(f"judge {deed}") == 1:
                    await asyncio.sleep(60)

            return rest

        async def work(name):
            async with scheduler.on_device(name):
                log.append(f"{name} works")

        for name in ("judge", "policy"):
            scheduler.add(name, act(name, "sleep"), act(name, "wake"))
        if interrupted == "sleep":
            await work("judge")
        task = asyncio.create_task(work("policy" if interrupted == "sleep" else "judge"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.append("-")
        await work("judge" if interrupted == "sleep" else "policy")
        return log[log.index("-") + 1 :]

    expected = {
        "wake": ["judge sleep", "policy wake", "policy works"],  # it may be half awake
        "sleep": ["judge wake", "judge works"],  # it may be half asleep
    }
    assert asyncio.run(main()) == expected[interrupted]


POLICY = {"init": "tiny-llama"}
RUBRIC = {"type": "rubric", "model": "judge", "criteria": "right: 10"}


def problems(**models):
    stage = {"type": "policy", "model": "policy", "data": "d", "steps": 1, "reward": RUBRIC}
    recipe = {"models": {"policy": POLICY, **models}, "data": {"d": {"type": "arithmetic"}}, "stages": [stage]}
    try:
        parse_recipe(recipe)
    except RecipeError as error:
        return [problem.path for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "judge",
    [
        {"type": "server", "urls": ["http://localhost:8000/v1"]},
        {"type": "managed", "command": "vllm", "model": "m"},
        {"init": "tiny-llama"},
    ],
)
def test_a_model_that_would_never_be_offloaded_is_refused(judge):
    alone = judge | {"offload": True}
    assert problems(judge=alone) == ["models.judge.offload"]
    assert problems(judge=alone, policy=POLICY | {"offload": True}) == []
    assert problems(judge=judge) == []
    reward = Choice("reward", "rewardsmith.rewards:REWARDS").choose(RUBRIC)
    with pytest.raises(RecipeError, match=r"models\.judge\.offload"):  # also for a reward in a file of its own
        parse_models({"models": {"judge": alone}}, reward, source="r")
