r"""Linear layers with the same input as one matrix product, and the gated MLP as one step of autograd.

    y = x Wᵀ + b,   ∂L/∂x = ∂L/∂y W,   ∂L/∂W = (∂L/∂y)ᵀ x,   ∂L/∂b = Σ_n ∂L/∂y_n

Gradients of weights in bfloat16 come in float32, in which they are added up. A GPU waits for the host where a model is
small, so a layer is few products and few steps.

Shape legend: N tokens, D inputs, E outputs of all layers, F width of the gated unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from rewardsmith.engines.embedded.kernels import use_triton
from rewardsmith.engines.embedded.kernels.gated import silu_mul, silu_mul_backward


class JoinedLinear:
    """Linear layers with the same input: one matrix product, on a GPU always, on a CPU where tokens are generated.

    Their weights become parts of one tensor, so nothing is held twice. They stay apart where one has an adapter. With
    gradients and without, log-probabilities are the same to the last bit.
    """

    def __init__(self, parent: Any, names: Sequence[str]) -> None:
        self._parent, self._names = parent, names
        self.weight: Tensor | None = None
        self._bias: Tensor | None = None

    @property
    def layers(self) -> list[Any]:
        """The layers, as the model has them now."""
        return [getattr(self._parent, name) for name in self._names]

    def release(self) -> None:
        """Hold no joined weights: the layers have their parts."""
        self.weight = self._bias = None

    def join(self) -> None:
        """Lay the weights one after the other; again if they have moved."""
        layers = self.layers
        self.release()
        if all(type(layer) is nn.Linear for layer in layers):
            self.weight = _joined([layer.weight for layer in layers])
            if layers[0].bias is not None:
                self._bias = _joined([layer.bias for layer in layers])

    def __call__(self, x_ND: Tensor) -> Sequence[Tensor]:
        """Return the outputs of the layers."""
        layers = self.layers
        if self.weight is None or not (torch.is_inference_mode_enabled() or use_triton(x_ND)):
            return [layer(x_ND) for layer in layers]
        sizes = [layer.out_features for layer in layers]
        if not torch.is_grad_enabled():
            return torch.split(linear(x_ND, self.weight, self._bias), sizes, -1)
        biases = [] if self._bias is None else [layer.bias for layer in layers]
        outputs: Sequence[Tensor] = _Joined.apply(  # type: ignore[no-untyped-call]
            x_ND, self.weight, self._bias, sizes, *(layer.weight for layer in layers), *biases
        )
        return outputs


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_ED: Tensor, bias_E: Tensor | None, sizes: list[int], *parts: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x_ND)
        ctx.weight_ED, ctx.sizes, ctx.has_bias = weight_ED, sizes, bias_E is not None
        return torch.split(linear(x_ND, weight_ED, bias_E), sizes, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x_ND,) = ctx.saved_tensors
        grad_NE = torch.cat(grads, -1)
        by_input = grad_NE @ ctx.weight_ED if ctx.needs_input_grad[0] else None
        by_parts: list[Tensor | None] = [None] * (len(ctx.needs_input_grad) - 4)
        if any(ctx.needs_input_grad[4:]):
            by_parts = [*torch.split(weight_gradient(grad_NE, x_ND), ctx.sizes)]
            if ctx.has_bias:
                by_parts += torch.split(grad_NE.sum(0, dtype=torch.float32), ctx.sizes)
        return by_input, None, None, None, *by_parts


def gated_mlp(gate_up: JoinedLinear, down: Any, x_ND: Tensor) -> Tensor:
    """Return W_down (silu(W_gate x) · W_up x); the product of the two is computed again in the backward pass."""
    plain = gate_up.weight is not None and type(down) is nn.Linear and use_triton(x_ND)
    if not plain or not torch.is_grad_enabled() or any(layer.bias is not None for layer in (*gate_up.layers, down)):
        out_ND: Tensor = down(silu_mul(*gate_up(x_ND)))
        return out_ND
    weights = [layer.weight for layer in (*gate_up.layers, down)]
    out_ND = _GatedMlp.apply(x_ND, gate_up.weight, *weights)  # type: ignore[no-untyped-call]
    return out_ND


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, joined_ED: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
        both_NE = linear(x_ND, joined_ED)
        ctx.save_for_backward(x_ND, both_NE, down_DF)
        ctx.joined_ED, ctx.width = joined_ED, len(gate_FD)
        return linear(silu_mul(both_NE[:, : len(gate_FD)], both_NE[:, len(gate_FD) :]), down_DF)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, both_NE, down_DF = ctx.saved_tensors
        by_both_NE, product_NF = silu_mul_backward(both_NE, grad_ND @ down_DF)
        needs_input, _, needs_gate, needs_up, needs_down = ctx.needs_input_grad
        by_down = weight_gradient(grad_ND, product_NF) if needs_down else None
        by_gate, by_up = (
            torch.split(weight_gradient(by_both_NE, x_ND), ctx.width) if needs_gate or needs_up else (None, None)
        )
        return by_both_NE @ ctx.joined_ED if needs_input else None, None, by_gate, by_up, by_down


def weight_gradient(grad_NE: Tensor, x_ND: Tensor) -> Tensor:
    """Return gradᵀ x in float32; cuBLAS has products of bfloat16 that are never rounded."""
    if grad_NE.is_cuda and grad_NE.dtype != torch.float32:
        return torch.mm(grad_NE.T, x_ND, out_dtype=torch.float32)
    return (grad_NE.T @ x_ND).float()


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Make parameters the parts of one tensor, and return it."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(p) for p in parameters]), strict=True):
        parameter.data = part
    return whole
