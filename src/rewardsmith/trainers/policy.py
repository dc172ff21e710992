"""Reinforcement learning of a policy against a reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.components import Choice, Chosen, Settings, named
from rewardsmith.trainers.settings import DataName, ModelName, OptimizerSettings, RewardChoice, SamplingSettings

LossChoice = Annotated[Chosen, Choice("policy loss", "rewardsmith.algorithms.policy_losses:POLICY_LOSSES")]
ReductionChoice = Annotated[Chosen, Choice("reduction", "rewardsmith.algorithms.reductions:REDUCTIONS")]


class CreditSettings(Settings):
    """How the parts of a reward meet the estimator."""

    combine: Literal["before", "after"] = Field(
        default="before", description="sum the reward's parts and estimate once, or estimate each part and then sum"
    )
    whiten: bool = Field(default=False, description="scale the result to mean 0, variance 1 over the batch")


AdvantageChoice = Annotated[Chosen, Choice("advantage", "rewardsmith.algorithms.advantages:ADVANTAGES", CreditSettings)]


class KlSettings(Settings):
    """Keep the policy near a reference."""

    coefficient: float = Field(default=0.0, ge=0, description="weight of the penalty; 0 is off")
    place: Literal["reward", "loss"] = Field(
        default="loss", description="subtract it from the reward or add it to the loss"
    )
    estimator: Literal["k1", "k2", "k3"] = Field(default="k2", description="k1 belongs in the reward, k2 in the loss")


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
    advantage: AdvantageChoice = Field(default=named("grpo"), description="who gets the credit")
    loss: LossChoice = Field(default=named("clip"), description="how far an advantage may move the policy")
    reduction: ReductionChoice = Field(default=named("token-mean"), description="from a loss per token to one number")
    kl: KlSettings = Field(default=KlSettings(), description="distance from the reference policy")
    optimizer: OptimizerSettings = Field(default=OptimizerSettings(lr=1e-6), description="AdamW and its schedule")
