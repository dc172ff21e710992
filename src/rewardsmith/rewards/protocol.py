"""What every reward is, how it says that it cannot score, and the one boundary at which its exceptions are caught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rewardsmith.errors import UserError
from rewardsmith.types import Failure, FailureKind, RolloutGroup, Score, ScoredGroup

LARGEST = 1e30
"""No reward is larger, in either direction."""


class Reward(Protocol):
    """Scores a whole group at once: a ranking judge needs all of it, a rule looks at one rollout after the other.

    A reward may have more than `score`:

    - `async check() -> None` raises when the reward cannot work. It is called before the first step, and while a
      dependency that went away is waited for.
    - `parts: Sequence[str]`, the names of the parts that its scores have, so that a score which failed has them too.
    - the methods of `Online`, if it learns while the policy learns.
    """

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, in order. What could not be scored is a `Failure`, never a number."""
        ...


class Online(Protocol):
    """A reward that changes during a run. All its changes happen in `learn`, so that a run can stop between steps."""

    async def learn(self, scored: Sequence[ScoredGroup], part: str) -> Mapping[str, float]:
        """Learn from the groups of a step, after the policy has; return metrics.

        Args:
            scored: the groups with the scores of the whole reward.
            part: the dotted name of this reward within it, as in `Score.named_parts`; "" when it is the whole.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write what going on needs into a folder, which is there and empty."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. Files are untrusted: no pickles."""
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
    """Raised by a reward or rule that cannot score; it becomes a `Failure` of that kind."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind


class Halt(UserError):  # noqa: N818 the reward is at fault, not the program
    """The run must stop: no boundary turns this into a failure of a rollout. A checkpoint is saved first."""


async def score(reward: Reward, group: RolloutGroup) -> ScoredGroup:
    """Return the scored group; whatever the reward raises is a failure of each of its rollouts.

    A value beyond 1e30 is a failure too: sums and squares of such values are no longer numbers.
    """
    try:
        return ScoredGroup(group, [_bounded(score) for score in await reward.score(group)])
    except Halt:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 a reward may be a user's own code
        return ScoredGroup(group, [Score(failure=failure_of(error)) for _ in group.rollouts])


def _bounded(score: Score) -> Score:
    if score.value is None or abs(score.value) <= LARGEST:
        return score
    why = Failure("invalid", f"a reward of {score.value:.3g} is beyond {LARGEST:.0e}")
    return Score(failure=why, parts=score.parts, feedback=score.feedback)


# How the common clients call it when no connection comes about; their packages need not be installed.
_NO_CONNECTION = frozenset({"ConnectionError", "ClientConnectionError", "ConnectError", "ConnectTimeout", "gaierror"})
_TOO_LATE = frozenset({"TimeoutError", "Timeout", "TimeoutException", "ServerTimeoutError"})


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure with its cause; this cannot raise, whatever the exception does."""
    if isinstance(error, CannotScore):
        return Failure(error.kind, str(error))
    names = {kind.__name__ for kind in type(error).__mro__}
    kind: FailureKind = "crashed"
    if names & _NO_CONNECTION:
        kind = "unreachable"
    elif names & _TOO_LATE:
        kind = "timeout"
    try:
        return Failure(kind, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 an exception's own __str__ may raise
        return Failure(kind, type(error).__name__)
