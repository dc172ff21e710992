"""What the sides of `benchmarks/prime.py` are asked to do, and what each reports. Needs no package.

A side is run as `python prime_side.py FOLDER WORKLOAD SIDE`, the last two as JSON, and prints its figures as one line
of JSON, the last line of its output.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

PARTS = ("writing", "ends", "reference", "PRM forward", "PRM update", "policy update", "rest")
"""What a policy step consists of. `ends`: where tokens end in the text; `reference`: the pass of π_ref; `PRM forward`,
`PRM update`: the passes of π_φ without a gradient and with one; `rest`: Python and small tensors."""

PASSES = ("reference", "PRM forward", "PRM update")
"""What a process reward may cost."""


@dataclass(frozen=True)
class Side:
    """A process reward, or none."""

    name: str
    update: str = ""
    """When its model learns; empty: there is no process reward."""
    reference: str = "start"
    """As in a recipe; `named`: another model of the recipe, which one that never learns must have."""
    exact: bool = False
    """Whether the policy as reference has a pass of its own, also where the sampler's numbers would do."""
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
        Side("after-policy-exact", "after", "policy", exact=True),
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
