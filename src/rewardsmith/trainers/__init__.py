"""The stages of a recipe, by name."""

from rewardsmith.components import Settings
from rewardsmith.trainers.evaluate import EvaluateStage
from rewardsmith.trainers.policy import PolicyStage
from rewardsmith.trainers.sft import SftStage

STAGES: dict[str, type[Settings]] = {
    "sft": SftStage,
    "policy": PolicyStage,
    "evaluate": EvaluateStage,
}

__all__ = ["STAGES", "EvaluateStage", "PolicyStage", "SftStage"]
