"""One side of `benchmarks/prime.py`: the policy trainer with a process reward, or without.

python benchmarks/prime_side.py FOLDER WORKLOAD SIDE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import workload as drawn
from prime_workload import PARTS, Figures, Side, Step
from workload import Workload, peak_resident_bytes

from rewardsmith.config import Chosen
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.token_offsets import TokenOffsets
from rewardsmith.recipe import Recipe, parse_recipe
from rewardsmith.rewards.component import Component
from rewardsmith.runs.folder import RunFolder
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.reference import Reference
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Message, Prompt


def recipe(folder: Path, workload: Workload, side: Side) -> Recipe:
    """Return a recipe with one policy stage: RLOO, parts credited apart, one update of all rows."""
    model: dict[str, Any] = {"init": str(folder), "device": workload.device, "dtype": workload.dtype}
    models = {"policy": model}
    parts: dict[str, Any] = {"answer": {"type": "rule", "rule": "prime_workload:outcome"}}
    if side.update:
        models["prm"] = model | ({"lora": {"rank": 16}} if side.lora else {})
        models["prm"] |= {"dtype": side.dtype} if side.dtype else {}
        parts["process"] = {
            "type": "implicit",
            "model": "prm",
            "update": side.update,
            "trust": {"by": "nothing"},  # of a model that knows nothing; the stream must be there
            "learn": {"measure_every": 0},
        }
        if side.reference == "named":
            models["began"], parts["process"]["reference_model"] = model, "began"
        else:
            parts["process"] |= {"reference": side.reference, "exact_reference": side.exact}
    # A random model writes each token alike: one of k in V ends an answer after V / k tokens, on average.
    many = max(0, round(2 * workload.vocabulary / workload.new_tokens) - 1) if workload.ends == "eos" else 0
    stops = list(range(len(drawn.SPECIAL), len(drawn.SPECIAL) + many))
    stage = {
        "type": "policy",
        "model": "policy",
        "data": "train",
        "steps": workload.warmup + workload.steps,
        "prompts_per_step": workload.prompts,
        "rollouts_per_prompt": workload.rollouts,
        "sampling": {"max_tokens": workload.new_tokens, "stop_tokens": stops},
        "reward": {"type": "sum", "parts": parts},
        "advantage": {"type": "rloo", "combine": "after"},
    }
    return parse_recipe({"models": models, "data": {"train": {"type": "arithmetic"}}, "stages": [stage]})


class Prompts:
    """The prompts of the workload, step by step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the same prompts whatever the seed."""
        for step in range(self._workload.warmup + self._workload.steps):
            for i, text in enumerate(drawn.prompts(self._workload, step)):
                yield Prompt(f"{step}-{i}", [Message("user", text)])


class Surroundings:
    """What a run gives its trainers; rollouts are written to a file as in a run."""

    def __init__(self, recipe: Recipe, folder: Path, workload: Workload) -> None:
        self.seed = recipe.seed
        self.folder = folder
        self._recipe = recipe
        self._workload = workload
        self.files = RunFolder(folder)
        self._engines: dict[str, EmbeddedEngine] = {}

    def engine(self, name: str) -> EmbeddedEngine:
        """Load a model; under fixed lengths no token ends an answer."""
        if name not in self._engines:
            settings: Any = self._recipe.models[name].settings
            engine = EmbeddedEngine.open(settings, name=name)
            if self._workload.ends == "length":
                engine.stop_ids = (self._workload.vocabulary,)
            self._engines[name] = engine
        return self._engines[name]

    def model(self, name: str) -> Any:
        """No reward asks a model here."""
        raise AssertionError(name)

    def reward(self, chosen: Chosen) -> Component:
        """Return the reward of a table."""
        return Component.root(chosen)

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Nothing is offloaded here."""
        return nullcontext()

    def source(self, name: str) -> Prompts:
        """Return the prompts of the workload."""
        return Prompts(self._workload)

    def keep(self, records: Sequence[GroupRecord]) -> None:
        """Write groups to the rollouts file."""
        self.files.keep("policy", records)

    def keep_result(self, result: Any) -> None:
        """There is none."""

    def log(self, text: str) -> None:
        """Print nothing."""

    def progress(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show nothing."""

    def pause(self) -> None:
        """Go on."""


class Watch:
    """Seconds spent in methods; what one of them calls counts as its own."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.seconds: Counter[str] = Counter()
        self._wait = wait
        self._busy = False

    def over(self, owner: Any, method: str, name: str, *, device: bool = True) -> None:
        """Count the time in a method of an object or a class under a name; `device`: that of the device too."""
        plain, wait = getattr(owner, method), self._wait if device else _nothing

        @wraps(plain)
        def timed(*given: Any, **named: Any) -> Any:
            if self._busy:
                return plain(*given, **named)
            self._busy = True
            wait()
            begun = time.perf_counter()
            try:
                return plain(*given, **named)
            finally:
                wait()
                self.seconds[name] += time.perf_counter() - begun
                self._busy = False

        setattr(owner, method, timed)


async def train(folder: Path, workload: Workload, side: Side) -> Figures:
    """Take the warm-up and the timed steps, and return the figures of the latter."""
    made = recipe(folder, workload, side)
    surroundings = Surroundings(made, folder / "run", workload)
    stage: Any = made.stages[0].settings
    trainer = PolicyTrainer(stage, surroundings)
    cuda = workload.device == "cuda"
    wait = torch.cuda.synchronize if cuda else _nothing
    watch = Watch(wait)
    watch.over(TokenOffsets, "token_char_ends", "ends", device=False)
    watch.over(surroundings.engine("policy"), "update", "policy update")
    if side.update:
        watch.over(surroundings.engine("policy"), "logprobs", "reference")  # where the sampler's are not used
        watch.over(Reference, "logprobs", "reference")
        watch.over(surroundings.engine("prm"), "logprobs", "PRM forward")
        watch.over(surroundings.engine("prm"), "update", "PRM update")
    steps: list[Step] = []
    tokens: list[float] = []
    peak = 0.0
    with surroundings.files.locked():
        await trainer.begin()
        for number in range(1, trainer.steps + 1):
            watch.seconds.clear()
            wait()
            begun = time.perf_counter()
            metrics = (await trainer.step(number)).metrics
            wait()
            whole = time.perf_counter() - begun
            parts = dict.fromkeys(PARTS, 0.0) | dict(watch.seconds)
            parts["writing"] = metrics["time/write"] - parts["ends"]
            steps.append(Step(whole, parts | {"rest": whole - sum(parts.values())}))
            if (
                metrics["reward/failed"]
                or metrics["groups/kept"] + metrics.get("groups/no_advantage", 0) < workload.prompts
            ):
                raise SystemExit(f"{side.name}: not all rollouts were scored and selected")
            tokens.append(metrics["tokens/sampled"])
            peak = max([peak, *(value for name, value in metrics.items() if name.startswith("memory/"))])
    timed = slice(workload.warmup, None)
    found = int(peak * 2**30) if cuda else peak_resident_bytes()
    return Figures(sum(tokens[timed]) / workload.steps, tuple(steps[timed]), found)


def _nothing() -> None:
    """There is nothing to wait for on a CPU."""


def main() -> None:
    """Measure, and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("side", type=lambda line: Side(**json.loads(line)))
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    given = parser.parse_args()
    if given.clock == "cpu":  # the trainer reads this clock too
        time.perf_counter = time.process_time
    print(asyncio.run(train(given.folder, given.workload, given.side)).to_json())


if __name__ == "__main__":
    main()
