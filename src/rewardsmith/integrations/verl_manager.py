"""verl's reward manager for rewards that see whole groups.

    reward.reward_manager.source=importlib
    reward.reward_manager.name=GroupRewardManager
    reward.reward_manager.module.path=pkg://rewardsmith.integrations.verl_manager
    +reward.custom_reward_function.reward_kwargs.recipe=judge.toml:policy

verl hands each answer to any of its reward workers. The answers to a prompt meet in one Ray actor, which all workers
share: it gathers them by their uid and scores the group.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.integrations.group_collector import GroupCollector
from rewardsmith.integrations.peer_rows import missing
from rewardsmith.integrations.verl_reward import plain, reward_of, verl_prompt, verl_table
from rewardsmith.types import Prompt, Rollout, Score

try:
    import ray
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
except ModuleNotFoundError as error:
    raise missing("verl", "verl") from error

GROUP_DEADLINE = 1800.0
"""Seconds from the first answer of a group to the last, unless `group_deadline` is set."""


class SharedCollector:
    """A collector in a process of its own, as a Ray actor."""

    def __init__(self, recipe: Any, size: int, deadline: float) -> None:
        self._collector = GroupCollector(reward_of(recipe), size=size, deadline=deadline)

    async def score(self, key: str, prompt: Prompt, rollout: Rollout) -> Score:
        """Return the score of a rollout when its group is complete."""
        return await self._collector.score(key, prompt, rollout)


class GroupRewardManager(RewardManagerBase):
    """Scores the answers to a prompt together.

    Settings are in `reward.custom_reward_function.reward_kwargs`: `recipe`, `group_size` (not set: rollout.n) and
    `group_deadline` in seconds.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        settings = plain(config.reward.custom_reward_function.get("reward_kwargs") or {})
        size = settings.get("group_size") or _rollouts_per_prompt(config)
        arguments = (settings.get("recipe"), int(size), float(settings.get("group_deadline") or GROUP_DEADLINE))
        reward_of(settings.get("recipe"))  # a wrong recipe is reported here, before the first answer
        self._groups: Any = None
        if ray.is_initialized():
            name = f"rewardsmith_groups_{hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]}"
            options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 100_000}
            self._groups = ray.remote(SharedCollector).options(**options).remote(*arguments)
        else:
            self._local = SharedCollector(*arguments)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Return verl's table for one answer, once its group is complete.

        Raises:
            ScoreFailedError: the answer could not be scored.
        """
        item = data[-1:][0]  # of an answer in several sequences, the last one
        columns = item.non_tensor_batch
        responses = item.batch["responses"]
        count = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        tokens = responses[:count]
        text = await self.loop.run_in_executor(None, lambda: self.tokenizer.decode(tokens, skip_special_tokens=True))
        messages = columns.get("raw_prompt")
        prompt = verl_prompt(
            None if messages is None else plain(messages),
            columns.get("data_source", ""),
            _ground_truth(columns.get("reward_model")),
            columns.get("extra_info"),
        )
        if "uid" not in columns:
            raise UserError("verl's rows have no uid: rewardsmith's reward manager cannot tell which belong together")
        rollout, key = Rollout(text, tokens.numpy()), str(columns["uid"])
        if self._groups is None:
            score = await self._local.score(key, prompt, rollout)
        else:
            score = await self._groups.score.remote(key, prompt, rollout)
        table = verl_table(score)
        return {"reward_score": table["score"], "reward_extra_info": table}


def _ground_truth(table: Any) -> Any:
    return table.get("ground_truth") if isinstance(table, Mapping) else None


def _rollouts_per_prompt(config: Any) -> int:
    """Return how many answers a group has; training and validation must agree, for a row does not say which it is."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    validated = trainer.get("val_before_train", True) or trainer.get("test_freq", -1) > 0
    if validated and rollout.val_kwargs.n != rollout.n:
        raise UserError(
            f"actor_rollout_ref.rollout.val_kwargs.n = {rollout.val_kwargs.n}: rewardsmith's reward manager waits for"
            f" groups of rollout.n = {rollout.n} answers in the validation too; set it to {rollout.n}, or"
            " trainer.val_before_train=False and trainer.test_freq=-1"
        )
    return int(rollout.n)
