"""A job: one settings class with one `run`. It is a stage of a recipe, and a command whose flags are its settings.

    class CountLetters(Job):
        \"\"\"Count the letters of a text.\"\"\"

        arguments: ClassVar[tuple[str, ...]] = ("text",)
        text: str = Field(description="the text to count in")

        async def run(self, context: JobContext) -> Result:
            return Result(metrics={"letters": len(self.text)})

A setting that chooses a reward is a table in a recipe, and `--reward RECIPE[:PATH]` on the command line. One that names
data is `data = "NAME"` in a recipe, and a file or `RECIPE.toml:NAME` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rewardsmith.config import Chosen, Settings


@dataclass(frozen=True)
class Result:
    """What a job returns: the run writes it to a file, the command prints it."""

    metrics: Mapping[str, float] = field(default_factory=dict)  # finite
    tables: Sequence[Any] = ()  # `rewardsmith.console.Table`s, for people and for the report
    notes: Sequence[str] = ()  # sentences that are printed below the tables
    facts: Mapping[str, Any] = field(default_factory=dict)  # further JSON values for `--json`
    failed: float = 0.0  # share of the items without a result; the command ends with status 1 above `--fail-above`
    problem: str = ""  # a requirement that does not hold: the command ends with status 1, and a run stops

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, for `--json` and for the files of a run."""
        return {"metrics": dict(self.metrics), "tables": [table.as_json() for table in self.tables], **self.facts}


class JobContext(Protocol):
    """What a run, or a command, gives its jobs."""

    seed: int
    fresh: bool  # whether results of an earlier start are to be discarded

    @property
    def folder(self) -> Path:
        """The run folder; of a command an empty one that is removed when the command ends well."""
        ...

    @property
    def model_tables(self) -> Mapping[str, Chosen]:
        """The `[models]` of the recipe or of the command."""
        ...

    def model(self, name: str) -> Any:
        """Return a model as rewards use it (`rewardsmith.llm`), opened when it is first used."""
        ...

    def reward(self, chosen: Chosen) -> Any:
        """Return the reward that a table describes (`rewards.component.Component`), with its models."""
        ...

    def source(self, name: str) -> Any:
        """Return a data source of the recipe."""
        ...

    def log(self, text: str) -> None:
        """Print a line above the progress bar, and write it to the log."""
        ...

    def progress(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show how far a phase is; a total of 0 is unknown. It is cheap enough to be called for every token."""
        ...

    def pause(self) -> None:
        """Raise if the user wants to stop. Call it where everything that is done is also saved."""
        ...


class StageSettings(Settings):
    """What every stage of a recipe has."""

    runs_by: ClassVar[str]  # `module:Name` of what is called with the settings and the context
    trains_rewards: ClassVar[bool] = False  # its trainer scores implicit rewards; elsewhere they are called like others

    @property
    def reads(self) -> str:
        """What it reads of its data, such as `prompts`."""
        return "prompts"


class Job(StageSettings):
    """Something a user can run; `arguments` are the settings that are positional on the command line, in order."""

    arguments: ClassVar[tuple[str, ...]] = ()
    keeps_ids: ClassVar[bool] = (
        False  # whether its output names prompts by the ids of a file, which must be unique then
    )
    runs_by: ClassVar[str] = "rewardsmith.trainers.trainer:JobStage"

    @classmethod
    def fill(cls, given: Mapping[str, Any], inputs: Any, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the settings of a command line, with what follows from them; `inputs` are its rewards and data."""
        return dict(given)

    async def run(self, context: JobContext) -> Result:
        """Do it."""
        raise NotImplementedError
