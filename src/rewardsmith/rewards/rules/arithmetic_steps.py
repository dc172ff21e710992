"""The steps of the arithmetic world."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rewardsmith.data.arithmetic import check_steps
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.types import Prompt


def arithmetic_steps(
    prompt: Prompt,
    text: str,
    *,
    share: Annotated[bool, Field(description="the share of the steps that hold, not whether all of them do")] = False,
) -> float:
    """1 when every step is there, follows from the one before and is right, else 0; the answer is not looked at."""
    problem = extra(prompt, "problem")
    try:
        held = check_steps(problem if isinstance(problem, str) else "", text)
    except ValueError as error:
        raise CannotScore(
            "invalid", f"info.problem of the prompt {prompt.id!r} is {problem!r:.60}, but should be such as 7+5-3"
        ) from error
    return sum(held) / len(held) if share else float(all(held))
