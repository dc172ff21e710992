r"""The passes over a chunk of logits in which `heads.py` finds log-probabilities, and the gradient of the logits.

The equations and the names are those of `heads.py`. A pass reads the logits once, in their own dtype, and computes in
float32; the gradient takes their place. With m the largest x so far, the forward pass adds up

    s = Σ_v e^{x_v - m},   t = Σ_v e^{x_v - m} (x_v - m);   log Σ_v e^{x_v} = m + log s,   H = log s - t / s
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import jit, launch, tl, triton, use_triton

BLOCK = 4096  # logits that a program reads at a time: 16 for each of 256 threads


@dataclass(frozen=True)
class LogitScale:
    """From logits z of the head to the x of the softmax: x = cap · tanh(z · scale / cap) / temperature."""

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0

    def apply_(self, z_NV: Tensor) -> Tensor:
        """Return x in float32 (float64 if z is); where z has that dtype, x takes its place."""
        x_NV = z_NV.to(torch.promote_types(z_NV.dtype, torch.float32))
        if self.scale != 1:
            x_NV.mul_(self.scale)
        if self.cap is not None:
            x_NV.div_(self.cap).tanh_().mul_(self.cap)
        return x_NV if self.temperature == 1 else x_NV.div_(self.temperature)


def measure(
    logits_NV: Tensor, targets_N: Tensor, scaling: LogitScale, *, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p of each target, log Σ e^x, and the entropy (0 if not asked for); may overwrite the logits."""
    if not use_triton(logits_NV):
        return measure_torch(logits_NV, targets_N, scaling, entropy=entropy)
    n, width = logits_NV.shape
    logprobs_N, lse_N, entropy_N = (torch.zeros(n, device=logits_NV.device) for _ in range(3))
    launch(
        _logprobs_forward,
        (n,),
        *(logits_NV, targets_N, logprobs_N, lse_N, entropy_N, logits_NV.stride(0), width),
        *(scaling.scale, scaling.cap or 1.0, 1 / scaling.temperature),
        CAP=scaling.cap is not None,
        ENTROPY=entropy,
        **_block(width),
    )
    return logprobs_N, lse_N, entropy_N


def measure_torch(
    logits_NV: Tensor, targets_N: Tensor, scaling: LogitScale, *, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in plain torch."""
    x_NV = scaling.apply_(logits_NV)
    logp_NV = x_NV.log_softmax(-1)
    chosen_N, logprobs_N = (y_NV.gather(-1, targets_N[:, None]).squeeze(-1) for y_NV in (x_NV, logp_NV))
    entropy_N = -torch.exp(logp_NV, out=x_NV).mul_(logp_NV).sum(-1) if entropy else torch.zeros_like(logprobs_N)
    return logprobs_N, chosen_N - logprobs_N, entropy_N


def logits_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    lse_N: Tensor,
    entropy_N: Tensor,
    by_logprob_N: Tensor,
    by_entropy_N: Tensor | None,
    scaling: LogitScale,
) -> Tensor:
    """Return the gradient of the logits in their place, in their dtype."""
    if not use_triton(logits_NV):
        return logits_gradient_torch(logits_NV, targets_N, lse_N, entropy_N, by_logprob_N, by_entropy_N, scaling)
    n, width = logits_NV.shape
    launch(
        _logprobs_backward,
        (n, triton.cdiv(width, BLOCK)),
        *(logits_NV, targets_N, lse_N, entropy_N, by_logprob_N, by_logprob_N if by_entropy_N is None else by_entropy_N),
        *(logits_NV.stride(0), width, scaling.scale, scaling.cap or 1.0, 1 / scaling.temperature),
        CAP=scaling.cap is not None,
        ENTROPY=by_entropy_N is not None,
        **_block(width),
    )
    return logits_NV


def logits_gradient_torch(
    logits_NV: Tensor,
    targets_N: Tensor,
    lse_N: Tensor,
    entropy_N: Tensor,
    by_logprob_N: Tensor,
    by_entropy_N: Tensor | None,
    scaling: LogitScale,
) -> Tensor:
    """The same in plain torch."""
    x_NV = scaling.apply_(logits_NV)
    slope_NV = None if scaling.cap is None else 1 - (x_NV * (scaling.temperature / scaling.cap)).square_()
    factor = scaling.scale / scaling.temperature
    by_logprob_N1 = by_logprob_N[:, None] * factor
    logp_NV = x_NV.sub_(lse_N[:, None])
    if by_entropy_N is None:
        grad_NV = logp_NV.exp_().mul_(-by_logprob_N1)
    else:
        p_NV = logp_NV.exp()
        grad_NV = logp_NV.add_(entropy_N[:, None]).mul_(by_entropy_N[:, None] * -factor).sub_(by_logprob_N1).mul_(p_NV)
    grad_NV.scatter_add_(-1, targets_N[:, None], by_logprob_N1)
    if slope_NV is not None:
        grad_NV *= slope_NV
    return grad_NV if grad_NV.dtype == logits_NV.dtype else logits_NV.copy_(grad_NV)


def _block(width: int) -> dict[str, Any]:
    return {"BLOCK": min(BLOCK, max(512, triton.next_power_of_2(width))), "num_warps": 8}


@jit
def _shaped(z, scale, cap, inverse_temperature, CAP: tl.constexpr):
    """Return x of the logits z, and the slope of the soft cap."""
    x = z.to(tl.float32) * scale
    slope = 1.0
    if CAP:
        tanh = 2 * tl.sigmoid(2 * x / cap) - 1
        slope = 1 - tanh * tanh
        x = cap * tanh
    return x * inverse_temperature, slope


@jit
def _logprobs_forward(
    logits, targets, logprobs, lses, entropies, stride, width, scale, cap, inverse_temperature,
    CAP: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    most = -1e30  # finite: 0 · (most - m) is 0
    s = tl.zeros([BLOCK], tl.float32)
    t = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x, _ = _shaped(tl.load(logits + v, v < width, other=0.0), scale, cap, inverse_temperature, CAP)
        x = tl.where(v < width, x, float("-inf"))
        larger = tl.maximum(most, tl.max(x, 0))
        shift = most - larger
        e = tl.exp(x - larger)
        if ENTROPY:
            t = (t + s * shift) * tl.exp(shift) + e * tl.where(e > 0, x - larger, 0.0)
        s = s * tl.exp(shift) + e
        most = larger
    total = tl.sum(s, 0)
    lse = most + tl.log(total)
    chosen, _ = _shaped(tl.load(logits + tl.load(targets + row)), scale, cap, inverse_temperature, CAP)
    tl.store(logprobs + row, chosen - most - tl.log(total))
    tl.store(lses + row, lse)
    if ENTROPY:
        tl.store(entropies + row, tl.log(total) - tl.sum(t, 0) / total)


@jit
def _logprobs_backward(
    logits, targets, lses, entropies, by_logprob, by_entropy, stride, width, scale, cap, inverse_temperature,
    CAP: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * stride + v
    x, slope = _shaped(tl.load(at, v < width, other=0.0), scale, cap, inverse_temperature, CAP)
    logp = x - tl.load(lses + row)
    p = tl.exp(logp)
    grad = tl.load(by_logprob + row) * (tl.where(v == tl.load(targets + row), 1.0, 0.0) - p)
    if ENTROPY:
        grad -= tl.load(by_entropy + row) * p * (logp + tl.load(entropies + row))
    tl.store(at, grad * slope * (scale * inverse_temperature), v < width)
