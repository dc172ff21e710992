"""What a new score is compared as: an implicit reward is no part of the value that a trainer stored.

While a stage trains, an implicit reward is a stream of its own: its scores come once the groups are selected, and the
value of the sum is that of the other parts. Everywhere else it is a part of the sum like any other. So where a trainer
has stored a score, the new value is that without the implicit rewards of the same names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.runs.rescoring.kept import note_of
from rewardsmith.runs.rescoring.stored import Stored
from rewardsmith.trainers import STAGES
from rewardsmith.types import Score


class Alike:
    """Makes new scores comparable with those that are stored.

    Args:
        reward: what gives the new ones.

    Attributes:
        left_out: names of the implicit rewards that were left out so far.
    """

    def __init__(self, reward: Component) -> None:
        self._sum = reward.reward if isinstance(reward.reward, Sum) else None
        parts = self._sum.components if self._sum else {}
        self._implicit = [name for name, part in parts.items() if isinstance(part.reward, Implicit)]
        self.left_out: set[str] = set()

    def scores(self, stored: Stored, new: Sequence[Score]) -> Sequence[Score]:
        """Return the new scores of a group with the value that compares with the stored ones."""
        assert stored.scores is not None
        names = {name for name in self._implicit if name in stored.scores[0].parts}
        if self._sum is None or not names or not _is_a_trainers(stored, names):
            return new
        self.left_out |= names
        return [_known(self._sum.without(score, names), score) for score in new]


def _known(without: Score, score: Score) -> Score:
    """Return the first, unless it failed: then so did the sum, and may have got a value in spite of that."""
    return score if without.failure is not None else without


def _is_a_trainers(stored: Stored, names: set[str]) -> bool:
    """Return whether a trainer gave a stored score its value, and not `rewardsmith score` or a stage that measures."""
    if stored.record is None or note_of(stored.file).exists():
        return False
    parts = [score.parts[name] for score in stored.scores or () for name in names]
    late = any(part.failure is not None and part.failure.kind == "skipped" for part in parts)
    return stored.record.kind == "train" or late or _trains(stored.file)


@lru_cache(maxsize=64)
def _trains(file: Path) -> bool:
    """Return whether the stage of a run that wrote a file of rollouts trains the rewards that it validates by."""
    recipe = file.parent.parent / "recipe.toml"
    if file.parent.name != "rollouts" or not recipe.is_file():
        return False
    try:
        stages = tomllib.loads(recipe.read_text(encoding="utf-8"))["stages"]
        stage = next(stage for stage in stages if stage["name"] == file.stem)
        own = "reward" in stage.get("validation", {})
        return not own and bool(getattr(STAGES.get(stage["type"]), "trains_rewards", False))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return False


__all__ = ["Alike"]
