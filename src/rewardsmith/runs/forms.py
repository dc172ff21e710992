"""How a measure is shown: as a percentage or as a number. What it is decides, not the value that it has just now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_SHARES = {
    "pass", "verified", "chance", "failed", "failures", "labels", "truncated", "unsound", "undecided", "sound_failed",
    "top1", "exact", "within", "ties", "outside", "precision", "recall", "f1", "f1_best", "section", "score",
    "order_changed", "order_flipped", "order_best_changed", "repeat_same", "repeat_changed", "consistency",
}  # fmt: skip

RARE = ("failed", "truncated", "undecided", "tied")
"""Measures that are worth a place only when there is some of it."""


def is_share(name: str, seen: Iterable[Mapping[str, float | None]] = ()) -> bool:
    """Return whether a measure is shown as a percentage.

    The mean of a reward is one where the reward says right or wrong: then it is the same as pass@1, each time.

    Args:
        name: of the measure, such as `accuracy/gsm8k` or `validation/mean@4`.
        seen: the validations of the stage so far, each with its measures by name.
    """
    prefix = "validation/" if name.startswith("validation/") else ""
    base = name.removeprefix(prefix).partition("/")[0].partition("@")[0]
    if base in ("mean", "best"):
        return _right_or_wrong(prefix, seen)
    return base in _SHARES or base.startswith(("accuracy", "within_"))


def _right_or_wrong(prefix: str, seen: Iterable[Mapping[str, float | None]]) -> bool:
    pairs = [
        (value, one.get(f"{prefix}pass@1"))
        for one in seen
        for name, value in one.items()
        if name.startswith(f"{prefix}mean@")
    ]
    # A report keeps six digits.
    return bool(pairs) and all(
        value is not None and passed is not None and math.isclose(value, passed, abs_tol=1e-5)
        for value, passed in pairs
    )
