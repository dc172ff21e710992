"""Rewards are trees: what is done to every reward of one.

A composed reward has an attribute `components`, which maps the name of each part to the `Component` that stands there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.protocol import Halt, Reward, failure_of
from rewardsmith.types import Failure, Score, ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.rewards.component import Component


def components_of(reward: Reward) -> Mapping[str, Component]:
    """Return the parts that a reward is made of; a leaf has none."""
    components: Mapping[str, Component] = getattr(reward, "components", {})
    return components


def walk(component: Component, path: str = "") -> Iterator[tuple[str, Component]]:
    """Yield every component of a tree with its dotted name, outer before inner; the root's name is ""."""
    yield path, component
    for name, inner in components_of(component.reward).items():
        yield from walk(inner, f"{path}.{name}".lstrip("."))


def blank(reward: Reward, why: Failure) -> Score:
    """Return a failed score that has all the part names that the reward's scores have."""
    parts = {name: blank(component.reward, why) for name, component in components_of(reward).items()}
    names: Sequence[str] = getattr(reward, "parts", ())
    if not parts and not isinstance(names, str | Mapping) and isinstance(names, Sequence):
        parts = {name: Score(failure=why) for name in names}
    return Score(failure=why, parts=parts)


async def check(root: Component) -> None:
    """Ask every reward of a tree whether it can work; raise one `UserError` about all that cannot."""
    asked = [(path, component) for path, component in walk(root) if hasattr(component.reward, "check")]

    async def problem(path: str, reward: Any) -> str:
        try:
            await reward.check()
        except (Exception, SystemExit) as error:  # noqa: BLE001 a reward may be a user's own code
            what = str(error) if isinstance(error, UserError) else failure_of(error).detail
            return f"{path}: {what}" if path else what
        return ""

    problems = [text for text in await asyncio.gather(*(problem(p, c.reward) for p, c in asked)) if text]
    if problems:
        raise UserError("\n".join(problems))


def check_source(component: Component, source: str) -> None:
    """Raise a `UserError` if a route of the tree does not know where prompts of this source go."""
    components = components_of(component.reward)
    find: Callable[[str], str] | None = getattr(component.reward, "find", None)
    for inner in components.values() if find is None else [components[find(source)]]:
        check_source(inner, source)


def routes(component: Component) -> bool:
    """Whether a reward of the tree looks at the source of prompts."""
    return any(hasattr(inner.reward, "find") for _, inner in walk(component))


async def learn(root: Component, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Let every online reward of a tree learn from the groups of a step; return their metrics."""
    metrics: dict[str, float] = {}
    for path, component in walk(root):
        reward: Any = component.reward
        if not hasattr(reward, "learn"):
            continue
        try:
            learned = await reward.learn(scored, path)
            metrics |= {f"{path or 'reward'}/{name}": float(value) for name, value in learned.items()}
        except Halt:
            raise
        except Exception as error:
            raise Halt(f"the reward {path or component.name} could not learn: {failure_of(error).detail}") from error
    return metrics


def save(root: Component, folder: Path) -> None:
    """Write the state of every online reward of a tree, each into a folder of its own."""
    for path, component in walk(root):
        if hasattr(component.reward, "save"):
            (folder / (path or "reward")).mkdir(parents=True)
            component.reward.save(folder / (path or "reward"))


def load(root: Component, folder: Path) -> None:
    """Take over what `save` wrote; a reward that is new since then starts afresh."""
    for path, component in walk(root):
        if hasattr(component.reward, "load") and (folder / (path or "reward")).is_dir():
            component.reward.load(folder / (path or "reward"))


def latencies(root: Component) -> dict[str, list[float]]:
    """Return the seconds that each component took for each group since the last time this was asked; "" is the root."""
    taken = {path: component.seconds for path, component in walk(root)}
    for _, component in walk(root):
        component.seconds = []
    return {path: seconds for path, seconds in taken.items() if seconds}
