"""What runs a model: `protocol.py` is the seam, `embedded/` runs Hugging Face models in this process."""

from rewardsmith.engines.settings import ModelSettings, OptimizerSettings

__all__ = ["ModelSettings", "OptimizerSettings"]
