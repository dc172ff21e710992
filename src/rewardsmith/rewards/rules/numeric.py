"""A number within a tolerance."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.gsm8k import find_number, number_in
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.numbers import Number
from rewardsmith.types import Prompt


def numeric(
    prompt: Prompt,
    text: str,
    *,
    absolute: Annotated[float, Field(ge=0, description="largest difference that is accepted")] = 0.0,
    relative: Annotated[float, Field(ge=0, description="largest difference, as a share of the answer")] = 1e-6,
    percent: Annotated[
        Literal["share", "drop", "refuse"],
        Field(description="what 50% is: share reads 0.5, drop reads 50, refuse takes it for no number"),
    ] = "share",
    extract: Extract = ("boxed", "stated", "number"),
    final: Final = "auto",
) -> float:
    """1 when the number that the text gives is as close to the answer as either tolerance allows, else 0."""
    golds = [_value(number_in(answer), percent) for answer in truths(prompt)]
    if None in golds:
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no number that can be compared")
    said = spoken(text, final)
    value = _value(find_number(said, extract), percent) if said else None
    if value is None:
        return 0.0
    # Exact arithmetic: 0.1 is read as one tenth, so a tolerance of 0 means equal, not equal after rounding.
    return float(
        any(
            abs(value - gold) <= max(Fraction(absolute), Fraction(relative) * abs(gold))
            for gold in golds
            if gold is not None
        )
    )


def _value(number: Number | None, percent: str) -> Fraction | None:
    if number is None or (number.percent and percent == "refuse"):
        return None
    return number.share if percent == "share" else number.value
