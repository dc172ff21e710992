"""The rewards and judges of an environment of verifiers, as a reward: by the id of its taskset, or as a Python object.

    reward = { type = "verifiers", taskset = "gsm8k" }

A prompt becomes the data of a task and an answer its trace; verifiers scores the trace as `vf-replay` does. What its
scoring raises is a failure. Rewards that need a sandbox (`runtime`) or other agents cannot be computed from a text, and
are refused. By id it runs in killable workers; the second half of this module runs there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.checks import thawed
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.rewards.function_file import MAX_FEEDBACK, MEMORY, WorkerDeadline, WorkerMemory
from rewardsmith.rewards.judges.hooks import awaited, call_in_worker, finite_number, unless_halted
from rewardsmith.rewards.judges.plugin import LOAD_TIMEOUT
from rewardsmith.rewards.pool import Call, shared_waiting
from rewardsmith.rewards.user_calls import gather_results
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Failure, Message, Prompt, RolloutGroup, Score

TASK = "task"
"""Field of a prompt's info with the data of its task as verifiers has it; other fields of info are taken without it."""


class VerifiersTasks:
    """Score each rollout by the rewards of a taskset of verifiers; its named rewards are the parts."""

    def __init__(
        self,
        *,
        taskset: Annotated[str, Field(min_length=1, description="id of the taskset: an installed package or module")],
        config: Annotated[
            dict[str, Any] | None, Field(description="settings of the taskset, such as task.judges")
        ] = None,
        deadline: WorkerDeadline = 120.0,
        memory: WorkerMemory = MEMORY,
    ) -> None:
        self.deadline, self._taskset, self._memory = deadline, taskset, memory
        self._call = Call(taskset, {"config": config or {}}, loader=f"{__name__}:load_verifiers_taskset")

    async def check(self) -> None:
        """Load the taskset in the worker processes; raises a `UserError` if that fails."""
        if importlib.util.find_spec("verifiers") is None:
            raise UserError('the reward "verifiers" needs verifiers: pip install "rewardsmith[verifiers]"')
        await shared_waiting().load(self._call, limit=LOAD_TIMEOUT)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        row = task_row(group.prompt)
        results = await asyncio.gather(*(self._result(row, rollout.text) for rollout in group.rollouts))
        return scores_of(results)

    async def _result(self, row: dict[str, Any], text: str) -> list[Any] | Failure:
        pool, name = shared_waiting(), self._taskset
        try:
            return await call_in_worker(pool, self._call, (row, text), name, self.deadline, self._memory)  # type: ignore[no-any-return]
        except CannotScore as error:
            return failure_of(error)


class VerifiersObject:
    """Score each rollout by a taskset of verifiers, or a class of tasks, in this process."""

    def __init__(self, tasks: Any) -> None:
        self._scorer = TraceScorer.of(tasks)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        row = task_row(group.prompt)
        found = await gather_results(self._scorer.result(row, rollout.text) for rollout in group.rollouts)
        return scores_of([failure_of(one) if isinstance(one, BaseException) else one for one in found])


def task_row(prompt: Prompt) -> dict[str, Any]:
    """Return the data of a prompt's task: `info.task`, or the prompt itself with its info and answer."""
    given = prompt.info.get(TASK)
    if isinstance(given, Mapping):
        return dict(thawed(given))
    *first, last = prompt.messages
    chat: Any = [_turn(message) for message in prompt.messages] if first else last.content
    return {"id": prompt.id, "answer": thawed(prompt.answer), **thawed(prompt.info), "prompt": chat}


def scores_of(results: list[list[Any] | Failure]) -> tuple[Score, ...]:
    """Return the scores of answers; all have the parts that one of them has."""
    names = dict.fromkeys(name for one in results if not isinstance(one, Failure) for name in one[1])
    absent = Score(failure=Failure("skipped", "the task recorded no such reward for this answer"))
    scores = []
    for one in results:
        if isinstance(one, Failure):
            scores.append(Score(failure=one, parts={name: Score(failure=one) for name in names}))
        else:
            value, rewards, feedback = one
            parts = {name: Score(rewards[name]) if name in rewards else absent for name in names}
            scores.append(Score(value, parts=parts, feedback=feedback))
    return tuple(scores)


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


