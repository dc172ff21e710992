"""What a trainer tells the user while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rewardsmith.types import NOT_ASKED, ScoredGroup

LONGEST = 300
"""Characters of a failure's detail that are told."""


class FirstFailures:
    """Tells the first failure of each part of a reward and kind; the metrics count them all.

    Args:
        say: tells the user something.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: set[tuple[str, str]] = set()

    def tell(self, groups: Iterable[ScoredGroup]) -> None:
        """Tell the failures of some groups that are new."""
        for score in (score for scored in groups for score in scored.scores):
            for name, part in (*score.named_parts(), ("", score)):
                if part.failure is None or part.parts or part.failure.kind in NOT_ASKED:
                    continue
                if (name, part.failure.kind) not in self._told:
                    self._told.add((name, part.failure.kind))
                    who = f"{name} could not score a rollout" if name else "a rollout could not be scored"
                    self._say(f"{who} ({part.failure.kind}): {part.failure.detail[:LONGEST]}")


__all__ = ["FirstFailures"]
