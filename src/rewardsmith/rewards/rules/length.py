"""How long an answer is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.settings import Bad, Final, Good, between, spoken
from rewardsmith.types import Prompt


def length(
    prompt: Prompt,
    text: str,
    *,
    unit: Annotated[Literal["words", "characters"], Field(description="what is counted")] = "words",
    least: Annotated[int, Field(ge=0, description="shortest length that is good")] = 0,
    most: Annotated[
        int | None, Field(ge=0, description="longest length that is good; none when it is left out")
    ] = None,
    soft: Annotated[int, Field(ge=0, description="over how many units beyond a bound the value falls to bad")] = 0,
    final: Final = "never",
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`good` between `least` and `most`, falling in a straight line to `bad` at `soft` units beyond a bound."""
    if most is not None and least > most:
        raise CannotScore("invalid", f"least is {least} and most is {most}: no length is between them")
    said = spoken(text, final) or ""
    count = len(said) if unit == "characters" else len(said.split())
    beyond = max(least - count, count - (count if most is None else most), 0)
    # A step beyond the bound is bad at once where there is no slope.
    return between(1 - beyond / soft if soft else float(not beyond), good, bad)
