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

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
"""Logits per chunk: 16 MiB fit a processor's cache, 1 GiB keeps a GPU busy."""


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
        if self.scale == 1.0 and self.cap is None:
            return logits_NV
        logits_NV = logits_NV.to(self.compute_dtype).mul_(self.scale)
        return logits_NV if self.cap is None else logits_NV.div_(self.cap).tanh_().mul_(self.cap)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of probabilities."""
        return torch.float64 if self.weight.dtype == torch.float64 else torch.float32

    def logp(self, hidden_ND: Tensor, temperature: float) -> Tensor:
        """Return the log-probabilities of all tokens, [N, V]."""
        logits_NV = self.logits(hidden_ND)
        if temperature != 1:
            logits_NV = logits_NV.to(self.compute_dtype).div_(temperature)
        return logits_NV.log_softmax(-1, dtype=self.compute_dtype)

    def token_logprobs(
        self, hidden_ND: Tensor, targets_N: Tensor, *, temperature: float, entropy: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return log p of each target [N] and the entropy at it [N], both with gradients, in float32.

        Without `entropy` the second is zero, and the log-probabilities are the same to the last bit.
        """
        chunk = max(1, CHUNK_ELEMENTS[hidden_ND.device.type] // len(self.weight))
        outputs: tuple[Tensor, Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_ND, self.weight, self.bias, targets_N, self, temperature, chunk, entropy
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
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs_N = torch.empty(len(targets_N), dtype=head.compute_dtype, device=hidden_ND.device)
        entropy_N = torch.zeros_like(logprobs_N)
        for start in range(0, len(hidden_ND), chunk):
            rows = slice(start, start + chunk)
            logp_NV = head.logp(hidden_ND[rows], temperature)
            logprobs_N[rows] = logp_NV.gather(-1, targets_N[rows, None]).squeeze(-1)
            if entropy:
                entropy_N[rows] = -torch.mul(logp_NV.exp(), logp_NV, out=logp_NV).sum(-1)
        if not entropy:
            ctx.mark_non_differentiable(entropy_N)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, entropy_N)
        ctx.settings = (head, temperature, chunk, entropy)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob_N: Tensor, by_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, entropy_N = ctx.saved_tensors
        head, temperature, chunk, entropy = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.empty_like(hidden_ND) if needs_hidden else None
        to_weight = torch.zeros_like(weight_VD, dtype=head.compute_dtype) if needs_weight else None
        to_bias = torch.zeros_like(bias_V, dtype=head.compute_dtype) if needs_bias else None
        uses_entropy = entropy and bool(by_entropy_N.any())
        for start in range(0, len(hidden_ND), chunk):
            rows = slice(start, start + chunk)
            by_logprob = by_logprob_N[rows, None] * (head.scale / temperature)
            by_entropy = by_entropy_N[rows, None] * (head.scale / temperature)
            logits = head.logits(hidden_ND[rows])
            if uses_entropy:
                logp = head.logp(hidden_ND[rows], temperature)
                p = logp.exp()
                grad = -(by_logprob + (logp + entropy_N[rows, None]) * by_entropy) * p
            else:
                x = logits if temperature == 1 else logits.to(head.compute_dtype) / temperature
                grad = x.softmax(-1, dtype=head.compute_dtype)
                grad.mul_(-by_logprob)
            grad.scatter_add_(-1, targets_N[rows, None], by_logprob)
            if head.cap is not None:
                grad *= 1 - (logits / head.cap).square()
            if to_bias is not None:
                to_bias += grad.sum(0)
            grad = grad.to(hidden_ND.dtype)
            if to_hidden is not None:
                torch.mm(grad, weight_VD, out=to_hidden[rows])
            if to_weight is not None:
                to_weight += grad.T @ hidden_ND[rows]
        to_weight = None if to_weight is None else to_weight.to(weight_VD.dtype)
        to_bias = None if to_bias is None else to_bias.to(bias_V.dtype)
        return to_hidden, to_weight, to_bias, *[None] * 5
