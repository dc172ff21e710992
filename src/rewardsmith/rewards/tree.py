"""Rewards are trees: operations on every reward of one.

A `Composed` reward maps the name of each part to the `Component` that stands there.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError, Models
from rewardsmith.rewards.base import Composed, Halt, Reward, failure_of
from rewardsmith.types import Prompt, ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.rewards.component import Component


def components_of(reward: Reward) -> Mapping[str, Component]:
    """Return the parts that a reward is made of; a leaf has none."""
    return reward.components if isinstance(reward, Composed) else {}


def walk(component: Component, path: str = "") -> Iterator[tuple[str, Component]]:
    """Yield every component of a tree with its dotted name, outer before inner; the root's name is ""."""
    yield path, component
    for name, inner in components_of(component.reward).items():
        yield from walk(inner, f"{path}.{name}".lstrip("."))


def reads_ends(reward: Reward) -> bool:
    """Whether a reward, or one that it is made of, needs the character offsets of tokens."""
    inner: Reward = getattr(reward, "reward", reward)  # that of a component
    return bool(getattr(inner, "reads_ends", False)) or any(map(reads_ends, components_of(inner).values()))


def needs_whole_groups(root: Component) -> bool:
    """Whether the score of a rollout may depend on the other rollouts of its group."""
    return any(component.whole for _, component in walk(root))


def connect(root: Component, log: Callable[[str], None] | None = None, models: Models | None = None) -> None:
    """Set where the messages of a tree go, and give its rewards their models by name; it may be called again."""
    for _, component in walk(root):
        component.log = log or component.log
        take = getattr(component.reward, "connect", None)
        if take is not None and models is not None:
            with _named_errors(component, "take the models of the recipe"):
                take(models)


async def check(root: Component) -> None:
    """Check every reward of a tree; raise one `UserError` about all that cannot work."""

    async def problem(path: str, component: Component) -> str:
        try:
            await component.check()
        except (Exception, SystemExit) as error:  # noqa: BLE001 a reward may be a user's own code
            what = str(error) if isinstance(error, UserError | ModelCallError) else failure_of(error).detail
            return f"{path}: {what}" if path else what
        return ""

    problems = [text for text in await asyncio.gather(*(problem(*place) for place in walk(root))) if text]
    if problems:
        raise UserError("\n".join(problems))


def check_source(component: Component, source: str) -> None:
    """Raise a `UserError` if a route of the tree has no reward for prompts of this source."""
    if isinstance(component.reward, Composed):
        for inner in component.reward.components_for(source):
            check_source(inner, source)


def unfit(component: Component, prompt: Prompt, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, why) of each reward of a tree that could never score rollouts of this prompt."""
    if isinstance(component.reward, Composed):
        scoring = list(component.reward.components_for(prompt.source))
        for name, inner in component.reward.components.items():
            if inner in scoring:
                yield from unfit(inner, prompt, f"{path}.{name}".lstrip("."))
        return
    try:
        getattr(component.reward, "require", lambda _: None)(prompt)
    except Exception as error:  # noqa: BLE001 a reward may be a user's own code
        yield path, str(error) if isinstance(error, UserError) else failure_of(error).detail


def routes(component: Component) -> bool:
    """Whether a reward of the tree is chosen by the source of prompts."""
    return any(isinstance(inner.reward, Composed) and inner.reward.by_source for _, inner in walk(component))


def has_part(root: Component, name: str) -> bool:
    """Whether scores of the tree may have a part of that dotted name; a leaf need not declare its parts."""
    for path, component in walk(root):
        known = {path, *(f"{path}.{own}".lstrip(".") for own in component.declared)}
        inside = not path or name.startswith(f"{path}.")
        if name in known or (inside and not component.knows_parts):
            return True
    return False


def learns(root: Component) -> bool:
    """Whether a reward of the tree learns online."""
    return any(callable(getattr(component.reward, "learn", None)) for _, component in walk(root))


async def learn(root: Component, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Let every online reward of a tree learn from the groups of a step; return their metrics."""
    metrics: dict[str, float] = {}
    for path, component in walk(root):
        reward: Any = component.reward
        if not callable(getattr(reward, "learn", None)):
            continue
        try:
            learned = await reward.learn(scored, path)
            metrics |= {f"learned/{path or 'reward'}/{name}": float(value) for name, value in learned.items()}
        except Exception as error:
            why = failure_of(error).detail  # raises a `Halt` again
            raise Halt(f'the reward "{component.name}" could not learn, and has missed this step: {why}') from error
    return metrics


async def close(root: Component) -> None:
    """Close what the rewards of a tree have opened, such as connections; one that fails keeps no other open."""
    closing = [getattr(component.reward, "close", None) for _, component in walk(root)]
    await asyncio.gather(*(one() for one in closing if inspect.iscoroutinefunction(one)), return_exceptions=True)


def save(root: Component, folder: Path) -> None:
    """Write the state of every online reward of a tree, each into a folder of its own."""
    for path, component in walk(root):
        if hasattr(component.reward, "save"):
            place = folder / (path or "reward")
            place.mkdir(parents=True)
            with _named_errors(component, "save its state"):
                component.reward.save(place)


def load(root: Component, folder: Path) -> None:
    """Restore what `save` wrote; a reward that is new since then starts from scratch."""
    for path, component in walk(root):
        place = folder / (path or "reward")
        if hasattr(component.reward, "load") and place.is_dir():
            with _named_errors(component, f"load its state from {place}"):
                component.reward.load(place)


@contextmanager
def _named_errors(component: Component, what: str) -> Iterator[None]:
    """Name the reward in whatever its own code raises; a full disk is reported by whoever writes to it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f'the reward "{component.name}" could not {what}: {failure_of(error).detail}') from error


def latencies(root: Component) -> dict[str, list[float]]:
    """Return the seconds that each component took for each group since the last call; "" is the root."""
    taken = {}
    for path, component in walk(root):
        if component.seconds:
            taken[path] = list(component.seconds)
            component.seconds.clear()
    return taken
