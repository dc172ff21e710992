"""AdamW on float32 master weights, with clipping; a step with a gradient that is not finite is skipped.

A parameter in bfloat16 has a float32 master copy, which the optimizer moves, and a float32 gradient, to which each
backward pass adds: many small updates would be lost in eight bits of mantissa.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rewardsmith.engines.embedded.streamed_adamw import MOMENTS, StreamedAdamW, decay_of, load_tensors
from rewardsmith.engines.protocol import OptimizerStep
from rewardsmith.learning import OptimizerSettings


class Learner:
    """Moves the trainable parameters of a model."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters = dict(parameters)
        self._clip = settings.clip_norm
        for parameter in self._parameters.values():
            parameter.grad_dtype = torch.float32
        streamed = settings.offload or settings.states != "float32"
        kind: type[StreamedAdamW | ResidentAdamW] = StreamedAdamW if streamed else ResidentAdamW
        self._adam = kind(self._parameters, settings)
        self.state, self.load, self.tensors = self._adam.state, self._adam.load, self._adam.tensors

    def step(self, lr: float) -> OptimizerStep:
        """Clip the accumulated gradient, move the weights and drop the gradient."""
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters.values() if p.grad is not None])
        finite = float(norm) < float("inf")  # False for NaN too
        if finite:
            nn.utils.clip_grads_with_norm_(self._parameters.values(), self._clip, norm)
            self._adam.step(lr)
        self.zero_grad()
        return OptimizerStep(float(norm), skipped=not finite)

    def missing_gradients(self) -> int:
        """Return how many numbers the gradient will have that it has not yet."""
        return sum(p.numel() for p in self._parameters.values() if p.grad is None)

    def zero_grad(self) -> None:
        """Drop the gradient that was accumulated so far."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def close(self) -> None:
        """Release the model: another learner may take over."""
        self.zero_grad()
        for parameter in self._parameters.values():
            parameter.grad_dtype = parameter.dtype


class ResidentAdamW:
    """AdamW with float32 states where the model is."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters = parameters
        self._masters = {
            name: p if p.dtype == torch.float32 else nn.Parameter(p.detach().float()) for name, p in parameters.items()
        }
        self._copies = [name for name, p in parameters.items() if p is not self._masters[name]]
        decays = {decay_of(p, settings) for p in parameters.values()}
        self._adam = torch.optim.AdamW(
            [
                {"params": [p for p in self._masters.values() if decay_of(p, settings) == decay], "weight_decay": decay}
                for decay in sorted(decays)
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )

    def step(self, lr: float) -> None:
        """Move the weights along their gradients."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        for name in self._copies:
            self._masters[name].grad = self._parameters[name].grad
        self._adam.step()
        self._adam.zero_grad()
        if self._copies:
            weights: list[Tensor] = [self._parameters[name] for name in self._copies]
            with torch.no_grad():
                torch._foreach_copy_(weights, [self._masters[name] for name in self._copies])

    def state(self) -> dict[str, Tensor]:
        """Return what an exact resume needs: moments, step counts, and master copies."""
        state = {f"master/{name}": self._masters[name].detach() for name in self._copies}
        for name, master in self._masters.items():
            state |= {f"{key}/{name}": value for key, value in self._adam.state.get(master, {}).items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned; a parameter that never had a gradient has no moments."""
        learned = [name for name in self._masters if f"step/{name}" in state]
        for name in learned:
            master = self._masters[name]
            moments = {key: torch.empty_like(master) for key in MOMENTS}
            self._adam.state[master] = {"step": torch.zeros((), device=master.device), **moments}
        load_tensors(self.state(), state)

    def tensors(self) -> list[Tensor]:
        """Return masters and moments, which must be where the model is."""
        moments = [self._adam.state.get(master, {}).values() for master in self._masters.values()]
        return [*(self._masters[name] for name in self._copies), *(tensor for some in moments for tensor in some)]
