"""What a run came to: its stages, and their validation before and after."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from rewardsmith.llm import Usage
from rewardsmith.trainers.trainer import Update
from rewardsmith.viewer.display_rules import chance_of, is_share, results


@dataclass
class StageSummary:
    """One stage: `done` of `steps` steps, and its first and last validation.

    A stage that trains process reward models without a validation has their metrics on fresh rollouts in `after`.
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
    """A run: `state` is `running`, `finished`, `stopped` or `failed`; `stages` are those that have begun."""

    title: str
    state: str = "running"
    seconds: float = 0.0
    stages: list[StageSummary] = field(default_factory=list)
    models: dict[str, Usage] = field(default_factory=dict)
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # when it started, versions, devices; for the report

    def begin(self, name: str, kind: str, steps: int) -> None:
        """Begin a stage, or resume it with a number of steps that the recipe may have changed."""
        known = [stage for stage in self.stages if stage.name == name]
        self.stages += [] if known else [StageSummary(name, kind, steps)]
        for stage in known:
            stage.steps = steps

    def add(self, name: str, update: Update, seconds: float) -> None:
        """Add the validation of a step; `seconds` is the time since the run began."""
        stage = next(stage for stage in self.stages if stage.name == name)
        stage.done = update.step
        stage.seconds = seconds - sum(other.seconds for other in self.stages if other is not stage)
        measured = {metric: value for metric, value in update.metrics.items() if metric.startswith("validation/")}
        if measured:
            stage.after = measured
            if update.step == 0:
                stage.before = measured
        elif stage.type == "process_model" and not any(name.startswith("validation/") for name in stage.after):
            # A step may lack one: the value of an earlier step stays.
            stage.after = stage.after | {name: v for name, v in update.metrics.items() if _LEARNED.fullmatch(name)}

    def dumps(self) -> str:
        """Return the summary as a JSON file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> Summary:
        """Return the summary of a run that is resumed."""
        stages = [StageSummary(**stage) for stage in table["stages"]]
        models = {name: Usage(**used) for name, used in table["models"].items()}
        return cls(table["title"], "running", table["seconds"], stages, models, facts=table.get("facts", {}))

    def table(self) -> Table:
        """Return the table of before and after that a user sees at the end, without columns that would be empty."""
        rows = []
        for stage in self.stages:
            both = (stage.before, stage.after)
            for i, name in enumerate(results(*both) or [""]):
                share, chance = is_share(name, both), stage.after.get(chance_of(name))
                label = name.removeprefix("validation/")
                label += "" if chance is None else f" (chance {_format(chance, share)})"
                head = (stage.name, f"{stage.seconds:.0f} s") if i == 0 else ("", "")
                rows.append((head[0], label, *(_format(side.get(name), share) for side in both), head[1]))
        table = Table(title=self.title or None, title_style="bold", title_justify="left")
        shown = [i for i in range(len(_HEADS)) if any(row[i] for row in rows)]
        for i in shown:
            table.add_column(_HEADS[i], justify="left" if _HEADS[i] in ("stage", "measure") else "right")
        for row in rows:
            table.add_row(*(row[i] for i in shown))
        return table


_HEADS = ("stage", "measure", "before", "after", "time")
_LEARNED = re.compile(r"learned/.+/(accuracy_fresh|loss)")


def _format(value: float | None, share: bool) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if share else f"{value:.4g}"
