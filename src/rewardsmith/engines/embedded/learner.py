"""AdamW on float32 master weights, with clipping, and without the steps that would break the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewardsmith.engines.protocol import Step
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Learner:
    """Moves the trainable parameters of a model.

    A parameter in bfloat16 has a float32 master copy, which the optimizer moves, and a float32 gradient, to which each
    backward pass adds: many small updates would be lost in eight bits of mantissa.

    Args:
        parameters: the trainable ones, by name.
        settings: of AdamW. The learning rate is given with each step.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters = dict(parameters)
        self._clip = settings.clip_norm
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float())
            for name, p in self._parameters.items()
        }
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._collector(self._masters[name]))  # type: ignore[no-untyped-call]
            for name, p in self._parameters.items()
            if p is not self._masters[name]
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

    @staticmethod
    def _collector(master: nn.Parameter) -> object:
        def collect(parameter: Tensor) -> None:
            assert parameter.grad is not None
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

        return collect

    def step(self, lr: float) -> Step:
        """Clip the gathered gradient, move the weights and forget the gradient."""
        grads = [p.grad for p in self._masters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        length = float(norm)
        finite = length < float("inf")  # False for NaN too
        if finite:
            torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self._clip, norm)
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            with torch.no_grad():
                for name, p in self._parameters.items():
                    if p is not self._masters[name]:
                        p.copy_(self._masters[name])
        self._adam.zero_grad()
        return Step(length, skipped=not finite)

    def forget(self) -> None:
        """Drop the gradient that was gathered so far."""
        self._adam.zero_grad()

    def close(self) -> None:
        """Let go of the model: another learner may take over."""
        for hook in self._hooks:
            hook.remove()

    def state(self) -> dict[str, Tensor]:
        """Return everything that going on exactly needs: moments, step counts, and masters where there are some."""
        tensors = {}
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                tensors[f"master/{name}"] = master.detach()
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{key}/{name}"] = value
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        shapes = self._shapes()
        # A parameter that never had a gradient has no moments.
        begun = [name for name in self._masters if any(f"{key}/{name}" in tensors for key in _MOMENTS)]
        expected = {f"{key}/{name}" for name in begun for key in _MOMENTS}
        expected |= {name for name in shapes if name.startswith("master/")}
        strange = sorted(expected ^ set(tensors)) or [n for n in sorted(expected) if tensors[n].shape != shapes[n]]
        if strange:
            raise UserError(
                f"the optimizer state does not fit the model (see {strange[0]}): it is damaged, or of another model"
            )
        with torch.no_grad():
            for name, master in self._masters.items():
                if f"master/{name}" in tensors:
                    master.copy_(tensors[f"master/{name}"])
                if name in begun:
                    self._adam.state[master] = {key: tensors[f"{key}/{name}"].to(master.device) for key in _MOMENTS}

    def _shapes(self) -> dict[str, torch.Size]:
        """Return the name and shape of every tensor that `state` returns after the first step."""
        shapes = {}
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                shapes[f"master/{name}"] = master.shape
            shapes |= {
                f"exp_avg/{name}": master.shape,
                f"exp_avg_sq/{name}": master.shape,
                f"step/{name}": torch.Size(),
            }
        return shapes

    def tensors(self) -> list[Tensor]:
        """Return masters and moments, which must be where the model is."""
        masters = [master for name, master in self._masters.items() if master is not self._parameters[name]]
        moments = [self._adam.state.get(master, {}).values() for master in self._masters.values()]
        return [*masters, *(tensor for some in moments for tensor in some)]
