"""Rules: programs that score one answer against the prompt's ground truth.

A rule is `(prompt, text, *, settings) -> float`, and raises `CannotScore` where it cannot say. The text is untrusted
model output.
"""

from collections.abc import Callable

from rewardsmith.rewards.rules.arithmetic import arithmetic
from rewardsmith.rewards.rules.exact import exact

RULES: dict[str, Callable[..., float]] = {
    "arithmetic": arithmetic,
    "exact": exact,
}

__all__ = ["RULES", "arithmetic", "exact"]
