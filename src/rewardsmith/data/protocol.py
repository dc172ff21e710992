"""What every data source is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rewardsmith.types import Demonstration, Prompt


class Source(Protocol):
    """Gives prompts.

    A source may have a method `check(*, demonstrations: bool)` too: it is called before any model is loaded, and raises
    a `UserError` that names what is wrong.
    """

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts; the same seed gives the same prompts in the same order."""
        ...


class DemonstrationSource(Source, Protocol):
    """Gives prompts, and prompts with an answer to imitate."""

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield demonstrations; the same seed gives the same ones in the same order."""
        ...
