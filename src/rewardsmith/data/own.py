"""A user's own data source: what it raises names it, and what it gives is what a source must give."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError, where_raised
from rewardsmith.types import Demonstration, Graded, Preference, Prompt, Ranking

_NOUNS: dict[Reads, type] = {
    "prompts": Prompt,
    "demonstrations": Demonstration,
    "preferences": Preference,
    "rankings": Ranking,
    "graded": Graded,
}


class OwnSource:
    """A source of a user's own with the methods that it has, checked.

    Args:
        label: what to call it in messages.
        source: the user's object.
    """

    def __init__(self, label: str, source: Any) -> None:
        self._label = label
        self._source = source
        for of in get_args(Reads):
            if hasattr(source, of):
                setattr(self, of, partial(self._items, of))
        if hasattr(source, "check"):
            self.check = partial(self._call, "check")
        if hasattr(source, "facts"):
            self.facts = source.facts

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts."""
        return self._items("prompts", seed)

    def _call(self, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(self._source, method)(*arguments, **more)
        except UserError:
            raise
        except Exception as error:  # a user's own class may raise anything
            raise self._raised(method, error) from error

    def _items(self, of: Reads, seed: int) -> Iterator[Any]:
        noun = _NOUNS[of]
        wanted = f"{of}(seed) must give rewardsmith.{noun.__name__} objects, one after the other"
        items = self._call(of, seed)
        if not hasattr(items, "__iter__"):
            raise UserError(f"{self._label}: {of}() returned a {type(items).__name__}: {wanted}")
        items = iter(items)
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except UserError:
                raise
            except Exception as error:
                raise self._raised(of, error) from error
            if not isinstance(item, noun):
                raise UserError(f"{self._label}: {of}() gave a {type(item).__name__}: {wanted}")
            yield item

    def _raised(self, method: str, error: Exception) -> UserError:
        return UserError(f"{self._label}: {method}() raised {type(error).__name__}: {error}{where_raised(error)}")
