"""How a measure is shown: as a percentage or as a number. What it is decides, not the value that it has just now."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_SHARES = {
    "pass", "verified", "chance", "failed", "failures", "labels", "truncated", "unsound", "undecided",
    "reasoning_check_failed",
    "top1", "exact", "within", "ties", "outside", "precision", "recall", "f1", "f1_best", "section", "score",
    "order_changed", "order_flipped", "order_best_changed", "repeat_same", "repeat_changed", "consistency",
}  # fmt: skip

# What a process reward model is measured by, after the name of its part.
_SHARES_OF_PART = {"accuracy_fresh", "accuracy_after", "accuracy_running", "steps/found", "steps/chance"}

_RARE = ("failed", "truncated", "undecided", "tied")  # worth a place only when there is some of it
_FOUND, _CHANCE = "/steps/found", "/steps/chance"
_EXPLAINING = ("/steps/judged", "/logit_right", "/logit_wrong")  # for the curves: they are no results


def results(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> list[str]:
    """Return the names of the measures that have a place among the results of a stage, in their order.

    What chance would give has none of its own: it stands beside what it is to be compared with, see `chance_of`.

    Args:
        before: the first validation of the stage, by `validation/NAME`.
        after: the last one.
    """
    rare = {
        f"validation/{name}"
        for name in _RARE
        if not (before.get(f"validation/{name}") or after.get(f"validation/{name}"))
    }
    beside = {chance for name in after if (chance := chance_of(name))}
    return [name for name in after if name not in rare and name not in beside and not name.endswith(_EXPLAINING)]


def chance_of(name: str) -> str:
    """Return the name of the measure that tells what chance would give for another one; "" where there is none."""
    return name.removesuffix(_FOUND) + _CHANCE if name.endswith(_FOUND) else ""


def is_share(name: str, seen: Iterable[Mapping[str, float | None]] = ()) -> bool:
    """Return whether a measure is shown as a percentage.

    The mean of a reward is one where the reward says right or wrong: then it is the same as pass@1, each time.

    Args:
        name: of the measure, such as `accuracy/gsm8k`, `validation/mean@4` or `learned/process/accuracy_fresh`.
        seen: the validations of the stage so far, each with its measures by name.
    """
    prefix = next((prefix for prefix in ("validation/", "learned/") if name.startswith(prefix)), "")
    first, _, rest = name.removeprefix(prefix).partition("/")
    base = first.partition("@")[0]
    if base in ("mean", "best"):
        return _right_or_wrong(prefix, seen)
    return rest in _SHARES_OF_PART or base in _SHARES or base.startswith(("accuracy", "within_"))


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
