"""Rollouts that were stored: of a run, of this package's records, or a table of prompts with responses.

    for stored in StoredRollouts("runs/quickstart", Wanted(kind="validation")):
        stored.group, stored.scores

The form of a file is told from its first line. Files are untrusted: what is wrong with a line is a `UserError` that
says which line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rewardsmith.checks import require_count, require_text
from rewardsmith.data.readers import find_files, jsonl_rows, names_of, parquet_rows, parse_line, parse_row
from rewardsmith.data.rows import ANSWER, PROMPT, RowError, printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.records import from_json
from rewardsmith.runs.rescoring.rows import Asked, ResponseRows
from rewardsmith.trainers.protocol import GroupRecord
from rewardsmith.types import RolloutGroup, Score, ScoredGroup

SUFFIXES = (".jsonl", ".ndjson", ".parquet")

# What the first line must have, by form; a table of responses is whatever has none of these.
_FORMS = {"record": {"step", "kind", "scored"}, "scored": {"group", "scores"}, "group": {"prompt", "rollouts"}}
_CALLED = {
    "record": "a group of a run",
    "scored": "a scored group",
    "group": "a group of rollouts",
    "table": "a row of a table",
}


@dataclass(frozen=True)
class Wanted:
    """Which groups to read, and where a table has what.

    Attributes:
        stage: of a run; None takes all.
        kind: `train` or `validation`; None takes both.
        steps: first and last step, inclusive; None takes all.
        limit: how many groups at most; None takes all.
        responses: column of a table with a list of responses, or one; None: `responses`, or else `response`.
        answers: column of a table with the right answer.
        prompts: column of a table with the prompt. Columns may be dotted paths.
    """

    stage: str | None = None
    kind: str | None = None
    steps: tuple[int, int] | None = None
    limit: int | None = None
    responses: str | None = None
    answers: str = ANSWER
    prompts: str = PROMPT


@dataclass(frozen=True)
class Stored:
    """One group as it was found.

    Attributes:
        group: the prompt and its rollouts.
        scores: what it was given then, one per rollout; None where that is not known.
        record: the record of the run that it comes from; None where there is none.
        place: the file and line, for messages.
        file: that holds it.
    """

    group: RolloutGroup
    scores: tuple[Score, ...] | None
    record: GroupRecord | None
    place: str
    file: Path = Path()

    def rescored(self, scored: ScoredGroup) -> GroupRecord | ScoredGroup:
        """Return new scores in the form that the group was found in; advantages that rest on the old ones are gone."""
        if self.record is None:
            return scored
        none = [None] * len(scored.scores)
        return GroupRecord(self.record.step, self.record.kind, self.record.dropped, scored, none)


class StoredRollouts:
    """The groups of a path, in the order of the files. Iterating reads them anew each time.

    Args:
        path: a run folder, or a JSONL or Parquet file.
        wanted: which groups.
    """

    def __init__(self, path: str, wanted: Wanted | None = None) -> None:
        self.wanted = wanted or Wanted()
        self.of_run = Path(path).is_dir()
        self.files = _run_files(Path(path), self.wanted.stage) if self.of_run else _files(path, self.wanted.stage)
        self.left_out: list[str] = []
        self._table: ResponseRows | None = None

    def count(self) -> int:
        """Return how many groups there are, after a quick look at every line; a `UserError` when there are none."""
        count = sum(1 for _ in self._limited())
        if not count:
            raise UserError(f"no group is left of {len(self.files)} file(s){self._filters()}")
        if self._table is not None:
            try:
                self._table.require_answers()
            except RowError as error:
                raise UserError(f"{printable(str(self.files[0]), 200)}: {error}") from None
        return count

    def __iter__(self) -> Iterator[Stored]:
        for file, place, form, raw in self._limited():
            yield _made(file, place, form, raw)

    def _limited(self) -> Iterator[tuple[Path, str, str, Any]]:
        return islice(self._raw(), self.wanted.limit)

    def _raw(self) -> Iterator[tuple[Path, str, str, Any]]:
        """Yield each wanted group with its file, place and form: a row of a file, or what a table has gathered."""
        first = ""
        wanted = self.wanted
        table = self._table = ResponseRows(names_of(self.files), wanted.responses, wanted.answers, wanted.prompts)
        for file, number, row in self._rows():
            place = _place(self.files[file], number)
            try:
                form = self._form(row, first)
                first = first or form
                if form == "table":
                    gathered = table.add(row, file, number, place)
                    if gathered is not None:
                        yield self.files[file], place, form, gathered
                elif self._is_wanted(row):
                    yield self.files[file], place, form, row
            except RowError as error:
                raise UserError(f"{place}: {error}") from None
        yield from ((self.files[0], asked.place, "table", asked) for asked in table.rest())

    def _rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Yield the rows of all files, each with the number of its file and of its line there."""
        self.left_out.clear()
        for i, file in enumerate(self.files):
            if _is_parquet(file):
                lines: Iterator[tuple[Any, Any]] = parquet_rows([file], limit=None, rng=None, check=lambda *_: None)
            else:
                lines = jsonl_rows([file], limit=None, rng=None)
            for place, line in lines:
                try:
                    row = parse_row(line) if _is_parquet(file) else parse_line(line)
                except RowError as error:
                    where = _place(file, place.number)
                    if self.of_run and not line.endswith(b"\n"):  # the run is going on, or was killed
                        self.left_out.append(f"{where} is cut off, as by a run that was stopped: left out")
                        break
                    raise UserError(f"{where}: {error}") from None
                yield i, place.number, row

    def _form(self, row: Mapping[str, Any], first: str) -> str:
        form = next((form for form, keys in _FORMS.items() if keys <= row.keys()), "table")
        if first and form != first:
            raise RowError(f"this is {_CALLED[form]}, but the first line is {_CALLED[first]}: score them apart")
        if form != "record" and (self.wanted.kind is not None or self.wanted.steps is not None):
            raise RowError(f"this is {_CALLED[form]}, which has no step or kind: leave out --kind and --step")
        return form

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        if self.wanted.kind is not None and row.get("kind") != self.wanted.kind:
            return False
        if self.wanted.steps is None:
            return True
        step = row.get("step")
        return isinstance(step, int) and self.wanted.steps[0] <= step <= self.wanted.steps[1]

    def _filters(self) -> str:
        steps = self.wanted.steps and "-".join(map(str, sorted(set(self.wanted.steps))))
        given = {"--stage": self.wanted.stage, "--kind": self.wanted.kind, "--step": steps}
        asked = " ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        return f" with {asked}: widen the choice" if asked else ": they are empty"


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _place(file: Path, number: int) -> str:
    return f"{printable(str(file), 200)}, {'row' if _is_parquet(file) else 'line'} {number}"


