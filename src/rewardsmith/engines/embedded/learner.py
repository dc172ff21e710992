"""AdamW on float32 master weights, with clipping, and without the steps that would break the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewardsmith.engines.protocol import Step
from rewardsmith.engines.settings import OptimizerSettings
from rewardsmith.errors import UserError


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
        expected = {f"master/{name}" for name, p in self._masters.items() if p is not self._parameters[name]}
        known = {f"{key}/{name}" for name in self._masters for key in ("exp_avg", "exp_avg_sq", "step")}
        if expected - set(tensors) or set(tensors) - expected - known:
            raise UserError("the optimizer state does not fit the model: it was saved by another model or setting")
        with torch.no_grad():
            for name, master in self._masters.items():
                if f"master/{name}" in tensors:
                    master.copy_(tensors[f"master/{name}"])
                moments = {
                    key: tensors[f"{key}/{name}"].to(master.device)
                    for key in ("step", "exp_avg", "exp_avg_sq")
                    if f"{key}/{name}" in tensors
                }
                if any(m.shape not in (master.shape, torch.Size([])) for m in moments.values()):
                    raise UserError(f"the optimizer state of {name} has another shape than the weights")
                if moments:
                    self._adam.state[master] = moments

    def to(self, device: torch.device) -> None:
        """Move masters and moments; the model moves its own parameters."""
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                master.data = master.data.to(device)
            for key, value in self._adam.state.get(master, {}).items():
                self._adam.state[master][key] = value.to(device)
