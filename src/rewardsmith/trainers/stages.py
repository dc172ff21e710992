"""The stages of a recipe: what may stand in a `[[stages]]` table. Reading them loads no torch.

`runs_by` names the trainer that does the work, as `module:Name`; it is called with the stage and the run's `Context`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rewardsmith.auditing.audit_settings import StageAudit
from rewardsmith.config import DEFAULT, Choice, Chosen, Settings
from rewardsmith.data.source import Reads
from rewardsmith.learning import OptimizerSettings
from rewardsmith.rewards.failures import policies
from rewardsmith.text.judge_prompts import Keep
from rewardsmith.trainers.evaluate.audit_reward import AuditReward
from rewardsmith.trainers.evaluate.evaluate_policy import EvaluateStage
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.generate_answers import GenerateStage
from rewardsmith.trainers.process.implicit_parts import learning_models, policy_problems
from rewardsmith.trainers.settings import (
    CriticName,
    DataName,
    OptionalModelName,
    RolloutStage,
    Saving,
    TrainingStage,
    Validation,
    ValidationSettings,
)
from rewardsmith.trainers.trainer import Count

if TYPE_CHECKING:
    from rewardsmith.algorithms.policy_losses import KlEstimator

# ---- sft and reward_model -------------------------------------------------------------------------------------------


class SupervisedOptimizer(OptimizerSettings):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0, description="peak learning rate")


class SupervisedValidation(Validation):
    """How well the model does on items that are not learned from."""

    every: int = Field(default=100, ge=1, description="steps between two validations")


class SupervisedStage(TrainingStage):
    """What stages have that learn from the items of a source."""

    batch_size: int = Field(default=32, ge=1, description="items per step: demonstrations, pairs or groups")
    max_tokens: int | None = Field(default=None, ge=2, description="drop longer items; not set: what the model reads")
    optimizer: SupervisedOptimizer = Field(default=SupervisedOptimizer(), description="AdamW and its schedule")
    validation: SupervisedValidation | None = Field(default=None, description="measure on other items")
    save: Saving = Field(default=Saving(), description="when to save, and what to keep")


class SftValidation(SupervisedValidation):
    """The loss on demonstrations that are not learned from."""

    demonstrations: Count = Field(default=256, description="how many; all takes every one of the data")


class SftStage(SupervisedStage):
    """Imitate demonstrations; the loss is on the answer's tokens only."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.sft:SftTrainer"

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return "demonstrations"

    name: str = Field(default="sft", min_length=1, description="what to call this stage in the run's files")
    validation: SftValidation | None = Field(default=None, description="measure the loss on other demonstrations")


PreferenceLoss = Annotated[
    Chosen,
    Choice(
        "preference loss", "rewardsmith.algorithms.preferences:PREFERENCE_LOSSES", default="bradley-terry", inputs=4
    ),
]


class RewardModelValidation(SupervisedValidation):
    """How well the model orders comparisons that are not learned from."""

    items: Count = Field(default=512, description="pairs or groups; all takes every one of the data")


