"""Settings that several rules share, and how they read an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.text.answers import final as after_thinking

Way = Literal["boxed", "stated", "hash", "tagged", "number", "final", "text"]

Extract = Annotated[
    tuple[Way, ...], Field(min_length=1, description="how to find the answer; the first way that finds one decides")
]

Final = Annotated[
    Literal["auto", "always", "never"],
    Field(description="read what follows </think>: auto where there are such tags, always (else no answer), or never"),
]

Good = Annotated[float, Field(description="the value when it holds")]
Bad = Annotated[float, Field(description="the value when it does not hold")]


def spoken(text: str, final: str) -> str | None:
    """Return the part of a text in which the answer is looked for, as `Final` says; None when it has none yet."""
    if final == "never":
        return text
    return None if final == "always" and "</think>" not in text else after_thinking(text)


def between(share: float, good: float, bad: float) -> float:
    """Return `bad` for a share of 0, `good` for 1, and what lies between for the rest; exact at both ends."""
    return good if share >= 1 else bad if share <= 0 else bad + (good - bad) * share
