r"""Learning-rate schedules: the factor of the peak rate at a step. No torch needed.

All begin with a linear warm-up, $\text{factor} = \text{step} / \text{warmup}$, and do not fall below `floor` after
it. Steps count from 0. `step` = `total` is the end of `linear` and `cosine`: steps beyond stay there, also when the
warm-up is longer than the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Stay at the peak after the warm-up."""
    _check(step, total, warmup, floor)
    return _warm(step, warmup, 1.0)


def linear(step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Fall in a straight line from the peak to `floor`."""
    progress = _check(step, total, warmup, floor)
    return _warm(min(step, total), warmup, 1 - (1 - floor) * progress)


def cosine(step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Fall along half a cosine from the peak to `floor`: (1 + floor)/2 + (1 - floor)/2 · cos(π · progress)."""
    progress = _check(step, total, warmup, floor)
    return _warm(min(step, total), warmup, (1 + floor) / 2 + (1 - floor) / 2 * math.cos(math.pi * progress))


def _check(step: int, total: int, warmup: int, floor: float) -> float:
    """Return the progress in [0, 1] through the steps after the warm-up."""
    if step < 0 or total < 1 or warmup < 0:
        raise ValueError(f"step {step}, total {total}, warmup {warmup}: steps are not negative, total is at least 1")
    if not 0 <= floor <= 1:
        raise ValueError(f"floor is {floor}: it is a share of the peak, between 0 and 1")
    return min(1.0, max(0.0, (min(step, total) - warmup) / max(1, total - warmup)))


def _warm(step: int, warmup: int, factor: float) -> float:
    return step / warmup if step < warmup else factor


SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "linear": linear, "cosine": cosine}
