"""Where prompts and demonstrations come from, by name."""

from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.data.files import Jsonl, Parquet
from rewardsmith.data.protocol import (
    DemonstrationSource,
    GradedSource,
    PreferenceSource,
    RankingSource,
    Reads,
    Source,
)
from rewardsmith.data.reasoning_gym import ReasoningGym

SOURCES: dict[str, type[Source]] = {
    "arithmetic": Arithmetic,
    "jsonl": Jsonl,
    "parquet": Parquet,
    "reasoning-gym": ReasoningGym,
}

__all__ = [
    "SOURCES",
    "Arithmetic",
    "DemonstrationSource",
    "GradedSource",
    "Jsonl",
    "Parquet",
    "PreferenceSource",
    "RankingSource",
    "Reads",
    "ReasoningGym",
    "Source",
]
