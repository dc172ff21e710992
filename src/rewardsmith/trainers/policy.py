"""Reinforcement learning of a policy against a reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rewardsmith.components import DEFAULT, Choice, Chosen, Settings
from rewardsmith.trainers.settings import DataName, ModelName, OptimizerSettings, RewardChoice, SamplingSettings


class CreditSettings(Settings):
    """How the parts of a reward meet the estimator."""

    combine: Literal["before", "after"] = Field(
        default="before", description="sum the reward's parts and estimate once, or estimate each part and then sum"
    )
    whiten: bool = Field(default=False, description="scale the result to mean 0, variance 1 over the batch")


AdvantageChoice = Annotated[
    Chosen,
    Choice("advantage", "rewardsmith.algorithms.advantages:ADVANTAGES", CreditSettings, default="grpo", inputs=5),
]
LossChoice = Annotated[
    Chosen, Choice("policy loss", "rewardsmith.algorithms.policy_losses:POLICY_LOSSES", default="clip", inputs=4)
]
ReductionChoice = Annotated[
    Chosen, Choice("reduction", "rewardsmith.algorithms.reductions:REDUCTIONS", default="token-mean", inputs=2)
]


class KlSettings(Settings):
    """Keep the policy near a reference."""

    coefficient: float = Field(default=0.0, ge=0, description="weight of the penalty; 0 is off")
    place: Literal["reward", "loss"] = Field(
        default="loss", description="subtract it from the reward or add it to the loss"
    )
    estimator: Literal["auto", "k1", "k2", "k3"] = Field(
        default="auto", description="auto is k1 in the reward and k2 in the loss, the ones with the right gradient"
    )

    @model_validator(mode="after")
    def _means_something(self) -> KlSettings:
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError('k1 in the loss has no gradient but noise: use place = "reward", or estimator = "k2"')
        return self


class PolicyOptimizer(OptimizerSettings):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")


class PolicyStage(Settings):
    """Sample groups of answers, score them, and move the policy towards the better ones."""

    name: str = Field(default="policy", min_length=1, description="what to call this stage in the run's files")
    model: ModelName = Field(description="the model to train")
    data: DataName = Field(description="where the prompts come from")
    steps: int = Field(ge=1, description="how many times to sample, score and update")
    prompts_per_step: int = Field(default=32, ge=1, description="groups per step")
    rollouts_per_prompt: int = Field(default=8, ge=1, description="answers to each prompt: the size of a group")
    mini_batches: int = Field(default=1, ge=1, description="optimizer steps per pass over the sampled groups")
    epochs: int = Field(default=1, ge=1, description="passes over the sampled groups")
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what an answer is worth")
    advantage: AdvantageChoice = Field(default=DEFAULT, description="who gets the credit")
    loss: LossChoice = Field(default=DEFAULT, description="how far an advantage may move the policy")
    reduction: ReductionChoice = Field(default=DEFAULT, description="from a loss per token to one number")
    kl: KlSettings = Field(default=KlSettings(), description="distance from the reference policy")
    optimizer: PolicyOptimizer = Field(default=PolicyOptimizer(), description="AdamW and its schedule")
