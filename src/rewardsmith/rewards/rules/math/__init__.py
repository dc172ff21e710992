"""Answers of mathematics, compared by what they mean.

    text -> answer_forms (spelling, units, words) -> parser -> nodes (a tree) -> equivalence

- `math_rule.py`: the rule
- `answer_forms.py`, `units.py`: an answer without spelling, units and names; most answers are then equal as text
- `parser.py`, `nodes.py`: a strict parser of LaTeX, and its tree
- `equivalence.py`: whether two trees are the same, by `evaluation.py` (values at points) and `real_sets.py` (intervals)
"""

from rewardsmith.rewards.rules.math.math_rule import math

__all__ = ["math"]
