"""What all prepare jobs share: reading rows, the train/held-out split, and writing rows with their provenance.

The split and all draws depend on the content of a row, never on the rows around it. All commands share the split, so
that what one of them holds out no other trains on: a hash of the source text decides, and a larger share holds out the
same sources and more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field, Strict, model_validator

from rewardsmith.data.prepare.row_files import open_outputs, write_provenance
from rewardsmith.data.readers import find_files, names_of, read_rows, where
from rewardsmith.data.rollout_rows import TABLE, RolloutSelection, SelectedRollouts, form_of, rollout_row, run_files
from rewardsmith.data.rows import ANSWER, BadRows, Row, RowError, no_column
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_prompts import PromptIdentity, question_of
from rewardsmith.types import Message, Prompt

T = TypeVar("T")

PAUSE_ROWS = 500
"""Rows after which the event loop runs: there Ctrl-C cancels the job."""

KEYS = 2**64

OutFile = Annotated[Path, Strict(False)]


class PrepareJob(Job):
    """Input and output of a job that prepares data."""

    arguments: ClassVar[tuple[str, ...]] = ("input", "out")
    command: ClassVar[str]

    input: str = Field(description="JSONL or Parquet: a file, a folder or a pattern; or a run folder with rollouts")
    out: OutFile = Field(description="output file: .jsonl or .parquet")
    skip_bad: bool = Field(default=False, description="leave out rows that cannot be used, and list them")

    @property
    def outs(self) -> list[Path]:
        """The output files."""
        return [self.out.expanduser()]


class SplitJob(PrepareJob):
    """A job with seeded draws and held-out sources."""

    held_out: float = Field(
        default=0.0, ge=0, description="share (below 1) or number of source texts whose rows go to held_out_file"
    )
    held_out_file: OutFile | None = Field(default=None, description="output file of the held-out source texts")
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of all draws")

    @model_validator(mode="after")
    def _check_held_out(self) -> SplitJob:
        if self.held_out > 1 and self.held_out % 1:
            raise ValueError("held_out must be a share below 1, such as 0.05, or a whole number of source texts")
        if bool(self.held_out) != (self.held_out_file is not None):
            raise ValueError("held_out needs held_out_file, and held_out_file needs held_out: set both, or none")
        return self

    @property
    def outs(self) -> list[Path]:
        """The output files: of the training part, and of what is held out."""
        return [out.expanduser() for out in (self.out, self.held_out_file) if out is not None]


class ReadRow(NamedTuple):
    """A row; `where` is for messages, `file` and `number` name a row without an id."""

    where: str
    file: str
    number: int
    row: Row


class Preparation:
    """A prepare job at work: its input files, bad rows and counts, which go to the provenance of its outputs.

    Rollouts become rows (`rollout_row`), with `scored_only` those that have a score, in groups of two or more.
    """

    def __init__(
        self,
        job: PrepareJob,
        *,
        limit: int | None = None,
        files: Sequence[Path] | None = None,
        scored_only: bool = False,
    ) -> None:
        self._job, self._limit, self._scored_only = job, limit, scored_only
        self._selection = job if isinstance(job, RolloutSelection) else RolloutSelection()
        self._selected = SelectedRollouts(self._selection, job.input)
        if files is None:
            in_run = self._selected.in_run
            files = run_files(Path(job.input), self._selection.stage) if in_run else find_files(job.input)
        self.files = files
        self.columns: dict[str, None] = {}
        self.bad = BadRows(skip=job.skip_bad)
        self.counts: Counter[str] = Counter()
        self._file_rows: Counter[Path] = Counter()
        self._first: dict[tuple[str, str], str] = {}
        self.judge_prompts: dict[Path, PromptIdentity] = {}  # of the outputs whose rows are prompts of a judge

    def require_new(self, where: str, **names: str) -> None:
        """Raise a `RowError` if an earlier row has one of the names; keywords are what the names are of."""
        for what, name in names.items():
            if (other := self._first.setdefault((what, name), where)) is not where:
                raise RowError(f"the same {what} as in {other}: leave one of them out")

    def require_columns(self, **columns: str | None) -> None:
        """Raise a `UserError` if no row that was read has the column that a setting names."""
        for setting, column in columns.items():
            if column not in (None, ANSWER) and column.partition(".")[0] not in self.columns:
                raise UserError(str(no_column(column, self.columns, f"no row has the column of {setting}")))

    async def read(self, parse: Callable[[ReadRow], Iterable[T]]) -> list[T]:
        """Return what `parse` makes of all rows; its `RowError`s are bad rows."""
        found: list[T] = []
        names, counts = names_of(self.files), self.counts
        for place, row in read_rows(self.files):
            at = where(self.files, place)
            try:
                if isinstance(row, RowError) and row.unfinished and self._selected.in_run:
                    counts["incomplete lines left out"] += 1  # the run is still going, or was killed
                    continue
                if not isinstance(row, RowError) and not self._selected.takes(row):
                    continue
                if counts["rows read"] == self._limit:
                    break
                counts["rows read"] += 1
                self._file_rows[self.files[place.file]] += 1
                if isinstance(row, RowError):
                    raise row
                form = form_of(row)
                self._selected.require_form(form)
                rows = [row] if form == TABLE else self._from_rollouts(row)
                for one in rows:
                    self.columns |= dict.fromkeys(one)
                    found += [*parse(ReadRow(at, names[place.file], place.number, one))]
            except RowError as error:
                self.bad.note(at, error)
            if counts["rows read"] % PAUSE_ROWS == 0:
                await asyncio.sleep(0)
        if not counts["rows read"]:
            selected = f" with {self._selection.flags}" if self._selection.flags else ""
            raise UserError(f"no group is left of {len(self.files)} file(s){selected}: select more")
        self.bad.settle(counts["rows read"])
        return found

    def _from_rollouts(self, line: Row) -> list[Row]:
        row = rollout_row(line)
        if not self._scored_only:
            return [row]
        if "scores" not in row:
            raise RowError("the rollouts have no scores: `rewardsmith score … --out FILE` gives them some")
        pairs = [(t, s) for t, s in zip(row["responses"], row["scores"], strict=True) if s is not None]
        if len(pairs) < 2:
            self.counts["groups with fewer than two scores left out"] += 1
            return []
        return [{**row, "responses": [text for text, _ in pairs], "scores": [score for _, score in pairs]}]

    async def write(
        self, context: JobContext, outs: Sequence[Path], rows: Iterable[tuple[int, Row]], facts: Mapping[str, Any]
    ) -> Result:
        """Write rows to the outputs that their numbers name, with the provenance of each: all files, or none."""
        job, written = self._job, [0] * len(outs)
        with open_outputs(outs) as writes:
            for number, row in rows:
                writes[number](row)
                written[number] += 1
                if sum(written) % PAUSE_ROWS == 0:
                    context.progress("write", sum(written), 0, unit="rows")
                    await asyncio.sleep(0)
            counts = {name: count for name, count in self.counts.items() if count}
            if not all(written):
                known = ", ".join(f"{count:,} {name}" for name, count in counts.items())
                empty = str(outs[written.index(0)])
                raise UserError(f"no row is left for {empty!r} ({known}): change held_out or the other settings")
        by_file = {str(out): count for out, count in zip(outs, written, strict=True)}
        result = {"counts": counts, "written": by_file, "bad": self.bad.as_json(), **facts}
        inputs = [file_facts(file, self._file_rows.get(file)) for file in self.files]
        table = {"command": job.command, "settings": job.model_dump(mode="json"), "inputs": inputs, **result}
        for out, count in zip(outs, written, strict=True):
            prompt = {"judge_prompt": self.judge_prompts[out]} if out in self.judge_prompts else {}
            write_provenance(out, table | prompt | {"output": file_facts(out, count)})
        lines = counts | {f"rows in {out}": count for out, count in by_file.items()}
        notes = [f"{count:>10,}  {name}" for name, count in lines.items()]
        notes += [str(self.bad)] if self.bad.count else []
        return Result({"rows": sum(written)}, notes=notes, facts=result)


def chat_rows(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Return messages as a row has them."""
    return [{"role": message.role, "content": message.content} for message in messages]


# ---- splits and draws -----------------------------------------------------------------------------------------------


def source_text(prompt: Prompt) -> str:
    """Return the text that decides the split of a prompt: what is translated, or the question."""
    text = prompt.info.get("src_text")
    return text if isinstance(text, str) and text.strip() else question_of(prompt)


def source_key(text: str) -> int:
    """Return a number below `KEYS` for a source text; case, width and white space play no part."""
    normalised = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    digest = hashlib.blake2b(normalised.encode("utf-8", "surrogatepass"), digest_size=8, person=b"source text")
    return int.from_bytes(digest.digest(), "big")


def held_out_limit(held_out: float, keys: Iterable[int]) -> int:
    """Return the key below which sources are held out: a share below 1 of all possible `keys`, or a number of these."""
    if held_out < 1:
        return int(held_out * KEYS)
    lowest = sorted(set(keys))[: int(held_out)]
    return lowest[-1] + 1 if lowest else 0


def digest_of(*parts: object) -> str:
    """Return 32 hexadecimal digits that depend on all parts: text, numbers, messages, and lists of them."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=lambda m: [m.role, m.content])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
