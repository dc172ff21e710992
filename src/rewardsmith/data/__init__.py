"""Where prompts and demonstrations come from, by name."""

from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.data.arithmetic_grading import ArithmeticGrading
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
from rewardsmith.data.translation import Translation
from rewardsmith.data.translation_ranking import TranslationRanking

SOURCES: dict[str, type[Source]] = {
    "arithmetic": Arithmetic,
    "arithmetic-grading": ArithmeticGrading,
    "jsonl": Jsonl,
    "parquet": Parquet,
    "reasoning-gym": ReasoningGym,
    "translation": Translation,
    "translation-ranking": TranslationRanking,
}

__all__ = [
    "SOURCES",
    "Arithmetic",
    "ArithmeticGrading",
    "DemonstrationSource",
    "GradedSource",
    "Jsonl",
    "Parquet",
    "PreferenceSource",
    "RankingSource",
    "Reads",
    "ReasoningGym",
    "Source",
    "Translation",
    "TranslationRanking",
]
