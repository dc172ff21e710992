"""Several verdicts of one judge on the same answer, averaged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.judges.asking import AskingSettings, NoVerdict, Verdict, feedback_of, written
from rewardsmith.rewards.judges.together import settled
from rewardsmith.types import Score

Votes = Annotated[
    int,
    Field(ge=1, le=64, description="verdicts on each answer, which are averaged; more than half must be readable"),
]
"""A setting of a judge."""


def require_warm(votes: int, asking: AskingSettings) -> None:
    """Raise a `UserError` if several verdicts would all be the same one."""
    if votes > 1 and asking.temperature == 0:
        raise UserError(
            f"votes = {votes} needs asking.temperature above 0, such as 0.7: at 0 the judge says the same every time"
        )


async def voted(ask: Callable[[int], Awaitable[Verdict[float]]], votes: int) -> Score:
    """Return the mean of the verdicts that could be read, with all that the judge wrote as feedback.

    Args:
        ask: for one verdict; it gets the number of the vote, from 0.
        votes: how many are asked for, all at once.

    Raises:
        NoVerdict: half of them or more have failed; the cause is the first of these, or that the model is out of reach.
    """
    if votes == 1:
        only = await ask(0)
        return Score(only.value, feedback=only.feedback)
    found = await settled(ask, range(votes))
    told = [
        f"[vote {i} of {votes}: no verdict]\n{written(one)}"
        if isinstance(one, Exception)
        else f"[vote {i} of {votes}: {one.value:.4g}]\n{one.feedback}"
        for i, one in enumerate(found, 1)
    ]
    values = [one.value for one in found if not isinstance(one, Exception)]
    if 2 * len(values) > votes:
        return Score(sum(values) / len(values), feedback=feedback_of(told))
    causes = [failure_of(one) for one in found if isinstance(one, Exception)]
    # An outage is waited for, and then all are asked again.
    why = next((cause for cause in causes if cause.kind == "unreachable"), causes[0])
    raise NoVerdict(why, feedback_of(told))


__all__ = ["Votes", "require_warm", "voted"]