def _made(file: Path, place: str, form: str, raw: Any) -> Stored:
    try:
        if isinstance(raw, Asked):
            return Stored(raw.group(), None, None, place, file)
        if form == "group":
            return Stored(from_json(RolloutGroup, raw), None, None, place, file)
        record = _checked(from_json(GroupRecord, raw)) if form == "record" else None
        scored = record.scored if record else from_json(ScoredGroup, raw)
        return Stored(scored.group, tuple(scored.scores), record, place, file)
    except (RowError, TypeError, ValueError) as error:  # a `UserError` is a `ValueError`
        raise UserError(f"{place}: {printable(str(error))}") from None
    except RecursionError:
        raise UserError(f"{place}: nested too deeply") from None


def _checked(record: GroupRecord) -> GroupRecord:
    """Return a record whose own fields are what they should be; the nouns inside have checked themselves."""
    try:
        require_count("GroupRecord.step", record.step, least=0)
        require_text("GroupRecord.kind", record.kind)
        require_text("GroupRecord.dropped", record.dropped)
    except (TypeError, ValueError) as error:
        raise RowError(str(error)) from None
    return record


def _run_files(folder: Path, stage: str | None) -> list[Path]:
    inner = folder / "rollouts"
    if not inner.is_dir():
        raise UserError(
            f"{str(folder)!r} has no folder rollouts, so it is no run: name a run folder, or a JSONL or Parquet file"
        )
    files = {file.stem: file for file in sorted(inner.glob("*.jsonl")) if file.stat().st_size}
    if stage is not None and stage not in files:
        raise UserError(f"the run has no rollouts of a stage {stage!r}.{nearest(stage, files)} Known: {listing(files)}")
    if not files:
        raise UserError(f"{str(inner)!r} has no rollouts: the run has not come to a stage that writes some")
    return [files[stage]] if stage is not None else list(files.values())


def _files(path: str, stage: str | None) -> list[Path]:
    if stage is not None:
        raise UserError(f"--stage chooses among the files of a run folder; {path!r} is none: leave it out")
    return find_files(path, SUFFIXES, "parquet" if path.lower().endswith(".parquet") else "jsonl")
