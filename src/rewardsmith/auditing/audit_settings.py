"""The settings of an audit: those of the job, which are also those of the gate of a policy stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, Strict, field_validator, model_validator

from rewardsmith.auditing.attacks import FAMILIES
from rewardsmith.auditing.findings import check_requirements
from rewardsmith.auditing.user_probes import FAMILY as OWN
from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.failures import in_place

RewardTable = Annotated[Chosen, in_place()]

FileName = Annotated[Path, Strict(False), AfterValidator(Path.expanduser)]
"""A path, or text as a recipe has it; like the paths of data it is relative to the current folder."""


class ProbeSettings(Settings):
    """What an audit tries, and what it requires."""

    rare: ClassVar[frozenset[str]] = frozenset(
        {"threshold", "reference_threshold", "max_attacks", "own_attacks", "repeats", "orders", "samples"}
    )

    reference: RewardTable | None = Field(
        default=None, description="a second opinion on the policy's answers: a rule, another judge, people's labels"
    )
    reference_threshold: float = Field(
        default=0.5, description="a value of the reference from which on an answer is right"
    )
    require: dict[str, float] = Field(
        default={}, description="limits of the findings, such as { false_positive = 0.02, attack = 0.0 }"
    )
    prompts: int = Field(default=32, ge=2, description="prompts whose answers are attacked and edited")
    samples: int = Field(default=32, ge=0, description="prompts to which the policy writes answers; 0: none")
    threshold: float | None = Field(
        default=None,
        description="a reward from which on an answer is paid for; not set: above the middle between a right and a"
        " wrong answer to the same prompt",
    )
    max_attacks: int | None = Field(
        default=None, ge=1, description="attacks on each prompt; not set: all, and 16 if the reward calls a model"
    )
    own_attacks: FileName | None = Field(default=None, description="file with your own attacks, one to a line")
    repeats: int = Field(default=2, ge=1, description="how often known answers are scored, if the reward calls a model")
    orders: int = Field(default=4, ge=1, description="orders of a group, if the reward compares the answers of one")

    @field_validator("require")
    @classmethod
    def _are_measures(cls, require: dict[str, float]) -> dict[str, float]:
        try:
            check_requirements(require, [*FAMILIES, OWN])
        except UserError as error:
            raise ValueError(str(error)) from None
        return require


class StageAudit(ProbeSettings):
    """Audit the reward of a policy stage: before its first step, and while it learns."""

    rare: ClassVar[frozenset[str]] = ProbeSettings.rare | {"sample", "max_false_discovery", "max_gap", "factor"}

    on_fail: Literal["stop", "warn"] = Field(
        default="stop", description="what a requirement that does not hold does before the first step"
    )
    every: int | None = Field(
        default=None, ge=1, description="steps between two looks of the watch; not set: 10 with a reference, else never"
    )
    sample: int = Field(default=256, ge=8, description="fresh answers that the reference scores at each look")
    max_gap: float = Field(
        default=0.05, ge=0, description="alarm: how far the reference may fall behind what the reward predicts"
    )
    max_false_discovery: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="alarm: share of rewarded answers that the reference rejects; not set: 0.1 above the first look",
    )
    on_alarm: Literal["stop", "warn", "lower"] = Field(
        default="stop", description="what an alarm does: save and stop, warn, or lower the weight of a part"
    )
    lower: str = Field(default="", description='the part of the sum whose weight on_alarm = "lower" lowers')
    factor: float = Field(default=0.5, ge=0, lt=1, description="by which an alarm multiplies that weight")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.on_alarm == "lower") != bool(self.lower):
            raise ValueError('on_alarm = "lower" and lower = "PART" go together: set both, or neither')
        if self.every is not None and self.reference is None:
            raise ValueError("every is set, but no reference: the watch compares the reward with a reference")
        return self

    @property
    def watches(self) -> int:
        """Steps between two looks; 0: never."""
        return 0 if self.reference is None else self.every or 10
