"""Train a tiny model with a reward that is a Python function: imitation first, then RL. About a minute on a CPU.

python examples/04_train_with_a_function.py [folder]
"""

from __future__ import annotations

import sys
from typing import Any

import rewardsmith as rs


def right(response: str, answer: str) -> float:
    """1 where the number after # is the truth."""
    return float(response.rpartition("#")[2] == answer)


COLD = {"lr": 2e-3, "schedule": "cosine", "warmup": 20, "floor": 0.1}

# A recipe is a table. In Python a function may stand where a file has a name.
RECIPE: dict[str, Any] = {
    "models": {"policy": {"init": "tiny-llama"}},
    "data": {
        "train": {"type": "arithmetic", "operations": 2},
        "held_out": {"type": "arithmetic", "operations": 2, "split": "held-out"},
    },
    "stages": [
        {"type": "sft", "model": "policy", "data": "train", "steps": 600, "optimizer": COLD},
        {
            "type": "policy",
            "model": "policy",
            "data": "train",
            "steps": 30,
            "prompts_per_step": 64,
            "mini_batches": 4,
            "sampling": {"max_tokens": 32},
            "reward": right,
            "advantage": "rloo",
            "optimizer": {"lr": 3e-4},
            "validation": {"data": "held_out", "prompts": 128},
        },
    ],
}


def main(folder: str = "runs/function", **overrides: Any) -> None:
    """Train, and print the share of right answers to held-out problems."""
    run = rs.train(RECIPE, overrides, folder=folder)
    for row in run.metrics("policy"):
        if "validation/mean@1" in row:
            print(f"step {row['step']:2d}: {row['validation/mean@1']:.1%} right")
    print("model:", run.models["policy"], " report:", run.report)


if __name__ == "__main__":
    main(*sys.argv[1:2])
