"""What all prepare jobs share: input, output, held-out sources, and writing rows with their provenance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, Strict, model_validator

from rewardsmith.data.prepare.row_files import open_outputs, write_provenance
from rewardsmith.data.rows import BadRows, Row
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.storage import file_facts
from rewardsmith.types import Message

T = TypeVar("T")

PAUSE_ROWS = 500
"""Rows after which the event loop runs: there Ctrl-C cancels the job."""

OutFile = Annotated[Path, Strict(False)]


class PrepareJob(Job):
    """Input and output of a job that prepares data."""

    arguments: ClassVar[tuple[str, ...]] = ("input", "out")
    command: ClassVar[str]

    input: str = Field(description="JSONL or Parquet: a file, a folder or a pattern")
    out: OutFile = Field(description="output file: .jsonl or .parquet")
    skip_bad: bool = Field(default=False, description="leave out rows that cannot be used, and list them")


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


def chat_rows(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Return messages as a row has them."""
    return [{"role": message.role, "content": message.content} for message in messages]


async def collect(items: Iterable[T]) -> list[T]:
    """Return the items as a list; Ctrl-C stops it between two of them."""
    found: list[T] = []
    for item in items:
        found.append(item)
        if len(found) % PAUSE_ROWS == 0:
            await asyncio.sleep(0)
    return found


async def write_prepared(
    job: PrepareJob,
    context: JobContext,
    outs: Sequence[Path],
    rows: Iterable[tuple[int, Row]],
    *,
    inputs: Callable[[], list[dict[str, Any]]],
    counts: Counter[str],
    bad: BadRows,
    facts: Mapping[str, Any],
) -> Result:
    """Write rows to the outputs that their numbers name, with the provenance of each: all files, or none.

    `inputs` is called, and `counts`, `bad` and `facts` are read, when all rows are written.
    """
    written = [0] * len(outs)
    with open_outputs(outs) as writes:
        for number, row in rows:
            writes[number](row)
            written[number] += 1
            if sum(written) % PAUSE_ROWS == 0:
                context.progress("write", sum(written), 0, unit="rows")
                await asyncio.sleep(0)
        for out, count in zip(outs, written, strict=True):
            if not count:
                known = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no rows"
                raise UserError(f"no row is left for {str(out)!r} ({known}): change held_out or the other settings")
    result = {
        "counts": {name: count for name, count in counts.items() if count},
        "written": {str(out): count for out, count in zip(outs, written, strict=True)},
        "bad": bad.as_json(),
        **facts,
    }
    table = {"command": job.command, "settings": job.model_dump(mode="json"), "inputs": inputs(), **result}
    for out, count in zip(outs, written, strict=True):
        write_provenance(out, table | {"output": file_facts(out, count)})
    lines = result["counts"] | {f"rows in {out}": count for out, count in result["written"].items()}
    notes = [f"{count:>10,}  {name}" for name, count in lines.items()]
    return Result({"rows": sum(written)}, notes=[*notes, *([str(bad)] if bad.count else [])], facts=result)


__all__ = ["OutFile", "PrepareJob", "SplitJob", "chat_rows", "collect", "write_prepared"]
