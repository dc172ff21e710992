"""What a recipe says about failures of a reward, and the budget of failures after which a run stops."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Choice, Chosen, Settings
from rewardsmith.rewards.base import Halt
from rewardsmith.types import NOT_ASKED, Failure, Score

_OTHERWISE = 'A function that scores one answer is a rule: reward = {{ type = "rule", rule = "{name}" }}'

InsteadChoice = Annotated[
    Chosen, Choice("reward", "rewardsmith.rewards:REWARDS", methods=("score",), otherwise=_OTHERWISE)
]
Policy = Literal["drop-rollout", "drop-component", "use", "stop"]

LEAF_SETTINGS = ("share", "window", "min_failures", "wait", "deadline")
"""Settings of a reward that is not made of others."""


class FailureSettings(Settings):
    """What happens when a reward cannot score a rollout."""

    do: Policy = Field(
        default="drop-rollout",
        description="mask the rollout; leave this reward out for the whole group; use another reward; stop the run",
    )
    instead: InsteadChoice | None = Field(default=None, description='the other reward of do = "use"')
    share: float = Field(default=0.25, gt=0, le=1, description="stop the run when more than this share fails")
    window: int = Field(default=512, ge=1, description="the last so many rollouts, over which the share is taken")
    min_failures: int = Field(
        default=32, ge=1, description="the run goes on with fewer failures than this in the window"
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
        if self.min_failures > self.window:
            raise ValueError(
                f"min_failures is {self.min_failures}, more than window = {self.window}: the run would never stop"
            )
        return self

    def changed_leaf_settings(self) -> list[str]:
        """Return the settings of leaves that differ from their defaults."""
        return [name for name in LEAF_SETTINGS if getattr(self, name) != type(self).model_fields[name].default]


class ComponentSettings(Settings):
    """Settings of the place where a reward stands."""

    failure: FailureSettings = Field(default=FailureSettings(), description="what happens when it cannot score")


def in_place(slot: type[ComponentSettings] = ComponentSettings) -> Choice:
    """Return the choice of a reward at a place with settings of its own, such as the weight in a sum."""
    return Choice("reward", "rewardsmith.rewards:REWARDS", slot, methods=("score",), otherwise=_OTHERWISE)


def policies(table: object) -> Iterator[Policy]:
    """Yield the failure policy of each reward of a table, and of the tables within it."""
    if isinstance(table, FailureSettings):
        yield table.do
    if isinstance(table, Chosen):
        yield from policies(table.settings)
        yield from policies(table.slot)
    elif isinstance(table, Settings):
        for name in type(table).model_fields:
            yield from policies(getattr(table, name))
    elif isinstance(table, Mapping):
        for inner in table.values():
            yield from policies(inner)


class Budget:
    """Counts the failures among the last rollouts."""

    def __init__(self, settings: FailureSettings) -> None:
        self._settings = settings
        self._recent: deque[Failure | None] = deque(maxlen=settings.window)

    def spend(self, name: str, scores: Sequence[Score]) -> None:
        """Count the scores of a group; raise `Halt`, which names the reward, when too many have failed."""
        settings = self._settings
        self._recent.extend(score.failure for score in scores)
        failures = [failure for failure in self._recent if failure is not None]
        if len(failures) < settings.min_failures or len(failures) <= settings.share * len(self._recent):
            return
        causes = Counter(failure.kind for failure in failures).most_common()
        last = {failure.kind: failure.detail for failure in failures}
        details = "\n".join(f"  {count} {kind}, the last: {last[kind][:500]}" for kind, count in causes)
        raise Halt(
            f'the reward "{name}" could not score {len(failures)} of its last {len(self._recent)} rollouts, more than'
            f" failure.share = {settings.share:g} allows:\n{details}\n"
            "Fix the cause and run the same command again, or change failure.share, failure.window,"
            " failure.min_failures"
        )


def failed(score: Score) -> bool:
    """Whether the reward was computed and has failed."""
    return score.failure is not None and score.failure.kind not in NOT_ASKED


def because(name: str, failure: Failure) -> Failure:
    """Return the failure of a part as that of the whole."""
    return Failure(failure.kind, f'part "{name}": {failure.detail}', failure.attempts)
