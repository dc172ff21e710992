"""What the sides of `benchmarks/prime.py` are asked to do, and what each reports. Needs no package.

A side is run as `python prime_side.py FOLDER WORKLOAD SIDE`, the last two as JSON, and prints its figures as one line
of JSON, the last line of its output.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

PARTS = ("write", "wait", "process", "learn", "rest")
"""What a policy step consists of, in order; see `docs/policy.md`."""

INSIDE = ("reference", "scoring", "learning")
"""What the part `process` consists of: π_ref's pass, π_φ's passes without a gradient, and those with one."""


@dataclass(frozen=True)
class Side:
    """A process reward, or none."""

    name: str
    update: str = ""
    """When its model learns; empty: there is no process reward."""
    reference: str = "start"
    """As in a recipe; `named`: another model of the recipe, which one that never learns must have."""
    lora: bool = False
    """Whether the reward model is an adapter instead of all its weights."""
    dtype: str = ""
    """Precision of the reward model's arithmetic, where it is not that of the policy."""

    def to_json(self) -> str:
        """Write it as one line."""
        return json.dumps(asdict(self))


WITHOUT = Side("without")
SIDES = {
    side.name: side
    for side in (
        WITHOUT,
        Side("after", "after"),
        Side("after-policy", "after", "policy"),
        Side("after-lora", "after", "adapter-off", lora=True),
        Side("after-lora-policy", "after", "policy", lora=True),
        Side("after-bf16", "after", dtype="bfloat16"),
        Side("before", "before"),
        Side("none", "none", "named"),
    )
}


@dataclass(frozen=True)
class Step:
    """Seconds of one policy step; on a GPU the whole waits for all that was started."""

    whole: float
    parts: Mapping[str, float]
    """By `PARTS`; together they are the whole."""
    inside: Mapping[str, float] = field(default_factory=dict)
    """By `INSIDE`, as far as there were any; what is left of `process` is Python and small tensors."""


@dataclass(frozen=True)
class Figures:
    """What one side measured."""

    tokens: float
    """Response tokens of one step, on average."""
    steps: tuple[Step, ...]
    """The timed ones, without the warm-up."""
    peak_bytes: int
    """GPU: the most that torch had allocated in a step. CPU: the largest resident size of the whole process."""

    @property
    def seconds(self) -> float:
        """Median time of a step."""
        return statistics.median(step.whole for step in self.steps)

    def part(self, name: str) -> float:
        """Median time of a part."""
        return statistics.median(step.parts.get(name, 0.0) for step in self.steps)

    def inside(self, name: str) -> float:
        """Median time of what the process reward consists of."""
        return statistics.median(step.inside.get(name, 0.0) for step in self.steps)

    def join(self, other: Figures) -> Figures:
        """Add what a second run of the same side measured."""
        steps, tokens = self.steps + other.steps, (self.tokens + other.tokens) / 2
        return replace(self, tokens=tokens, steps=steps, peak_bytes=max(self.peak_bytes, other.peak_bytes))

    def to_json(self) -> str:
        """Write them as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Figures:
        """Read what `to_json` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "steps": tuple(Step(**step) for step in fields["steps"])})


def outcome(prompt: object, text: str) -> float:
    """Be the rule: a number between 0 and 1 that differs inside a group, so that every row has an advantage."""
    return sum(map(len, text.split())) * len(text) % 97 / 96
