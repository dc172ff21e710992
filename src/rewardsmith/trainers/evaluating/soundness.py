"""Ask a second reward whether right answers were reached by steps that hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rewardsmith.errors import UserError
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import components_of, walk
from rewardsmith.trainers.evaluating.policies import JudgedGroup
from rewardsmith.trainers.evaluating.scoring import each
from rewardsmith.types import RolloutGroup, Score, ScoredGroup

PART = "sound"
"""The part of a score that holds what the second reward said."""


def require_free(reward: Component) -> None:
    """Raise a `UserError` if the reward has a part of its own where the second one's verdict would stand."""
    if PART in components_of(reward.reward) or PART in reward.declared:
        raise UserError(
            f'the reward has a part "{PART}" of its own, which is where the verdict of the setting `sound` is kept:'
            " give the part another name"
        )


async def ask_all(
    reward: Component,
    groups: Sequence[RolloutGroup],
    wanted: Sequence[Sequence[bool]] | None = None,
    *,
    at_once: int = 256,
    pause: Callable[[], None] = lambda: None,
    tick: Callable[[], None] = lambda: None,
) -> list[Sequence[Score]]:
    """Return what a reward says of the rollouts of many groups; its failures are counted, and stop nothing.

    Args:
        reward: what is asked.
        groups: the rollouts.
        wanted: which rollouts of each group it is asked about; the others are `skipped`. None: about all.
        at_once: how many groups are with the reward at the same time.
        pause: called often; what it raises ends the work.
        tick: called after each group.
    """
    for _, component in walk(reward):
        component.unlimited = True

    async def one(i: int) -> Sequence[Score]:
        return await reward.score(groups[i], None if wanted is None else wanted[i])

    return await each(range(len(groups)), one, at_once=at_once, pause=pause, tick=tick)


async def with_soundness(
    scored: Sequence[ScoredGroup],
    sound: Component,
    right_from: float,
    pause: Callable[[], None] = lambda: None,
) -> list[ScoredGroup]:
    """Return the groups with one part more, `sound`: what the second reward says of the right answers.

    Of the others it is not asked, which is `skipped`.

    Args:
        scored: groups with the score that says whether an answer is right.
        sound: the second reward.
        right_from: a score of at least this is right.
        pause: called often; what it raises ends the work.
    """
    wanted = [[bool(at_least(score, right_from)) for score in group.scores] for group in scored]
    columns = await ask_all(sound, [group.group for group in scored], wanted, pause=pause)
    return [
        ScoredGroup(
            group.group,
            [replace(score, parts={**score.parts, PART: part}) for score, part in zip(group.scores, said, strict=True)],
        )
        for group, said in zip(scored, columns, strict=True)
    ]


def judged(group: ScoredGroup, right_from: float, sound_from: float | None = None, place: str = "") -> JudgedGroup:
    """Return what a scored group says about its rollouts; without `sound_from` nothing about soundness."""
    right = tuple(at_least(score, right_from) for score in group.scores)
    if sound_from is None:
        return JudgedGroup(right, place=place)
    return JudgedGroup(right, tuple(at_least(score.parts[PART], sound_from) for score in group.scores), place)


def at_least(score: Score, least: float) -> bool | None:
    """Return whether a score is at least so much; None where there is none."""
    return None if score.value is None else score.value >= least
