"""A reward of `serve.py` that runs in the process of the server: what is left is the cost of HTTP."""

from collections.abc import Sequence

from rewardsmith import RolloutGroup, Score


class Exact:
    """1 where the answer is the right one."""

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        """Compare texts."""
        return [Score(float(rollout.text.strip() == group.prompt.answer)) for rollout in group.rollouts]
