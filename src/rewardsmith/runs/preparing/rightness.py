"""Whether the final answers of solutions are right, as a rule says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from pydantic_core import PydanticCustomError

from rewardsmith.config import problems_in
from rewardsmith.errors import RecipeError
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.base import score
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import check
from rewardsmith.types import Prompt, Rollout, RolloutGroup

RIGHT = 1.0
"""What a rule gives an answer that is right; less, such as a share of the tests, is not."""

AT_ONCE = 64
"""Groups that are with the workers at the same time."""

Asked = tuple[Prompt, Sequence[tuple[str, str]]]
"""A problem, and the id and text of each of its solutions."""


def make_rule(name: str, say: Callable[[str], None]) -> Component:
    """Return a rule as a reward, by its name or as `module:Name`.

    Raises:
        UserError: there is no such rule, or it needs settings or a library that are not there.
    """
    try:
        rule = Component.root(REWARD.choose({"type": "rule", "rule": name}), say)
    except PydanticCustomError as error:
        raise RecipeError("--rule", problems_in(error, "rule")) from None
    rule.unlimited = True  # where it cannot say, that is what is told
    return rule


def rights(rule: Component, problems: Iterable[Asked]) -> dict[str, bool | None]:
    """Return for the id of each solution whether it is right; None where the rule cannot say."""
    return asyncio.run(_rights(rule, problems))


async def _rights(rule: Component, problems: Iterable[Asked]) -> dict[str, bool | None]:
    await check(rule)
    found: dict[str, bool | None] = {}
    waiting = iter(problems)

    async def worker() -> None:
        for prompt, solutions in waiting:
            group = RolloutGroup(prompt, [Rollout(text) for _, text in solutions])
            scores = (await score(rule, group)).scores
            for (name, _), one in zip(solutions, scores, strict=True):
                found[name] = None if one.value is None else one.value >= RIGHT

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(worker())
    return found


__all__ = ["make_rule", "rights"]
