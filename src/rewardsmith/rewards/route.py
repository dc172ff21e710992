"""Another reward for each source of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.errors import nearest
from rewardsmith.rewards.base import Composed, Halt
from rewardsmith.rewards.component import Column, Component, whole_of
from rewardsmith.rewards.compose import named
from rewardsmith.rewards.failures import ComponentSettings, in_place
from rewardsmith.types import RolloutGroup, Score


class RouteSettings(ComponentSettings):
    """What a route says about each of its rewards."""

    sources: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="sources of its prompts, or patterns such as math-*; none: the source of its name"
    )


RouteChoice = Annotated[Chosen, in_place(RouteSettings)]


class Route(Composed):
    """Choose the reward by the source of the prompt; the first that knows the source is taken.

    Every score has a part for each route; those that were not taken are skipped.
    """

    routes = True

    def __init__(
        self,
        *,
        routes: Annotated[
            dict[str, RouteChoice], Field(min_length=1, description="the rewards, by name; the order counts")
        ],
    ) -> None:
        self.components = named(routes)
        self._sources: dict[str, list[str]] = {
            name: list(getattr(chosen.slot, "sources", ())) or [name] for name, chosen in routes.items()
        }

    def find(self, source: str) -> str:
        """Return the name of the route that prompts of this source take.

        Raises:
            Halt: if there is none. A prompt without a reward is a mistake in the recipe, not a failure of a rollout.
        """
        for name, patterns in self._sources.items():
            if any(source == pattern or fnmatchcase(source, pattern) for pattern in patterns):
                return name
        known = [pattern for patterns in self._sources.values() for pattern in patterns]
        raise Halt(
            f'no route knows the source "{source}".{nearest(source, known)} Known: {", ".join(known)}. Add it to the'
            ' sources of a route, or add a last route with sources = ["*"]'
        )

    def asked_about(self, source: str) -> Iterable[Component]:
        """Return the reward of the route that prompts of this source take."""
        return [self.components[self.find(source)]]

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the scores of the route that the prompt takes."""
        taken = self.find(group.prompt.source)
        nobody = [False] * len(group.rollouts)
        columns: dict[str, Column] = {
            name: await component.chat(group, None if name == taken else nobody)
            for name, component in self.components.items()
        }
        return tuple(
            replace(
                whole_of(columns[taken], i, taken), parts={name: column.scores[i] for name, column in columns.items()}
            )
            for i in range(len(group.rollouts))
        )