class RewardModelStage(SupervisedStage):
    """Learn one number per answer from comparisons of answers: a Bradley-Terry or Plackett-Luce reward model."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.reward_model:RewardModelTrainer"

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return self.learn_from

    name: str = Field(default="reward_model", min_length=1, description="what to call this stage in the run's files")
    model: CriticName = Field(description='the model to train: one with head = "scalar"')
    learn_from: Literal["preferences", "rankings"] = Field(
        default="preferences", description="pairs of answers, or groups of answers with scores"
    )
    system: Keep = Field(default="keep", description="whether the model reads the prompt's system messages")
    think: Keep = Field(default="drop", description="whether it reads what an answer thinks, up to </think>")
    loss: PreferenceLoss = Field(default=DEFAULT, description="how likely a comparison is, given the rewards")
    centre: float = Field(
        default=0.0, ge=0, description="weight of the mean of (r_i + r_j)² over pairs, which keeps rewards near 0"
    )
    validation: RewardModelValidation | None = Field(default=None, description="measure on other comparisons")

    @model_validator(mode="after")
    def _loss_fits_data(self) -> Self:
        if self.loss.name == "plackett-luce" and self.learn_from == "preferences":
            raise ValueError('the loss "plackett-luce" is about groups: set learn_from = "rankings"')
        return self


# ---- process_model ---------------------------------------------------------------------------------------------------


class ProcessValidation(Validation):
    """How well the models order and judge answers that they do not learn from."""

    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    prompts: Count = Field(default=64, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=8, ge=2, description="answers to each prompt")


class ProcessModelStage(RolloutStage):
    """Train implicit process reward models on the outcomes of a policy that stays as it is."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.process.process_trainer:ProcessModelTrainer"

    name: str = Field(default="process_model", min_length=1, description="what to call this stage in the run's files")
    validation: ProcessValidation | None = Field(default=None, description="measure on other prompts, now and then")

    @model_validator(mode="after")
    def _learns_something(self) -> Self:
        if not learning_models(self.reward):
            raise ValueError(
                'nothing learns in this stage: its reward is a sum, one part of which has type = "implicit", an update'
                ' that is not "none", and a weight that is not 0 or watch = true'
            )
        return self


# ---- policy ----------------------------------------------------------------------------------------------------------


class CombineSettings(Settings):
    """How the parts of a reward meet the estimator."""

    rare: ClassVar[frozenset[str]] = frozenset({"whiten"})

    combine: Literal["before", "after"] = Field(
        default="before", description="sum the reward's parts and estimate once, or estimate each part and then sum"
    )
    whiten: bool = Field(default=False, description="scale the result to mean 0, variance 1 over the batch")


ADVANTAGE = Choice(
    "advantage", "rewardsmith.algorithms.advantages:ADVANTAGES", CombineSettings, default="grpo", inputs=1
)
AdvantageChoice = Annotated[Chosen, ADVANTAGE]
LossChoice = Annotated[
    Chosen, Choice("policy loss", "rewardsmith.algorithms.policy_losses:POLICY_LOSSES", default="clip", inputs=4)
]
ReductionChoice = Annotated[
    Chosen, Choice("reduction", "rewardsmith.algorithms.policy_losses:REDUCTIONS", default="token-mean", inputs=2)
]


KlChoice = Literal["auto", "k1", "k2", "k3"]


class KlSettings(Settings):
    """Keep the policy near a reference."""

    rare: ClassVar[frozenset[str]] = frozenset(
        {"place", "estimator", "reward_coefficient", "reward_estimator", "unbiased", "reference"}
    )

    coefficient: float = Field(default=0.0, ge=0, description="weight of the penalty; 0 is off")
    place: Literal["reward", "loss", "both"] = Field(
        default="loss", description="in the reward, in the loss, or in both"
    )
    estimator: KlChoice = Field(default="auto", description="auto: k1 in the reward, k2 in the loss")
    reward_coefficient: float | None = Field(
        default=None, gt=0, description="both: weight in the reward; not set: as in the loss"
    )
    reward_estimator: KlChoice = Field(default="auto", description="both: estimator in the reward; auto: k1")
    unbiased: bool = Field(default=False, description="in the loss: the value of k1 or k3 with the gradient of k2")
    reference: OptionalModelName = Field(
        default=None, description="model to stay near; not set: the policy when the stage begins"
    )

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.place != "reward" and self.estimator == "k1" and not self.unbiased:
            raise ValueError('k1 in the loss has no gradient but noise: use place = "reward", or estimator = "k2"')
        if self.place != "both" and (self.reward_coefficient is not None or self.reward_estimator != "auto"):
            raise ValueError(
                f'reward_coefficient and reward_estimator are for place = "both": with place = "{self.place}" set'
                " coefficient and estimator"
            )
        if not self.coefficient and (self.reference is not None or self.place == "both"):
            setting = 'place is "both"' if self.reference is None else "reference is set"
            raise ValueError(f"{setting}, but coefficient is 0: set it, or leave this out")
        return self

    @property
    def in_loss(self) -> tuple[float, KlEstimator]:
        """Weight and estimator of the penalty in the loss; 0 where it is off."""
        coefficient = 0.0 if self.place == "reward" else self.coefficient
        return coefficient, "k2" if self.estimator == "auto" else self.estimator

    @property
    def in_reward(self) -> tuple[float, KlEstimator]:
        """Weight and estimator of the penalty in the reward; 0 where it is off."""
        coefficient, estimator = self.coefficient, self.estimator
        if self.place == "both":
            coefficient = coefficient if self.reward_coefficient is None else self.reward_coefficient
            estimator = self.reward_estimator
        return 0.0 if self.place == "loss" else coefficient, "k1" if estimator == "auto" else estimator


