"""A reward in an environment of verifiers, and so in prime-rl.

    # my_rewards.py
    quality = verifiers_reward("judge.toml:policy")

    # the configuration of vf-eval and prime-rl
    [env.taskset.task.rewards.quality]
    fn = "my_rewards:quality"

It scores one trace at a time. A failure is raised: verifiers records it as an error of the trace, without a reward.
`score_traces` scores the traces of one task together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rewardsmith.errors import UserError
from rewardsmith.integrations.peer_rows import ANSWER_COLUMNS, PeerColumns, ScoreFailedError, load, part_values
from rewardsmith.rewards.verifiers_tasks import TASK, VerifiersObject
from rewardsmith.types import Prompt, Rollout, RolloutGroup, Score

View = Literal["last_reply", "transcript"]
"""What of a trace is the answer: the last reply of the model, or all messages."""

TraceReward = Callable[[Any, Any], Awaitable[float]]


def verifiers_reward(
    reward: Any,
    *,
    models: Mapping[str, Any] | None = None,
    answer: str | Sequence[str] = ANSWER_COLUMNS,
    view: View = "last_reply",
    name: str = "rewardsmith",
) -> TraceReward:
    """Return a reward function of verifiers: `async (task, trace) -> float`.

    The parts are recorded as metrics `NAME/PART` of the trace: verifiers would add up several rewards.

    Args:
        reward: whatever `rewardsmith.reward` takes: a table, a name, `RECIPE.toml[:STAGE]`, a function, an object.
        models: the models that its judges name.
        answer: the field of the task's data with the right answer; of several names, the first that it has.
        view: what of a trace is the answer.
        name: prefix of the metrics.
    """
    loaded, columns = load(reward, models), PeerColumns(answer)
    if loaded.needs_whole_groups:
        raise UserError(
            "the reward compares the answers to a prompt with each other, and verifiers scores each trace alone: let"
            " the environment run the answers in one episode, and call score_traces in its finalize()"
        )

    async def scored(task: Any, trace: Any) -> float:
        group = RolloutGroup(task_prompt(task, columns), [_rollout(trace, view)])
        return _recorded(trace, (await loaded.score_group(group)).scores[0], name)

    scored.__name__ = name
    return scored


async def score_traces(
    reward: Any,
    task: Any,
    traces: Sequence[Any],
    *,
    answer: str | Sequence[str] = ANSWER_COLUMNS,
    view: View = "last_reply",
    name: str = "rewardsmith",
) -> None:
    """Score the traces of one task as a group, and record the reward of each; for `finalize()` of an environment.

    A trace that could not be scored gets an error and no reward.

    Args:
        reward: a reward that `rewardsmith.reward` returned.
        task: the data of the task (`task.data`).
        traces: the traces of the answers.
        answer: see `verifiers_reward`.
        view: see `verifiers_reward`.
        name: of the reward, and prefix of the metrics.
    """
    group = RolloutGroup(task_prompt(task, PeerColumns(answer)), [_rollout(trace, view) for trace in traces])
    for trace, score in zip(traces, (await load(reward).score_group(group)).scores, strict=True):
        try:
            trace.record_reward(name, _recorded(trace, score, name))
        except ScoreFailedError as error:
            trace.rewards[name] = None
            trace.record_error(error)


def from_verifiers(tasks: Any) -> VerifiersObject:
    """Return the rewards of a taskset of verifiers, or of a class of tasks, as a reward for `rewardsmith.reward`."""
    return VerifiersObject(tasks)


def taskset_prompts(
    tasks: Iterable[Any], *, source: str = "", answer: str | Sequence[str] = ANSWER_COLUMNS
) -> list[Prompt]:
    """Return the tasks of a taskset as prompts, such as `taskset.take(100)`; the reward `verifiers` can score them."""
    found = []
    for index, task in enumerate(tasks):
        prompt = task_prompt(task.data, PeerColumns(answer))
        info = {**prompt.info, TASK: task.data.model_dump(mode="json", exclude_none=True)}
        found.append(replace(prompt, id=task.data.id or f"{source or 'task'}-{index}", source=source, info=info))
    return found


def task_prompt(task: Any, columns: PeerColumns) -> Prompt:
    """Return the prompt of the data of a task; all its fields are the prompt's `info`."""
    row = task.model_dump(mode="json", exclude_none=True)
    prompt = row.pop("prompt", None) or row.get("description") or ""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if task.system_prompt:
        messages.insert(0, {"role": "system", "content": task.system_prompt})
    return columns.prompt(messages, row)


def _rollout(trace: Any, view: View) -> Rollout:
    return Rollout(getattr(trace, view), stop_reason="length" if trace.is_truncated else "stop")


def _recorded(trace: Any, score: Score, name: str) -> float:
    """Record the parts of a score, and return its value."""
    for part, value in part_values(score).items():
        if value is not None:
            trace.record_metric(f"{name}/{part}", value)
    if score.value is None:
        raise ScoreFailedError(score)
    return score.value
