"""What every reward is, how it says that it cannot score, and the one boundary at which its exceptions are caught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rewardsmith.types import Failure, FailureKind, RolloutGroup, Score, ScoredGroup

LARGEST = 1e30
"""No reward is larger, in either direction."""


class Reward(Protocol):
    """Scores a whole group at once: a ranking judge needs all of it, a rule looks at one rollout after the other."""

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, in order. What could not be scored is a `Failure`, never a number."""
        ...


@dataclass(frozen=True)
class Part:
    """How a part of a composed reward enters the advantage.

    Attributes:
        weight: factor in the sum.
        discount: γ of the part's own stream; None takes the estimator's.
    """

    weight: float = 1.0
    discount: float | None = None


def parts_of(reward: Reward) -> Mapping[str, Part]:
    """Return the parts that may be reward streams of their own; a reward that is not a sum has none."""
    streams: Mapping[str, Part] = getattr(reward, "streams", {})
    return streams


class CannotScore(Exception):  # noqa: N818 it is no error of the rule
    """Raised by a rule that cannot score an answer; it becomes a `Failure` of that kind."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind


async def score(reward: Reward, group: RolloutGroup) -> ScoredGroup:
    """Return the scored group; whatever the reward raises is a failure of each of its rollouts.

    A value beyond 1e30 is a failure too: sums and squares of such values are no longer numbers.
    """
    try:
        return ScoredGroup(group, [_bounded(score) for score in await reward.score(group)])
    except Exception as error:  # noqa: BLE001 a reward may be a user's own code
        return ScoredGroup(group, [Score(failure=failure_of(error)) for _ in group.rollouts])


def _bounded(score: Score) -> Score:
    if score.value is None or abs(score.value) <= LARGEST:
        return score
    why = Failure("invalid", f"a reward of {score.value:.3g} is beyond {LARGEST:.0e}")
    return Score(failure=why, parts=score.parts, feedback=score.feedback)


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure with its cause; this cannot raise, whatever the exception does."""
    if isinstance(error, CannotScore):
        return Failure(error.kind, str(error))
    try:
        return Failure("crashed", f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 an exception's own __str__ may raise
        return Failure("crashed", type(error).__name__)
