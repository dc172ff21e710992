"""Which steps of an answer are right, for the worlds that know it: what process rewards are measured by.

A step truth is `(prompt, text, *, settings) -> list[Judged]`, and raises `ValueError` for a prompt of which it knows
nothing. The text is untrusted model output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardsmith.text.arithmetic import judged_steps
from rewardsmith.text.steps import Step, steps_of_tokens
from rewardsmith.types import Prompt


@dataclass(frozen=True)
class Judged(Step):
    """A step of an answer, and what is true of it.

    Attributes:
        start: its first character.
        end: the character behind its last one. An empty step at the very end says that something is missing there.
        right: whether it is right, given what was written before it: an error is not counted twice.
    """

    right: bool


StepTruth = Callable[..., Sequence[Judged]]
"""Called with a prompt and the text of an answer, and with its settings by name."""


def arithmetic(prompt: Prompt, text: str) -> list[Judged]:
    """Say which shown steps of a chain of sums are right, and last its conclusion."""
    inner = prompt.info.get("extra_info")  # where verl's files have it
    problem = prompt.info.get("problem", inner.get("problem") if isinstance(inner, Mapping) else None)
    if not isinstance(problem, str):
        raise ValueError(f"info.problem of the prompt {prompt.id!r} is {problem!r:.60}: it should be such as 7+5-3")
    return [Judged(start, end, right) for start, end, right in judged_steps(problem, text)]


STEP_TRUTHS: dict[str, StepTruth] = {
    "arithmetic": arithmetic,
}


def tokens_of_judged(ends: ArrayLike, judged: Sequence[Judged]) -> NDArray[np.int64]:
    """Return the number of the judged step that each token belongs to, [T]; all 0 where there are none.

    As `steps_of_tokens`, but where something is missing at the end, the last token stands for it: the one that ends
    the answer too early.
    """
    numbers = steps_of_tokens(ends, judged)
    if judged and judged[-1].start == judged[-1].end and numbers.size:
        numbers[-1] = len(judged) - 1
    return numbers


__all__ = ["STEP_TRUTHS", "Judged", "StepTruth", "arithmetic", "tokens_of_judged"]
