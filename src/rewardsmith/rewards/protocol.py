"""What every reward is, and how a rule says that it cannot score."""

from __future__ import annotations

from typing import Protocol

from rewardsmith.types import Failure, FailureKind, RolloutGroup, Score


class Reward(Protocol):
    """Scores a whole group at once: a ranking judge needs all of it, a rule looks at one rollout after the other."""

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, in order. What could not be scored is a `Failure`, never a number."""
        ...


class CannotScore(Exception):  # noqa: N818 it is no error of the rule
    """Raised by a rule that cannot score an answer; it becomes a `Failure` of that kind."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure with its cause; this cannot raise, whatever the exception does."""
    if isinstance(error, CannotScore):
        return Failure(error.kind, str(error))
    try:
        return Failure("crashed", f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 an exception's own __str__ may raise
        return Failure("crashed", type(error).__name__)
