"""Tensors of rollouts: shapes and their checks, sums along a response, statistics of groups.

    B  rollouts (rows)           T  response tokens, padded on the right to the longest
    N  pairs or items            G  groups

A mask is True where a token counts. Masked positions may hold anything, NaN included: they are never read. A row
with no True in its mask is a rollout that does not take part: a failed one, or an empty response. A gap is a masked
token between two that count, such as the output of a tool; sums treat a response as if its gaps were cut out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FloatBT = Float[Tensor, "B T"]
FloatB = Float[Tensor, "B"]
FloatN = Float[Tensor, "N"]
Scalar = Float[Tensor, ""]
MaskBT = Bool[Tensor, "B T"]
MaskB = Bool[Tensor, "B"]
MaskN = Bool[Tensor, "N"]
IdsB = Int[Tensor, "B"]
FloatG = Float[Tensor, "G"]
FloatGN = Float[Tensor, "G N"]
IntGN = Int[Tensor, "G N"]
MaskGN = Bool[Tensor, "G N"]

LARGEST = 1e32
"""Numbers beyond this are an error: sums over a long batch must not overflow float32."""

_BLOCK = 32

# ---- checks ----------------------------------------------------------------------------------------------------------


_postponed: ContextVar[list[tuple[Tensor, Callable[[], None]]] | None] = ContextVar("postponed", default=None)


@contextmanager
def checks_postponed() -> Iterator[None]:
    """Check the numbers that are seen in this block at its end, all at once: each check waits for the device."""
    checks: list[tuple[Tensor, Callable[[], None]]] = []
    before = _postponed.set(checks)
    try:
        yield
    finally:
        _postponed.reset(before)
    if checks and not torch.stack([good.to(checks[0][0].device) for good, _ in checks]).all():
        for _, explain in checks:
            explain()


def check(good: Tensor, explain: Callable[[], None]) -> None:
    """Call `explain`, which raises if it finds something wrong, unless `good`, a bool scalar, is True."""
    checks = _postponed.get()
    if checks is not None:
        checks.append((good, explain))
    elif not good:
        explain()


def masked(name: str, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return `values_BT` with exact zeros where the mask is False.

    A ValueError for another shape or dtype (float32, float64 or bfloat16), or for a value under the mask that is not
    finite or beyond 1e32 in size.
    """
    return _masked([(name, values_BT)], mask_BT)


def _masked(named: Sequence[tuple[str, Tensor]], mask_BT: Tensor) -> Tensor:
    """Return the last one of these under the mask; where it is wrong, the first that is wrong is the cause."""
    for name, values_BT in named:
        check_mask("mask", mask_BT, name, values_BT)
        if not values_BT.is_floating_point() or values_BT.dtype == torch.float16:
            raise ValueError(f"{name} is {values_BT.dtype}: it must be float32, float64 or bfloat16")
    kept_BT = torch.where(mask_BT, named[-1][1], 0)
    # The norm is not small if any number is not: one cheap pass in the ordinary case, a search only in a bad one.
    norm = torch.linalg.vector_norm(kept_BT.detach(), dim=-1).norm()
    check(norm <= LARGEST, partial(_find_bad, [(name, x.detach()) for name, x in named], mask_BT))
    return kept_BT


def _find_bad(named: Sequence[tuple[str, Tensor]], mask_BT: Tensor) -> None:
    for name, values_BT in named:
        bad = (mask_BT & ~(values_BT.abs() <= LARGEST)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise ValueError(
                f"{name}[{row}, {column}] is {values_BT[row, column].item()}: it must be finite, and not beyond 1e32."
                " A rollout that could not be scored has no reward: set its mask row to False"
            )


def check_mask(mask: str, mask_BT: Tensor, name: str, values_BT: Tensor) -> None:
    """Raise a ValueError unless the mask is bool and has the [B, T] of the values."""
    if mask_BT.dtype != torch.bool:
        raise ValueError(f"{mask} is {mask_BT.dtype}: it must be bool, True where a token counts")
    if values_BT.shape != mask_BT.shape or values_BT.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(values_BT.shape)} and {mask} {tuple(mask_BT.shape)}: both are [B, T]"
        )


