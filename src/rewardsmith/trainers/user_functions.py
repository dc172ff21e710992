"""The functions that a recipe names: estimators, losses, reductions.

Ours are called as they are. What a user's own function returns is checked: a tensor of another shape would broadcast to
numbers that nobody meant. What it raises becomes a `UserError` that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import RewardTensors
from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, where_raised


def estimator_of(chosen: Chosen) -> Callable[..., Tensor]:
    """Return the advantage estimator of a recipe with its settings bound; see `algorithms.advantages`."""
    if _is_ours(chosen):
        return partial(chosen.target, **chosen.arguments())

    def estimate(inputs: RewardTensors, **settings: Any) -> Tensor:
        mask_BT = inputs.mask_BT
        own = _UserFunction("advantage", chosen, f"advantages, a float tensor [B, T] = {list(mask_BT.shape)}")
        advantages_BT = own.call(inputs, **settings)
        own.require_tensor(advantages_BT, mask_BT)
        return torch.where(mask_BT, advantages_BT, 0).to(inputs.rewards_BT.dtype).detach()

    return estimate


def policy_loss_of(chosen: Chosen) -> Callable[..., tuple[Tensor, Mapping[str, Tensor]]]:
    """Return the policy loss of a recipe with its settings bound; see `algorithms.policy_losses`."""
    if _is_ours(chosen):
        return partial(chosen.target, **chosen.arguments())

    def loss(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Any:
        form = f"(losses, statistics): a float tensor [B, T] = {list(mask_BT.shape)}, and a dict of such tensors"
        own = _UserFunction("policy loss", chosen, form)
        result = own.call(logprobs_BT, old_BT, advantages_BT, mask_BT)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
            raise own.returned(_kind(result))
        losses_BT, statistics = result
        own.require_tensor(losses_BT, mask_BT, given=logprobs_BT)
        for name, values in statistics.items():
            if not isinstance(values, Tensor) or values.shape != mask_BT.shape:
                raise own.returned(f"a statistic {name!r} that is {_kind(values)}")
        return losses_BT, statistics

    return loss


def reduction_of(chosen: Chosen) -> Callable[[Tensor], Tensor]:
    """Return the reduction of a recipe with its settings bound: from a mask to weights; see `algorithms.reductions`."""
    if _is_ours(chosen):
        return partial(chosen.target, **chosen.arguments())

    def weigh(mask_BT: Tensor) -> Tensor:
        own = _UserFunction("reduction", chosen, f"weights, a float tensor [B, T] = {list(mask_BT.shape)}")
        weights_BT = own.call(mask_BT, torch.float32)
        own.require_tensor(weights_BT, mask_BT)
        return torch.where(mask_BT, weights_BT, 0)

    return weigh


def preference_loss_of(chosen: Chosen) -> Callable[..., Tensor]:
    """Return the loss of a reward model with its settings bound; see `algorithms.preferences`."""
    if _is_ours(chosen):
        return partial(chosen.target, **chosen.arguments())

    def loss(rewards_GN: Tensor, levels_GN: Tensor, quality_GN: Tensor, mask_GN: Tensor) -> Tensor:
        own = _UserFunction("preference loss", chosen, f"losses, a float tensor [G] = {[len(mask_GN)]}")
        losses_G: Tensor = own.call(rewards_GN, levels_GN, quality_GN, mask_GN)
        own.require_tensor(losses_G, mask_GN.any(-1), given=rewards_GN)
        return losses_G

    return loss


def _is_ours(chosen: Chosen) -> bool:
    return str(getattr(chosen.target, "__module__", "")).partition(".")[0] == "rewardsmith"


def _kind(value: object) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a Tensor of {str(value.dtype).removeprefix('torch.')}, shape {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}: {', '.join(type(each).__name__ for each in value)}"
    return f"a {type(value).__name__}"


class _UserFunction:
    """A user's function: `what` it is in the recipe, and the `form` of what it must return."""

    def __init__(self, what: str, chosen: Chosen, form: str) -> None:
        self._what, self._chosen, self._form = what, chosen, form

    def call(self, *inputs: Any, **more: Any) -> Any:
        try:
            return self._chosen.target(*inputs, **self._chosen.arguments() | more)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a user's own function may raise anything
            cause = f"{type(error).__name__}: {error}{where_raised(error)}"
            raise UserError(f'the {self._what} "{self._chosen.name}" raised {cause}') from error

    def returned(self, what: str) -> UserError:
        return UserError(f'the {self._what} "{self._chosen.name}" returned {what}: it must return {self._form}')

    def require_tensor(self, result: object, mask: Tensor, given: Tensor | None = None) -> None:
        """Raise unless it is a float tensor of the mask's shape and device, finite where the mask is True.

        With `given`, the input that carries the gradient, the result must have one too; and numbers that are not finite
        are the function's fault only where those are finite.
        """
        if not isinstance(result, Tensor) or result.shape != mask.shape or not result.is_floating_point():
            raise self.returned(_kind(result))
        if result.device != mask.device:
            raise self.returned(f"a Tensor on {result.device}, and the batch is on {mask.device}")
        bad = result[mask & ~result.isfinite()]
        if len(bad) and (given is None or bool(given[mask].isfinite().all())):
            raise self.returned(f"{bad[0].item()} for {len(bad)} of {int(mask.sum())} values, which must be finite")
        if given is not None and given.requires_grad and not result.requires_grad:
            raise self.returned("losses without a gradient (detached, or not made of the first argument)")