# ---- in the worker, and in this process for objects ----------------------------------------------------------------


def load_verifiers_taskset(taskset: str, *, config: dict[str, Any]) -> Callable[[Any, str], list[Any]]:
    """Return a function from `(row, answer)` to `[value, named rewards, feedback]`."""
    import verifiers.v1 as vf  # noqa: PLC0415 an optional package

    try:
        settings = vf.taskset_config_type(taskset).model_validate({**config, "id": taskset})
        environment = vf.environment_class(taskset)
        scorer = TraceScorer(vf.task_type(taskset), settings.task)
    except Exception as error:
        raise UserError(f"the taskset {taskset!r} cannot be loaded: {str(error)[:1000]}") from error
    if not issubclass(environment, vf.SingleAgentEnv):
        raise UserError(f"{environment.__name__} has several agents, and one answer is not an episode of it")
    return lambda argument, _: unless_halted(lambda: awaited(scorer.result(*argument)))


class TraceScorer:
    """Scores answers by a class of tasks."""

    def __init__(self, task_class: Any, config: Any) -> None:
        self._task_class, self._config = task_class, config
        task = task_class(task_class.data_type().model_construct(), config)
        hooks = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
        needing = [getattr(hook, "__name__", "reward") for hook in hooks if _needs_runtime(hook)]
        if needing:
            raise UserError(f"its rewards need a sandbox that an answer alone does not have: {', '.join(needing)}")
        if not hooks:
            raise UserError(f"{task_class.__name__} has no rewards: set task.judges or task.rewards in its config")

    @classmethod
    def of(cls, tasks: Any) -> TraceScorer:
        """Return the scorer of a taskset, or of a class of tasks."""
        if isinstance(tasks, type):
            return cls(tasks, tasks.config_type()())  # type: ignore[attr-defined]
        return cls(type(tasks).task_type(), tasks.config.task)

    async def result(self, row: Mapping[str, Any], text: str) -> list[Any]:
        """Return `[value, named rewards, feedback]` of an answer; raises what the scoring raises."""
        import verifiers.v1 as vf  # noqa: PLC0415 an optional package
        from verifiers.v1.configs.agent import WireAgentConfig  # noqa: PLC0415
        from verifiers.v1.state import state_cls  # noqa: PLC0415

        data = self._data(row)
        task = self._task_class(data, self._config)
        nodes = [vf.MessageNode(message=message) for message in _messages(vf, data)]
        nodes.append(vf.MessageNode(message=vf.AssistantMessage(content=text), sampled=True))
        for index, node in enumerate(nodes):
            node.parent = index - 1 if index else None
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=data),
            agent=vf.AgentInfo(config=WireAgentConfig()),
            nodes=nodes,
            state=state_cls(self._task_class)(),
            is_completed=True,
        )
        await task.score(trace)
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            raise CannotScore("invalid", f"verifiers recorded no value for {', '.join(unscored)}")
        rewards = {name: _finite(reward.score, name) for name, reward in trace.rewards.items()}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        feedback = json.dumps(metrics, default=str)[:MAX_FEEDBACK] if metrics else ""
        return [_finite(trace.reward, "the sum of the rewards"), rewards, feedback]

    def _data(self, row: Mapping[str, Any]) -> Any:
        try:
            return self._task_class.data_type().model_validate(row)
        except ValueError as error:
            detail = f"the prompt is no {self._task_class.data_type().__name__} of verifiers: {str(error)[:500]}"
            raise CannotScore("invalid", detail) from None


def _messages(vf: Any, data: Any) -> list[Any]:
    system = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    given = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return system + given


def _needs_runtime(hook: Callable[..., Any]) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _finite(value: Any, name: str) -> float:
    try:
        return finite_number(value, name)
    except Unparsable as error:
        raise CannotScore("invalid", str(error)) from None
