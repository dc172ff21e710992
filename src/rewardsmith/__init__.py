"""rewardsmith: reward-first post-training of language models.

    import rewardsmith as rs

    reward = rs.reward({"type": "rule", "rule": "math"})
    rs.score(reward, "What is 7+5?", ["It is 12.", "13"], answers="12").values     # [[1.0, 0.0]]
    run = rs.train("quickstart", {"stages.policy.steps": 5})

The functions are in `rewardsmith.api`, the types that flow through a run in `rewardsmith.types`. Importing this package
loads neither torch nor any other heavy library.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from rewardsmith.api import (
        advantages,
        audit,
        compare,
        evaluate,
        load_run,
        reward,
        score,
        score_async,
        train,
    )

__version__ = "0.1.0"

_FUNCTIONS = frozenset(
    {"advantages", "audit", "compare", "evaluate", "load_run", "reward", "score", "score_async", "train"}
)


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        from rewardsmith import api  # noqa: PLC0415 it loads pydantic and others

        return getattr(api, name)
    raise AttributeError(f"module 'rewardsmith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS})


__all__ = [
    "advantages",
    "audit",
    "compare",
    "evaluate",
    "load_run",
    "reward",
    "score",
    "score_async",
    "train",
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
