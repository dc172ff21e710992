"""The reward `verl_function` gives what verl's own naive reward manager gives for the same file and the same rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.rewards.verl_function import VerlFunction

FILE = str(Path(__file__).parents[1] / "rewards" / "verl_files" / "gsm8k_style.py")
TEXTS = ["so #### 72", "#### 7,2", "#### 71", "no idea", "72", "#### 72 or #### 73"]


@pytest.mark.parametrize(("name", "kwargs"), [("compute_score", {"format_bonus": 0.25}), ("waits", {})])
def test_rewards_are_those_of_verls_naive_manager(name: str, kwargs: dict[str, Any]) -> None:
    tokenizer: Any = make_tiny("tiny-llama", seed=0)[1]
    extra = {"index": 5, "split": "train"}
    table = {"path": FILE, "name": name, "reward_kwargs": kwargs}
    config = OmegaConf.create({"reward": {"custom_reward_function": table}})

    async def theirs() -> list[dict[str, Any]]:
        manager = NaiveRewardManager(config, tokenizer, get_custom_reward_fn(config))
        found = []
        for text in TEXTS:
            ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
            columns = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "72"}, "extra_info": dict(extra)}
            rows = {column: np.array([value], dtype=object) for column, value in columns.items()}
            tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
            found.append(await manager.run_single(DataProto.from_dict(tensors=tensors, non_tensors=rows)))
        return found

    expected = asyncio.run(theirs())
    parts = ("acc",) if name == "compute_score" else ()
    prompt = Prompt("p", [Message("user", "?")], source="openai/gsm8k", answer="72", info={"extra_info": extra})
    reward = VerlFunction(path=FILE, name=name, reward_kwargs=kwargs, parts=parts)
    ours = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in TEXTS])))
    assert [score.value for score in ours] == [float(one["reward_score"]) for one in expected]
    for score, one in zip(ours, expected, strict=True):
        if parts and "pred" in one["reward_extra_info"]:
            assert score.parts["acc"].value == float(one["reward_extra_info"]["acc"])
