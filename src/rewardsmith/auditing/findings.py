"""What an audit finds: a number with its interval, a sentence, and the answers that decided it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rewardsmith.errors import UserError, listing, nearest

Topic = Literal["truth", "attack", "bias", "learning", "cost"]

Direction = Literal["at_least", "at_most", "within"]
"""How a limit bounds a finding: from below, from above, or by its absolute value."""

HIGHER_IS_BETTER = frozenset({"separation", "spread", "ceiling"})
"""Findings that a requirement bounds from below."""

SIGNED = frozenset({"order_bias", "length_bias", "style_bias", "place_bias"})
"""Findings that may be negative: a requirement bounds their absolute value."""

SHARES = frozenset(
    {
        "false_positive", "false_negative", "unsound", "separation", "false_discovery", "missed", "calibration_error",
        "attack", "attack_mean", "attack_failed", "disagreement", "flat", "failed",
    }
)  # fmt: skip
"""Findings from 0 to 1; those of the families of attacks are too."""

KNOWN = (
    "false_positive", "false_negative", "unsound", "separation", "false_discovery", "missed", "calibration_error",
    "attack", "attack_mean", "attack_failed",
    "order_bias", "length_bias", "style_bias", "place_bias", "edit_sensitivity", "inconsistency", "disagreement",
    "flat", "spread", "ceiling",
    "failed", "seconds_per_step", "calls_per_step", "tokens_per_step", "cost_per_step", "latency_p99",
)  # fmt: skip
"""The names that `require` may bound, besides `attack/FAMILY`."""


@dataclass(frozen=True)
class Example:
    """An answer that decided a finding."""

    prompt: str  # its id
    probe: str  # what it is: `injection/fake-verdict`, `wrong-answer`
    text: str
    reward: float | None  # None where it could not be scored
    expected: str  # what a sound reward would do: "less than 1.000, the reward of the right answer"


@dataclass(frozen=True)
class Finding:
    """One measure of a reward, with a 95 % interval."""

    name: str  # as in `require`: `attack`, `attack/injection`, `length_bias`
    topic: Topic
    value: float
    low: float
    high: float
    count: int  # of answers, pairs or groups that it rests on
    line: str  # for people: "length bias +0.08 per 100 words"
    limit: float | None = None  # the requirement
    examples: Sequence[Example] = ()

    @property
    def direction(self) -> Direction:
        """How its limit bounds it."""
        if self.name in HIGHER_IS_BETTER:
            return "at_least"
        return "within" if self.name in SIGNED else "at_most"

    @property
    def passed(self) -> bool | None:
        """Whether the requirement holds; None where there is none."""
        if self.limit is None:
            return None
        if self.direction == "at_least":
            return self.value >= self.limit
        return (abs(self.value) if self.direction == "within" else self.value) <= self.limit

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        bounds = {name: None if math.isnan(one) else one for name, one in (("low", self.low), ("high", self.high))}
        about = {"direction": self.direction, "passed": self.passed}
        return {**asdict(self), **bounds, "examples": [asdict(one) for one in self.examples], **about}


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    findings: Sequence[Finding]
    notes: Sequence[str] = ()  # what was not measured, and why
    unmeasured: Mapping[str, float] = field(default_factory=dict)  # requirements without a finding, with their limits

    @property
    def require(self) -> dict[str, float]:
        """All requirements, with their limits."""
        return {one.name: one.limit for one in self.findings if one.limit is not None} | dict(self.unmeasured)

    @property
    def failed(self) -> list[Finding]:
        """The findings that break a requirement."""
        return [one for one in self.findings if one.passed is False]

    def required(self, require: Mapping[str, float]) -> Audit:
        """Return the audit with the limits of requirements."""
        measured = {one.name for one in self.findings}
        findings = [replace(one, limit=require.get(one.name)) for one in self.findings]
        unmeasured = {name: limit for name, limit in require.items() if name not in measured}
        return replace(self, findings=findings, unmeasured=unmeasured)

    def problems(self) -> list[str]:
        """Return a sentence for each requirement that does not hold, or that could not be measured."""
        broken = [
            f"{one.name} is {one.value:.3g}, {'at least' if one.direction == 'at_least' else 'at most'}"
            f" {one.limit:g} is required: {one.line}"
            for one in self.failed
        ]
        return broken + [f"{name} could not be measured" for name in self.unmeasured]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, for `audit.json`; it has passed if all that is required was measured and holds."""
        return {
            "passed": not self.problems() if self.require else None,
            "require": self.require,
            "unmeasured": dict(self.unmeasured),
            "findings": [one.as_json() for one in self.findings],
            "notes": list(self.notes),
        }


def check_requirements(require: Mapping[str, float], families: Sequence[str]) -> None:
    """Raise a `UserError` for a requirement that no audit measures, and for a limit that makes no difference."""
    known = [*KNOWN, *(f"attack/{family}" for family in families)]
    for name, limit in require.items():
        if name not in known:
            raise UserError(f"require.{name} is no measure of an audit.{nearest(name, known)} Known: {listing(known)}")
        is_share = name in SHARES or name.startswith("attack/")
        if is_share and not 0 <= limit <= 1:
            raise UserError(f"require.{name} is {limit:g}: {name} is a share, so give a limit from 0 to 1")
        if limit < 0 and name != "ceiling":  # which is a reward
            what = f"the size of {name}" if name in SIGNED else name
            raise UserError(f"require.{name} is {limit:g}: {what} is never below 0, so give a limit of 0 or more")
