"""The advantages of stored rollouts, as a policy step computes them, from stored scores or from new ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream, estimate_advantages, values_from
from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Part
from rewardsmith.runs.replay_stage import ReplayStage
from rewardsmith.trainers.batch import (
    kl_stream,
    overlong_penalties,
    overlong_stream,
    process_values,
    reward_streams,
    weigh_by_trust,
)
from rewardsmith.trainers.objective import advantage_estimator
from rewardsmith.trainers.trainer import GroupRecord, TokenColumn
from rewardsmith.types import Score, ScoredGroup

Rows = list[NDArray[np.float64] | None]
"""The advantage of each token of each rollout of a group; None for a rollout that has none."""

Flags = NDArray[np.bool_]


def replay_advantages(
    groups: Sequence[ScoredGroup],
    parts: Mapping[str, Part],
    advantage: Chosen,
    stage: ReplayStage | None = None,
    records: Sequence[GroupRecord] = (),
    discount: float | None = None,
) -> list[Rows]:
    """Return the advantages of the groups of one batch.

    Args:
        groups: the batch: estimators may compare groups with each other.
        parts: the streams of the reward, with the weights of its recipe; none where it is not composed.
        advantage: the estimator, with `combine` and `whiten`.
        stage: what else enters the advantage, such as the penalty for overlong answers, and the weights that its
            watch has lowered; None: nothing does.
        records: the lines of the groups, with a stage: their step, and what a critic and a reference have predicted.
        discount: γ of a reward that is not composed; None takes the estimator's.

    Raises:
        UserError: the rewards do not go with the estimator.
    """
    if not groups:
        return []
    slot: Any = advantage.slot
    counts = torch.tensor([count for one in groups for count in token_counts_of(one).tolist()])
    tokens_BT = torch.arange(int(counts.max()))[None] < counts[:, None]
    groups_B = torch.tensor([i for i, one in enumerate(groups) for _ in one.scores])
    if stage is not None:
        parts = stage.parts_at(records[0].step, parts)
    try:
        streams = reward_streams([score for one in groups for score in one.scores], tokens_BT, parts, slot.combine)
        if discount is not None:
            streams = [replace(stream, discount=discount) for stream in streams]
        voting_B = torch.stack([stream.scored(tokens_BT).any(-1) for stream in streams]).any(0)
        mask_BT, values_BT = tokens_BT & voting_B[:, None], None
        if stage is not None:
            streams = _with_penalties(streams, mask_BT, stage, records)
            streams, values_BT = _with_values(streams, stage.implicit & set(parts), mask_BT, advantage, stage, records)
        estimator = advantage_estimator(advantage)
        found_BT = estimate_advantages(streams, mask_BT, groups_B, values_BT, estimator=estimator, **dict(slot))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"the rewards do not go with the advantage {advantage.name}: {error}. Name another estimator, such as"
            ' { type = "rloo", combine = "after" }'
        ) from None
    rows = zip(found_BT.double().numpy(), counts.tolist(), mask_BT.any(-1).tolist(), strict=True)
    values = iter([row[:count].copy() if voted else None for row, count, voted in rows])
    return [[next(values) for _ in one.scores] for one in groups]


def _with_penalties(
    streams: Sequence[Stream], mask_BT: Tensor, stage: ReplayStage, records: Sequence[GroupRecord]
) -> list[Stream]:
    """Return the streams with those of the penalties: overlong answers, distance from the reference."""
    added, discount = list(streams), streams[0].discount
    penalty_B = overlong_penalties(mask_BT, stage.overlong, stage.max_tokens)
    if penalty_B is not None:
        added.append(overlong_stream(penalty_B, mask_BT, discount))
    if stage.kl_coefficient:
        penalty_BT = _padded([record.token_kl for record in records], mask_BT)
        added.append(kl_stream(penalty_BT, stage.kl_coefficient, discount))
    return added


def _with_values(
    streams: list[Stream],
    implicit: Set[str],
    mask_BT: Tensor,
    advantage: Chosen,
    stage: ReplayStage,
    records: Sequence[GroupRecord],
) -> tuple[list[Stream], Tensor | None]:
    """Return the streams with implicit rewards by their trust, and the values [B, T] that the estimator reads."""
    if implicit:
        trusts = stage.trusts.get(records[0].step, {})
        streams = weigh_by_trust(streams, {name: trusts.get(name, 1.0) for name in implicit})
    needs = values_from(advantage.target)
    if needs == "critic":
        return streams, _padded([record.token_values for record in records], mask_BT)
    if needs != "process":
        return streams, None
    streams, values_BT = process_values(streams, implicit, mask_BT)
    if not streams:
        raise ValueError("all of its parts are implicit rewards")
    return streams, values_BT


def _padded(columns: Sequence[TokenColumn], mask_BT: Tensor) -> Tensor:
    """Return the numbers of the tokens of all rollouts, [B, T]; 0 where there are none."""
    padded_BT = torch.zeros(mask_BT.shape)
    for i, values in enumerate(values for column in columns for values in column):
        if values is not None:
            padded_BT[i, : len(values)] = torch.from_numpy(values.copy())
    return padded_BT


def token_counts_of(scored: ScoredGroup) -> NDArray[np.int64]:
    """Return the tokens of each rollout, [N]; 1 for each where only texts are known."""
    counts = np.array([len(rollout.tokens) for rollout in scored.group.rollouts], dtype=np.int64)
    return counts if counts.any() else np.ones_like(counts)


def stored_advantages(record: GroupRecord) -> Rows:
    """Return the advantages that a run stored with a group."""
    tokens = record.token_advantages or [None] * len(record.advantages)
    counts = token_counts_of(record.scored)
    rows: Rows = []
    for i, mean in enumerate(record.advantages):
        own = tokens[i]
        if mean is None:
            rows.append(None)
        else:
            rows.append(np.full(counts[i], float(mean)) if own is None else own.astype(np.float64))
    return rows


def have_advantage(rows: Rows | None, scores: Sequence[Score] = (), streams: Collection[str] = ()) -> Flags:
    """Return which rollouts of a group have an advantage, [N].

    In a group that is not learned from (`rows` is None) the advantage of every rollout that could be scored is 0.
    `streams` are the parts that are streams of their own: a rollout whose sum failed may have a score in one of them.
    """
    if rows is not None:
        return np.array([row is not None for row in rows])
    oks = [[part.ok for name, part in score.parts.items() if name in streams] for score in scores]
    return np.array([score.ok or any(own) for score, own in zip(scores, oks, strict=True)])


def flat(rows: Rows, counts_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the advantages of all tokens of a group, 0 for rollouts that have none."""
    filled = [np.zeros(count) if row is None else row for row, count in zip(rows, counts_N.tolist(), strict=True)]
    return np.concatenate(filled).astype(np.float64)


def largest_difference(stored: Sequence[Rows], computed: Sequence[Rows]) -> tuple[float, float]:
    """Return the largest difference of two sets of advantages, and the largest one of the first; None counts as 0."""
    difference = largest = 0.0
    for ours, theirs in zip(stored, computed, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if a is None and b is None:
                continue
            first = np.zeros(1) if a is None else a
            difference = max(difference, float(np.abs(first - (0.0 if b is None else b)).max(initial=0.0)))
            largest = max(largest, float(np.abs(first).max(initial=0.0)))
    return difference, largest
