"""A small world for the tests of the trainers: real tiny models, sums, and rewards that need no skill."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from rewardsmith.config import Chosen
from rewardsmith.data import Arithmetic, Source
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.jobs import Result as JobResult
from rewardsmith.recipe import parse_recipe
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.stages import PolicyStage, SftStage
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup

Result = TypeVar("Result")

MODELS = {
    "policy": ModelSettings(init="tiny-llama", device="cpu"),
    "other": ModelSettings(init="tiny-llama", device="cpu"),
    "critic": ModelSettings(copy_of="policy", head="scalar", device="cpu"),
}
SEEDS = {"policy": 0, "other": 1}


def share_of_digits(text: str) -> float:
    """Return a reward that even a model without any training meets now and then."""
    return sum(c.isdigit() for c in text) / 8


class Digits:
    """The share of digits."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(share_of_digits(rollout.text)) for rollout in group.rollouts]


class Brevity:
    """One for an empty answer, zero for a long one."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(1 - len(rollout.tokens) / 8) for rollout in group.rollouts]


class Same:
    """The same reward for every answer."""

    def __init__(self, *, value: float = 0.0) -> None:
        self._value = value

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(self._value)] * len(group.rollouts)


class Patchy:
    """The share of digits; of every six answers the first cannot be read, and the fourth comes too late."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        kinds = {0: "unparsable", 3: "timeout"}
        return [
            Score(failure=Failure(kinds[i % 6])) if i % 6 in kinds else Score(share_of_digits(r.text))
            for i, r in enumerate(group.rollouts)
        ]


class Crashing:
    """Raises an exception for each prompt."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        raise RuntimeError(f"no idea about {group.prompt.id}")


class World:
    """What a run gives its trainers, without the files."""

    def __init__(self, folder: Path, *, seed: int = 0, sources: dict[str, Source] | None = None) -> None:
        self.folder = folder
        self.seed = seed
        self.records: list[GroupRecord] = []
        self.results: list[JobResult] = []
        self.messages: list[str] = []
        self.reported: list[tuple[str, int, int, int]] = []
        self.wants_to_stop: Callable[[], bool] = lambda: False
        self._engines: dict[str, EmbeddedEngine] = {}
        self._sources = {
            "train": Arithmetic(operations=2),
            "held_out": Arithmetic(operations=2, split="held-out"),
        } | (sources or {})

    def engine(self, name: str) -> EmbeddedEngine:
        if name not in self._engines:
            self._engines[name] = new_engine(name)
        return self._engines[name]

    def model(self, name: str) -> Any:
        raise AssertionError(f"no reward here uses {name}")

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def reward(self, chosen: Chosen) -> Component:
        return Component.root(chosen, self.log, self.model)

    def source(self, name: str) -> Source:
        return self._sources[name]

    def keep(self, records: Sequence[GroupRecord]) -> None:
        self.records += records

    def keep_result(self, result: JobResult) -> None:
        self.results.append(result)

    def log(self, text: str) -> None:
        self.messages.append(text)

    def progress(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        self.reported.append((f"{phase} {unit}", done, total, tokens))

    def pause(self) -> None:
        if self.wants_to_stop():
            raise InterruptedError


@cache
def _original(name: str) -> EmbeddedEngine:
    return EmbeddedEngine.open(MODELS[name], seed=SEEDS[name], name=name)


def new_engine(name: str = "policy", **settings: Any) -> EmbeddedEngine:
    """Return a model as it is before any training."""
    copied = MODELS[name].copy_of
    changed = MODELS[name].model_copy(update=settings)
    engine = _original(copied or name).copy(changed, name=name)
    if changed.head == "scalar":  # a new critic says 0 everywhere: too easy for a test
        torch.nn.init.normal_(engine.model.score.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return engine


def policy_stage(**changes: Any) -> PolicyStage:
    """Return a small policy stage; keyword arguments change it."""
    table = {"steps": 4, "prompts_per_step": 4, "rollouts_per_prompt": 4, "sampling": {"max_tokens": 8}}
    return stage_of("policy", "policy", table | {"reward": "tests.trainers.world:Digits"} | changes)


def sft_stage(**changes: Any) -> SftStage:
    """Return a small sft stage; keyword arguments change it."""
    return stage_of("sft", "policy", {"steps": 4, "batch_size": 4} | changes)


def stage_of(kind: str, model: str, changes: dict[str, Any]) -> Any:
    """Return a stage of a recipe with the models and data of the world; None takes a setting away."""
    table = {"type": kind, "model": model, "data": "train", "optimizer": {"lr": 1e-3}} | changes
    models = {name: settings.model_dump(exclude_none=True) for name, settings in MODELS.items()}
    data = {name: {"type": "arithmetic"} for name in ("train", "held_out")}
    stages = [{key: value for key, value in table.items() if value is not None}]
    return parse_recipe({"models": models, "data": data, "stages": stages}).stages[0].settings


def wait(result: Awaitable[Result]) -> Result:
    """Return what a coroutine comes to."""

    async def waited() -> Result:
        return await result

    return asyncio.run(waited())


def steps(trainer: Any, count: int, *, begin: bool = True) -> list[dict[str, float]]:
    """Take the first steps of a stage and return their metrics."""
    if begin:
        wait(trainer.begin())
    return [dict(wait(trainer.step(i + 1)).metrics) for i in range(count)]


def weights(engine: EmbeddedEngine) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    return {name: p.detach().clone() for name, p in engine.model.named_parameters()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the length of the difference of two sets of weights."""
    return float(torch.stack([(a[name] - b[name]).norm() for name in a]).norm())


def prompt(number: int, text: str = "1+1?") -> Prompt:
    return Prompt(f"p{number}", [Message("user", text)], answer="2")


def rollout(length: int = 2, *, stop_reason: str = "stop") -> Rollout:
    """Return an answer with the tokens 1, 2, …, whose log-probabilities are -1/1, -1/2, …"""
    tokens = list(range(1, length + 1))
    return Rollout("x" * length, tokens, [-1 / t for t in tokens], stop_reason)  # type: ignore[arg-type]


def scored(scores: Sequence[Score | float], *, number: int = 0, version: int = 0, **how: Any) -> ScoredGroup:
    """Return a group of answers with these scores; `lengths` and `stop_reasons` are those of the answers."""
    lengths = how.get("lengths") or [2] * len(scores)
    stops = how.get("stop_reasons") or ["stop"] * len(scores)
    rollouts = [rollout(length, stop_reason=stop) for length, stop in zip(lengths, stops, strict=True)]
    group = RolloutGroup(prompt(number), rollouts, version)
    return ScoredGroup(group, [score if isinstance(score, Score) else Score(score) for score in scores])


FAILED = Score(failure=Failure("timeout"))
