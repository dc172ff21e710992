"""Strings that must not occur."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rewardsmith.rewards.rules.settings import Bad, Good
from rewardsmith.types import Prompt

ROLE_MARKS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<start_of_turn>",
    "[INST]",
)
"""How chat templates mark whose turn it is; an answer that contains one imitates another speaker."""


def absent(
    prompt: Prompt,
    text: str,
    *,
    strings: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        Field(min_length=1, description="what must not occur; by default the marks of chat templates"),
    ] = ROLE_MARKS,
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`bad` when one of the strings occurs, else `good`."""
    return bad if any(string in text for string in strings) else good
