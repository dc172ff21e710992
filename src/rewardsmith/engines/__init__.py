"""What runs a model. `MODELS` are the kinds that a `[models.NAME]` table can be; importing this loads no torch."""

from rewardsmith.config import Settings
from rewardsmith.engines.model_settings import ManagedSettings, ModelSettings, SentenceSettings, ServerSettings
from rewardsmith.learning import OptimizerSettings

MODELS: dict[str, type[Settings]] = {
    "embedded": ModelSettings,
    "server": ServerSettings,
    "managed": ManagedSettings,
    "sentences": SentenceSettings,
}

__all__ = ["MODELS", "ModelSettings", "OptimizerSettings"]
