"""The benchmark of judges works, and what it shows of ours holds: no reward is false, whatever the server does."""

import asyncio
import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.model_settings import ClientSettings
from tests.engines.faulty import close

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("judges")


def outcomes(judges: ModuleType, rollouts: int, faults: float, retries: int) -> tuple[Counter[str], int]:
    """Return what the rewards of a rubric are, and how many requests it took."""
    behaviour = judges.Behaviour(latency=0.01, faults=faults, seed=3)

    async def scored() -> tuple[list[tuple[float | None, str]], int]:
        judge = importlib.import_module("judges_server").Judge(behaviour)
        runner = web.AppRunner(judge.application(), access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        settings = ClientSettings(timeout=1.0, retries=retries, backoff=0.01)
        async with ServedModel(settings, [url], name="judge") as model:
            found = await judges.score_all(judges.make_groups(rollouts, 0), model)
        await close(runner)
        return found, judge.counts.requests

    found, requests = asyncio.run(scored())
    return Counter(judges.judged(number, *outcome) for number, outcome in enumerate(found)), requests


def test_every_fault_is_met_and_overcome(judges: ModuleType) -> None:
    met = [judges.fault(judges.Behaviour(faults=0.2, seed=3), number, 0) for number in range(40)]
    assert Counter(met) == Counter({None: 32, **dict.fromkeys(judges.FAULTS, 1)})
    found, requests = outcomes(judges, 40, 0.2, retries=5)
    assert found == {"true": 40}
    assert requests >= 48


def test_what_is_not_overcome_is_no_reward(judges: ModuleType) -> None:
    found, _ = outcomes(judges, 16, 0.5, retries=0)
    assert found["none"] > 0
    assert found["true"] + found["none"] == 16
