"""What the tests of process reward models are made of: a world with such a model, rollouts, and a step by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rewardsmith.config import Choice
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.recipe import parse_recipe
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.process.process_model import OutcomeBatch, ProcessModel, outcome_batch
from rewardsmith.trainers.process.process_trainer import ProcessModelTrainer
from rewardsmith.trainers.reference import Reference
from rewardsmith.types import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.world import MODELS, World, new_engine, share_of_digits

CPU = torch.device("cpu")
LOST = Score(failure=Failure("timeout"))
SKIPPED = Score(failure=Failure("skipped"))


# ---- rewards that need no skill --------------------------------------------------------------------------------------


class Share:
    """The share of digits, between 0 and 1."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(min(1.0, share_of_digits(rollout.text))) for rollout in group.rollouts]


class AnyDigit:
    """Whether there is a digit."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(float(share_of_digits(rollout.text) > 0)) for rollout in group.rollouts]


class Torn:
    """Whether there is a digit, for the rollouts that it can read: of every three, one is lost."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        scores = [Score(float(share_of_digits(rollout.text) > 0)) for rollout in group.rollouts]
        return [LOST if i % 3 == 1 else score for i, score in enumerate(scores)]


# ---- stages ----------------------------------------------------------------------------------------------------------


class ProcessWorld(World):
    """A world in which `prm` is a copy of the policy; `models` changes its models or adds some."""

    def __init__(self, folder: Path, models: dict[str, dict[str, Any]] | None = None, **how: Any) -> None:
        super().__init__(folder, **how)
        tables = {"prm": {"copy_of": "policy"}} | (models or {})
        self.tables = MODELS | {name: ModelSettings(**{"device": "cpu"} | table) for name, table in tables.items()}
        self.messages: list[str] = []

    def engine(self, name: str) -> EmbeddedEngine:
        if name not in self._engines:
            settings = self.tables[name]
            if settings.head == "scalar":
                return super().engine(name)
            if settings.copy_of is not None:
                self._engines[name] = self.engine(settings.copy_of).copy(settings, name=name)
            elif settings.init == "tiny-llama":  # all but `other` begin as the policy does, whatever they are
                self._engines[name] = new_engine("other" if name == "other" else "policy").copy(settings, name=name)
            else:
                self._engines[name] = EmbeddedEngine.open(settings, name=name)
        return self._engines[name]

    def log(self, text: str) -> None:
        self.messages.append(text)

    def stage(self, table: dict[str, Any]) -> Any:
        models = {name: settings.model_dump(exclude_unset=True) for name, settings in self.tables.items()}
        data = {name: {"type": "arithmetic"} for name in ("train", "held_out")}
        return parse_recipe({"models": models, "data": data, "stages": [table]}).stages[0].settings


def implicit(**changes: Any) -> dict[str, Any]:
    """Return the table of a process reward; keyword arguments change it, those of `learn` and `optimizer` too."""
    optimizer = {"lr": 1e-3, "clip_norm": 1.0} | changes.pop("optimizer", {})
    learn = {"optimizer": optimizer} | changes.pop("learn", {})
    return {"type": "implicit", "model": "prm", "beta": 0.5, "learn": learn, "trust": {"by": "nothing"}} | changes


def table(process: dict[str, Any] | None = None, answer: Any = None, **changes: Any) -> dict[str, Any]:
    """Return the table of a small policy stage with a process reward."""
    parts = {"answer": answer or "tests.trainers.process.process_cases:AnyDigit", "process": process or implicit()}
    small: dict[str, Any] = {
        "type": "policy",
        "model": "policy",
        "data": "train",
        "steps": 4,
        "prompts_per_step": 3,
        "rollouts_per_prompt": 4,
        "sampling": {"max_tokens": 6},
        "reward": {"type": "sum", "parts": parts},
        "advantage": {"type": "rloo", "combine": "after"},
        "optimizer": {"lr": 1e-3},
    }
    return small | changes


def policy(world: ProcessWorld, process: dict[str, Any] | None = None, **changes: Any) -> PolicyTrainer:
    """Return the trainer of a small policy stage."""
    return PolicyTrainer(world.stage(table(process, **changes)), world)


def alone(world: ProcessWorld, process: dict[str, Any] | None = None, **changes: Any) -> ProcessModelTrainer:
    """Return the trainer of a small stage that trains the process reward model alone."""
    small = table(process, **{"type": "process_model"} | changes)
    for name in ("advantage", "optimizer"):
        del small[name]
    return ProcessModelTrainer(world.stage(small), world)


# ---- rollouts --------------------------------------------------------------------------------------------------------


