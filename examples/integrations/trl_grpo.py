"""TRL's GRPOTrainer with a reward of rewardsmith: `python examples/integrations/trl_grpo.py [--steps 3]`.

The model is a tiny one with random weights, so that this runs on a CPU in seconds; a name on the Hugging Face Hub works
in its place.
"""

from __future__ import annotations

import argparse
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.integrations.trl_reward import trl_reward

REWARD = {
    "type": "sum",
    "parts": {
        "digits": {"type": "rule", "rule": {"type": "regex", "pattern": "[0-9]"}},
        "short": {"type": "rule", "rule": {"type": "length", "max_length": 1}, "weight": 0.5},
    },
}


def main(steps: int) -> dict[str, float]:
    """Train for some steps; return the last metrics."""
    problems = [{"prompt": [{"role": "user", "content": f"{n}+{n}?"}], "answer": str(2 * n)} for n in range(16)]
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model,
            reward_funcs=trl_reward(REWARD),
            train_dataset=Dataset.from_list(problems),
            processing_class=tokenizer,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=8,
                learning_rate=1e-3,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                use_cpu=True,
            ),
        )
        trainer.train()
    logged: list[dict[str, float]] = [entry for entry in trainer.state.log_history if "reward" in entry]
    for entry in logged:
        parts = {name: value for name, value in entry.items() if name.startswith("rewardsmith/") and "/mean" in name}
        print(f"reward {entry['reward']:.2f}", parts, f"failed {entry['rewardsmith/failed']:.0%}")
    return logged[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    main(parser.parse_args().steps)