class PolicyOptimizer(OptimizerSettings):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")


class CriticSettings(Settings):
    """A second model that learns what a state is worth (PPO)."""

    rare: ClassVar[frozenset[str]] = frozenset({"clip", "warmup"})

    model: CriticName = Field(description='the critic: a model with head = "scalar"')
    clip: float | None = Field(default=0.2, gt=0, description="how far a value may move in one step")
    warmup: int = Field(default=0, ge=0, description="steps in which the critic learns alone")
    optimizer: PolicyOptimizer = Field(default=PolicyOptimizer(lr=1e-5), description="AdamW and its schedule")


class ImportanceSettings(Settings):
    """Weights against the gap between the numbers that sampled a token and those that learn from it."""

    level: Literal["token", "sequence"] = Field(default="token", description="a weight for each token or each answer")
    cap: float = Field(default=2.0, gt=0, description="the largest weight")
    floor: float = Field(default=0.0, ge=0, description="the smallest weight")
    outside: Literal["truncate", "drop"] = Field(
        default="truncate", description="a weight beyond the bounds: to the bound, or to 0"
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.floor > self.cap:
            raise ValueError(f"floor is {self.floor}, above cap = {self.cap}")
        return self


class OverlongSettings(Settings):
    """Take something off the reward of an answer that comes near a limit of tokens (DAPO)."""

    buffer: int = Field(ge=1, description="tokens before the limit over which the punishment grows")
    factor: float = Field(default=1.0, ge=0, description="the punishment at the limit, and beyond it")
    limit: int | None = Field(default=None, ge=1, description="tokens; not set: sampling.max_tokens")

    def problems(self, max_tokens: int) -> Iterator[str]:
        """Yield what does not go with the maximum tokens of an answer."""
        limit = self.limit or max_tokens
        if limit > max_tokens:
            yield f"overlong.limit = {limit} is more than sampling.max_tokens = {max_tokens}: no answer is that long"
        if self.buffer > limit:
            name = "sampling.max_tokens" if self.limit is None else "overlong.limit"
            yield f"overlong.buffer = {self.buffer} is more than {name} = {limit}"


class PolicyStage(RolloutStage):
    """Sample groups of answers, score them, and move the policy towards the better ones."""

    rare: ClassVar[frozenset[str]] = RolloutStage.rare | {
        "correct_threshold",
        "old_logprobs",
        "overlong",
        "entropy",
        "imitation",
        "importance",
        "ahead",
    }

    runs_by: ClassVar[str] = "rewardsmith.trainers.policy:PolicyTrainer"

    name: str = Field(default="policy", min_length=1, description="what to call this stage in the run's files")
    mini_batches: int = Field(default=1, ge=1, description="optimizer steps per pass over the sampled groups")
    ppo_epochs: int = Field(default=1, ge=1, description="passes over the sampled groups")
    ahead: int = Field(
        default=0,
        ge=0,
        le=8,
        description="steps for which answers are written and scored ahead, while others are learned from; 0: on-policy",
    )
    correct_threshold: float = Field(
        default=1.0, description="a reward from which on an answer is right: accuracy, pass@k"
    )
    old_logprobs: Literal["auto", "sampler", "learner"] = Field(
        default="auto",
        description="the π_old of the ratio: as sampled, or computed again; auto does what is exact and cheap",
    )
    overlong: OverlongSettings | None = Field(default=None, description="punish answers near the token limit")
    advantage: AdvantageChoice = Field(default=DEFAULT, description="advantage estimator")
    critic: CriticSettings | None = Field(default=None, description="the model behind the advantage gae")
    loss: LossChoice = Field(default=DEFAULT, description="how far an advantage may move the policy")
    reduction: ReductionChoice = Field(default=DEFAULT, description="from a loss per token to one number")
    kl: KlSettings = Field(default=KlSettings(), description="distance from the reference policy")
    entropy: float = Field(default=0.0, description="weight of the entropy that is added to what is maximised")
    imitation: float = Field(default=0.0, ge=0, description="weight of imitation of answers with advantage > 0")
    importance: ImportanceSettings | None = Field(
        default=None, description="correct for what the sampler did; not set: off, and with ahead > 0 its own defaults"
    )
    optimizer: PolicyOptimizer = Field(default=PolicyOptimizer(), description="AdamW and its schedule")
    validation: ValidationSettings | None = Field(default=None, description="measure on other prompts, now and then")
    audit: StageAudit | None = Field(default=None, description="what the reward must withstand, and who watches it")

    @property
    def correction(self) -> ImportanceSettings | None:
        """The importance weights. Answers that are written ahead have them by default: the decoupled objective.

        π_prox is the policy before the step, π_b the one that wrote: min(π_prox / π_b, cap) · clip(π / π_prox) · A.
        "Batch size-invariance for policy optimization" (2110.00641), "AReaL" (2505.24298).
        """
        decoupled = self.ahead > 0 and self.old_logprobs != "sampler"
        return ImportanceSettings() if decoupled and self.importance is None else self.importance

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        from rewardsmith.algorithms.advantages import compares, values_from  # noqa: PLC0415 loads torch; so did the choice

        advantage, compared = f'the advantage "{self.advantage.name}"', compares(self.advantage.target)
        needs, combine = values_from(self.advantage.target), getattr(self.advantage.slot, "combine", "")
        if compared and self.rollouts_per_prompt < 2:
            yield f"{advantage} compares the answers to a prompt: rollouts_per_prompt must be at least 2"
        if not compared and "drop-component" in policies(self.reward):
            yield (
                f'failure.do = "drop-component" keeps the answers to one prompt on one scale, but {advantage} compares'
                ' prompts with each other: use "drop-rollout"'
            )
        if self.kl.reference == self.model:
            yield "kl.reference is the policy itself, from which it never differs: leave it out"
        if self.importance is not None and self.old_logprobs == "sampler":
            yield 'importance weights need the learner\'s log-probabilities: set old_logprobs = "auto"'
        if needs == "critic" and self.critic is None:
            yield f'{advantage} needs a critic: critic = {{ model = "…" }}'
        if needs != "critic" and self.critic is not None:
            yield f'{advantage} has no use for a critic: remove it, or use "gae"'
        yield from policy_problems(
            self, advantage=self.advantage.name, compares=compared, combine=combine, values=needs
        )
        if combine == "after" and (self.overlong is not None or self.kl.in_reward[0]):
            yield (
                'combine = "after" would scale the penalty for length or KL on its own: use combine = "before", or'
                ' kl.place = "loss"'
            )
        if needs and combine == "after":
            yield f'{advantage} has one baseline: use combine = "before"'
        if self.mini_batches > self.prompts_per_step:
            yield f"{self.mini_batches} mini_batches of {self.prompts_per_step} groups: some would be empty"
        if self.overlong is not None:
            yield from self.overlong.problems(self.sampling.max_tokens)
        if self.kl.reference in [*learning_models(self.reward), *([self.critic.model] if self.critic else [])]:
            yield (
                f'kl.reference = "{self.kl.reference}" learns in this stage, and a reference stays as it is: name a'
                f' model of its own, such as one with copy_of = "{self.kl.reference}"'
            )


STAGES: dict[str, type[Settings]] = {
    "sft": SftStage,
    "reward_model": RewardModelStage,
    "process_model": ProcessModelStage,
    "policy": PolicyStage,
    "evaluate": EvaluateStage,
    "evaluate_reward": EvaluateReward,
    "audit": AuditReward,
    "generate": GenerateStage,
}
