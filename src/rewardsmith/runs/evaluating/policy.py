"""`rewardsmith evaluate policy`: what stored rollouts say about the policy that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import Usage
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import check
from rewardsmith.runs.evaluating.command import Ticks, require_finite, with_models
from rewardsmith.runs.evaluating.printing import show
from rewardsmith.runs.model_registry import add_usage
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.rescoring.choice import Found, find_reward, is_run
from rewardsmith.runs.rescoring.stored import Stored, StoredRollouts, Wanted
from rewardsmith.trainers.evaluating.policies import JudgedGroup, evaluation_of
from rewardsmith.trainers.evaluating.scoring import Notes
from rewardsmith.trainers.evaluating.soundness import ask_all, at_least
from rewardsmith.types import Failure, Score, ScoredGroup

_SKIPPED = Score(failure=Failure("skipped"))
Verdicts = list[list[bool | None]]
"""Of each rollout of each group yes, no, or not known."""


def evaluate_policy(
    path: str,
    groups: Wanted,
    *,
    right: str | None = None,
    right_from: float = 1.0,
    sound: str | None = None,
    sound_from: float = 1.0,
    seed: int = 0,
    at_once: int = 32,
    json: bool = False,
    fail_above: float = 1.0,
) -> bool:
    """Measure the policy that wrote stored rollouts, and print how it did; return whether enough has a verdict.

    Args:
        path: a run folder or a file; see `StoredRollouts`.
        groups: which groups of it.
        right: what says whether an answer is right: a part of the stored scores, or a reward as `RECIPE[:path]`. None
            is the stored score itself.
        right_from: a value of at least this is right.
        sound: what says whether the steps of a right answer hold, in the same way; None does not ask.
        sound_from: a value of at least this is sound.
        seed: of the intervals.
        at_once: how many groups are scored at the same time.
        json: print JSON instead of tables.
        fail_above: share of rollouts without a verdict, or of right answers without one on soundness, that is too
            much; without any verdict it never is enough.

    Raises:
        UserError: for whatever a user can mend.
        Interrupted: after Ctrl-C.
    """
    progress = Progress(Console(stderr=True))
    rollouts = StoredRollouts(path, groups)
    asked = [_Told.of("--right", right or "", right_from)]
    asked += [_Told.of("--sound", sound, sound_from)] if sound is not None else []
    rollouts.count()
    for text in rollouts.left_out:
        progress.log(text)
    stored = list(rollouts)
    used: dict[str, Usage] = {}
    answers = asked[0].verdicts(stored, None, progress, at_once, used)
    wanted = [[bool(one) for one in some] for some in answers]
    steps = asked[1].verdicts(stored, wanted, progress, at_once, used) if len(asked) > 1 else [[] for _ in stored]
    judged = [JudgedGroup(tuple(answers[i]), tuple(steps[i]), _place(one)) for i, one in enumerate(stored)]
    counts = {name: share for told in asked for name, share in told.notes.counts().items()}
    details = {what: said for told in asked for what, said in told.notes.details.items()}
    found = evaluation_of(path, judged, seed=seed, counts=counts, details=details)
    facts: dict[str, Any] = {"rollouts": path, "right": right, "right_from": right_from}
    show(found, used, facts | {"sound": sound, "sound_from": sound_from, "seed": seed}, as_json=json)
    failed = max(found.metrics["failed"], found.metrics.get("sound_failed", 0.0))
    return failed < 1 and failed <= fail_above


def _place(stored: Stored) -> str:
    """Return the stage, kind and step that a group of a run comes from; "" where there is none."""
    record = stored.record
    if record is None:
        return ""
    stage = Path(stored.place.rpartition(", ")[0]).stem
    return f"{stage}, {record.kind}, step {record.step}"


@dataclass(frozen=True)
class _Told:
    """Where a verdict comes from: a part of the stored scores, or a reward that is asked now."""

    option: str
    least: float
    part: str = ""
    reward: Found | None = None
    notes: Notes = field(default_factory=Notes)

    @classmethod
    def of(cls, option: str, text: str, least: float) -> _Told:
        """Return what `PART` or `RECIPE[:path]` means."""
        require_finite(f"{option}-from", least)
        notes = Notes(f"{option.removeprefix('--')}.")
        if ".toml" in text or Path(text).is_file() or is_run(text):
            return cls(option, least, reward=find_reward(text), notes=notes)
        return cls(option, least, part=text, notes=notes)

    def verdicts(
        self,
        stored: Sequence[Stored],
        wanted: Sequence[Sequence[bool]] | None,
        progress: Progress,
        at_once: int,
        used: dict[str, Usage],
    ) -> Verdicts:
        """Return what is known; what is not wanted need not be known, and of some groups nothing may be."""
        if self.reward is None:
            said = self._parts(stored, wanted)
        else:
            said = self._asked(self.reward, stored, wanted, progress, at_once, used)
        for one, scores in zip(stored, said, strict=True):
            if scores:
                self.notes.add(ScoredGroup(one.group, scores))
        return [[at_least(score, self.least) for score in scores] for scores in said]

    def _asked(
        self,
        found: Found,
        stored: Sequence[Stored],
        wanted: Sequence[Sequence[bool]] | None,
        progress: Progress,
        at_once: int,
        used: dict[str, Usage],
    ) -> list[Sequence[Score]]:
        groups = [one.group for one in stored]

        async def ask(models: Callable[[str], Any]) -> list[Sequence[Score]]:
            reward = Component.root(found.reward, progress.log, models)
            await check(reward)
            with progress.stage(self.option.removeprefix("--"), len(groups), 0, unit="groups"):
                return await ask_all(reward, groups, wanted, at_once=at_once, tick=Ticks(progress))

        said, asked = with_models(found, progress, 0, ask)
        used |= add_usage(used, asked)
        return said

    def _parts(self, stored: Sequence[Stored], wanted: Sequence[Sequence[bool]] | None) -> list[Sequence[Score]]:
        """Return the stored verdicts; [] for a group that has no such part, unless none has it or all must have it."""
        found, lacking = [self._stored(one) for one in stored], None
        for one, scores in zip(stored, found, strict=True):
            lacking = lacking or (None if scores else one)
        if lacking is not None and (wanted is None or not any(found)):
            names = dict.fromkeys(name for score in lacking.scores or () for name, _ in score.named_parts())
            raise UserError(
                f"{self.option} is {self.part!r}: {lacking.place} has no such part, and there is no such file."
                f"{nearest(self.part, names)} Known parts: {listing(names)}"
            )
        if wanted is None:
            return [*found]
        return [
            [score if is_wanted else _SKIPPED for score, is_wanted in zip(scores, some, strict=True)] if scores else []
            for scores, some in zip(found, wanted, strict=True)
        ]

    def _stored(self, stored: Stored) -> list[Score]:
        """Return the part of each score; [] where one has no such part."""
        if stored.scores is None:
            raise UserError(
                f"{stored.place}: no score is stored there. {self.option} reward.toml names a reward that is asked now"
            )
        if not self.part:
            return list(stored.scores)
        parts = [dict(score.named_parts()) for score in stored.scores]
        return [names[self.part] for names in parts] if all(self.part in names for names in parts) else []
