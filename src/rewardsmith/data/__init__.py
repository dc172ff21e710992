"""Where prompts and demonstrations come from, by name."""

from rewardsmith.config import Chosen
from rewardsmith.data.arithmetic import Arithmetic, ArithmeticGrading
from rewardsmith.data.files import Jsonl, Parquet
from rewardsmith.data.own import OwnSource
from rewardsmith.data.reasoning_gym import ReasoningGym
from rewardsmith.data.source import (
    DemonstrationSource,
    GradedSource,
    PreferenceSource,
    RankingSource,
    Reads,
    Source,
)
from rewardsmith.data.translation import Translation, TranslationRanking

SOURCES: dict[str, type[Source]] = {
    "arithmetic": Arithmetic,
    "arithmetic-grading": ArithmeticGrading,
    "jsonl": Jsonl,
    "parquet": Parquet,
    "reasoning-gym": ReasoningGym,
    "translation": Translation,
    "translation-ranking": TranslationRanking,
}


def open_source(name: str, chosen: Chosen) -> Source:
    """Return the data source that a table of a recipe describes; what a user's own gives is checked as it comes.

    Args:
        name: of the table.
        chosen: what it says.
    """
    source: Source = chosen.build()
    return OwnSource(f"data.{name} ({chosen.name})", source) if ":" in chosen.name else source


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
    "open_source",
]
