"""Stored rewards against new ones, step by step: values, and the advantages that each side leads to.

The groups of a training step are compared together, because estimators may compare groups with each other. Groups that
no policy learned from, such as those of a validation or of another system, stand alone: their advantage is the reward
minus the mean of the group, unless an estimator is given. One step is held in memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rewardsmith.algorithms.update_directions import Vector, rollout_means
from rewardsmith.config import Chosen
from rewardsmith.console import Table, count_of
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import Part, parts_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum
from rewardsmith.runs.replay_stage import ReplayStage, choose_estimator, find_stage
from rewardsmith.runs.replay_statistics import SAME, Facts, ReplayTally
from rewardsmith.runs.score_statistics import Comparison, advantages, with_scaled_weight, without_implicit
from rewardsmith.runs.stored_rollouts import StoredGroup
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Failure, Score, ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.runs.replay import Flags, Rows

DIFFERENT = 1e-4
"""A difference from the stored advantages, relative to the largest of them, that is no rounding error."""

BY_REWARD = frozenset({"failed", "constant", "too_hard", "too_easy"})
"""Why a group was not learned from, where another reward may decide otherwise."""

MEAN = "reward minus the mean of the group"


@dataclass(frozen=True)
class _ComparedGroup:
    """A group with the scores that are compared: `old` and `new` by value, `streams` as a trainer would have them."""

    stored: StoredGroup
    old: Sequence[Score]
    new: Sequence[Score]
    streams: Sequence[Score]

    def side(self, scores: Sequence[Score]) -> ScoredGroup:
        return ScoredGroup(self.stored.group, scores)

    @property
    def record(self) -> GroupRecord:
        """The line of a run that it is from; only groups of a policy stage are known to have one."""
        assert self.stored.record is not None
        return self.stored.record

    @property
    def dropped(self) -> str:
        return "" if self.stored.record is None else self.stored.record.dropped

    @property
    def learned(self) -> bool:
        """Whether a policy has learned from it, or might have: it is of another system."""
        record = self.stored.record
        if record is None:
            return True
        return record.kind == "train" and not record.dropped and any(one is not None for one in record.advantages)


class RewardComparison:
    """Two rewards over the same groups; see `Comparison` for values and `ReplayTally` for advantages."""

    def __init__(
        self, reward: Component | None, *, max_changes: int = 10, estimator: Any = None, part: str | None = None
    ) -> None:
        """Compare with a reward, or where it is None with the stored scores under another estimator."""
        self._reward, self._estimator, self._part = reward, estimator, part
        self._values, self._replay = Comparison(max_changes), ReplayTally(max_changes)
        self._stages: dict[Path, ReplayStage | None] = {}
        self._step: list[_ComparedGroup] = []
        self._notes: dict[str, None] = {}  # in the order in which they came up
        self._estimators: dict[str, None] = {}
        self._reproduced: tuple[float, float, int] | None = None  # largest difference, largest advantage, rollouts
        self._whole_as_part = False

    def require(self, files: Sequence[Path]) -> None:
        """Raise a `UserError` if the estimator does not go with the stages of the files, before anything is scored."""
        if self._estimator is not None:
            for file in files:
                choose_estimator(self._estimator, find_stage(file))

    def add(self, stored: StoredGroup, new: Sequence[Score]) -> None:
        """Count a group with stored scores by its new ones."""
        pair = self._pair(stored, new)
        stage = self._stage(stored)
        if self._step and (stage is None or not self._same_step(stored)):
            self._flush()
        if stage is None:
            self._add_alone(pair)
        else:
            self._step.append(pair)

    def result(self) -> tuple[Facts, list[Table]]:
        """Return the statistics, and their tables; those of the replay are under `replay`."""
        if self._step:
            self._flush()
        facts, tables = self._values.result()
        if self._part is not None:
            facts["part"] = self._part
            whole = ", which the whole of the new reward is compared with" if self._whole_as_part else ""
            tables[0] = replace(tables[0], title=f"the part {printable(self._part, 60)}{whole}: old against new")
        if not self._replay.groups:
            return facts, tables
        replayed, more = self._replay.result()
        notes = [f"Advantages: {', '.join(self._estimators)}.", *self._notes, *self._reproduction()]
        more[0] = replace(more[0], note=" ".join(notes))
        difference, largest, rollouts = self._reproduced or (None, None, 0)
        replayed |= {
            "estimators": list(self._estimators),
            "reproduced": {"rollouts": rollouts, "difference": difference, "largest": largest},
            "notes": notes,
        }
        return facts | {"replay": replayed}, [*tables, *more]

    def _reproduction(self) -> list[str]:
        if self._reproduced is None:
            return []
        difference, largest, rollouts = self._reproduced
        text = f"the stored advantages of {count_of(rollouts, 'rollout')} up to {difference:.1e}"
        if difference <= DIFFERENT * largest:
            return [f"The stored scores reproduce {text}."]
        return [
            f"Warning: the stored scores reproduce {text} only, of at most {largest:.3g}: a step is incomplete"
            " (--limit), the file or recipe.toml has changed, or the estimator has a state of its own."
        ]

    # ---- one group ---------------------------------------------------------------------------------------------------

    def _stage(self, stored: StoredGroup) -> ReplayStage | None:
        """Return the policy stage that learned from a group, or might have; None for one that stands alone."""
        return None if stored.record is None or stored.record.kind != "train" else self._stage_of(stored.file)

    def _stage_of(self, file: Path) -> ReplayStage | None:
        if file not in self._stages:
            self._stages[file] = find_stage(file)
        return self._stages[file]

    def _same_step(self, stored: StoredGroup) -> bool:
        last = self._step[-1].stored
        assert last.record is not None
        assert stored.record is not None
        return (last.file, last.record.step) == (stored.file, stored.record.step)

    def _pair(self, stored: StoredGroup, new: Sequence[Score]) -> _ComparedGroup:
        assert stored.scores is not None
        if self._part is not None:
            old = [self._part_of(score, stored.place) for score in stored.scores]
            found = [dict(score.named_parts()).get(self._part) for score in new]
            self._whole_as_part |= found[0] is None
            chosen = [whole if part is None else part for whole, part in zip(new, found, strict=True)]
            return _ComparedGroup(stored, old, chosen, chosen)
        if self._reward is None:
            return _ComparedGroup(stored, stored.scores, new, new)
        kept, names = without_implicit(self._reward, stored, new)
        self._values.left_out |= names
        kept = self._as_lowered(self._reward, stored, kept)
        return _ComparedGroup(stored, stored.scores, kept, self._as_trained(stored, kept, names))

    def _part_of(self, score: Score, place: str) -> Score:
        assert self._part is not None
        known = dict(score.named_parts())
        if self._part not in known:
            hint = f"{nearest(self._part, known)} Known: {listing(known)}" if known else " The stored scores have none"
            raise UserError(f"part {self._part!r}: {place} has no such part.{hint}")
        return known[self._part]

    def _as_lowered(self, reward: Component, stored: StoredGroup, new: Sequence[Score]) -> Sequence[Score]:
        """Return new scores with the weight that the watch had given to the part of that name when the run scored them.

        A look comes after all rollouts of earlier policies are scored, those that were written ahead among them.
        """
        stage, whole = None if stored.record is None else self._stage_of(stored.file), reward.reward
        lowered = None if stage is None else stage.lowered
        if lowered is None or stored.record is None or not isinstance(whole, Sum) or lowered.name not in whole.streams:
            return new
        if stored.record.kind == "validation" and not lowered.in_validation:
            return new
        factor = lowered.factor_after(stored.group.policy_version)
        if min(factor, lowered.factor_after(stored.record.step - 1)) < 1:
            name = printable(lowered.name, 60)
            self._note(f"The watch has lowered the weight of {name}: both sides have its factor at each step.")
        return with_scaled_weight(whole, lowered.name, factor, new)

    def _as_trained(self, stored: StoredGroup, new: Sequence[Score], implicit: set[str]) -> Sequence[Score]:
        """Return new scores with the stored scores of implicit parts: their models were those of the step."""
        if not implicit or stored.scores is None:
            return new
        names = ", ".join(printable(name, 60) for name in sorted(implicit))
        self._note(f"The implicit part {names} is as the run stored it on both sides; --part compares it alone.")
        return [
            replace(score, parts={**score.parts, **{name: before.parts[name] for name in implicit}})
            for score, before in zip(new, stored.scores, strict=True)
        ]

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _add_alone(self, pair: _ComparedGroup) -> None:
        """Count a group that is a batch of its own."""
        if self._estimator is None:
            self._estimators |= {MEAN: None} if pair.learned else {}
            means = [np.array(advantages(scores)) for scores in (pair.old, pair.new)]
            counts_N = np.maximum([len(rollout.tokens) for rollout in pair.stored.group.rollouts], 1)
            old_T, new_T = (np.repeat(np.nan_to_num(values_N), counts_N) for values_N in means)
            self._count(pair, old_T, new_T, counts_N, ~np.isnan(means[0] + means[1]), is_learned=pair.learned)
            return
        from rewardsmith.runs.replay import flat, have_advantage, replay_advantages, token_counts_of  # noqa: PLC0415

        chosen = choose_estimator(self._estimator)
        self._estimators |= {f"{chosen.name} of each group alone": None} if pair.learned else {}
        counts_N = token_counts_of(pair.side(pair.old))
        (before,) = replay_advantages([pair.side(pair.old)], {}, chosen)
        (after,) = replay_advantages([pair.side(pair.streams)], self._parts({}), chosen)
        both_N = have_advantage(before) & have_advantage(after)
        self._count(pair, flat(before, counts_N), flat(after, counts_N), counts_N, both_N, is_learned=pair.learned)

    def _count(
        self, pair: _ComparedGroup, old_T: Vector, new_T: Vector, counts_N: Any, both_N: Flags, *, is_learned: bool
    ) -> None:
        """Count a group by the advantages of its tokens, and of which rollouts both sides have one.

        `is_learned`: a policy learns from it on one side at least.
        """
        group, record = pair.stored.group, pair.stored.record
        before, after = (rollout_means(values_T, counts_N).tolist() for values_T in (old_T, new_T))
        self._values.add(group, pair.old, pair.new, before, after)
        if is_learned:
            self._replay.add(group, old_T, new_T, counts_N, both_N, None if record is None else record.step)

    def _parts(self, stored: Mapping[str, Part]) -> Mapping[str, Part]:
        """Return the streams of the new reward; those of the stored one where there is no other."""
        if self._part is not None:
            return {}
        return stored if self._reward is None else parts_of(self._reward)

    # ---- one step ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Count the groups of a step, the old side as the run had them, the new one as it would have had them."""
        from rewardsmith.runs.replay import flat, have_advantage, token_counts_of  # noqa: PLC0415 loads torch

        pairs, self._step = self._step, []
        stage = self._stage(pairs[0].stored)
        assert stage is not None
        old, new = self._old_side(pairs, stage), self._new_side(pairs, stage)
        counts = [token_counts_of(pair.side(pair.old)) for pair in pairs]
        sides = [
            [flat(side[i], n) if i in side else np.zeros(int(n.sum())) for i, n in enumerate(counts)]
            for side in (old, new)
        ]
        for side in sides:
            small = SAME * max((float(np.abs(one).max(initial=0.0)) for one in side), default=0.0)
            for one in side:
                one[np.abs(one) <= small] = 0.0
        old_streams = self._own_streams(self._run_estimator(stage), stage.parts)
        new_streams = self._own_streams(self._new_estimator(stage), self._parts(stage.parts))
        for i, pair in enumerate(pairs):
            if stage.select.truncated == "mask":
                ended = [rollout.stop_reason != "length" for rollout in pair.stored.group.rollouts]
                in_loss_T = np.repeat(np.array(ended, dtype=np.float64), counts[i])
                sides[0][i], sides[1][i] = sides[0][i] * in_loss_T, sides[1][i] * in_loss_T
            both_N = have_advantage(old.get(i), pair.old, old_streams) & (counts[i] > 0)
            both_N &= have_advantage(new.get(i), pair.streams, new_streams)
            self._count(pair, sides[0][i], sides[1][i], counts[i], both_N, is_learned=i in old or i in new)

    def _old_side(self, pairs: Sequence[_ComparedGroup], stage: ReplayStage) -> dict[int, Rows]:
        """Return the advantages of the groups that the run learned from, by their place in the step."""
        from rewardsmith.runs.replay import largest_difference, stored_advantages  # noqa: PLC0415 loads torch

        kept = [i for i, pair in enumerate(pairs) if pair.learned]
        stored = {i: stored_advantages(pairs[i].record) for i in kept}
        own = self._run_estimator(stage)
        self._require_inputs([pairs[i] for i in kept], stage)
        if self._both_computed(stage):
            return self._estimated(pairs, {i: pairs[i].old for i in kept}, stage.parts, own, stage)
        if not stage.missing:
            again = self._estimated(pairs, {i: pairs[i].old for i in kept}, stage.parts, own, stage)
            difference, largest = largest_difference([stored[i] for i in kept], [again[i] for i in kept])
            before = self._reproduced or (0.0, 0.0, 0)
            rollouts = before[2] + sum(len(pairs[i].old) for i in kept)
            self._reproduced = max(before[0], difference), max(before[1], largest), rollouts
        return stored

    def _new_side(self, pairs: Sequence[_ComparedGroup], stage: ReplayStage) -> dict[int, Rows]:
        """Return the advantages of the groups that the run would have learned from, by their place in the step."""
        chosen, parts = self._new_estimator(stage), self._parts(stage.parts)
        if self._part is not None:
            passing = {i: pair.streams for i, pair in enumerate(pairs) if pair.learned}
        else:
            passing = self._selected(pairs, stage, parts, by_parts=bool(self._own_streams(chosen, parts)))
            known = {i for i in passing if stage.has_inputs(pairs[i].record, passing[i])}
            if len(known) < len(passing):
                self._note(
                    "What the run did not learn from has no values of its critic or reference: such groups are left out"
                    " of the new side."
                )
            passing = {i: scores for i, scores in passing.items() if i in known}
        self._estimators[chosen.name if self._estimator is None else f"{stage.advantage.name} → {chosen.name}"] = None
        return self._estimated(pairs, passing, parts, chosen, stage)

    def _selected(
        self, pairs: Sequence[_ComparedGroup], stage: ReplayStage, parts: Mapping[str, Part], *, by_parts: bool
    ) -> dict[int, Sequence[Score]]:
        """Return the new scores of the groups that pass the selection of the stage; none where they are too few.

        Groups that the run rejected for their reward are among them, surplus is not. Implicit rewards come after the
        selection.
        """
        from rewardsmith.trainers.collect import rejection  # noqa: PLC0415 loads torch

        select, passing = stage.select, dict[int, Sequence[Score]]()
        if select.part and select.part not in dict(pairs[0].streams[0].named_parts()):
            self._note(f"The new reward has no part {printable(select.part, 60)}: the bounds of select do not apply.")
            select = select.model_copy(update={"part": "", "lowest": None, "highest": None})
        skipped = Score(failure=Failure("skipped", "it is scored after the selection"))
        for i, pair in enumerate(pairs):
            if pair.dropped and pair.dropped not in BY_REWARD:
                continue
            early = [
                replace(one, parts={n: skipped if n in stage.implicit else p for n, p in one.parts.items()})
                for one in pair.streams
            ]
            if rejection(pair.side(early), select, streams=parts, by_parts=by_parts) is None:
                passing[i] = pair.streams
        return passing if len(passing) >= select.min_groups else {}

    def _run_estimator(self, stage: ReplayStage) -> Chosen:
        """Return the estimator of the run; where it reads what is not there, that of `MEAN`."""
        missing = stage.missing or ("the other parts" if self._part is not None and stage.needs else "")
        if not missing:
            return stage.advantage
        if self._estimator is None:
            remedy = " --estimator NAME compares another one with the stored advantages." if self._part is None else ""
            self._note(f"{stage.advantage.name} reads {missing}, not stored with them: both sides are {MEAN}.{remedy}")
        return choose_estimator({"type": "dr_grpo", "whiten": False}, stage)

    def _new_estimator(self, stage: ReplayStage) -> Chosen:
        return self._run_estimator(stage) if self._estimator is None else choose_estimator(self._estimator, stage)

    def _own_streams(self, chosen: Chosen, parts: Mapping[str, Part]) -> Mapping[str, Part]:
        """Return the parts that are streams of their own, so that a rollout whose sum failed may have an advantage."""
        return parts if getattr(chosen.slot, "combine", "") == "after" and self._part is None else {}

    def _both_computed(self, stage: ReplayStage) -> bool:
        """Whether both sides are computed, because the stored advantages rest on more than what is compared."""
        return self._part is not None or (bool(stage.missing) and self._estimator is None)

    def _require_inputs(self, pairs: Sequence[_ComparedGroup], stage: ReplayStage) -> None:
        """Raise a `UserError` if a group that the run learned from lacks what its advantages were computed from."""
        lacking = next((pair for pair in pairs if not stage.has_inputs(pair.record, pair.old)), None)
        if lacking is not None and self._part is None:
            raise UserError(
                f"{lacking.stored.place}: its tokens have no values of the critic, or no KL penalty: it is from an"
                " earlier version, or was edited. --part NAME compares one part without them"
            )

    def _estimated(
        self,
        pairs: Sequence[_ComparedGroup],
        scores: Mapping[int, Sequence[Score]],
        parts: Mapping[str, Part],
        chosen: Chosen,
        stage: ReplayStage,
    ) -> dict[int, Rows]:
        from rewardsmith.runs.replay import replay_advantages  # noqa: PLC0415 loads torch

        groups = [pairs[i].side(each) for i, each in scores.items()]
        if self._part is not None:
            first = stage.parts.get(self._part.partition(".")[0])
            found = replay_advantages(groups, {}, chosen, discount=first.discount if first else None)
        else:
            found = replay_advantages(groups, parts, chosen, stage, [pairs[i].record for i in scores])
        return dict(zip(scores, found, strict=True))
