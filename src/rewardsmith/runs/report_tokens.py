"""The tokens of a report's rollouts with their rewards: what stretch of the text each wrote, and what it was given.

The page colours the text with it. Neighbours that carry no reward of their own are one piece, so that a reward at the
end of each step costs as much room as there are steps. The nouns have checked that ends and values fit the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.types import Rollout, Score

MAX_TOKENS = 2_000
"""Pieces of one rollout that are coloured; the rest of its text stays plain."""

MAX_COLOURED = 6
"""Parts of one score between which one can choose."""

MAX_ALL_VALUES = 300_000
"""Numbers about tokens in a whole report; its stages share them."""

DIGITS = 4
"""Digits of a reward that are kept, which is more than a colour shows."""


@dataclass
class Room:
    """How much one stage may still show.

    Attributes:
        values: numbers that are left.
        refused: rollouts whose text stays plain because there was no room.
    """

    values: int = MAX_ALL_VALUES
    refused: int = 0

    def take(self, count: int) -> bool:
        """Take room for `count` numbers, or none at all; a rollout is coloured as a whole or not."""
        if count > self.values:
            self.refused += 1
            return False
        self.values -= count
        return True


def token_rewards(rollout: Rollout, score: Score, limit: int, room: Room) -> dict[str, Any] | None:
    """Return the first `limit` characters of a rollout in pieces, and the rewards of each piece.

    Args:
        rollout: the answer.
        score: its score; every part that has rewards per token is told, and the whole as `reward`.
        limit: characters of the text that are shown.
        room: what the stage has left; what is returned is taken from it.

    Returns:
        None where there is nothing to colour. Else `sizes` and `counts` [n], the characters and the tokens of each
        piece, and `parts`, each with its `name`, the `sum` of all its rewards and the `values` [n] of the pieces; a
        piece without a reward of its own has None.
    """
    if rollout.ends is None or not len(rollout.tokens):
        return None
    scores = (("reward", score), *score.named_parts())
    parts = list(islice(((name, part) for name, part in scores if part.token_values is not None), MAX_COLOURED))
    supports = [_support(part) for _, part in parts]
    bounds = _bounds(rollout, supports, limit)
    first = bounds[:-1]
    told = [
        {"name": name[:100], "sum": _short(_sum(part, support)), "values": _values(part, support, first)}
        for (name, part), support in zip(parts, supports, strict=True)
        if support[first].any()
    ]
    if not told or not room.take(len(first) * (len(told) + 2)):
        return None
    # What a token wrote begins where the token before it ended.
    edges = np.minimum(np.concatenate(([0], rollout.ends)), limit)[bounds]
    return {"sizes": np.diff(edges).tolist(), "counts": np.diff(bounds).tolist(), "parts": told}


def scales(rollouts: Iterable[dict[str, Any] | None]) -> list[list[Any]]:
    """Return the name of each part of some `token_rewards`, and the largest absolute reward that it gave there."""
    found: dict[str, float] = {}
    for one in rollouts:
        for part in one["parts"] if one else ():
            largest = max((abs(value) for value in part["values"] if value is not None), default=0.0)
            found[part["name"]] = max(found.get(part["name"], 0.0), largest)
    return [[name, largest] for name, largest in islice(found.items(), MAX_COLOURED)]


def _support(part: Score) -> NDArray[np.bool_]:
    assert part.token_values is not None
    return np.ones(len(part.token_values), np.bool_) if part.token_support is None else part.token_support


def _bounds(rollout: Rollout, supports: Sequence[NDArray[np.bool_]], limit: int) -> NDArray[np.intp]:
    """Return the numbers of the tokens at which a piece begins, and of the one after the last piece."""
    assert rollout.ends is not None
    shown = len(rollout.tokens)
    if len(rollout.text) > limit:
        # The first token always begins at 0; another one is in sight if the token before it ends there.
        shown = min(shown, 1 + int(np.searchsorted(rollout.ends, limit)))
    own = np.zeros(shown, np.bool_)
    for support in supports:
        own |= support[:shown]
    begins = np.concatenate(([True], own[1:] | own[:-1]))
    return np.append(np.flatnonzero(begins), shown)[: MAX_TOKENS + 1]


def _values(part: Score, support: NDArray[np.bool_], first: NDArray[np.intp]) -> list[float | None]:
    assert part.token_values is not None
    pairs = zip(part.token_values[first].tolist(), support[first].tolist(), strict=True)
    return [_short(value) if carries else None for value, carries in pairs]


def _sum(part: Score, support: NDArray[np.bool_]) -> float:
    assert part.token_values is not None
    return float(part.token_values.sum(where=support, dtype=np.float64))


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") + 0.0  # no negative zero
