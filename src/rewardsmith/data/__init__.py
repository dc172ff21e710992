"""Where prompts and demonstrations come from, by name."""

from rewardsmith.config import Choice, Chosen
from rewardsmith.data.arithmetic import Arithmetic, ArithmeticGrading
from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.data.reasoning_gym import ReasoningGym
from rewardsmith.data.row_sources import Jsonl, Parquet, Rows
from rewardsmith.data.source import CheckedSource, Reads, Source
from rewardsmith.data.translation import Translation, TranslationRanking
from rewardsmith.data.word_problems import WordProblemGrading, WordProblemRanking, WordProblems

SOURCES: dict[str, type[Source]] = {
    "arithmetic": Arithmetic,
    "arithmetic-grading": ArithmeticGrading,
    "jsonl": Jsonl,
    "parquet": Parquet,
    "reasoning-gym": ReasoningGym,
    "translation": Translation,
    "translation-ranking": TranslationRanking,
    "word-problems": WordProblems,
    "word-problems-grading": WordProblemGrading,
    "word-problems-ranking": WordProblemRanking,
}

SOURCE = Choice(
    "data source", "rewardsmith.data:SOURCES", methods=("prompts",), wraps="rewardsmith.data.row_sources:Rows"
)
"""The choice of a data source; from Python also rows: a list of tables, a pandas frame, a `datasets.Dataset`."""


def open_source(name: str, chosen: Chosen) -> Source:
    """Return the data source that the table `name` of a recipe describes; items of a user's own are checked."""
    source: Source = chosen.build()
    is_own = ":" in chosen.name and not isinstance(source, Rows)
    return CheckedSource(f"data.{name} ({chosen.name})", source) if is_own else source


__all__ = [
    "SOURCE",
    "SOURCES",
    "Arithmetic",
    "ArithmeticGrading",
    "Jsonl",
    "KnownAnswer",
    "Parquet",
    "Reads",
    "ReasoningGym",
    "Rows",
    "Source",
    "Translation",
    "TranslationRanking",
    "WordProblemGrading",
    "WordProblemRanking",
    "WordProblems",
    "open_source",
]
