"""A judge's answer as the rewards that train it read it: the same way in which it is read when it is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.problems import shown
from rewardsmith.text.judge_replies import Unparsable, after_thinking
from rewardsmith.types import Rollout

LONGEST = 200_000
"""Characters of an answer that is read. A judge means a few thousand; the trainer waits while a text is read."""

Credit = Annotated[float, Field(ge=0, le=1)]
"""A setting: what an error earns."""

_SPOKEN = {"<": " less than "}


def answered(rollout: Rollout) -> str:
    """Return what a judge wrote, without what it thought before.

    Raises:
        Unparsable: `cut off` by the token limit, as such an answer is not read of a judge that is asked either; or an
            `unfinished thought`; or it is `too long`.
    """
    if rollout.stop_reason == "length":
        raise Unparsable("cut off", f"by the token limit, after {len(rollout.tokens)} tokens")
    text = after_thinking(rollout.text)
    if len(text) > LONGEST:
        raise Unparsable("too long", f"{len(text):,} characters, and {LONGEST:,} are read")
    return text


def label_of(error: Unparsable) -> str:
    """Return the reason of a rejection as a label that metrics count: `score-out-of-range`."""
    words = error.reason.lower()
    for sign, spoken in _SPOKEN.items():
        words = words.replace(sign, spoken)
    return re.sub("[^a-z0-9]+", "-", words).strip("-")[:40]


def require_falling(setting: str, steps: Sequence[float]) -> None:
    """Raise a `UserError` if a larger error would earn more than a smaller one, or none anything."""
    if list(steps) != sorted(steps, reverse=True) or not steps[0]:
        raise UserError(
            f"{setting} = {shown(list(steps))}: the first must be above 0, and none above the one before it"
        )


__all__ = ["Credit", "answered", "label_of", "require_falling"]
