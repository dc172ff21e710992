"""What runs a model. The table that describes one is here; the engines themselves come with the first trainer."""

from rewardsmith.engines.settings import ModelSettings

__all__ = ["ModelSettings"]
