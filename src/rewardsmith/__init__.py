"""rewardsmith: reward-first post-training of language models.

The types that flow through a run are importable from here.
Importing this package loads neither torch nor any other heavy library.
"""

from rewardsmith.errors import Problem, RecipeError, UserError
from rewardsmith.types import (
    Demonstration,
    Failure,
    Graded,
    Message,
    Preference,
    Prompt,
    Ranking,
    Rollout,
    RolloutGroup,
    Score,
    ScoredGroup,
)

__version__ = "0.1.0"

__all__ = [
    "Demonstration",
    "Failure",
    "Message",
    "Graded",
    "Preference",
    "Problem",
    "Prompt",
    "Ranking",
    "RecipeError",
    "Rollout",
    "RolloutGroup",
    "Score",
    "ScoredGroup",
    "UserError",
    "__version__",
]
