"""A run folder as a Python object: its metrics and rollouts as rows, its models, its recipe."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.records import flat_rows
from rewardsmith.runs.folder import EVALUATIONS, METRICS, RECIPE, SUMMARY
from rewardsmith.runs.stored_rollouts import RolloutJob, StoredGroup, StoredRollouts


class TrainedRun:
    """The results of a run, finished or not: whatever its folder has at the time of the call.

    Attributes:
        folder: the run folder.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, str | Path):
            raise UserError(f"the folder of a run is a path; this is a {type(folder).__name__}")
        self.folder = Path(folder).expanduser()
        if not self.folder.is_dir():
            raise UserError(f"there is no folder {str(folder)!r}: name the folder of a run, such as runs/quickstart")
        if not (self.folder / RECIPE).is_file():
            parent = self.folder.parent
            known = [path.name for path in parent.iterdir() if (path / RECIPE).is_file()] if parent.is_dir() else []
            hint = nearest(self.folder.name, known)
            raise UserError(f"{str(folder)!r} is no run folder: it has no {RECIPE}.{hint} Known: {listing(known)}")

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: the state, the stages with what was measured before and after, the usage of models."""
        return dict(json.loads((self.folder / SUMMARY).read_text(encoding="utf-8")))

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped` or `failed`."""
        return str(self.summary["state"])

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with all its defaults, as a table that `rewardsmith.train` takes."""
        return tomllib.loads((self.folder / RECIPE).read_text(encoding="utf-8"))

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    @property
    def models(self) -> dict[str, Path]:
        """The folders of the models that the run has published, in the format of Hugging Face."""
        return {path.name: path for path in sorted((self.folder / "models").glob("*")) if path.is_dir()}

    def metrics(self, stage: str | None = None) -> list[dict[str, Any]]:
        """Return one flat table for each step: `stage`, `step`, `seconds` and the metrics; None where not finite.

        `pandas.DataFrame(run.metrics("policy")).plot(x="step", y="reward/mean")`
        """
        file = self.folder / METRICS
        rows = []
        for line in file.read_bytes().splitlines(keepends=True) if file.exists() else ():
            if not line.endswith(b"\n"):
                continue  # the run is writing it
            row = json.loads(line)
            metrics = row.pop("metrics")
            rows.append({**row, **metrics})
        known = list(dict.fromkeys(row["stage"] for row in rows))
        if stage is not None and rows and stage not in known:
            raise UserError(f"the run has no metrics of a stage {stage!r}.{nearest(stage, known)} Known: {known}")
        return [row for row in rows if stage in (None, row["stage"])]

    def rollouts(
        self,
        stage: str | None = None,
        *,
        kind: Literal["train", "validation"] | None = None,
        step: int | str | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return one flat table for each rollout: text, reward, failure, advantage, and a column for each part.

        Args:
            stage: only this stage.
            kind: only the groups that were learned from, or those of validations.
            step: a step such as 40, or a range such as "40-60".
            limit: only the first groups.
        """
        rows = []
        for stored in self.groups(stage, kind=kind, step=step, limit=limit):
            record = stored.record
            assert record is not None  # this is a run
            place = {"stage": stored.file.stem, "step": record.step, "kind": record.kind, "dropped": record.dropped}
            rows += [{**place, **row} for row in flat_rows(record.scored, record.advantages)]
        return rows

    def groups(
        self,
        stage: str | None = None,
        *,
        kind: Literal["train", "validation"] | None = None,
        step: int | str | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredGroup]:
        """Yield the groups themselves, with prompt, rollouts and scores; the arguments are those of `rollouts`."""
        steps = None if step is None else str(step)
        return iter(
            StoredRollouts(RolloutJob(rollouts=str(self.folder), stage=stage, kind=kind, step=steps, limit=limit))
        )

    def evaluations(self) -> dict[str, Any]:
        """Return what the stages of the run have measured, by the name of the stage."""
        files = sorted((self.folder / EVALUATIONS).glob("*.json"))
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.folder)!r}, {self.state})"
