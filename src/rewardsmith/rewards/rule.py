"""A rule as a reward."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from rewardsmith.components import Choice, Chosen
from rewardsmith.rewards.rules import RuleFunction
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score


class Rule:
    """Score each rollout by a program."""

    def __init__(self, *, rule: Annotated[Chosen, Choice("rule", "rewardsmith.rewards.rules:RULES")]) -> None:
        self._rule: RuleFunction = partial(rule.target, **rule.arguments())

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; an exception of the rule is a failure of that rollout alone."""
        return tuple(self._score(group.prompt, rollout.text) for rollout in group.rollouts)

    def _score(self, prompt: Prompt, text: str) -> Score:
        try:
            return Score(self._rule(prompt, text))
        except Exception as error:  # noqa: BLE001 a rule may be a user's own code
            return Score(failure=Failure("crashed", f"{type(error).__name__}: {error}"))
