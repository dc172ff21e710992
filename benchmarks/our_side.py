"""Our side of `benchmarks/embedded.py`: the embedded engine generates and learns.

python benchmarks/our_side.py FOLDER WORKLOAD [recompute=true] [rows=256] [tokens_per_pass=16384]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import time
import tomllib
from functools import partial
from pathlib import Path

import torch
import transformers
from workload import Figures, Step, Workload, figures_to_json, peak_resident_bytes, prompts, reward

import rewardsmith
from rewardsmith import Message, Prompt, RolloutGroup
from rewardsmith.algorithms.advantages import Stream, estimate_advantages, grpo
from rewardsmith.algorithms.policy_losses import clip, reduce, token_mean
from rewardsmith.algorithms.tensors import last_token
from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import MAX_ROWS, EmbeddedEngine
from rewardsmith.engines.embedded.generate import CHECK_EVERY
from rewardsmith.engines.protocol import Outputs, Row, Sampling, Tick, no_tick


class Steps:
    """Counts decoding steps: the engine calls it whenever it has looked at its rows."""

    def __init__(self, device: str) -> None:
        self.every = CHECK_EVERY[device]
        self.count = 0

    def __call__(self, finished: int, tokens: int) -> None:
        """Count those since the last look."""
        self.count += self.every


def generate(
    engine: EmbeddedEngine, texts: list[str], workload: Workload, step: int, tick: Tick = no_tick
) -> list[RolloutGroup]:
    """Return the groups in the order of the prompts."""
    asked = [Prompt(f"{step}-{i}", [Message("user", text)]) for i, text in enumerate(texts)]
    least = workload.new_tokens if workload.ends == "length" else 0
    sampling = Sampling(max_tokens=workload.new_tokens, min_tokens=least)
    seeds = [step * len(asked) + i for i in range(len(asked))]
    groups: dict[int, RolloutGroup] = {}

    async def collect() -> None:  # returns nothing: `asyncio.run` makes a text of what its task returns, for seconds
        async for number, group in engine.generate(asked, sampling, n=workload.rollouts, seeds=seeds, tick=tick):
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


def open_engine(settings: ModelSettings) -> EmbeddedEngine:
    """Open the model with an optimizer; a prompt is the message as it is."""
    engine = EmbeddedEngine.open(settings)
    engine.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    engine.learn_with(OptimizerSettings(lr=1e-6))
    return engine


def rows_note(settings: ModelSettings, workload: Workload, tokens: float, steps: float) -> str:
    """Say how many rows were written at a time, and whether memory made them fewer."""
    asked = min(workload.rows, settings.rows or MAX_ROWS[workload.device])
    decoded = tokens - workload.rows  # the first token of each comes with its prompt
    text = f"{min(asked, decoded / steps):.0f} of {asked} rows at a time on average"
    fewest = workload.new_tokens * math.ceil(workload.rows / asked)
    return text + (": more do not fit in memory" if workload.ends == "length" and steps > 1.1 * fewest + 8 else "")


def run(settings: ModelSettings, workload: Workload) -> Figures:
    """Train for the warm-up and the timed steps, and return the figures of the latter.

    A step takes the texts of `prompts(workload, step)`, generates at temperature 1, with no end token where every
    response must have exactly `new_tokens` tokens, scores each with `reward`, and makes one AdamW step over all of them
    with the GRPO advantage and the clipped loss.
    """
    engine = open_engine(settings)
    cuda = workload.device == "cuda"
    wait = torch.cuda.synchronize if cuda else partial(int, 0)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    steps, tokens = [], []
    decoding = Steps(workload.device)
    for step in range(workload.warmup + workload.steps):
        wait()
        begun = time.perf_counter()
        groups = generate(engine, prompts(workload, step), workload, step, decoding)
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
    choices = [
        f"rewardsmith {rewardsmith.__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
        *(f"{name} = {value}" for name, value in settings.model_dump(exclude_defaults=True).items() if name != "init"),
        "float32 master weights",
        rows_note(settings, workload, statistics.mean(tokens), decoding.count / len(steps)),
    ]
    return Figures(
        "rewardsmith",
        ", ".join(choices),
        statistics.mean(tokens[workload.warmup :]),
        tuple(steps[workload.warmup :]),
        torch.cuda.max_memory_allocated() if cuda else peak_resident_bytes(),
    )


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("settings", nargs="*", help="of [models.NAME] in a recipe, as rows=256")
    given = parser.parse_args()
    chosen = tomllib.loads("\n".join(given.settings))
    workload = given.workload
    settings = ModelSettings(init=str(given.folder), device=workload.device, dtype=workload.dtype, **chosen)
    print(figures_to_json(run(settings, workload)))


if __name__ == "__main__":
    main()
