"""The settings of a recipe for failures of a reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Choice, Chosen, Settings
from rewardsmith.types import NOT_COMPUTED, Failure, Score

Policy = Literal["drop-rollout", "drop-component", "use", "stop"]


def reward_choice(slot: type[Settings] | None = None) -> Choice:
    """Return the choice of a reward at a place that may have settings of its own, such as the weight in a sum."""
    wraps = "rewardsmith.rewards.function_reward:FunctionReward"
    return Choice("reward", "rewardsmith.rewards:REWARDS", slot, methods=("score",), wraps=wraps)


LEAF_SETTINGS = ("share", "window", "min_failures", "wait", "deadline")
"""Settings of a reward that is not made of others."""


class FailureSettings(Settings):
    """What happens when a reward cannot score a rollout."""

    do: Policy = Field(
        default="drop-rollout",
        description="mask the rollout; leave this reward out for the whole group; use another reward; stop the run",
    )
    instead: Annotated[Chosen, reward_choice()] | None = Field(
        default=None, description='the other reward of do = "use"'
    )
    share: float = Field(default=0.25, gt=0, le=1, description="stop the run when more than this share fails")
    window: int = Field(default=512, ge=1, description="the last so many rollouts, over which the share is taken")
    min_failures: int = Field(
        default=32, ge=1, description="the run goes on with fewer failures than this in the window, or than its size"
    )
    wait: float = Field(
        default=300.0, ge=0, description="seconds to wait for an unreachable service before the run stops"
    )
    deadline: float = Field(
        default=600.0, gt=0, description="seconds for one group, unless the reward has its own deadline"
    )

    @model_validator(mode="after")
    def _consistent(self) -> FailureSettings:
        if (self.do == "use") != (self.instead is not None):
            raise ValueError('do = "use" and instead go together: instead = { type = "…" } names the other reward')
        return self


class ComponentSettings(Settings):
    """Settings of the place where a reward stands."""

    failure: FailureSettings = Field(default=FailureSettings(), description="what happens when it cannot score")


def in_place(slot: type[ComponentSettings] = ComponentSettings) -> Choice:
    """Return the choice of a reward as a component: its place has at least a failure policy."""
    return reward_choice(slot)


def choices_in(table: object) -> Iterator[Chosen]:
    """Yield every choice of a table and of the tables within it."""
    if isinstance(table, Chosen):
        yield table
        yield from choices_in(table.settings)
        yield from choices_in(table.slot)
    elif isinstance(table, Settings):
        for name in type(table).model_fields:
            yield from choices_in(getattr(table, name))
    elif isinstance(table, Mapping):
        for inner in table.values():
            yield from choices_in(inner)


def policies(reward: Chosen) -> set[Policy]:
    """Return the failure policies of a reward and of those within it."""
    return {chosen.slot.failure.do for chosen in choices_in(reward) if isinstance(chosen.slot, ComponentSettings)}


def failed(score: Score) -> bool:
    """Whether the reward was computed and has failed."""
    return score.failure is not None and score.failure.kind not in NOT_COMPUTED


def because(name: str, failure: Failure) -> Failure:
    """Return the failure of a part as that of the whole."""
    return Failure(failure.kind, f'part "{name}": {failure.detail}', failure.attempts)
