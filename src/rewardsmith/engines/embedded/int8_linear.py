r"""Frozen linear layers in 8 bits, for the model below an adapter: half the memory of bfloat16.

With $s_o = \max_i |w_{oi}| / 127$ for each output $o$, a weight is stored as $q_{oi} = round(w_{oi} / s_o)$, so that

    y = x Wᵀ + b   with   W = diag(s) Q,   |W - w| ≤ s / 2.

Products are those of the model's dtype: W is made from Q when a layer runs, forward and backward, and kept by neither.
Int8 with a scale per output has a third of the error of float8 (e4m3), whose step is 1/8 of each weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.kernels.int8_product import int8_product


class Int8Linear(nn.Linear):
    """A frozen linear layer whose weights are int8 [out, in]; a gradient flows to its input alone."""

    scale: Tensor  # [out, 1], in the dtype of the model

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        quantised, scale = quantise_rows(layer.weight.detach().to(device))
        self.weight = nn.Parameter(quantised, requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        product: Tensor = _Int8Product.apply(input, self.weight, self.scale, self.bias)  # type: ignore[no-untyped-call]
        return product

    def dequantised(self) -> nn.Linear:
        """Return an ordinary layer with the weights that this one computes with."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.weight * self.scale, requires_grad=False)
        layer.bias = self.bias
        return layer


class _Int8Product(torch.autograd.Function):
    """See above; autograd's own product would keep W until the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return int8_product(x, weight, scale, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_product: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        return by_product @ (weight * scale), None, None, None


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 [out, in], and scales [out, 1] in the dtype of the weight; a row of zeros has the scale 1."""
    largest = weight.abs().amax(-1, keepdim=True).float()
    scale = torch.where(largest > 0, largest / 127, 1.0).to(weight.dtype)
    return (weight.float() / scale.float()).round_().clamp_(-127, 127).to(torch.int8), scale


def is_quantisable(module: nn.Module) -> bool:
    """Whether a layer of the backbone can be stored in 8 bits."""
    return type(module) is nn.Linear


def quantise_layers(model: Any, device: torch.device) -> None:
    """Replace the linear layers of the backbone by 8-bit ones on the device, one by one; the head stays as it is."""
    _replace(model.base_model, lambda layer: Int8Linear(layer, device) if is_quantisable(layer) else layer)


def dequantise_layers(model: nn.Module) -> None:
    """Replace 8-bit layers by ordinary ones."""
    _replace(model, lambda layer: layer.dequantised() if isinstance(layer, Int8Linear) else layer)


def _replace(model: nn.Module, change: Callable[[Any], nn.Module]) -> None:
    for parent in [module for module in model.modules() if any(True for _ in module.children())]:
        for name, child in list(parent.named_children()):
            if (changed := change(child)) is not child:
                setattr(parent, name, changed)
