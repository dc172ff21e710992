"""What a run came to: its stages, and their validation before and after."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from rewardsmith.llm import Usage
from rewardsmith.runs.forms import chance_of, is_share, results
from rewardsmith.trainers.trainer import Update


@dataclass
class StageSummary:
    """One stage.

    Attributes:
        name: of the stage.
        type: of the stage.
        steps: how many the recipe gives it.
        done: how many it has taken.
        seconds: how long it took.
        before: the first validation.
        after: the last validation; where process reward models learn without any, what they know of fresh rollouts.
    """

    name: str
    type: str
    steps: int
    done: int = 0
    seconds: float = 0.0
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)


@dataclass
class Summary:
    """A run.

    Attributes:
        title: of the recipe.
        state: `running`, `finished`, `stopped` or `failed`.
        seconds: how long it took so far.
        stages: those that have begun.
        models: what was asked of each model for rewards, before a resume too.
        error: what ended the run, in the words that the user was shown; "" unless it failed.
    """

    title: str
    state: str = "running"
    seconds: float = 0.0
    stages: list[StageSummary] = field(default_factory=list)
    models: dict[str, Usage] = field(default_factory=dict)
    error: str = ""

    def begin(self, name: str, kind: str, steps: int) -> int:
        """A stage begins, or goes on; return how many steps it had before, which the recipe may have changed."""
        stage = next((stage for stage in self.stages if stage.name == name), None)
        if stage is None:
            self.stages.append(StageSummary(name, kind, steps))
            return steps
        before, stage.steps = stage.steps, steps
        return before

    def note(self, name: str, update: Update, seconds: float) -> None:
        """Take over what a step says about validation; `seconds` is the time since the run began."""
        stage = next(stage for stage in self.stages if stage.name == name)
        stage.done = update.step
        stage.seconds = seconds - sum(other.seconds for other in self.stages if other is not stage)
        measured = {metric: value for metric, value in update.metrics.items() if metric.startswith("validation/")}
        if measured:
            stage.after = measured
            if update.step == 0:
                stage.before = measured
        elif stage.type == "process_model" and not any(name.startswith("validation/") for name in stage.after):
            # A step may lack one: what an earlier step said stays.
            stage.after = stage.after | {name: v for name, v in update.metrics.items() if _LEARNED.fullmatch(name)}

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    def dumps(self) -> str:
        """Return the summary as a JSON file."""
        return json.dumps(self.as_json(), indent=2) + "\n"

    @classmethod
    def of(cls, table: dict[str, Any]) -> Summary:
        """Return the summary that `as_json` returned."""
        # Earlier versions did not write how many steps were taken.
        stages = [StageSummary(**{"done": stage["steps"], **stage}) for stage in table["stages"]]
        models = {name: Usage(**used) for name, used in table.get("models", {}).items()}
        return cls(str(table["title"]), "running", float(table["seconds"]), stages, models)

    def table(self) -> Table:
        """Return the table of before and after that a user sees at the end, without columns that would be empty."""
        rows = [row for stage in self.stages for row in _rows(stage)]
        shown = [i for i, head in enumerate(_HEADS) if head in ("stage", "time") or any(row[i] for row in rows)]
        table = Table(title=self.title or None, title_style="bold", title_justify="left")
        for i in shown:
            table.add_column(_HEADS[i], justify="left" if _HEADS[i] in ("stage", "measure") else "right")
        for row, following in zip(rows, [*rows[1:], _HEADS], strict=True):
            table.add_row(*(row[i] for i in shown), end_section=bool(following[0]))
        return table


_HEADS = ("stage", "measure", "before", "after", "time")
_LEARNED = re.compile(r"learned/.+/(accuracy_fresh|loss)")


def _rows(stage: StageSummary) -> Iterator[tuple[str, ...]]:
    """Yield a row for each measure, at least one; the first one names the stage."""
    both = (stage.before, stage.after)
    for i, name in enumerate(results(*both) or [""]):
        share, chance = is_share(name, both), stage.after.get(chance_of(name))
        sides = (_shown(side.get(name), share) for side in both)
        told = name.removeprefix("validation/") + ("" if chance is None else f" (chance {_shown(chance, share)})")
        yield (stage.name if i == 0 else "", told, *sides, f"{stage.seconds:.0f} s" if i == 0 else "")


def _shown(value: float | None, share: bool) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if share else f"{value:.4g}"
