"""Rewards of ours in real environments of verifiers, with rollouts of a model behind a real HTTP endpoint."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from aiohttp import web

import rewardsmith as rs
from rewardsmith import Rollout, RolloutGroup, UserError
from rewardsmith.integrations.verifiers_reward import from_verifiers, taskset_prompts, verifiers_reward
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


def graded(kind: str) -> Any:
    """The reward of a taskset by its id, as an object, and as a class of tasks."""
    if kind == "id":
        return {"type": "verifiers", "taskset": "graded-env"}
    taskset = vf.load_taskset(vf.taskset_config_type("graded-env")(id="graded-env"))
    return from_verifiers(taskset if kind == "taskset" else type(taskset).task_type())


@pytest.mark.parametrize("kind", ["id", "taskset", "class"])
def test_an_environment_of_verifiers_is_a_reward(kind: str) -> None:
    taskset = vf.load_taskset(vf.taskset_config_type("graded-env")(id="graded-env"))
    prompts = taskset_prompts(taskset.take(2), source="sums")
    assert [(prompt.answer, prompt.source, prompt.info["hint"]) for prompt in prompts] == [
        ("1", "sums", "add"),
        ("2", "sums", "add"),
    ]
    texts = ["1", "a long answer", "please raise"]
    with rs.reward(graded(kind)) as reward:
        (scored, _) = reward.score_groups([RolloutGroup(prompt, [Rollout(t) for t in texts]) for prompt in prompts])
    right, wrong, failed = scored.scores
    assert right.value == 1.0 + 0.5 + 0.5
    assert {name: part.value for name, part in right.parts.items()} == {"right": 1.0, "short": 1.0, "asked": 1.0}
    assert right.feedback == '{"length": 1.0}'
    assert wrong.value == 0.5
    assert failed.failure.kind == "crashed"
    assert "the grader is confused" in failed.failure.detail
    assert set(failed.parts) == set(right.parts)


def test_a_plain_prompt_is_a_task_too_and_one_without_an_answer_is_a_failure() -> None:
    with rs.reward(graded("id")) as reward:
        assert rs.score(reward, "2+2?", ["4"], answers="4").values == [[2.0]]
        assert rs.score(reward, "2+2?", ["4"]).failures[0][0].kind == "invalid"


def test_a_reward_that_needs_a_sandbox_is_refused() -> None:
    with (
        rs.reward({"type": "verifiers", "taskset": "sandboxed-env"}) as reward,
        pytest.raises(UserError, match="sandbox"),
    ):
        reward.check()
    with (
        rs.reward({"type": "verifiers", "taskset": "no-such-env"}) as reward,
        pytest.raises(UserError, match="no-such"),
    ):
        reward.check()
