"""One process of a distributed GRPO run, for the tests: `torchrun … trl_processes.py FOLDER PER_DEVICE_BATCH`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rewardsmith import RolloutGroup, Score, UserError
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.integrations.trl_reward import trl_reward


class Ranks:
    """The rank of an answer in its group, and the size of the group."""

    whole = True
    parts = ("size",)

    async def score(self, group: RolloutGroup) -> list[Score]:
        order = sorted(rollout.text for rollout in group.rollouts)
        size = Score(float(len(order)))
        return [Score(float(order.index(rollout.text)), parts={"size": size}) for rollout in group.rollouts]


def main(folder: Path, batch: int) -> None:
    """Take a step, and write what the main process logged."""
    torch.manual_seed(0)
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    data = Dataset.from_list([{"prompt": f"{n}+{n}?", "answer": str(2 * n)} for n in range(8)])
    args = GRPOConfig(
        output_dir=str(folder / "run"),
        max_steps=1,
        per_device_train_batch_size=batch,
        num_generations=4,
        max_completion_length=6,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model, reward_funcs=trl_reward(Ranks()), train_dataset=data, processing_class=tokenizer, args=args
    )
    try:
        trainer.train()
    except UserError as error:
        (folder / f"error-{args.process_index}").write_text(str(error))
        raise SystemExit(3) from None
    if args.process_index == 0:
        logs = {"rewards": list(trainer._logs["rewards"]["rewardsmith"]), "history": trainer.state.log_history}
        (folder / "logs.json").write_text(json.dumps(logs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
