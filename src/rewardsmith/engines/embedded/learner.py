"""AdamW on float32 master weights, with clipping; a step with a gradient that is not finite is skipped."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewardsmith.engines.protocol import OptimizerStep
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Learner:
    """Moves the trainable parameters of a model.

    A parameter in bfloat16 has a float32 master copy, which the optimizer moves, and a float32 gradient, to which each
    backward pass adds: many small updates would be lost in eight bits of mantissa.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters = dict(parameters)
        self._clip = settings.clip_norm
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for name, p in self._parameters.items()
        }
        self._copies = [name for name, p in self._parameters.items() if p is not self._masters[name]]
        self._hooks = [
            self._parameters[name].register_post_accumulate_grad_hook(_accumulate_into(self._masters[name]))  # type: ignore[no-untyped-call]
            for name in self._copies
        ]
        matrices = [p for p in self._masters.values() if p.dim() > 1]
        vectors = [p for p in self._masters.values() if p.dim() <= 1]
        self._adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )

    def step(self, lr: float) -> OptimizerStep:
        """Clip the accumulated gradient, move the weights and drop the gradient."""
        norm = nn.utils.get_total_norm([p.grad for p in self._masters.values() if p.grad is not None])
        finite = float(norm) < float("inf")  # False for NaN too
        if finite:
            nn.utils.clip_grads_with_norm_(self._masters.values(), self._clip, norm)
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            with torch.no_grad():
                for name in self._copies:
                    self._parameters[name].copy_(self._masters[name])
        self._adam.zero_grad()
        return OptimizerStep(float(norm), skipped=not finite)

    def zero_grad(self) -> None:
        """Drop the gradient that was accumulated so far."""
        self._adam.zero_grad()

    def close(self) -> None:
        """Release the model: another learner may take over."""
        for hook in self._hooks:
            hook.remove()

    def state(self) -> dict[str, Tensor]:
        """Return what an exact resume needs: moments, step counts, and master copies."""
        state = {f"master/{name}": self._masters[name].detach() for name in self._copies}
        for name, master in self._masters.items():
            state |= {f"{key}/{name}": value for key, value in self._adam.state.get(master, {}).items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned; a parameter that never had a gradient has no moments."""
        learned = [name for name in self._masters if f"step/{name}" in state]
        expected = {f"master/{name}" for name in self._copies} | {
            f"{key}/{name}" for key in _MOMENTS for name in learned
        }
        if wrong := sorted(expected ^ set(state)):
            raise UserError(f"the optimizer state does not fit the model (see {wrong[0]}): it is of another model")
        with torch.no_grad():
            for name in self._copies:
                self._masters[name].copy_(state[f"master/{name}"])
            for name in learned:
                master = self._masters[name]
                self._adam.state[master] = {key: state[f"{key}/{name}"].to(master.device) for key in _MOMENTS}

    def tensors(self) -> list[Tensor]:
        """Return masters and moments, which must be where the model is."""
        moments = [self._adam.state.get(master, {}).values() for master in self._masters.values()]
        return [*(self._masters[name] for name in self._copies), *(tensor for some in moments for tensor in some)]


def _accumulate_into(master: nn.Parameter) -> object:
    def accumulate(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return accumulate
