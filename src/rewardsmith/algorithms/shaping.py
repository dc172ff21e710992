"""Rewards for length: DAPO's soft punishment of answers that run into the token limit."""

from __future__ import annotations

from rewardsmith.algorithms.shapes import FloatB, IdsB


def overlong_penalty(lengths_B: IdsB, *, limit: int, buffer: int, factor: float = 1.0) -> FloatB:
    r"""Return 0 up to `limit - buffer` tokens, then a linear fall to -factor at `limit`, and -factor beyond.

    $$p(l) = -f \cdot \mathrm{clip}\Bigl(\frac{l - (L - c)}{c}, 0, 1\Bigr)$$

    Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 13. Bounded below: an answer longer than `limit` is not punished more.
    """
    if not 0 < buffer <= limit:
        raise ValueError(
            f"buffer is {buffer} and limit {limit}: the buffer must be at least 1 token and within the limit"
        )
    if factor < 0:
        raise ValueError(f"factor is {factor}: it must be at least 0")
    return -factor * ((lengths_B - (limit - buffer)) / buffer).clamp(0, 1)
