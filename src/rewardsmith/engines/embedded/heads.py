r"""Log-probabilities and entropy of chosen tokens, without ever holding the logits of a batch.

The head turns hidden states [N, D] into logits [N, V]; V may be 150,000, and N tens of thousands. Both passes walk
over chunks of tokens: the forward pass keeps two numbers per token, the backward pass makes each chunk's logits again.

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

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""Logits that exist at a time: 16 MiB fit a processor's cache, 1 GiB keeps a GPU busy."""


@dataclass(frozen=True)
class Head:
    """From hidden states to logits.

    Attributes:
        weight: [V, D].
        bias: [V], or None.
        scale: constant factor of the logits (Cohere, Granite).
        cap: soft cap of the logits (Gemma 2), or None.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return float32 logits [N, V]."""
        logits_NV = nn.functional.linear(hidden_ND, self.weight, self.bias)
        if self.weight.dtype != torch.float64:
            logits_NV = logits_NV.float()
        if self.scale != 1.0:
            logits_NV = logits_NV * self.scale
        return logits_NV if self.cap is None else torch.tanh(logits_NV / self.cap) * self.cap

    def token_logprobs(self, hidden_ND: Tensor, targets_N: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log p of each target [N] and the entropy at it [N], both with gradients, in float32."""
        chunk = max(1, CHUNK_ELEMENTS[hidden_ND.device.type] // len(self.weight))
        outputs: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_ND, self.weight, self.bias, targets_N, self, temperature, chunk
        )
        return outputs


class _TokenLogprobs(torch.autograd.Function):
    """See the equations above."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        head: Head,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, normalisers, entropies = [], [], []
        for start in range(0, len(hidden_ND), chunk):
            targets = targets_N[start : start + chunk]
            x = head.logits(hidden_ND[start : start + chunk]) / temperature
            normaliser = x.logsumexp(-1)
            logprobs.append(x.gather(-1, targets[:, None]).squeeze(-1) - normaliser)
            entropies.append(normaliser - ((x - normaliser[:, None]).exp_() * x).sum(-1))
            normalisers.append(normaliser)
        normaliser_N, entropy_N = torch.cat(normalisers), torch.cat(entropies)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, normaliser_N, entropy_N)
        ctx.settings = (head, temperature, chunk)
        return torch.cat(logprobs), entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob_N: Tensor, by_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        head, temperature, chunk = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.empty_like(hidden_ND) if needs_hidden else None
        to_weight = torch.zeros_like(weight_VD, dtype=normaliser_N.dtype) if needs_weight else None
        to_bias = torch.zeros_like(bias_V, dtype=normaliser_N.dtype) if needs_bias else None
        uses_entropy = bool(by_entropy_N.any())
        for start in range(0, len(hidden_ND), chunk):
            rows = slice(start, start + chunk)
            logits = head.logits(hidden_ND[rows])
            slope = None if head.cap is None else 1 - (logits / head.cap).square()
            logp = logits.div_(temperature).sub_(normaliser_N[rows, None])
            p = logp.exp()
            grad = p * -by_logprob_N[rows, None]
            if uses_entropy:
                grad -= p * (logp + entropy_N[rows, None]) * by_entropy_N[rows, None]
            grad.scatter_add_(-1, targets_N[rows, None], by_logprob_N[rows, None])
            grad *= head.scale / temperature
            if slope is not None:
                grad *= slope
            if to_bias is not None:
                to_bias += grad.sum(0)
            grad = grad.to(hidden_ND.dtype)
            if to_hidden is not None:
                to_hidden[rows] = grad @ weight_VD
            if to_weight is not None:
                to_weight += grad.T @ hidden_ND[rows]
        to_weight = None if to_weight is None else to_weight.to(weight_VD.dtype)
        to_bias = None if to_bias is None else to_bias.to(bias_V.dtype)
        return to_hidden, to_weight, to_bias, None, None, None, None
