"""One call for all kinds of evaluation of a reward, for the stage and for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardsmith.trainers.evaluating.grades import evaluate_grades
from rewardsmith.trainers.evaluating.pairs import Ties, evaluate_pairs
from rewardsmith.trainers.evaluating.rankings import evaluate_rankings
from rewardsmith.trainers.evaluating.scoring import Scorer
from rewardsmith.trainers.evaluating.stage import Kind
from rewardsmith.trainers.evaluating.tables import Evaluation


async def evaluate_reward(
    name: str,
    kind: Kind,
    items: Sequence[Any],
    scorer: Scorer,
    *,
    orders: int = 1,
    repeats: int = 1,
    threshold: float = 0.5,
    levels: int = 10,
    ties: Ties = "wrong",
    seed: int = 0,
) -> Evaluation:
    """Measure a reward on rankings, graded answers or preferences; settings that a kind has no use for are ignored.

    Raises:
        UserError: there are values, and yet none of the models that the reward asks was called.
    """
    if kind == "rankings":
        found = await evaluate_rankings(name, items, scorer, orders=orders, repeats=repeats, seed=seed)
    elif kind == "pairs":
        found = await evaluate_pairs(name, items, scorer, ties=ties, orders=orders, repeats=repeats, seed=seed)
    else:
        found = await evaluate_grades(
            name, items, scorer, threshold=threshold, levels=levels, repeats=repeats, seed=seed
        )
    if found.metrics.get("failed") != 1:  # else the causes are reported already
        scorer.require_called()
    return found


def passes(kind: Kind, items: Sequence[Any], orders: int, repeats: int) -> int:
    """Return how many times a group is scored in all, for a progress bar: a small group has few orders."""
    total = len(items) * max(1, repeats)
    if orders < 2 or kind == "grades":
        return total
    if kind == "pairs":
        return total + 2 * len(items)
    return total + sum(min(orders, _factorial(len(item.candidates), orders)) for item in items)


def _factorial(n: int, most: int) -> int:
    """Return n!, or any number of at least `most` when it is larger."""
    product = 1
    for i in range(2, n + 1):
        product *= i
        if product >= most:
            break
    return product
