"""A plain Python function as a reward: of one answer or of a whole group, sync or async.

    def short(response): return 1 / (1 + len(response))                     # one answer
    def right(response, answer): return float(answer in response)           # with the ground truth
    async def helpful(prompt, response): ...                                # waits for a service
    def best(group): return rank(group.prompt, group.rollouts)              # all answers to a prompt

What a function gets is decided by the names of its parameters. It runs in this process, in a thread unless it is async.
A rule (`type = "rule"`) runs in a worker process that can be killed; use one where a function may hang or crash.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rewardsmith.errors import UserError, listing
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.types import Failure, Prompt, Rollout, RolloutGroup, Score

_OF_PROMPT: dict[str, Callable[[Prompt], Any]] = {
    "prompt": lambda prompt: prompt,
    "answer": lambda prompt: prompt.answer,
    "source": lambda prompt: prompt.source,
    "info": lambda prompt: prompt.info,
    "messages": lambda prompt: prompt.messages,
}
_OF_ANSWER: dict[str, Callable[[Rollout], Any]] = {
    "response": lambda rollout: rollout.text,
    "text": lambda rollout: rollout.text,
    "rollout": lambda rollout: rollout,
}
_OF_GROUP: dict[str, Callable[[RolloutGroup], Any]] = {
    "group": lambda group: group,
    "responses": lambda group: [rollout.text for rollout in group.rollouts],
}


class FunctionReward:
    """Score rollouts by a Python function, which gets what its parameters name.

    For one answer: `response` (its text), `rollout`. For all answers to a prompt: `group`, `responses`; then it returns
    one value for each. Both may take `prompt`, `answer` (the ground truth), `source`, `info` and `messages`. A function
    of one parameter of another name gets the text. It returns a number or a `Score`; None is a failure.
    """

    def __init__(self, function: Callable[..., Any], /) -> None:
        if not callable(function):
            raise UserError(f"a reward is a table, a name, a function or an object with score(); this is {function!r}")
        self._names, self._function = _parameters(function), function
        if not self._names:  # one parameter of any name, or of none
            self._names["response"], self._function = "response", _by_position(function)
        self.whole = any(name in _OF_GROUP for name in self._names.values())
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 an object that is called like a function
        )

    async def score(self, group: RolloutGroup) -> list[Score]:
        """Return one score per rollout; an answer for which the function raises is a failure of its own."""
        if self.whole:
            return _scores_of(await self._call(group, None), len(group.rollouts))
        if self._is_async:
            rows = (self._call(group, rollout) for rollout in group.rollouts)
            found: Sequence[Any] = await asyncio.gather(*rows, return_exceptions=True)
        else:
            found = await asyncio.to_thread(self._call_each, group)
        errors = [one for one in found if isinstance(one, BaseException)]
        if errors and len(errors) == len(found):
            raise errors[0]  # a service that is down for all is waited for
        return [_score_of(one) for one in found]

    async def _call(self, group: RolloutGroup, rollout: Rollout | None) -> Any:
        arguments = self._arguments(group, rollout)
        if self._is_async:
            return await self._function(**arguments)
        result = await asyncio.to_thread(self._function, **arguments)
        return await result if inspect.isawaitable(result) else result

    def _call_each(self, group: RolloutGroup) -> list[Any]:
        found: list[Any] = []
        for rollout in group.rollouts:
            try:
                found.append(self._function(**self._arguments(group, rollout)))
            except Exception as error:  # noqa: BLE001 a user's own code
                found.append(error)
        return found

    def _arguments(self, group: RolloutGroup, rollout: Rollout | None) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for parameter, name in self._names.items():
            if name in _OF_PROMPT:
                values[parameter] = _OF_PROMPT[name](group.prompt)
            elif rollout is not None:
                values[parameter] = _OF_ANSWER[name](rollout)
            else:
                values[parameter] = _OF_GROUP[name](group)
        return values


def _by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(response: str) -> Any:
        return function(response)

    return call


def _parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Return by the name of each parameter what it gets; {} for a function of the text alone."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UserError(f"the reward function {name} has no signature: wrap it in a function of `response`") from None
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = {**_OF_PROMPT, **_OF_ANSWER, **_OF_GROUP}
    found = {p.name: p.name for p in named if p.name in known}
    required = [p.name for p in named if p.default is p.empty and (p.name not in known or p.kind is p.POSITIONAL_ONLY)]
    if len(named) == 1 and required:
        return {}
    if required:
        problem = f"has the unknown parameter {required[0]!r}. Known: {listing(known)}"
        raise UserError(f"the reward function {name} {problem}")
    of_answer, of_group = _OF_ANSWER.keys() & found.keys(), _OF_GROUP.keys() & found.keys()
    if bool(of_answer) == bool(of_group):
        remedy = "take `response` to score one answer, or `responses` or `group` to score all answers to a prompt"
        raise UserError(f"the reward function {name} takes {listing(found) or 'nothing'}: {remedy}")
    return found


def _scores_of(result: Any, count: int) -> list[Score]:
    if isinstance(result, str) or not hasattr(result, "__iter__") or len(values := list(result)) != count:
        raise CannotScore("invalid", f"the function returned {str(result)[:200]!r} for {count} answers: one value each")
    return [_score_of(value) for value in values]


def _score_of(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if isinstance(value, BaseException):
        return Score(failure=failure_of(value))
    if value is None:
        return Score(failure=Failure("invalid", "the function returned None"))
    try:
        return Score(float("nan" if isinstance(value, str | bytes) else value))
    except (TypeError, ValueError, OverflowError):
        detail = f"the function returned {str(value)[:200]!r}, which is no finite number"
        return Score(failure=Failure("invalid", detail))
