"""What every data source is, and a user's own source, whose items and errors are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.errors import UserError, where_raised
from rewardsmith.types import Demonstration, Graded, Preference, Prompt, Ranking

Reads = Literal["prompts", "demonstrations", "preferences", "rankings", "graded"]
"""What may be read from a source: each is the name of the method that yields it."""

ITEM_TYPES: dict[Reads, type] = {
    "prompts": Prompt,
    "demonstrations": Demonstration,
    "preferences": Preference,
    "rankings": Ranking,
    "graded": Graded,
}


Split = Annotated[Literal["train", "held-out"], Field(description="one of the two, by a hash of the text")]
HeldOut = Annotated[float, Field(ge=0, le=0.99, description="share of the texts that is held out")]

_MAX_MISSES = 20_000  # draws; with the smallest share of 0.001, bad luck that long has probability 2e-9


class Source(Protocol):
    """Gives prompts, and whatever else it has.

    A source may have more of the methods that `Reads` names: each takes a seed and yields items of the type in
    `ITEM_TYPES`, the same ones in the same order for the same seed. It may have `check(*, of: Reads = "prompts")` too:
    it is called before any model is loaded, and raises a `UserError` that names what is wrong. A source that knows its
    own truth may have `known_answers(prompt, rng)`: it yields `KnownAnswer` objects, and an audit scores them.
    """

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts; the same seed gives the same prompts in the same order."""
        ...


def is_held_out(text: str, share: float) -> bool:
    """Return whether a question belongs to the held-out share, by a hash of its text: the same for every seed."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def require_share(split: str, held_out: float, minimum: float = 0.001) -> None:
    """Raise a `UserError` if the held-out split would be empty, or nearly so."""
    if split == "held-out" and held_out < minimum:
        raise UserError(f"held_out is {held_out}: the held-out split needs a share of at least {minimum}")


def draw_from_split(draw: Callable[[], str], split: str, held_out: float, what: str) -> str:
    """Return the first of the drawn texts that is in a split; a `UserError` if none of very many is."""
    for _ in range(_MAX_MISSES):
        text = draw()
        if is_held_out(text, held_out) == (split == "held-out"):
            return text
    raise UserError(
        f"no {what} is in the split {split!r} with held_out = {held_out}: hold out more, or draw longer ones"
    )


class CheckedSource:
    """A user's own source with the methods that it has: errors name it as `label`, items have the right type."""

    def __init__(self, label: str, source: Any) -> None:
        self._label = label
        self._source = source
        for of in ITEM_TYPES:
            if hasattr(source, of):
                setattr(self, of, partial(self._items, of))
        if hasattr(source, "known_answers"):
            self.known_answers = partial(self._checked, "known_answers", KnownAnswer, "prompt, rng")
        for method in ("check", "facts"):
            if hasattr(source, method):
                setattr(self, method, getattr(source, method))

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts."""
        return self._items("prompts", seed)

    def _items(self, of: Reads, seed: int) -> Iterator[Any]:
        return self._checked(of, ITEM_TYPES[of], "seed", seed)

    def _checked(self, method: str, item_type: type, signature: str, *arguments: Any) -> Iterator[Any]:
        """Yield what a method of the source yields, of the right type; its errors name the method."""
        call = f"{self._label}: {method}({signature})"
        try:
            for item in getattr(self._source, method)(*arguments):
                if not isinstance(item, item_type):
                    room = "rewardsmith.data" if item_type is KnownAnswer else "rewardsmith"
                    expected = f"it must yield {room}.{item_type.__name__} objects"
                    raise UserError(f"{call} yielded a {type(item).__name__}: {expected}")
                yield item
        except UserError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}{where_raised(error)}"
            raise UserError(f"{call} raised {what}") from error
