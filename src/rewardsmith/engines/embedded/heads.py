r"""Log-probabilities and entropy of chosen tokens, without ever holding the logits of a batch.

The head turns hidden states [N, D] into logits [N, V]; V may be 150,000, and N tens of thousands. Both passes walk
over chunks of tokens: the forward pass keeps one number per token, the backward pass makes each chunk's logits again.

    z = (h Wᵀ + b) · scale,   l = cap · tanh(z / cap),   x = l / temperature
    log p(y) = x_y - log Σ_v e^{x_v},   H = log Σ_v e^{x_v} - Σ_v p_v x_v

    ∂ log p(y) / ∂x_v = [v = y] - p_v,   ∂H / ∂x_v = -p_v (log p_v + H)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.kernels.logprobs import LogitScale, logits_gradient, measure

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**29}  # logits per chunk: 16 MiB fit a cache, 1 GiB keeps a GPU busy


@dataclass(frozen=True)
class Head:
    """From hidden states to logits."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]
    scale: float = 1.0  # constant factor of the logits (Cohere, Granite)
    cap: float | None = None  # soft cap of the logits (Gemma 2)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return logits [N, V]; in float32 if the head scales or caps them, else in the dtype of the weights."""
        logits_NV = nn.functional.linear(hidden_ND, self.weight, self.bias)
        plain = self.scale == 1.0 and self.cap is None
        return logits_NV if plain else LogitScale(self.scale, self.cap).apply_(logits_NV)

    def token_logprobs(
        self, hidden_ND: Tensor, targets_N: Tensor, *, temperature: float, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return log p of each target [N] and the entropy at it [N], both with gradients, in float32.

        Without `entropy` the second is zero, and the log-probabilities are the same to the last bit.
        """
        chunk = max(1, CHUNK_ELEMENTS[hidden_ND.device.type] // len(self.weight))
        chunk -= chunk % 16 if chunk > 16 else 0  # aligned parts of tensors: the kernel is compiled once
        scaling = LogitScale(self.scale, self.cap, temperature)
        outputs: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_ND, self.weight, self.bias, targets_N, scaling, chunk, entropy
        )
        return outputs


class _TokenLogprobs(torch.autograd.Function):
    """See the equations above; `kernels/logprobs.py` computes them for a chunk of logits z."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        scaling: LogitScale,
        chunk: int,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(weight_VD.dtype, torch.float32)
        logprobs_N, lse_N, entropy_N = (
            torch.zeros(len(targets_N), dtype=dtype, device=hidden_ND.device) for _ in range(3)
        )
        for start in range(0, len(hidden_ND), chunk):
            rows = slice(start, start + chunk)
            logits_NV = _linear(hidden_ND[rows], weight_VD, bias_V)
            logprobs_N[rows], lse_N[rows], entropy_N[rows] = measure(
                logits_NV, targets_N[rows], scaling, entropy=entropy
            )
        if not entropy:
            ctx.mark_non_differentiable(entropy_N)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, lse_N, entropy_N)
        ctx.settings = (scaling, chunk)
        ctx.set_materialize_grads(False)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob_N: Tensor | None, by_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, lse_N, entropy_N = ctx.saved_tensors
        scaling, chunk = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.empty_like(hidden_ND) if needs_hidden else None
        to_weight = torch.empty_like(weight_VD, dtype=lse_N.dtype) if needs_weight else None
        to_bias = torch.zeros_like(bias_V, dtype=lse_N.dtype) if needs_bias else None
        by_logprob_N = torch.zeros_like(lse_N) if by_logprob_N is None else by_logprob_N.contiguous()
        by_entropy_N = None if by_entropy_N is None else by_entropy_N.contiguous()
        for start in range(0, max(1, len(hidden_ND)), chunk):
            rows = slice(start, start + chunk)
            logits_NV = _linear(hidden_ND[rows], weight_VD, bias_V)
            by_entropy = None if by_entropy_N is None else by_entropy_N[rows]
            grad_NV = logits_gradient(
                logits_NV, targets_N[rows], lse_N[rows], entropy_N[rows], by_logprob_N[rows], by_entropy, scaling
            )
            if to_bias is not None:
                to_bias += grad_NV.sum(0, dtype=to_bias.dtype)
            if to_hidden is not None:
                torch.mm(grad_NV, weight_VD, out=to_hidden[rows])
            if to_weight is not None:
                _add_product(to_weight, grad_NV.T, hidden_ND[rows], first=start == 0)
        return to_hidden, to_weight, to_bias, *[None] * 4  # autograd converts them to the dtype of the gradients


def _linear(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Return h Wᵀ + b, the same in both passes, also if one of them runs under autocast."""
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return nn.functional.linear(hidden_ND, weight_VD, bias_V)


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a b to the total, which is empty at first, in its dtype; cuBLAS adds products of bfloat16 to float32."""
    if a.dtype == total.dtype:
        total.addmm_(a, b, beta=0 if first else 1)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=0 if first else 1, out=total)
    elif first:
        total.copy_(a @ b)
    else:
        total += a @ b
