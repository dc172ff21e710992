"""What the sides of `benchmarks/embedded.py` are asked to do, and what each reports.

A side is a script that is run by its own Python as `python SIDE FOLDER WORKLOAD`, with a model folder and a workload as
JSON. The last line of its output is a JSON list: the figures of each setting that it measured. This file needs no
package, so that every Python can load it, and it is the one place where the prompts, the reward and the meaning of each
figure are defined.
"""

from __future__ import annotations

import json
import platform
import random
import resource
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

Device = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]
Ends = Literal["length", "eos"]


@dataclass(frozen=True)
class Workload:
    """Policy steps of one size: `prompts` groups of `rollouts`, each of up to `new_tokens` tokens, one update."""

    device: Device = "cpu"
    dtype: Precision = "float32"
    """The precision of the arithmetic; what the weights are kept in is each side's own matter, and reported."""
    prompts: int = 64
    rollouts: int = 8
    prompt_tokens: int = 64
    new_tokens: int = 64
    steps: int = 2
    """Timed steps, after the warm-up."""
    warmup: int = 1
    vocabulary: int = 100
    """Tokens of the model; the tokenizer has as many."""
    seed: int = 0
    ends: Ends = "length"
    """`length`: every response has `new_tokens`. `eos`: a response may end by itself, as in real runs; a random model
    does so after about as many tokens as its vocabulary has."""

    def __post_init__(self) -> None:
        least = {
            "prompts": 1,
            "rollouts": 2,
            "prompt_tokens": 1,
            "new_tokens": 1,
            "steps": 1,
            "warmup": 0,
            "vocabulary": 8,
        }
        for name, bound in least.items():
            if (value := getattr(self, name)) < bound:
                raise ValueError(f"{name} = {value}: must be at least {bound}")

    @property
    def rows(self) -> int:
        """Rollouts of one step."""
        return self.prompts * self.rollouts

    @property
    def tokens(self) -> int:
        """Most response tokens of one step: all of them are generated, and all of them are trained on."""
        return self.rows * self.new_tokens

    def to_json(self) -> str:
        """Write it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Workload:
        """Read what `to_json` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Step:
    """Wall-clock seconds of one policy step; on a GPU each reading waits for what was started before it.

    A side that only generates has no time for the rest.
    """

    whole: float | None
    """From the end of the step before to the end of this one, so nothing is left out."""
    generating: float
    """From prompts as text to responses as tokens and text."""
    learning: float | None
    """From the advantages to the end of the optimizer's step: forward, backward, clipping, update."""


@dataclass(frozen=True)
class Figures:
    """What one side measured."""

    name: str
    settings: str
    """Versions, and every choice that bears on speed or memory."""
    tokens: float
    """Response tokens of one step; their mean where responses end by themselves."""
    steps: tuple[Step, ...]
    """The timed ones, without the warm-up."""
    peak_bytes: int | None
    """GPU: the most that torch had allocated in training. CPU: the largest resident size of the whole process. None
    where a side takes the share of the memory that it is given."""

    @property
    def seconds(self) -> float | None:
        """Median time of a step."""
        return _median([step.whole for step in self.steps])

    @property
    def generating(self) -> float:
        """Median time of generating in a step."""
        return statistics.median(step.generating for step in self.steps)

    @property
    def learning(self) -> float | None:
        """Median time of learning in a step."""
        return _median([step.learning for step in self.steps])

    def join(self, other: Figures) -> Figures:
        """Add what a second run of the same side measured."""
        peaks = [peak for peak in (self.peak_bytes, other.peak_bytes) if peak is not None]
        return replace(self, steps=self.steps + other.steps, peak_bytes=max(peaks, default=None))


def figures_to_json(*figures: Figures) -> str:
    """Write them as one line."""
    return json.dumps([asdict(each) for each in figures])


def figures_from_json(line: str) -> list[Figures]:
    """Read what `figures_to_json` wrote."""
    return [Figures(**{**each, "steps": tuple(Step(**step) for step in each["steps"])}) for each in json.loads(line)]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


SPECIAL = ("<pad>", "<eos>", "<unk>")


def word(token: int) -> str:
    """Return the text of a token: one word each, so that a text of n words is n tokens."""
    return SPECIAL[token] if token < len(SPECIAL) else f"w{token}"


def prompts(workload: Workload, step: int) -> list[str]:
    """Draw the prompts of a step, each of exactly `prompt_tokens` tokens; every step has its own."""
    rng = random.Random(f"{workload.seed}:{step}")
    ordinary = range(len(SPECIAL), workload.vocabulary)
    return [" ".join(map(word, rng.choices(ordinary, k=workload.prompt_tokens))) for _ in range(workload.prompts)]


def reward(response: Sequence[int]) -> float:
    """Score the tokens of a response; costs nothing, and differs inside a group, so that advantages are not zero."""
    return sum(response) % 97 / 96


def peak_resident_bytes() -> int:
    """Return the largest resident size that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024  # Linux counts in KiB
