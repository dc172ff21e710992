"""Stored rollouts as rows: which files of a run hold them, which are selected, and a group as a row of a table.

A line is a group of a run with its step and scores, a scored group, or a group alone, as `records.py` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rewardsmith.config import Settings
from rewardsmith.data.rows import Row, RowError
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.records import from_json
from rewardsmith.types import RolloutGroup, ScoredGroup

TABLE = "row of a table"
OF_RUN = "group of a run"

# The keys of a line, by form; a row of a table is whatever has none of these.
_FORMS = {
    OF_RUN: {"step", "kind", "scored"},
    "scored group": {"group", "scores"},
    "group of rollouts": {"prompt", "rollouts"},
}


def form_of(row: Row) -> str:
    """Return in which form a line holds rollouts."""
    return next((form for form, keys in _FORMS.items() if keys <= row.keys()), TABLE)


class RolloutSelection(Settings):
    """Which rollouts of a run are read."""

    stage: str | None = Field(default=None, description="of a run folder: only this stage")
    kind: Literal["train", "validation"] | None = Field(default=None, description="of a run: only these groups")
    step: str | None = Field(default=None, description="of a run: N or N-M, only this step or these")

    @property
    def flags(self) -> str:
        """The selection as one writes it on the command line."""
        given = {"--stage": self.stage, "--kind": self.kind, "--step": self.step}
        return " ".join(f"{name} {value}" for name, value in given.items() if value is not None)


class SelectedRollouts:
    """The files and lines that a selection takes of a run folder, or of a file."""

    def __init__(self, selection: RolloutSelection, path: str) -> None:
        self._selection = selection
        self._steps = None if selection.step is None else _parse_steps(selection.step)
        self.in_run = is_run(path)
        if selection.stage is not None and not self.in_run:
            raise UserError(f"--stage selects a file of a run folder, and {path!r} is none: leave it out")

    def takes(self, row: Row) -> bool:
        """Return whether a line is selected; see `require_form` for one that has no step and kind."""
        if form_of(row) != OF_RUN:
            return True
        return self._selection.kind in (None, row["kind"]) and (self._steps is None or row["step"] in self._steps)

    def require_form(self, form: str) -> None:
        """Raise a `RowError` if lines of this form cannot be selected by step and kind, and should be."""
        if form != OF_RUN and (self._selection.kind is not None or self._steps is not None):
            raise RowError(f"this is a {form}, which has no step or kind: leave out --kind and --step")


def _parse_steps(text: str) -> range:
    """Return the steps of `40` or `40-60`."""
    first, dash, last = text.strip().partition("-")
    ends = [first, last if dash else first]
    if not all(end.isdecimal() and end.isascii() and len(end) < 10 for end in ends) or int(ends[0]) > int(ends[1]):
        raise UserError(f"cannot read --step {text!r}: write a step such as 40, or the first and the last as 40-60")
    return range(int(ends[0]), int(ends[1]) + 1)


def is_run(path: str) -> bool:
    """Whether a path is a run folder."""
    return (Path(path).expanduser() / "rollouts").is_dir()


def run_files(folder: Path, stage: str | None) -> list[Path]:
    """Return the files with the rollouts of a run, or of one of its stages."""
    inner = folder.expanduser() / "rollouts"
    if not inner.is_dir():
        raise UserError(
            f"{str(folder)!r} has no folder rollouts, so it is no run: name a run folder, or a JSONL or Parquet file"
        )
    files = {file.stem: file for file in sorted(inner.glob("*.jsonl")) if file.stat().st_size}
    if not files:
        raise UserError(f"{str(inner)!r} has no rollouts: the run has not reached a stage that writes some")
    if stage is not None and stage not in files:
        raise UserError(f"the run has no rollouts of a stage {stage!r}.{nearest(stage, files)} Known: {listing(files)}")
    return [files[stage]] if stage is not None else list(files.values())


def rollout_row(row: Row) -> Row:
    """Return a line of rollouts as a row in the schema of `docs/data.md`: the inverse of `Layout.prompt_of`.

    `responses` are the texts; `scores` the values of their scores, None for one that failed, where there are scores.
    Lines are untrusted: a `RowError` names the field.
    """
    form = form_of(row)
    scored = row["scored"] if form == OF_RUN else row if form == "scored group" else None
    try:
        if scored is None:
            group, scores = from_json(RolloutGroup, row), None
        else:
            checked = from_json(ScoredGroup, scored)
            group, scores = checked.group, [score.value for score in checked.scores]
    except (TypeError, ValueError) as error:  # a `UserError` is a `ValueError`
        raise RowError(str(error)) from None
    except RecursionError:
        raise RowError("nested too deeply") from None
    prompt = (row if scored is None else scored["group"])["prompt"]  # plain JSON values, as other rows have them
    info: Mapping[str, Any] = prompt.get("info") or {}
    truth = info.get("reward_model")
    truth = {**(truth if isinstance(truth, Mapping) else {}), "ground_truth": prompt.get("answer")}
    columns = {
        "id": prompt["id"],
        "prompt": prompt["messages"],
        "data_source": prompt.get("source", ""),
        "reward_model": truth,
        "responses": [rollout.text for rollout in group.rollouts],
    }
    return {**info, **columns, **({} if scores is None else {"scores": scores})}
