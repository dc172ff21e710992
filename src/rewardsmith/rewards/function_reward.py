"""A plain Python function as a reward: of one answer or of a whole group, sync or async.

    def short(response): return 1 / (1 + len(response))                     # one answer
    def right(response, answer): return float(answer in response)           # with the ground truth
    async def helpful(prompt, response): ...                                # waits for a service
    def best(group): return rank(group.prompt, group.rollouts)              # all answers to a prompt

What a function gets is decided by the names of its parameters. It runs in this process, in a thread unless it is async.
A rule (`type = "rule"`) runs in a worker process that can be killed; use one where a function may hang or crash.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rewardsmith.errors import UserError, listing
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.user_calls import gather_results, in_thread, is_async, listed
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


_OF_TRL = 'it looks like one of TRL: use rewardsmith.integrations.trl_reward.from_trl, or type = "trl_function"'
_OF_VERL = 'it looks like one of verl: use type = "verl_function" with the path of its file'
_OF_OTHERS = {"completions": _OF_TRL, "prompts": _OF_TRL, "solution_str": _OF_VERL, "data_source": _OF_VERL}


class FunctionReward:
    """Score rollouts by a Python function, which gets what its parameters name.

    For one answer: `response` (its text), `rollout`. For all answers to a prompt: `group`, `responses`; then it returns
    one value for each. Both may take `prompt`, `answer` (the ground truth), `source`, `info` and `messages`. A function
    of one parameter of another name gets the text. It returns a number, a `Score`, or a table with `score` whose other
    numbers become parts; None is a failure.
    """

    def __init__(self, function: Callable[..., Any], /) -> None:
        if not callable(function):
            raise UserError(f"a reward is a table, a name, a function or an object with score(); this is {function!r}")
        self._names, self._function = _parameters(function), function
        if not self._names:  # one parameter of any name, or of none
            self._names["response"], self._function = "response", _by_position(function)
        self.whole = any(name in _OF_GROUP for name in self._names.values())
        self._is_async = is_async(function)

    async def score(self, group: RolloutGroup) -> list[Score]:
        """Return one score per rollout; an answer for which the function raises is a failure of its own."""
        if self.whole:
            return [_score_of(value) for value in await self._call_whole(group)]
        if self._is_async:
            found = await gather_results(self._function(**self._arguments(group, one)) for one in group.rollouts)
        else:
            found = await in_thread(lambda: self._call_each(group))
            if any(map(inspect.isawaitable, found)):  # a plain function that returned a coroutine
                found = await gather_results(_awaited(one) for one in found)
        errors = [one for one in found if isinstance(one, BaseException)]
        if errors and len(errors) == len(found):
            raise errors[0]  # a service that is down for all is waited for
        return [_score_of(one) for one in found]

    async def _call_whole(self, group: RolloutGroup) -> list[Any]:
        arguments, count = self._arguments(group, None), len(group.rollouts)

        def call() -> Any:
            result = self._function(**arguments)
            return result if inspect.isawaitable(result) else listed(result, count)

        result = self._function(**arguments) if self._is_async else await in_thread(call)
        if not inspect.isawaitable(result):
            return result  # type: ignore[no-any-return]
        values = await result
        return await in_thread(lambda: listed(values, count))  # type: ignore[no-any-return]

    def _call_each(self, group: RolloutGroup) -> list[Any]:
        found: list[Any] = []
        for rollout in group.rollouts:
            try:
                found.append(self._function(**self._arguments(group, rollout)))
            except BaseException as error:  # noqa: BLE001 a user's own code, in a thread
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
    for p in named:
        if p.name in _OF_OTHERS:
            raise UserError(f"the reward function {name} has the parameter {p.name!r}: {_OF_OTHERS[p.name]}")
    known = {**_OF_PROMPT, **_OF_ANSWER, **_OF_GROUP}
    found = {p.name: p.name for p in named if p.name in known}
    required = [p.name for p in named if p.default is p.empty and (p.name not in known or p.kind is p.POSITIONAL_ONLY)]
    if len(named) == 1 and required:
        return {}
    if required:
        problem = f"has the unknown parameter {required[0]!r}. Known: {listing(known)}; info has the other columns"
        raise UserError(f"the reward function {name} {problem}")
    of_answer, of_group = _OF_ANSWER.keys() & found.keys(), _OF_GROUP.keys() & found.keys()
    if bool(of_answer) == bool(of_group):
        remedy = "take `response` to score one answer, or `responses` or `group` to score all answers to a prompt"
        raise UserError(f"the reward function {name} takes {listing(found) or 'nothing'}: {remedy}")
    return found


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _score_of(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if isinstance(value, BaseException):
        return Score(failure=failure_of(value))
    if value is None:
        return Score(failure=Failure("invalid", "the function returned None"))
    try:
        if isinstance(value, Mapping) and "score" in value:
            parts = {str(name): Score(float(part)) for name, part in value.items() if name != "score"}
            return Score(float(value["score"]), parts=parts)
        return Score(float("nan" if isinstance(value, str | bytes) else value))
    except Exception:  # noqa: BLE001 the value may be any object
        detail = f"the function returned a {type(value).__name__} that is no finite number: {_shown(value)}"
        return Score(failure=Failure("invalid", detail))


def _shown(value: Any) -> str:
    try:
        return str(value)[:200]
    except Exception:  # noqa: BLE001
        return ""
