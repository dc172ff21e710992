"""The shape legend, and the checks that every estimator and loss makes of its input.

    B  rollouts (rows)           T  response tokens, padded on the right to the longest
    N  pairs or items            G  groups
    V  vocabulary

A mask is True where a token counts. Masked positions may hold anything, NaN included: they are never read. A row
with no True in its mask is a rollout that does not take part: a failed one, or an empty response.
"""

from __future__ import annotations

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
IntBT = Int[Tensor, "B T"]
FloatNV = Float[Tensor, "N V"]
FloatG = Float[Tensor, "G"]
FloatGN = Float[Tensor, "G N"]
IntGN = Int[Tensor, "G N"]
MaskGN = Bool[Tensor, "G N"]


LARGEST = 1e32
"""Numbers beyond this are an error: sums over a long batch must not overflow float32."""


def masked(name: str, values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return `values_BT` with exact zeros where the mask is False; NaN and infinity behind the mask are gone.

    A ValueError for another shape or dtype (float32, float64 or bfloat16), or for a value under the mask that is not
    finite or beyond 1e32 in size; `name` is what the message calls the values.
    """
    check_mask("mask", mask_BT, name, values_BT)
    if not values_BT.is_floating_point() or values_BT.dtype == torch.float16:
        raise ValueError(f"{name} is {values_BT.dtype}: it must be float32, float64 or bfloat16")
    kept_BT = torch.where(mask_BT, values_BT, 0)
    # The norm is not small if any number is not: one cheap pass in the ordinary case, a search only in a bad one.
    if not torch.linalg.vector_norm(kept_BT.detach(), dim=-1).norm() <= LARGEST:
        bad = (~(kept_BT.abs() <= LARGEST)).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise ValueError(
                f"{name}[{row}, {column}] is {kept_BT[row, column].item()}: it must be finite, and not beyond 1e32."
                " A rollout that could not be scored has no reward: set its mask row to False"
            )
    return kept_BT


def check_mask(mask: str, mask_BT: Tensor, name: str, values_BT: Tensor) -> None:
    """Raise a ValueError unless the mask is bool and has the [B, T] of the values."""
    if mask_BT.dtype != torch.bool:
        raise ValueError(f"{mask} is {mask_BT.dtype}: it must be bool, True where a token counts")
    if values_BT.shape != mask_BT.shape or values_BT.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(values_BT.shape)} and {mask} {tuple(mask_BT.shape)}: both are [B, T]"
        )


def masked_difference(first: str, first_BT: Tensor, second: str, second_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return `first_BT - second_BT`, zero where masked; the gradient flows into the first only.

    The two are checked like `masked` does, in one pass over their difference.
    """
    if first_BT.shape != second_BT.shape:
        raise ValueError(
            f"{first} has shape {tuple(first_BT.shape)} and {second} {tuple(second_BT.shape)}: they must be the same"
        )
    try:
        return masked(f"{first} - {second}", first_BT - second_BT.detach(), mask_BT)
    except ValueError:  # find out which of the two it was
        masked(first, first_BT, mask_BT)
        masked(second, second_BT, mask_BT)
        raise


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
