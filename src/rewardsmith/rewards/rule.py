"""A rule as a reward."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

from rewardsmith.components import Choice, Chosen
from rewardsmith.errors import UserError
from rewardsmith.rewards.protocol import failure_of
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

RuleFunction = Callable[[Prompt, str], float]
RuleChoice = Annotated[Chosen, Choice("rule", "rewardsmith.rewards.rules:RULES", inputs=2)]


class Rule:
    """Score each rollout by a program."""

    def __init__(self, *, rule: RuleChoice) -> None:
        if inspect.iscoroutinefunction(rule.target):
            raise UserError(f"the rule {rule.name} is async: a rule is a plain function; write a reward instead")
        self._rule: RuleFunction = partial(rule.target, **rule.arguments())

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; an exception of the rule is a failure of that rollout alone."""
        return tuple(self._score(group.prompt, rollout.text) for rollout in group.rollouts)

    def _score(self, prompt: Prompt, text: str) -> Score:
        try:
            value = float(self._rule(prompt, text))
        except (Exception, SystemExit) as error:  # noqa: BLE001 a rule may be a user's own code
            return Score(failure=failure_of(error))
        if not math.isfinite(value):
            return Score(failure=Failure("invalid", f"the rule returned {value}"))
        return Score(value)
