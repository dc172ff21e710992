"""Two steps of every arm with a tiny model, to see that everything runs; nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rewardsmith.data import SOURCES
from rewardsmith.text.rankings import write_ranking
from rewardsmith.types import Demonstration, Prompt

Table = dict[str, Any]

EASY = {"steps": 2, "largest": 20, "facts": 0.0}
PAIRS = {"min_candidates": 2, "max_candidates": 2}
SIZES = {"steps": 2, "batch_size": 4, "prompts_per_step": 4, "prompts": 3, "rollouts_per_prompt": 2, "items": 3}
"""Of a stage that has such a setting."""

VERDICTS = {
    "word-problems-grading": ("Total Score: 7/10", 60),
    "word-problems-ranking": (write_ranking({"A": 8, "B": 6}, "So."), 120),
}
"""The verdict that a judge of each world learns to write, and the steps that this takes."""

SOMETIMES = {"type": "rule", "rule": {"type": "regex", "pattern": "[a-p]"}}
"""A rule that holds for some answers of a model that knows nothing."""


class OneReply:
    """The prompts of a data source, each with the same reply: a judge learns the form of a verdict from it, no more."""

    def __init__(self, source: Table, reply: str) -> None:
        settings = {name: value for name, value in source.items() if name != "type"}
        self._source, self._reply = SOURCES[source["type"]](**settings), reply

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the prompts of the source."""
        return self._source.prompts(seed)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield them with the reply."""
        return (Demonstration(prompt, self._reply) for prompt in self.prompts(seed))


def make_tiny(table: Table) -> None:
    """Change the data and the stages of a recipe so that a tiny model runs them on a CPU in seconds."""
    for source in table["data"].values():
        if source["type"].startswith("word-problems"):
            source.update(EASY)
        if source["type"] == "word-problems-ranking":
            source.update(PAIRS)
    for stage in table["stages"]:
        stage.update({name: size for name, size in SIZES.items() if name in stage})
        if "sampling" in stage:
            stage["sampling"]["max_tokens"] = 80 if stage["name"].endswith("_rl") else 16
        if stage["type"] == "policy":
            stage.update({"rollouts_per_prompt": 2, "select": {"constant": "keep"}})
            stage["validation"].update({"every": 1, "prompts": 3})
            _replace(stage["reward"], {"type": "rule", "rule": "word_problem"}, SOMETIMES)
        if stage["type"] == "audit":
            stage["prompts"] = 4
        if stage["name"] == "cold_start":
            source = table["data"][stage["data"]]
            verdict, steps = VERDICTS[source["type"]]
            table["data"]["verdicts"] = OneReply(source, verdict)
            stage.update({"data": "verdicts", "steps": steps, "batch_size": 8})
            stage["optimizer"] = {"lr": 3e-3, "schedule": "linear"}


def _replace(table: Any, old: Table, new: Table) -> None:
    """Replace a table wherever it stands in another one, in place."""
    if table == old:
        table.clear()
        table.update(new)
        return
    for value in table.values() if isinstance(table, dict) else ():
        _replace(value, old, new)
