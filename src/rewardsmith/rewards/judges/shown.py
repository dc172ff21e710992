"""Which part of a response a judge is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.rules.settings import Way
from rewardsmith.text.answers import extract, final
from rewardsmith.text.judge_prompts import quote_as

Show = Annotated[
    Literal["response", "final", "answer"],
    Field(description="what the judge sees: the whole response, what follows </think>, or the extracted answer"),
]

Ways = Annotated[
    tuple[Way, ...],
    Field(min_length=1, description="how the answer is found; the first way that finds one decides"),
]

Longest = Annotated[
    int, Field(ge=100, description="characters of a response that are shown; of a longer one the middle is left out")
]

Quoting = Annotated[
    Literal["fence", "verbatim"],
    Field(description="foreign text stands in a fence, or bare; its role tokens are broken in any case"),
]

WAYS: tuple[Way, ...] = ("boxed", "hash", "stated", "final")
"""Where an answer is looked for unless a recipe says otherwise; the last is all that follows the thinking."""

LONGEST = 100_000


_STORED: ContextVar[bool] = ContextVar("stored answers", default=False)


@contextmanager
def stored_answers() -> Iterator[None]:
    """Let judges take rollouts for answers that stand in a data file, without the form of a policy's rollouts.

    It holds for the tasks that begin inside the block.
    """
    before = _STORED.set(True)
    try:
        yield
    finally:
        _STORED.reset(before)


def are_stored() -> bool:
    """Whether this task began inside of `stored_answers`."""
    return _STORED.get()


def shown(text: str, show: str, ways: Sequence[str]) -> str:
    """Return what a judge is shown of a response; "" when there is nothing of the kind.

    A stored answer without anything of the kind is shown as it is.
    """
    found = text if show == "response" else final(text) if show == "final" else extract(text, ways)
    if not found and are_stored():
        found = text
    return found if found and found.strip() else ""


def require_extracting(show: str, ways: Sequence[str]) -> None:
    """Raise a `UserError` if it is said how an answer is found where none is looked for."""
    if show != "answer":
        require_unset(f'show = "{show}"', extract=None if tuple(ways) == WAYS else tuple(ways))


__all__ = [
    "LONGEST",
    "WAYS",
    "Longest",
    "Quoting",
    "Show",
    "Ways",
    "are_stored",
    "quote_as",
    "require_extracting",
    "shown",
    "stored_answers",
]