def masked_difference(first: str, first_BT: Tensor, second: str, second_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return `first_BT - second_BT`, checked like `masked`; the gradient flows into the first only."""
    if first_BT.shape != second_BT.shape:
        raise ValueError(
            f"{first} has shape {tuple(first_BT.shape)} and {second} {tuple(second_BT.shape)}: they must be the same"
        )
    difference_BT = first_BT - second_BT.detach()
    return _masked([(first, first_BT), (second, second_BT), (f"{first} - {second}", difference_BT)], mask_BT)


def check_groups(groups_B: Tensor, mask_BT: Tensor) -> None:
    """Raise a ValueError unless there is one integer group id per row of the mask."""
    if groups_B.dim() != 1 or len(groups_B) != len(mask_BT):
        raise ValueError(f"groups has shape {tuple(groups_B.shape)}: one id for each of the {len(mask_BT)} rollouts")
    if groups_B.is_floating_point() or groups_B.dtype == torch.bool:
        raise ValueError(f"groups is {groups_B.dtype}: group ids are integers")


def check_option(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise a ValueError unless `value` is one of the known options."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(known)}")


# ---- along a response ------------------------------------------------------------------------------------------------


def token_counts(mask_BT: MaskBT) -> IdsB:
    """Return how many tokens of each row count, int32 [B]."""
    # A narrow accumulator is several times faster on a CPU, and summing bool as such is slower than anything.
    narrow = torch.int16 if mask_BT.shape[-1] < 2**15 else torch.int32
    return mask_BT.view(torch.int8).sum(-1, dtype=narrow).to(torch.int32)


def last_token(mask_BT: MaskBT) -> MaskBT:
    """Return a mask with True at the last token of each row that counts; an empty row stays all False."""
    remaining_BT = mask_BT.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return mask_BT & (remaining_BT == 1)


def whiten(values_BT: FloatBT, mask_BT: MaskBT, *, eps: float = 1e-8) -> FloatBT:
    """Shift and scale to mean 0 and variance 1 over all tokens that count: (x - μ) / sqrt(σ² + eps).

    σ² is the unbiased variance. Constant input gives exact zeros, and so does a single token. No gradient.
    """
    dtype, values_BT = values_BT.dtype, values_BT.detach()
    if dtype == torch.bfloat16:  # three digits cannot distinguish a rare success from a rounding error
        values_BT = values_BT.float()
    count = token_counts(mask_BT).sum()
    # Rows are summed in their own precision and added up in float64: millions of tokens lose no digits that matter.
    white_BT = torch.where(mask_BT, values_BT, 0)
    mean = white_BT.sum(-1).double().sum() / count.clamp(min=1)
    torch.where(mask_BT, white_BT.sub_(mean.to(white_BT.dtype)), white_BT.new_zeros(()), out=white_BT)
    std = _root_sum_square(white_BT) / (count - 1).clamp(min=1).double().sqrt()
    return white_BT.mul_(_whitening_scale(mean, std, white_BT.dtype, eps).to(white_BT.dtype)).to(dtype)


def whiten_rows(values_B: FloatB, counts_B: IdsB, *, eps: float = 1e-8) -> FloatB:
    """Return what `whiten` gives when each of a row's `counts_B` tokens holds the row's one value; float64."""
    count = counts_B.sum()
    mean = (values_B * counts_B).sum() / count.clamp(min=1)
    centred_B = values_B - mean
    std = (centred_B * counts_B.double().sqrt()).norm() / (count - 1).clamp(min=1).double().sqrt()
    return centred_B * _whitening_scale(mean, std, values_B.dtype, eps)


def _whitening_scale(mean: Scalar, std: Scalar, dtype: torch.dtype, eps: float) -> Tensor:
    """Return 1 / sqrt(σ² + eps), or 0 where the spread is no more than the rounding error of a constant."""
    constant = std <= 8 * torch.finfo(dtype).eps * mean.abs()
    return torch.where(constant, 0.0, torch.rsqrt(std.square() + eps))


def _root_sum_square(values_BT: FloatBT) -> Scalar:
    """Return sqrt(Σx²) as float64, also where the squares would overflow."""
    norm: Tensor = torch.linalg.vector_norm(values_BT, dim=-1).double().norm()
    if torch.isfinite(norm):
        return norm
    largest = values_BT.abs().amax()
    scaled: Tensor = torch.linalg.vector_norm(values_BT / largest, dim=-1).double().norm()
    return scaled * largest


def reward_to_go(rewards_BT: FloatBT, mask_BT: MaskBT, *, discount: float = 1.0) -> FloatBT:
    r"""Return the discounted sum of the rewards from each token on, $G_t = \sum_{s \ge t} \gamma^{s-t} r_s$."""
    return sum_to_go(torch.where(mask_BT, rewards_BT, 0), mask_BT, discount=discount)


def sum_to_go(rewards_BT: FloatBT, mask_BT: MaskBT, *, discount: float) -> FloatBT:
    """Return `reward_to_go` of rewards that are known to be zero where masked, without another pass to make sure."""
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount is {discount}: it must lie between 0 and 1")
    if discount == 0.0:
        return rewards_BT
    if not has_gaps(mask_BT):
        return _suffix_sum(rewards_BT, discount)  # zero behind the mask, since all that follows is zero
    order_BT = _gaps_last(mask_BT)
    return _in_place(_suffix_sum(rewards_BT.gather(-1, order_BT), discount), order_BT, mask_BT)


def temporal_difference(rewards_BT: FloatBT, values_BT: FloatBT, mask_BT: MaskBT, *, discount: float) -> FloatBT:
    """Return r_t + γ·V_next - V_t; both inputs are zero where masked, and V after the last token is 0.

    Writes over `rewards_BT`.
    """
    deltas_BT = rewards_BT.sub_(values_BT)
    if not has_gaps(mask_BT):
        deltas_BT[:, :-1].add_(values_BT[:, 1:], alpha=discount)
        return deltas_BT
    order_BT = _gaps_last(mask_BT)
    packed_BT = deltas_BT.gather(-1, order_BT)
    packed_BT[:, :-1].add_(values_BT.gather(-1, order_BT)[:, 1:], alpha=discount)
    return _in_place(packed_BT, order_BT, mask_BT)


def has_gaps(mask_BT: MaskBT) -> bool:
    """Return whether some token that counts follows one that does not, leading padding included."""
    return bool((mask_BT[:, 1:] > mask_BT[:, :-1]).any())


def _gaps_last(mask_BT: MaskBT) -> Tensor:
    """Return the column order [B, T] that moves the tokens that count to the front and keeps their order."""
    return torch.argsort((~mask_BT).to(torch.int8), dim=-1, stable=True)


def _in_place(packed_BT: FloatBT, order_BT: Tensor, mask_BT: MaskBT) -> FloatBT:
    """Return columns that were ordered by `_gaps_last` at their own places."""
    return torch.where(mask_BT, torch.empty_like(packed_BT).scatter_(-1, order_BT, packed_BT), 0)


def _suffix_sum(values_BT: FloatBT, discount: float) -> FloatBT:
    """Return y_t = x_t + γ·y_{t+1} without a loop over tokens.

    Inside a block of 32 tokens the recursion is one product with the triangular matrix of powers of γ. What the later
    blocks add is handed on by a loop over the T/32 blocks and spread over the block in one more product.
    """
    dtype, (rows, width) = values_BT.dtype, values_BT.shape
    if values_BT.is_cuda:  # a trainer may allow TF32 products, whose three digits are for weights, not for rewards
        values_BT = values_BT.double()
    elif dtype == torch.bfloat16:
        values_BT = values_BT.float()
    blocks = -(-width // _BLOCK)
    if blocks * _BLOCK != width:
        values_BT = torch.nn.functional.pad(values_BT, (0, blocks * _BLOCK - width))
    gamma = torch.tensor(discount, dtype=torch.float64, device=values_BT.device)
    steps = torch.arange(_BLOCK, device=values_BT.device)
    distance = steps[:, None] - steps[None, :]  # from the column's token t to the row's token s
    powers = torch.where(distance >= 0, gamma ** distance.clamp(min=0), 0).to(values_BT.dtype)
    sums = (values_BT.reshape(-1, _BLOCK) @ powers).reshape(rows, blocks, _BLOCK)
    carry = sums[:, :, 0].clone()  # becomes y at the first token of each block
    for block in range(blocks - 2, -1, -1):
        carry[:, block].add_(carry[:, block + 1], alpha=discount**_BLOCK)
    decay = (gamma ** (_BLOCK - steps)).to(values_BT.dtype)  # down to the block's tokens from the next block's first
    sums[:, :-1].addcmul_(carry[:, 1:, None], decay)
    return sums.reshape(rows, blocks * _BLOCK)[:, :width].to(dtype)


# ---- groups ----------------------------------------------------------------------------------------------------------


class Groups:
    """Statistics of all groups at once, over the rows that vote; ids in any order, groups of any size.

    Float64 on [B] vectors costs nothing next to the [B, T] work, and keeps sums exact for any float32 reward.
    `voters_B` is how many rows vote in the row's group.
    """

    def __init__(self, groups_B: IdsB, votes_B: MaskB) -> None:
        self.index_B, self.votes_B = torch.unique(groups_B, return_inverse=True)[1], votes_B
        self.voters_B = self.total(torch.ones_like(self.index_B, dtype=torch.float64))

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
    """Return the voting rows of each group, int64 [G, N] padded with 0, and which places are taken, bool [G, N]."""
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
