"""Which measures are results of a stage, and which are shown as percentages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

_SHARES = {
    "pass", "verified", "chance", "failed", "failures", "labels", "truncated", "unsound", "undecided",
    "reasoning_check_failed",
    "top1", "exact", "within", "ties", "outside", "precision", "recall", "f1", "f1_best", "section", "score",
    "order_changed", "order_flipped", "order_best_changed", "repeat_same", "repeat_changed", "consistency",
}  # fmt: skip
_PART_SHARES = {"accuracy_fresh", "accuracy_after", "accuracy_running", "steps/found", "steps/chance"}
_RARE = ("failed", "truncated", "undecided", "tied")  # shown only when there is some of it
_FOUND, _CHANCE = "/steps/found", "/steps/chance"
_SOURCE = re.compile(r"validation/sources/[^/]+/")
_MAIN = ("mean@", "accuracy", "mad")  # of what is measured by source, a result of the stage
_CURVES_ONLY = ("/steps/judged", "/logit_right", "/logit_wrong")


def results(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> list[str]:
    """Return the measures that are results of a stage, in order, from its first and its last validation."""
    rare = {f"validation/{name}" for name in _RARE}
    left_out = {name for name in rare if not (before.get(name) or after.get(name))}
    left_out |= {chance_of(name) for name in after}  # shown in the row of what it is compared with
    left_out |= {name for name in after if (at := _SOURCE.match(name)) and not name[at.end() :].startswith(_MAIN)}
    return [name for name in after if name not in left_out and not name.endswith(_CURVES_ONLY)]


def chance_of(name: str) -> str:
    """Return the measure that has the chance level of another one; "" where there is none."""
    return name.removesuffix(_FOUND) + _CHANCE if name.endswith(_FOUND) else ""


def is_share(name: str, validations: Iterable[Mapping[str, float | None]] = ()) -> bool:
    """Return whether a measure is shown as a percentage, which its name decides, not its present value.

    The mean of a reward is one if it equals pass@1 in all `validations` so far: then the reward is right or wrong.
    """
    name = _SOURCE.sub("validation/", name)
    prefix = next((prefix for prefix in ("validation/", "learned/") if name.startswith(prefix)), "")
    first, _, rest = name.removeprefix(prefix).partition("/")
    base = first.partition("@")[0]
    if base not in ("mean", "best"):
        return rest in _PART_SHARES or base in _SHARES or base.startswith(("accuracy", "within_"))
    pairs = [
        (value, one.get(f"{prefix}pass@1"))
        for one in validations
        for metric, value in one.items()
        if metric.startswith(f"{prefix}mean@")
    ]
    return bool(pairs) and all(
        value is not None and passed is not None and math.isclose(value, passed, abs_tol=1e-5)  # a report has 6 digits
        for value, passed in pairs
    )