def group(number: int, outcomes: Sequence[float | None], *, seed: int = 0) -> ScoredGroup:
    """Return rollouts of random tokens and lengths, with these outcomes; None is an outcome that failed."""
    rng = np.random.default_rng([seed, number])
    rollouts = []
    for _ in outcomes:
        length = int(rng.integers(1, 12))
        tokens, logprobs = rng.integers(9, 90, length), -rng.random(length)
        rollouts.append(Rollout("x" * length, tokens.tolist(), logprobs.tolist(), ends=list(range(1, length + 1))))
    scores = [LOST if outcome is None else Score(outcome) for outcome in outcomes]
    prompt = Prompt(f"p{number}", [Message("user", "1+" * (number % 3) + f"{number}?")], answer="2")
    whole = [Score(score.value, score.failure, {"answer": score, "process": SKIPPED}) for score in scores]
    return ScoredGroup(RolloutGroup(prompt, rollouts), whole)


def batch_of(groups: Sequence[ScoredGroup], replayed: Sequence[ScoredGroup] = ()) -> OutcomeBatch:
    """Return what a model learns from."""
    return outcome_batch(groups, replayed, new_engine().encode, "answer", CPU)


def settings(**changes: Any) -> Implicit:
    """Return the settings of a process reward, as a recipe gives them."""
    chosen = Choice("reward", "rewardsmith.rewards:REWARDS").choose(implicit(**changes))
    made: Implicit = chosen.build()
    return made


class Model:
    """A process reward model whose reference is another model, so that its rewards are not 0; and its gradients."""

    def __init__(self, folder: Path, engine: EmbeddedEngine | None = None, **changes: Any) -> None:
        world = ProcessWorld(folder)
        self.engine = engine or new_engine()
        self.settings = settings(**changes)
        reference = Reference(self.engine, world, name="reference", model="other")
        reference.begin(resumed=False)
        self.process = ProcessModel(self.settings, self.engine, reference)
        self.engine.learn_with(self.settings.learn.optimizer)
        self.gradients: list[dict[str, Tensor]] = []
        self._watch(self.engine._learner)

    def _watch(self, learner: Any) -> None:
        step: Callable[[float], Any] = learner.step

        def watched(lr: float) -> Any:
            self.gradients.append({name: p.grad.clone() for name, p in learner._parameters.items()})
            return step(lr)

        learner.step = watched

    def score_and_learn(self, batch: OutcomeBatch, *, measure: bool = False) -> Any:
        lr = self.settings.learn.optimizer.lr
        return self.process.score_and_learn(batch, lr=lr, measure=measure)


def update_sizes(engine: EmbeddedEngine) -> list[int]:
    """Return a list that gets the number of rows of each update of a model."""
    sizes: list[int] = []
    update = engine.update

    def watched(rows: Any, *arguments: Any, **more: Any) -> Any:
        sizes.append(len(rows))
        return update(rows, *arguments, **more)

    engine.update = watched  # type: ignore[method-assign]
    return sizes


# ---- the same by hand ------------------------------------------------------------------------------------------------


class ByHand:
    """A Hugging Face model in float64 that reads one rollout at a time, its reference, and AdamW."""

    def __init__(self, beta: float = 0.5, *, lr: float = 1e-3, clip: float = 1.0, decay: float = 0.0) -> None:
        self.model, self.reference = (make_tiny("tiny-llama", seed=seed)[0].double() for seed in (0, 1))
        self.beta, self.clip = beta, clip
        self.gradients: list[dict[str, Tensor]] = []
        self.norms: list[float] = []
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() <= 1]
        decays = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(decays, lr=lr, betas=(0.9, 0.999))

    def rewards(self, batch: OutcomeBatch, row: int) -> Tensor:
        """Return the reward of each token of a rollout, with gradient."""
        prompt, tokens = batch.rows[row].prompt.tolist(), batch.rows[row].response.tolist()
        found = []
        for model in (self.model, self.reference):
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            found.append(logits.log_softmax(-1)[range(len(tokens)), tokens])
        return self.beta * (found[0] - found[1].detach())

    def all_rewards(self, batch: OutcomeBatch, rows: Sequence[int] | None = None) -> list[Tensor]:
        with torch.no_grad():
            return [self.rewards(batch, row) for row in (range(len(batch.rows)) if rows is None else rows)]

    def step(self, loss: Tensor) -> None:
        """Go down the gradient of a loss."""
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.gradients.append({name: p.grad.clone() for name, p in self.model.named_parameters()})
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)))
        self._adam.step()

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}


def padded(rewards: Sequence[Tensor], width: int) -> Tensor:
    """Return rows of different lengths as [B, T], zero where a row has ended."""
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rewards])


def relative(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return how far two sets of tensors are apart, as a share of the length of the second."""
    apart = torch.stack([(found[name].double() - expected[name].double()).norm() for name in expected]).norm()
    return float(apart / torch.stack([t.double().norm() for t in expected.values()]).norm())
