"""The loops. `stages.py` says what a recipe may ask for; each stage names the trainer that does it."""

from rewardsmith.trainers.stages import STAGES, PolicyStage, SftStage

__all__ = ["STAGES", "PolicyStage", "SftStage"]
