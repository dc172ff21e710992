"""A rule as a reward."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from typing import Annotated, ClassVar

from pydantic import Field

from rewardsmith.config import Choice, Chosen
from rewardsmith.errors import UserError
from rewardsmith.rewards.pool import Call, shared, version_of
from rewardsmith.rewards.rules import NEEDS, Needs
from rewardsmith.types import RolloutGroup, Score

RuleChoice = Annotated[
    Chosen,
    Choice(
        "rule",
        "rewardsmith.rewards.rules:RULES",
        inputs=2,
        otherwise='A class with score() is a reward itself: reward = "{name}"',
    ),
]


class Rule:
    """Score each rollout by a program.

    The program runs in worker processes that all rules share: what it does to its process it does to one answer alone.
    """

    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        rule: RuleChoice,
        deadline: Annotated[
            float | None,
            Field(gt=0, description="seconds per answer; not set: the rule's own, usually 5"),
        ] = None,
        memory: Annotated[int, Field(ge=16, description="MiB that a worker may use for an answer")] = 1024,
    ) -> None:
        if inspect.iscoroutinefunction(rule.target):
            raise UserError(f"the rule {rule.name} is async: a rule is a plain function; write a reward instead")
        needs = NEEDS.get(rule.name, Needs())
        _require_installed(rule.name, needs)
        self.deadline = needs.deadline if deadline is None else deadline
        self.memory = memory
        self._ready = needs.ready
        self._call = Call(_home(rule), rule.arguments(), needs.modules, version_of(rule.target))

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; what goes wrong with one answer is a failure of that rollout alone."""
        texts = [rollout.text for rollout in group.rollouts]
        scores = await shared().score(self._call, group.prompt, texts, deadline=self.deadline, memory=self.memory)
        return tuple(scores)

    async def check(self) -> None:
        """Load the rule in the worker processes; raises a `UserError` if that fails."""
        await shared().load(self._call)
        if self._ready is not None:
            await asyncio.to_thread(self._ready, deadline=self.deadline, **self._call.arguments)


def _home(rule: Chosen) -> str:
    """Return where a worker finds the rule, as `module:attribute`."""
    module, name = getattr(rule.target, "__module__", None), getattr(rule.target, "__qualname__", "")
    home = rule.name if ":" in rule.name else f"{module}:{name}"
    if home.startswith("__main__:") or module == "__main__":
        raise UserError(
            f"the rule {rule.name} is defined in the program that is running, which a worker cannot import:"
            " put it in a module of its own, next to the recipe or in the current folder"
        )
    if "<" in home:  # <lambda>, or <locals> of a function
        raise UserError(f"the rule {home} cannot be imported by a worker: define it at the top of a module")
    return home


def _require_installed(name: str, needs: Needs) -> None:
    for module in needs.modules:
        top = module.partition(".")[0]
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            remedy = f'pip install "rewardsmith[{needs.extra}]"' if needs.extra else f"pip install {top}"
            raise UserError(f"the rule {name} needs {top}: {remedy}")
