"""The loops. `stages.py` has the stages of a recipe; each names its trainer."""

from rewardsmith.trainers.stages import STAGES, PolicyStage, SftStage

__all__ = ["STAGES", "PolicyStage", "SftStage"]
