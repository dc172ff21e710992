"""Which groups a step learns from: difficulty bounds, truncation, groups without contrast; all rejections count."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.types import Score, ScoredGroup

Reason = Literal["failed", "truncated", "constant", "too_hard", "too_easy", "stale"]


class SelectSettings(Settings):
    """Which groups to learn from, and how long to look for them."""

    lowest: float | None = Field(default=None, description="drop a group whose mean reward is below this: too hard")
    highest: float | None = Field(default=None, description="drop a group whose mean reward is above this: too easy")
    part: str = Field(default="", description="measure the mean by this part of the reward; empty: by the whole")
    constant: Literal["keep", "drop"] = Field(
        default="keep", description="a group whose rewards are all equal; it teaches nothing but fills the batch"
    )
    truncated: Literal["keep", "mask", "drop"] = Field(
        default="keep",
        description="answers cut off by max_tokens: keep, leave them out of the loss, or drop their whole group",
    )
    oversample: float = Field(
        default=1.0, ge=1, description="prompts drawn in a round, as a multiple of what is missing"
    )
    rounds: int = Field(default=1, ge=1, description="how often to draw prompts for one step, at most")
    staleness: int = Field(
        default=0, ge=0, description="steps for which surplus groups are kept with their rollouts; 0 keeps none"
    )
    least: int = Field(default=1, ge=1, description="with fewer groups than this a step does not update")
    patience: int = Field(default=10, ge=1, description="steps in a row without an update after which the run stops")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> SelectSettings:
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(f"lowest is {self.lowest}, above highest = {self.highest}: no group would pass")
        return self


def rejection(
    scored: ScoredGroup, settings: SelectSettings, *, streams: Collection[str] = (), by_parts: bool = False
) -> Reason | None:
    """Return why not to learn from a group; None when it passes. The bounds are inclusive.

    Args:
        scored: the group.
        settings: which groups to learn from.
        streams: the parts of the reward that are learned from; the others are only there to be looked at.
        by_parts: whether each of them is a stream of its own, so that a rollout whose sum failed may still be learned
            from.
    """
    voting = [score for score in scored.scores if usable(score, streams if by_parts else ())]
    if not voting:
        return "failed"
    if settings.truncated == "drop" and any(r.stop_reason == "length" for r in scored.group.rollouts):
        return "truncated"
    values = [value for score in scored.scores if (value := _measured(score, settings.part)) is not None]
    if settings.part and not values:
        return "failed"
    if settings.constant == "drop" and not has_contrast(voting, streams=streams, by_parts=by_parts):
        return "constant"
    return _difficulty(math.fsum(values) / len(values), settings) if values else None


def _difficulty(mean: float, settings: SelectSettings) -> Reason | None:
    if settings.lowest is not None and mean < settings.lowest:
        return "too_hard"
    return "too_easy" if settings.highest is not None and mean > settings.highest else None


def usable(score: Score, streams: Collection[str] = ()) -> bool:
    """Whether a rollout can be learned from: it has a value, or one of the parts that are streams of their own has."""
    return score.ok or any(part.ok for name, part in score.parts.items() if name in streams)


def has_contrast(scores: Sequence[Score], *, streams: Collection[str] = (), by_parts: bool = False) -> bool:
    """Whether some of the rollouts got more than others, as far as that is learned from; see `rejection`."""
    worth = [_worth(score, streams, by_parts) for score in scores]
    return any(other != worth[0] for other in worth)


def _worth(score: Score, streams: Collection[str], by_parts: bool) -> list[object]:
    """Return everything of a score that its advantage comes from."""
    parts = [score.parts[name] for name in sorted(streams) if name in score.parts]
    values = [part.value for part in parts] if by_parts and parts else [score.value]
    dense = [one for one in (score, *parts) if one.token_values is not None and one.token_values.any()]
    tokens = [x.tobytes() for one in dense for x in (one.token_values, one.token_support) if x is not None]
    return [*values, *tokens]


def _measured(score: Score, part: str) -> float | None:
    if part:
        named = dict(score.named_parts())
        return named[part].value if part in named else None
    return score.value
