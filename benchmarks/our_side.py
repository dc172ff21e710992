"""Our side of `benchmarks/embedded.py`: the embedded engine generates and learns.

python benchmarks/our_side.py FOLDER WORKLOAD
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from functools import partial
from pathlib import Path

import torch
import transformers
from workload import Figures, Step, Workload, peak_resident_bytes, prompts, reward

import rewardsmith
from rewardsmith import Message, Prompt, RolloutGroup
from rewardsmith.algorithms.advantages import Stream, estimate_advantages, grpo
from rewardsmith.algorithms.policy_losses import clip, reduce, token_mean
from rewardsmith.algorithms.tensors import last_token
from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Outputs, Row, Sampling


def generate(engine: EmbeddedEngine, texts: list[str], workload: Workload, step: int) -> list[RolloutGroup]:
    """Return the groups in the order of the prompts."""
    asked = [Prompt(f"{step}-{i}", [Message("user", text)]) for i, text in enumerate(texts)]
    least = workload.new_tokens if workload.ends == "length" else 0
    sampling = Sampling(max_tokens=workload.new_tokens, min_tokens=least)
    seeds = [step * len(asked) + i for i in range(len(asked))]
    groups: dict[int, RolloutGroup] = {}

    async def collect() -> None:  # returns nothing: `asyncio.run` makes a text of what its task returns, for seconds
        async for number, group in engine.generate(asked, sampling, n=workload.rollouts, seeds=seeds):
            groups[number] = group

    asyncio.run(collect())
    return [groups[i] for i in range(len(asked))]


def learn(engine: EmbeddedEngine, groups: list[RolloutGroup]) -> None:
    """Take one AdamW step with the GRPO advantage and the clipped loss over all rollouts."""
    rows = [Row(engine.encode(group.prompt), rollout.tokens) for group in groups for rollout in group.rollouts]
    worth_B = torch.tensor([reward(row.response.tolist()) for row in rows], device=engine.device)
    lengths_B = torch.tensor([len(row.response) for row in rows], device=engine.device)
    mask_BT = torch.arange(int(lengths_B.max()), device=engine.device)[None] < lengths_B[:, None]
    groups_B = torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts], device=engine.device)
    rewards_BT = torch.where(last_token(mask_BT), worth_B[:, None], 0)
    advantages_BT = estimate_advantages([Stream("reward", rewards_BT)], mask_BT, groups_B, estimator=grpo)
    if not bool(advantages_BT.any()):
        raise SystemExit("all advantages are zero: nothing would be learned")
    weights_BT = token_mean(mask_BT)

    def loss(outputs: Outputs) -> torch.Tensor:
        now, at = outputs.logprobs_bT, outputs.rows
        losses, _ = clip(now, now.detach(), advantages_BT[at], outputs.mask_bT)
        return reduce(losses, weights_BT[at])

    engine.update(rows, loss, lr=1e-6)


def run(folder: Path, workload: Workload, *, recompute: bool = False, rows: int | None = None) -> Figures:
    """Train for the warm-up and the timed steps, and return the figures of the latter.

    A step takes the texts of `prompts(workload, step)`, generates at temperature 1, with no end token where every
    response must have exactly `new_tokens` tokens, scores each with `reward`, and makes one AdamW step over all of them
    with the GRPO advantage and the clipped loss.
    """
    settings = ModelSettings(
        init=str(folder), device=workload.device, dtype=workload.dtype, recompute=recompute, rows=rows
    )
    engine = EmbeddedEngine.open(settings)
    engine.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    engine.learn_with(OptimizerSettings(lr=1e-6))
    cuda = workload.device == "cuda"
    wait = torch.cuda.synchronize if cuda else partial(int, 0)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    steps, tokens = [], []
    for step in range(workload.warmup + workload.steps):
        wait()
        begun = time.perf_counter()
        groups = generate(engine, prompts(workload, step), workload, step)
        wait()
        generated = time.perf_counter()
        lengths = [len(rollout.tokens) for group in groups for rollout in group.rollouts]
        if workload.ends == "length" and set(lengths) != {workload.new_tokens}:
            raise SystemExit(f"a response has another length than {workload.new_tokens}")
        tokens.append(sum(lengths))
        learn(engine, groups)
        wait()
        ended = time.perf_counter()
        steps.append(Step(ended - begun, generated - begun, ended - generated))
    versions = (
        f"rewardsmith {rewardsmith.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    checkpointing = "on" if recompute else "off"
    return Figures(
        "rewardsmith",
        f"{versions}, gradient checkpointing {checkpointing}, float32 master weights",
        statistics.mean(tokens[workload.warmup :]),
        tuple(steps[workload.warmup :]),
        torch.cuda.max_memory_allocated() if cuda else peak_resident_bytes(),
    )


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--rows", type=int, help="responses written at a time")
    given = parser.parse_args()
    print(run(given.folder, given.workload, recompute=given.recompute, rows=given.rows).to_json())


if __name__ == "__main__":
    main()
