"""Where prompts and demonstrations come from, by name."""

from rewardsmith.config import Chosen
from rewardsmith.data.arithmetic import Arithmetic, ArithmeticGrading
from rewardsmith.data.reasoning_gym import ReasoningGym
from rewardsmith.data.row_items import Jsonl, Parquet
from rewardsmith.data.source import CheckedSource, Reads, Source
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
    """Return the data source that the table `name` of a recipe describes; items of a user's own are checked."""
    source: Source = chosen.build()
    return CheckedSource(f"data.{name} ({chosen.name})", source) if ":" in chosen.name else source


__all__ = [
    "SOURCES",
    "Arithmetic",
    "ArithmeticGrading",
    "Jsonl",
    "Parquet",
    "Reads",
    "ReasoningGym",
    "Source",
    "Translation",
    "TranslationRanking",
    "open_source",
]
