"""Rewards of ours in real environments of verifiers, with rollouts of a model behind a real HTTP endpoint."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import verifiers.v1 as vf
from rewardsmith import UserError
from rewardsmith.integrations.verifiers_reward import verifiers_reward
from tests.peers.loopback import serve

pytestmark = pytest.mark.filterwarnings("default")  # of its libraries
HERE = Path(__file__).parent
FOLDERS = [str(HERE / "vf_modules"), str(HERE.parents[1] / "examples" / "integrations")]
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(folder)


async def model(request: web.Request) -> web.Response:
    """Write `It is N`, where N counts the requests."""
    await request.json()
    message = {"role": "assistant", "content": f"It is {next(NUMBERS) % 10}"}
    return web.json_response(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
        }
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serve(model) as url:
        yield f"{url}/v1"


def episodes(endpoint: str, taskset: dict[str, Any], *, env: str = "", tasks: int = 4, rollouts: int = 1) -> list[Any]:
    async def main() -> list[Any]:
        agent = {"harness": {"id": "direct-harness"}, "runtime": {"type": "subprocess"}}
        settings = vf.resolve_env_config({"id": env, "taskset": taskset, "agent": agent})
        environment = vf.load_environment(settings)
        client = vf.EvalClientConfig(base_url=endpoint, api_key_var="NO_KEY")
        context = vf.ModelContext(client=client, model="m", sampling=vf.SamplingConfig())
        async with environment.serving():
            slots = [slot for task in environment.taskset.take(tasks) for slot in environment.slots(task, rollouts)]
            return list(await asyncio.gather(*(environment.run_slot(slot, context) for slot in slots)))

    return asyncio.run(main())


def test_the_example_environment_scores_real_rollouts(endpoint: str) -> None:
    found = episodes(endpoint, {"id": "sums-env"})
    assert all(episode.ok for episode in found), [episode.traces[0].errors for episode in found]
    for trace in (episode.traces[0] for episode in found):
        right = float(trace.last_reply.split()[-1] == trace.task.data.answer)
        assert trace.metrics["rewardsmith/right"] == right
        assert trace.rewards["quality"].score == trace.reward == right + 0.5


def test_a_failed_judge_is_an_error_of_the_trace_and_no_reward(endpoint: str) -> None:
    rewards = {"quality": {"fn": "judged_env:judged", "weight": 2.0}}
    found = episodes(endpoint, {"id": "judged-env", "task": {"rewards": rewards}}, rollouts=5)
    traces = [episode.traces[0] for episode in found]
    assert len(traces) == 20
    assert sum("7" in trace.last_reply for trace in traces) == 2
    for trace in traces:
        if "7" in trace.last_reply:
            assert not trace.ok
            assert trace.rewards["quality"] is None
            assert "refused: no sevens" in trace.last_error.message
        else:
            assert trace.ok
            assert trace.reward == 2 * trace.metrics["rewardsmith/grade"] == 2 * float(trace.last_reply[-1])


def test_answers_of_one_episode_are_ranked_together(endpoint: str) -> None:
    (episode,) = episodes(endpoint, {"id": "judged-env"}, env="ranked-env", tasks=1)
    traces = episode.traces
    assert len(traces) == 4
    grades = [None if "7" in trace.last_reply else float(trace.last_reply[-1]) for trace in traces]
    for trace, grade in zip(traces, grades, strict=True):
        if grade is None:
            assert trace.rewards["rewardsmith"] is None
            assert not trace.ok
        else:
            assert trace.reward == sum(other is not None and other < grade for other in grades)


def test_a_ranking_of_single_traces_is_refused() -> None:
    with pytest.raises(UserError, match="score_traces"):
        verifiers_reward(lambda responses: [0.0 for _ in responses])
