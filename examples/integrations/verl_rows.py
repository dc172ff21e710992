"""Try a reward as verl's reward loop calls it, on a CPU and without a run: `python verl_rows.py [RECIPE.toml:STAGE]`.

verl's own reward worker gets rows as its trainer makes them, and hands them to rewardsmith's reward manager, which
scores the answers to a prompt together. The settings are those of `verl.trainer.main_ppo`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from rewardsmith.engines.embedded.tiny import make_tiny

MANAGER = {
    "source": "importlib",
    "name": "GroupRewardManager",
    "module": {"path": "pkg://rewardsmith.integrations.verl_manager"},
}


def verl_settings(tokenizer: str, recipe: Any, *, n: int) -> Any:
    """Return what the reward worker reads of verl's configuration."""
    reward = {
        "custom_reward_function": {"path": None, "name": "compute_score", "reward_kwargs": {"recipe": recipe}},
        "reward_manager": MANAGER,
        "reward_model": {"enable": False},
    }
    model = {"path": tokenizer, "tokenizer_path": None}
    rollout = {"n": n, "val_kwargs": {"n": n}}
    trainer = {"val_before_train": True, "test_freq": -1}
    return OmegaConf.create(
        {"reward": reward, "actor_rollout_ref": {"model": model, "rollout": rollout}, "trainer": trainer}
    )


def verl_rows(tokenizer: Any, question: str, truth: Any, answers: Sequence[str], uids: Sequence[str]) -> Any:
    """Return answers to a question as rows of verl; those with one uid belong to one group."""
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in answers]
    longest = max(map(len, ids))
    columns: dict[str, Sequence[Any]] = {
        "uid": uids,
        "data_source": ["sums"] * len(ids),
        "reward_model": [{"style": "rule", "ground_truth": truth}] * len(ids),
        "extra_info": [{"question": question} for _ in ids],
        "raw_prompt": [[{"role": "user", "content": question}]] * len(ids),
    }
    table = {name: np.empty(len(ids), dtype=object) for name in columns}
    for name, values in columns.items():
        table[name][:] = values
    tensors = {
        "prompts": torch.zeros(len(ids), 1, dtype=torch.long),
        "responses": torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids]),
        "attention_mask": torch.tensor([[*[1] * len(one), *[0] * (longest - len(one))] for one in ids]),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=table)


def verl_scores(settings: Any, rows: Any) -> list[dict[str, Any]]:
    """Return what verl's reward worker returns for rows."""

    async def main() -> list[dict[str, Any]]:
        scored: list[dict[str, Any]] = await RewardLoopWorker(settings).compute_score_batch(rows)
        return scored

    return asyncio.run(main())


def main(recipe: Any) -> list[float]:
    """Score four answers, and print what verl gets."""
    tokenizer = make_tiny("tiny-llama", seed=0)[1]
    answers = ["It is 42.", "It is 41.", "42", "I do not know."]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        rows = verl_rows(tokenizer, "12 + 30 = ?", "42", answers, ["group"] * len(answers))
        found = verl_scores(verl_settings(folder, recipe, n=len(answers)), rows)
    for answer, one in zip(answers, found, strict=True):
        print(f"{one['reward_score']:6.2f}  {answer}  {one['reward_extra_info']}")
    return [one["reward_score"] for one in found]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else {"type": "rule", "rule": "math"})
