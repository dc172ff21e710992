"""Data for a model that ranks groups (GQM, the group quality metric): from groups with scores to training rows."""

from rewardsmith.data.gqm.letters import Doubtful, find_mentions
from rewardsmith.data.gqm.prepare import Prepared, prepare_gqm
from rewardsmith.data.gqm.reading import GroupColumns, GroupReader
from rewardsmith.data.gqm.settings import GqmSettings
from rewardsmith.data.gqm.variants import Variant, variants_of

__all__ = [
    "Doubtful",
    "GqmSettings",
    "GroupColumns",
    "GroupReader",
    "Prepared",
    "Variant",
    "find_mentions",
    "prepare_gqm",
    "variants_of",
]
