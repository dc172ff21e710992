"""Several rewards at once: each is a stream with its own weight, discount and, where it failed, its own mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import RewardTensors, compares
from rewardsmith.algorithms.groups import Groups
from rewardsmith.algorithms.sequences import token_counts
from rewardsmith.algorithms.sequences import whiten as whitened
from rewardsmith.algorithms.shapes import FloatBT, IdsB, MaskB, MaskBT, check_groups, check_option, masked


@dataclass(frozen=True)
class Stream:
    """One named reward."""

    name: str  # of the reward part
    rewards_BT: Tensor
    support_BT: Tensor | None = None  # bool, the tokens that carry a reward of their own; None for an outcome
    mask_BT: Tensor | None = None  # bool, response tokens of the rows that this reward could score; None: all
    weight: float = 1.0
    discount: float | None = None  # None takes the estimator's
    values_BT: Tensor | None = None  # this reward's own baseline, for combine = "after"

    def scored(self, mask_BT: MaskBT) -> MaskBT:
        """Return the tokens of `mask_BT` whose row this reward could score."""
        return mask_BT if self.mask_BT is None else mask_BT & self.mask_BT

    def settings(self) -> dict[str, float]:
        """Return what the stream sets of the estimator."""
        return {} if self.discount is None else {"discount": self.discount}


def estimate_advantages(
    streams: Sequence[Stream],
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    *,
    estimator: Callable[..., Tensor],
    combine: Literal["before", "after"] = "before",
    whiten: bool = False,
) -> FloatBT:
    r"""Return the advantages [B, T] of reward streams.

    "before": one estimate of the weighted sum, $A = E(\sum_k w_k r_k)$: the usual mixed reward.
    "after": one estimate per stream, $A = \sum_k w_k E_k(r_k)$. With `rloo` this is PRIME (arXiv 2502.01456, eq. 5);
    with `grpo` it is GDPO (arXiv 2601.05242). Both papers whiten the sum over the batch: set `whiten`.

    A row that a stream could not score takes no part in that stream's baseline, and a row that no stream could compare
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
    """
    if not streams:
        raise ValueError("there must be at least one reward stream")
    for stream in streams:
        if not math.isfinite(stream.weight):
            raise ValueError(f"the weight of stream {stream.name!r} is {stream.weight}: it must be finite")
    check_option("combine", combine, ("before", "after"))
    check_groups(groups_B, mask_BT)
    if combine == "before":
        inputs = _weighted_sum(streams, mask_BT, groups_B, values_BT, same_support=compares(estimator))
        advantages_BT = estimator(inputs, **streams[0].settings())
    else:
        if values_BT is not None:
            raise ValueError(
                "values_BT is one baseline for the summed reward, but combine='after' estimates each stream on its own:"
                " use combine='before', or give each stream its own values_BT"
            )
        advantages_BT = torch.zeros_like(streams[0].rewards_BT)
        for stream in streams:
            inputs = RewardTensors(
                stream.rewards_BT, stream.scored(mask_BT), groups_B, stream.values_BT, stream.support_BT
            )
            advantages_BT = advantages_BT + stream.weight * estimator(inputs, **stream.settings())
    if not whiten:
        return advantages_BT
    return whitened(advantages_BT, mask_BT & _estimated(streams, mask_BT, groups_B, compares(estimator))[:, None])


def _weighted_sum(
    streams: Sequence[Stream], mask_BT: MaskBT, groups_B: IdsB, values_BT: FloatBT | None, *, same_support: bool
) -> RewardTensors:
    first = streams[0]
    sum_BT = torch.zeros_like(first.rewards_BT)
    support_BT = first.support_BT
    for stream in streams:
        if stream.discount != first.discount:
            raise ValueError(
                f"streams {first.name!r} and {stream.name!r} have discounts {first.discount} and {stream.discount}:"
                " rewards that are summed before the estimate share one; use combine='after'"
            )
        if not _same(first.support_BT, stream.support_BT):
            if same_support:
                raise ValueError(
                    f"streams {first.name!r} and {stream.name!r} carry their rewards on different tokens: an estimator"
                    " that compares siblings cannot centre their sum; use combine='after'"
                )
            support_BT = None
        scored_BT = stream.scored(mask_BT)
        _require_whole_groups(stream.name, scored_BT, mask_BT, groups_B)
        sum_BT = sum_BT + stream.weight * masked(f"rewards of {stream.name!r}", stream.rewards_BT, scored_BT)
    return RewardTensors(sum_BT, mask_BT, groups_B, values_BT, support_BT)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _estimated(streams: Sequence[Stream], mask_BT: MaskBT, groups_B: IdsB, compared: bool) -> MaskB:
    """Return which rows some stream has an estimate for; whitening must not move the others away from 0."""
    estimated_B = torch.zeros_like(groups_B, dtype=torch.bool)
    for stream in streams:
        groups = Groups.of(groups_B, token_counts(stream.scored(mask_BT)) > 0)
        estimated_B = estimated_B | (groups.compared_B if compared else groups.votes_B)
    return estimated_B


def _require_whole_groups(name: str, scored_BT: MaskBT, mask_BT: MaskBT, groups_B: IdsB) -> None:
    groups = Groups.of(groups_B, mask_BT.any(-1))
    scored_B = groups.total(scored_BT.any(-1).double())
    partial_B = (scored_B > 0) & (scored_B < groups.voters_B)
    if bool(partial_B.any()):
        row = int(partial_B.nonzero()[0])
        raise ValueError(
            f"stream {name!r} scored {int(scored_B[row])} of {int(groups.voters_B[row])} rollouts in group"
            f" {int(groups_B[row])}: with combine='before' its siblings would be on another scale. Drop those rollouts"
            " (mask their rows), drop the stream for the whole group, or use combine='after'"
        )
