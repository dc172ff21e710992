"""Steps of an answer: where they lie in its text, which of its tokens belong to each, and whether each is right.

    7+5=12;12-3=9;#9      separator ";"   ->   `7+5=12;`  `12-3=9;`  `#9`

Places in a text are counted in characters. A token belongs to the step in which its last character lies, so that every
token belongs to one step and the numbers of the steps never fall along an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class AnswerStep:
    """The part `text[start:end]` of an answer."""

    start: int
    end: int


@dataclass(frozen=True)
class JudgedStep(AnswerStep):
    """A step, and whether it is right, given what was written before it: an error is not counted twice.

    An empty step at the very end says that something is missing there.
    """

    right: bool


def split_steps(text: str, separator: str) -> list[AnswerStep]:
    """Return the steps of a text; they lie side by side from its first character to its last.

    A step includes the separators that end it, so that empty lines are no steps. A text that begins with separators
    has them in its first step. An empty text has no steps.
    """
    ends = [run.end() for run in re.finditer(f"(?:{re.escape(separator)})+", text) if run.start()]
    if text and (not ends or ends[-1] < len(text)):
        ends.append(len(text))
    return [AnswerStep(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def steps_of_tokens(ends: ArrayLike, steps: Sequence[AnswerStep]) -> NDArray[np.int64]:
    """Return the number of the step that each token belongs to, [T], counted from 0; all 0 where there are no steps.

    Tokens behind the last step, such as the one that ends the sequence, belong to the last step. `ends` are the
    characters up to the end of each token, [T].
    """
    last = np.array([step.end for step in steps], dtype=np.int64)
    numbers = np.searchsorted(last, np.asarray(ends, dtype=np.int64), side="left")
    return np.minimum(numbers, max(0, len(steps) - 1)).astype(np.int64)


def tokens_of_judged(ends: ArrayLike, judged: Sequence[JudgedStep]) -> NDArray[np.int64]:
    """Return `steps_of_tokens`; where something is missing at the end, the last token, which ends too early, has it."""
    numbers = steps_of_tokens(ends, judged)
    if judged and judged[-1].start == judged[-1].end and numbers.size:
        numbers[-1] = len(judged) - 1
    return numbers


def sums_by_step(values: ArrayLike, numbers: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return the sum of the values [T] of each step's tokens, [count]; `numbers` [T] are the tokens' steps."""
    weights = np.asarray(values, dtype=np.float64)
    return np.bincount(np.asarray(numbers, dtype=np.int64), weights, minlength=count).astype(np.float64)
