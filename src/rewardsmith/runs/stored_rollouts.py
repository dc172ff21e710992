"""Stored rollouts: of a run, of this package's records, or a table of prompts with responses from elsewhere.

    for stored in StoredRollouts(RolloutJob(rollouts="runs/quickstart", kind="validation")):
        stored.group, stored.scores

The form of a file is that of its first line. Files are untrusted: an error names the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rewardsmith.data.prepare.row_files import responses_of
from rewardsmith.data.readers import Place, find_files, names_of, read_rows, where
from rewardsmith.data.rollout_rows import TABLE, RolloutSelection, SelectedRollouts, form_of, run_files
from rewardsmith.data.rows import ANSWER, PROMPT, Layout, RowError, printable, without
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job
from rewardsmith.records import from_json
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Prompt, Rollout, RolloutGroup, Score, ScoredGroup


class RolloutJob(Job, RolloutSelection):
    """A job on stored rollouts."""

    arguments: ClassVar[tuple[str, ...]] = ("rollouts",)

    rollouts: str = Field(description="a run folder, or a JSONL or Parquet file with rollouts")
    limit: int | None = Field(default=None, ge=1, description="only the first groups")
    prompt_column: str = Field(default=PROMPT, description="of a table: the prompt")
    response_column: str | None = Field(
        default=None, description="of a table: the responses, a list or one; not set: responses, or response"
    )
    answer_column: str = Field(default=ANSWER, description="of a table: the right answer")


@dataclass(frozen=True)
class StoredGroup:
    """One group as it is stored; `scores` and the `record` of a run may be None, `place` is for messages."""

    group: RolloutGroup
    scores: tuple[Score, ...] | None
    record: GroupRecord | None
    place: str
    file: Path = Path()

    def rescored(self, scored: ScoredGroup) -> GroupRecord | ScoredGroup:
        """Return new scores in the form of the group; advantages that rest on the old scores are removed."""
        if self.record is None:
            return scored
        none = [None] * len(scored.scores)
        return GroupRecord(self.record.step, self.record.kind, self.record.dropped, scored, none)


@dataclass(frozen=True)
class _TableGroup:
    """A prompt and its responses so far; `place` is that of its first row."""

    prompt: Prompt
    place: str
    responses: list[str] = field(default_factory=list)


class StoredRollouts:
    """The groups that a job selects, in the order of the files. Iterating reads them again each time.

    `incomplete` names the lines that a run has not finished, which are left out.
    """

    def __init__(self, job: RolloutJob) -> None:
        path = job.rollouts
        self._job = job
        self._selected = SelectedRollouts(job, path)
        self.files = run_files(Path(path), job.stage) if Path(path).is_dir() else find_files(path)
        self.incomplete: list[str] = []

    def count(self) -> int:
        """Return how many groups there are, after a look at every line; a `UserError` when there are none."""
        count = sum(1 for _ in self._limited())
        if not count:
            raise UserError(f"no group is left of {len(self.files)} file(s) with {self._job.flags}: select more")
        return count

    def __iter__(self) -> Iterator[StoredGroup]:
        for file, place, raw in self._limited():
            yield _parse_group(file, place, raw)

    def _limited(self) -> Iterator[tuple[Path, str, Any]]:
        return islice(self._raw_groups(), self._job.limit)

    def _raw_groups(self) -> Iterator[tuple[Path, str, Any]]:
        """Yield each selected group with its file and place: a row of a file, or rows of a table together."""
        first = ""
        table = _ResponseTable(self._job)
        names = names_of(self.files)
        for file, number, row in self._rows():
            place = where(self.files, Place(file, number))
            try:
                form = form_of(row)
                first = first or form
                if form != first:
                    raise RowError(f"this is a {form}, but the first line is a {first}: score them separately")
                self._selected.require_form(form)
                if not self._selected.takes(row):
                    continue
                if form == TABLE:
                    if (complete := table.add(row, names[file], number, place)) is not None:
                        yield self.files[file], place, complete
                else:
                    yield self.files[file], place, row
            except RowError as error:
                raise UserError(f"{place}: {error}") from None
        yield from ((self.files[0], group.place, group) for group in table.by_prompt.values())

    def _rows(self) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Yield the rows of all files, each with the number of its file and of its line there."""
        self.incomplete.clear()
        for place, row in read_rows(self.files):
            if not isinstance(row, RowError):
                yield place.file, place.number, row
            elif self._selected.in_run and row.unfinished:  # the run is still going, or was killed
                self.incomplete.append(f"{where(self.files, place)} is incomplete, as by a stopped run: left out")
            else:
                raise UserError(f"{where(self.files, place)}: {row}")


def _parse_group(file: Path, place: str, raw: Any) -> StoredGroup:
    try:
        if isinstance(raw, _TableGroup):
            rollouts = [Rollout(text) for text in raw.responses]  # why a response ended is unknown
            return StoredGroup(RolloutGroup(raw.prompt, rollouts), None, None, place, file)
        if "rollouts" in raw:
            return StoredGroup(from_json(RolloutGroup, raw), None, None, place, file)
        record = from_json(GroupRecord, raw) if "scored" in raw else None
        scored = record.scored if record else from_json(ScoredGroup, raw)
        return StoredGroup(scored.group, tuple(scored.scores), record, place, file)
    except (RowError, TypeError, ValueError) as error:  # a `UserError` is a `ValueError`
        raise UserError(f"{place}: {printable(str(error))}") from None
    except RecursionError:
        raise UserError(f"{place}: nested too deeply") from None


class _ResponseTable:
    """Groups the rows of a table in the schema of `docs/data.md`, plus a column with the responses.

    A row with a list of responses is a group. Rows with one response each are grouped by the id of their prompt, or by
    the prompt where there is none; since they may be anywhere, all of them are held until the end.
    """

    def __init__(self, job: RolloutJob) -> None:
        self._column = job.response_column
        self._layout = Layout(answer=job.answer_column, prompt=job.prompt_column)
        self._lists: bool | None = None
        self.by_prompt: dict[object, _TableGroup] = {}

    def add(self, row: Mapping[str, Any], file: str, number: int, place: str) -> _TableGroup | None:
        """Add a row; return its group when that is complete. A `RowError` names what is wrong with the row."""
        column, texts, is_list = responses_of(row, self._column)
        if self._lists not in (None, is_list):
            raise RowError(f"{column} is a list in some rows and text in others: use one form in all")
        self._lists = is_list
        prompt = self._layout.prompt_of(without(row, [column]), file, number)
        if is_list:
            return _TableGroup(prompt, place, texts)
        messages = tuple((message.role, message.content) for message in prompt.messages)
        numbered = prompt.id == f"{file}-{number}"  # the row has no id of its own
        key: object = (messages, prompt.source, repr(prompt.answer)) if numbered else prompt.id
        group = self.by_prompt.setdefault(key, _TableGroup(prompt, place))
        if group.prompt.messages != prompt.messages or group.prompt.answer != prompt.answer:
            raise RowError(f'the id "{prompt.id[:100]}" is also that of {group.place}, with another prompt or answer')
        group.responses.append(texts[0])
        return None
