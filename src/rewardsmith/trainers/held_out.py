"""What a model or a reward is measured on: chosen by the data alone.

The same source and the same number give the same items, whatever the seed of the run and the name of the stage. So the
numbers of two seeds, of two stages and of two runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator

from rewardsmith.errors import UserError

Item = TypeVar("Item")

SEED = 0
"""Of the order in which a source gives what is measured on; a constant, not the seed of a run."""

MAX_ALL = 100_000
"""Items that `all` takes at most: a built-in world has no end."""


def _checked(value: object) -> object:
    """Say it in one sentence: of a union, pydantic reports what is wrong with each of its members."""
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('must be an integer of at least 1, or "all"')


Count = Annotated[int | Literal["all"], BeforeValidator(_checked)]
"""How many items to measure on; "all" takes every one that the data has."""


def held_out(read: Callable[[int], Iterator[Item]], count: int | Literal["all"], data: str) -> list[Item]:
    """Return the items of a source to measure on.

    Args:
        read: yields one pass over the source, in an order given by a seed.
        count: how many; fewer are returned where the source has fewer.
        data: name of the source, for messages.

    Raises:
        UserError: there are none, or "all" of a source without end.
    """
    items = list(islice(read(SEED), MAX_ALL + 1 if count == "all" else count))
    if not items:
        raise UserError(f"data.{data} is empty: there is nothing to measure on")
    if count == "all" and len(items) > MAX_ALL:
        raise UserError(f'data.{data} has no end, or more than {MAX_ALL:,} items: set a number instead of "all"')
    return items
