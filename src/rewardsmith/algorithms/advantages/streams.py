"""Several rewards at once: each is a stream with its own weight, discount and, where it failed, its own mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages.group import GROUP_ESTIMATORS
from rewardsmith.algorithms.groups import Groups
from rewardsmith.algorithms.sequences import token_counts
from rewardsmith.algorithms.sequences import whiten as whitened
from rewardsmith.algorithms.shapes import FloatBT, IdsB, MaskB, MaskBT, check_groups, check_option, masked


@dataclass(frozen=True)
class Stream:
    """One named reward.

    Attributes:
        name: of the reward part, for messages and metrics.
        rewards_BT: [B, T].
        support_BT: [B, T] bool, the tokens that carry a reward of their own; None for an outcome.
        mask_BT: [B, T] bool, the response tokens of the rows that this reward could score; None when it scored all.
        weight: factor of this reward in the sum.
        discount: γ of this reward; None takes the estimator's.
        values_BT: [B, T], this reward's own baseline, where the estimator needs one and the streams are combined after.
    """

    name: str
    rewards_BT: Tensor
    support_BT: Tensor | None = None
    mask_BT: Tensor | None = None
    weight: float = 1.0
    discount: float | None = None
    values_BT: Tensor | None = None


def credit(
    streams: Sequence[Stream],
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    *,
    estimator: Callable[..., Tensor],
    combine: Literal["before", "after"] = "before",
    whiten: bool = False,
) -> FloatBT:
    r"""Turn reward streams into advantages.

    "before": one estimate of the weighted sum, $A = E(\sum_k w_k r_k)$: the usual mixed reward.
    "after": one estimate per stream, $A = \sum_k w_k E_k(r_k)$. With `rloo` this is PRIME (arXiv 2502.01456, eq. 5);
    with `grpo` it is GDPO (arXiv 2601.05242). Both papers whiten the sum over the batch: set `whiten`.

    A row that a stream could not score takes no part in that stream's baseline, and a row that no stream gave credit to
    stays at 0, also under `whiten`. Under "before" a stream may drop out only of whole groups: otherwise siblings would
    be compared on different scales.

    Args:
        streams: at least one.
        mask_BT: [B, T], response tokens of the rollouts that take part at all.
        groups_B: [B].
        values_BT: [B, T], a critic's values of the summed reward; only for "before".
        estimator: from `ADVANTAGES`, with its settings bound (`functools.partial`).
        combine: see above.
        whiten: scale the result to mean 0, variance 1 over the batch.

    Returns:
        advantages [B, T].
    """
    if not streams:
        raise ValueError("credit needs at least one reward stream")
    for stream in streams:
        if not math.isfinite(stream.weight):
            raise ValueError(f"the weight of stream {stream.name!r} is {stream.weight}: it must be finite")
    check_option("combine", combine, ("before", "after"))
    combined = _before if combine == "before" else _after
    check_groups(groups_B, mask_BT)
    advantages_BT = combined(streams, mask_BT, groups_B, values_BT, estimator)
    if not whiten:
        return advantages_BT
    return whitened(advantages_BT, mask_BT & _credited(streams, mask_BT, groups_B, estimator)[:, None])


def _stream_mask(stream: Stream, mask_BT: MaskBT) -> MaskBT:
    return mask_BT if stream.mask_BT is None else mask_BT & stream.mask_BT


def compares(estimator: Callable[..., Tensor]) -> bool:
    """Whether the estimator compares a rollout with its siblings."""
    while isinstance(estimator, partial):
        estimator = estimator.func
    return estimator in GROUP_ESTIMATORS


def _credited(streams: Sequence[Stream], mask_BT: MaskBT, groups_B: IdsB, estimator: Callable[..., Tensor]) -> MaskB:
    """Return which rows some stream gave credit to; whitening must not move the others away from 0."""
    credited_B = torch.zeros_like(groups_B, dtype=torch.bool)
    for stream in streams:
        groups = Groups.of(groups_B, token_counts(_stream_mask(stream, mask_BT)) > 0)
        credited_B = credited_B | (groups.compared_B if compares(estimator) else groups.votes_B)
    return credited_B


def _discount(stream: Stream) -> dict[str, float]:
    return {} if stream.discount is None else {"discount": stream.discount}


def _before(
    streams: Sequence[Stream],
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    estimator: Callable[..., Tensor],
) -> FloatBT:
    first = streams[0]
    sum_BT = torch.zeros_like(first.rewards_BT)
    for stream in streams:
        if stream.discount != first.discount:
            raise ValueError(
                f"streams {first.name!r} and {stream.name!r} have discounts {first.discount} and {stream.discount}:"
                " rewards that are summed before the estimate share one; use combine='after'"
            )
        stream_mask_BT = _stream_mask(stream, mask_BT)
        _require_whole_groups(stream.name, stream_mask_BT, mask_BT, groups_B)
        sum_BT = sum_BT + stream.weight * masked(f"rewards of {stream.name!r}", stream.rewards_BT, stream_mask_BT)
    support_BT = _common_support(streams, required=compares(estimator))
    return estimator(sum_BT, mask_BT, groups_B, values_BT, support_BT, **_discount(first))


def _after(
    streams: Sequence[Stream],
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    estimator: Callable[..., Tensor],
) -> FloatBT:
    if values_BT is not None:
        raise ValueError(
            "values_BT is one baseline for the summed reward, but combine='after' estimates each stream on its own:"
            " use combine='before', or give each stream its own values_BT"
        )
    total_BT = torch.zeros_like(streams[0].rewards_BT)
    for stream in streams:
        stream_mask_BT = _stream_mask(stream, mask_BT)
        total_BT = total_BT + stream.weight * estimator(
            stream.rewards_BT,
            stream_mask_BT,
            groups_B,
            stream.values_BT,
            stream.support_BT,
            **_discount(stream),
        )
    return total_BT


def _common_support(streams: Sequence[Stream], *, required: bool) -> Tensor | None:
    """Return the support that all streams share, or None; rewards on different tokens cannot be centred as one."""
    first = streams[0]
    for stream in streams[1:]:
        one, other = first.support_BT, stream.support_BT
        same = one is other or (one is not None and other is not None and torch.equal(one, other))
        if not same and not required:
            return None
        if not same:
            raise ValueError(
                f"streams {first.name!r} and {stream.name!r} carry their rewards on different tokens: an estimator that"
                " compares siblings cannot centre their sum; use combine='after'"
            )
    return first.support_BT


def _require_whole_groups(name: str, stream_mask_BT: MaskBT, mask_BT: MaskBT, groups_B: IdsB) -> None:
    groups = Groups.of(groups_B, mask_BT.any(-1))
    scored_B = groups.total(stream_mask_BT.any(-1).double())
    partial_B = (scored_B > 0) & (scored_B < groups.voters_B)
    if bool(partial_B.any()):
        row = int(partial_B.nonzero()[0])
        raise ValueError(
            f"stream {name!r} scored {int(scored_B[row])} of {int(groups.voters_B[row])} rollouts in group"
            f" {int(groups_B[row])}: with combine='before' its siblings would be on another scale. Drop those rollouts"
            " (mask their rows), drop the stream for the whole group, or use combine='after'"
        )
