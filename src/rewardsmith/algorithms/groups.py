"""Statistics of a group of rollouts, for all groups at once: ids in any order, groups of any size.

Only rows that vote take part. Everything is computed in float64 on [B] vectors, which costs nothing next to the
[B, T] work and keeps sums exact for any reward that a float32 can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatB, IdsB, MaskB


@dataclass(frozen=True)
class Groups:
    """Which row belongs to which group, and which rows vote."""

    index_B: Tensor  # int64, the group of each row, numbered from 0
    votes_B: Tensor  # bool
    voters_B: Tensor  # float64, how many rows vote in the row's group

    @classmethod
    def of(cls, groups_B: IdsB, votes_B: MaskB) -> Groups:
        """Number the groups and count their votes."""
        index_B = torch.unique(groups_B, return_inverse=True)[1]
        counts_G = torch.zeros(len(index_B), dtype=torch.float64, device=index_B.device)
        counts_G.index_add_(0, index_B, votes_B.double())
        return cls(index_B, votes_B, counts_G[index_B])

    @property
    def compared_B(self) -> MaskB:
        """Which rows vote and have a voting sibling to be compared with."""
        return self.votes_B & (self.voters_B > 1)

    def total(self, values_B: FloatB) -> FloatB:
        """Return for each row the sum of the values that its group's voters hold, float64 [B]."""
        sums_G = torch.zeros(len(self.index_B), dtype=torch.float64, device=values_B.device)
        sums_G.index_add_(0, self.index_B, torch.where(self.votes_B, values_B.double(), 0))
        return sums_G[self.index_B]

    def mean(self, values_B: FloatB, weights_B: FloatB | None = None) -> FloatB:
        """Return for each row the (weighted) mean over its group's voters; 0 where nobody votes.

        The mean of equal values is that value to the last bit, so a constant group has exactly no advantage.
        """
        weights_B = self.votes_B.double() if weights_B is None else weights_B.double()
        mean_B = self.total(values_B.double() * weights_B) / self.total(weights_B).clamp(min=1e-300)
        low_B, high_B = self.range(values_B)
        return torch.where(low_B == high_B, low_B, mean_B)

    def leave_one_out(self, values_B: FloatB) -> FloatB:
        """Return for each voting row the mean over the *other* voters of its group; its own value if it has none."""
        others_B = (self.total(values_B) - values_B.double()) / (self.voters_B - 1).clamp(min=1)
        low_B, high_B = self.range(values_B)
        return torch.where(low_B == high_B, low_B, others_B)

    def std(self, values_B: FloatB) -> FloatB:
        """Return for each row the unbiased standard deviation over its group's voters; 0 for fewer than two."""
        centred_B = torch.where(self.votes_B, values_B.double() - self.mean(values_B), 0)
        return (self.total(centred_B.square()) / (self.voters_B - 1).clamp(min=1)).sqrt()

    def range(self, values_B: FloatB) -> tuple[FloatB, FloatB]:
        """Return for each row the smallest and the largest value of its group's voters; (inf, -inf) without voters."""
        low_G = torch.full((len(self.index_B),), torch.inf, dtype=torch.float64, device=values_B.device)
        high_G = -low_G
        low_G.scatter_reduce_(0, self.index_B, torch.where(self.votes_B, values_B.double(), torch.inf), "amin")
        high_G.scatter_reduce_(0, self.index_B, torch.where(self.votes_B, values_B.double(), -torch.inf), "amax")
        return low_G[self.index_B], high_G[self.index_B]


def side_by_side(groups_B: IdsB, votes_B: MaskB) -> tuple[Tensor, Tensor]:
    """Return the voting rows of each group next to each other, for what compares every pair of them.

    That is the numbers of the rows, int64 [G, N], 0 where a group has fewer than N, and which places are taken,
    bool [G, N]. Groups without a vote are left out.
    """
    rows_V = votes_B.nonzero().squeeze(-1)
    index_V = torch.unique(groups_B[rows_V], return_inverse=True)[1]
    order_V = torch.argsort(index_V, stable=True)
    counts_G = torch.bincount(index_V)
    first_G = counts_G.cumsum(0) - counts_G
    index_V = index_V[order_V]
    place_V = torch.arange(len(rows_V), device=rows_V.device) - first_G[index_V]
    size = int(counts_G.max()) if len(counts_G) else 0
    rows_GN = torch.zeros(len(counts_G), size, dtype=torch.int64, device=rows_V.device)
    rows_GN[index_V, place_V] = rows_V[order_V]
    return rows_GN, torch.arange(size, device=rows_V.device)[None] < counts_G[:, None]
