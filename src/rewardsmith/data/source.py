"""What every data source is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

from rewardsmith.types import Demonstration, Graded, Preference, Prompt, Ranking

Reads = Literal["prompts", "demonstrations", "preferences", "rankings", "graded"]
"""What may be read from a source: each is the name of the method that yields it."""


class Source(Protocol):
    """Gives prompts, and whatever else it has.

    A source may have more of the methods that `Reads` names. Each takes a seed and yields nouns: the same seed gives
    the same ones in the same order.

        demonstrations(seed) -> Iterator[Demonstration]     answers to imitate
        preferences(seed) -> Iterator[Preference]           pairs of answers, one better
        rankings(seed) -> Iterator[Ranking]                 groups of answers with scores
        graded(seed) -> Iterator[Graded]                    answers with grades

    It may have a method `check(*, of: Reads = "prompts")` too: it is called before any model is loaded, and raises a
    `UserError` that names what is wrong.
    """

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts; the same seed gives the same prompts in the same order."""
        ...


class DemonstrationSource(Source, Protocol):
    """Gives prompts, and prompts with an answer to imitate."""

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield demonstrations."""
        ...


class PreferenceSource(Source, Protocol):
    """Gives pairs of answers, one better than the other."""

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield pairs."""
        ...


class RankingSource(Source, Protocol):
    """Gives groups of answers with scores."""

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield groups."""
        ...


class GradedSource(Source, Protocol):
    """Gives answers with grades."""

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield graded answers."""
        ...
