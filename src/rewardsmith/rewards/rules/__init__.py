"""Rules: programs that score one answer against the prompt's ground truth.

A rule is `(prompt, text) -> float`. The text is untrusted model output.
"""

from collections.abc import Callable

from rewardsmith.rewards.rules.arithmetic import arithmetic
from rewardsmith.rewards.rules.exact import exact
from rewardsmith.types import Prompt

RuleFunction = Callable[[Prompt, str], float]

RULES: dict[str, RuleFunction] = {
    "arithmetic": arithmetic,
    "exact": exact,
}

__all__ = ["RULES", "RuleFunction", "arithmetic", "exact"]
