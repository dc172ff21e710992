"""Accuracy rewards of a judge that learns from a teacher's grades or group scores. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardsmith.algorithms.ranks import TiePolicy


def closeness(error: float, *, power: float = 2.0) -> float:
    r"""Return $\max(0, 1 - |e|)^p$: 1 for no error, 0 for an error of 1 or more (RRM, arXiv 2510.07774, has p = 2).

    The bound of the base matters: without it an even power would reward an error far above 1.

    Args:
        error: difference of two shares; any finite number.
        power: p > 0; a larger one wants the grade more exactly.
    """
    return math.pow(max(0.0, 1.0 - abs(error)), power)


def credit(errors: ArrayLike | float, steps: Sequence[float]) -> NDArray[np.float64]:
    """Return what errors earn by a table: steps[k] for an error of k, linear between, 0 from len(steps) on.

    Args:
        errors: any shape, in points; the sign does not matter.
        steps: at least one number, such as (1, 0.6, 0.2).
    """
    table = [*steps, 0.0]
    return np.asarray(np.interp(np.abs(errors), np.arange(len(table)), table), dtype=np.float64)


def margin_agreement(
    reference: ArrayLike, prediction: ArrayLike, steps: Sequence[float], *, ties: TiePolicy = "strict"
) -> float:
    r"""Return the mean over the pairs x, y of $f(|(r_x - r_y) - (p_x - p_y)|)$: whether distances are right.

    GRRM's margin term (arXiv 2602.14028), with `credit` as f. A constant that is added to all scores changes nothing.

    Args:
        reference: [n] true scores.
        prediction: [n] scores to judge.
        steps: see `credit`.
        ties: "ignore" leaves out pairs that are tied in the reference; the other policies do not matter here.

    Returns:
        A number between 0 and the largest step; NaN when there is no pair to judge.
    """
    true, guess = np.asarray(reference, dtype=np.float64), np.asarray(prediction, dtype=np.float64)
    first, second = np.triu_indices(len(true), k=1)
    margins = true[first] - true[second]
    earned = credit(margins - (guess[first] - guess[second]), steps)
    earned = earned[margins != 0] if ties == "ignore" else earned
    return float(earned.mean()) if len(earned) else math.nan
