"""Jobs that call a model for every row: many requests at once, replies kept on disk as they come, failures listed.

The replies to `rubrics.parquet` are in `rubrics.replies.jsonl`. After a stop or a kill the same command continues; a
file never mixes the replies of two models, or of two ways to call one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from rewardsmith.data.prepare.prepare_job import PrepareJob
from rewardsmith.data.prepare.row_files import RowFiles, require_outputs
from rewardsmith.data.rows import ANSWER, MAX_LISTED, MAX_SHOWN, PROMPT, Layout, printable
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext
from rewardsmith.llm import Asker, ModelCallError, RequestSettings
from rewardsmith.storage import ResumableJsonl

T = TypeVar("T")

MAX_STREAK = 20
"""Requests in a row without any reply, after which something is wrong with all of them, such as a used up quota."""

REPLIED = ("unparsable", "invalid", "truncated")
"""Failures of a single row: the model did reply."""

DECISIVE = ("temperature", "top_p", "temperature_step", "max_temperature")
"""Request settings that change replies. Limits and the seed may be changed to continue after a failure."""


class ModelCallJob(PrepareJob, RequestSettings):
    """A job that calls a model for every row."""

    unit: ClassVar[str]

    limit: int | None = Field(default=None, ge=1, description="only the first rows")
    prompt_column: str = Field(default=PROMPT, min_length=1, description="the problem: text, or messages")
    answer_column: str = Field(default=ANSWER, min_length=1, description="the right answer; rows may lack it")
    max_tokens: int = Field(default=4096, ge=1, description="token limit of a reply; a truncated reply is not parsed")
    deadline: float = Field(default=300.0, gt=0, description="seconds for one parsed reply, all tries together")
    concurrency: int = Field(default=32, ge=1, description="rows in flight at the same time")
    wait: float = Field(default=300.0, ge=0, description="seconds to wait for an unreachable model")

    @property
    def layout(self) -> Layout:
        """Where a row has its prompt and answer."""
        return Layout(prompt=self.prompt_column, answer=self.answer_column)

    @contextmanager
    def replies(
        self, context: JobContext, files: RowFiles, outs: Sequence[Path], note: Mapping[str, Any]
    ) -> Iterator[KeptReplies]:
        """Open the file with the replies that an earlier start has kept under the same note."""
        file = ResumableJsonl(self.out.expanduser().with_name(f"{self.out.stem}.replies.jsonl"))
        require_outputs(outs, files.files, replace=context.fresh or file.file.exists())
        note = {"command": self.command, "request": {name: getattr(self, name) for name in DECISIVE}, **note}
        with file.open(fresh=context.fresh):
            file.check(note)
            yield KeptReplies(file, note, {entry["key"]: position for position, entry in file.entries()})

    async def call_model(
        self,
        context: JobContext,
        model_name: str,
        items: Sequence[CallItem[T]],
        kept: KeptReplies,
        request: Callable[[Asker, T], Awaitable[dict[str, Any]]],
    ) -> None:
        """Request a reply for each item that has none yet; a failure is kept in `kept.failures`.

        The model is not opened if all have a reply. A `UserError` if it stays unreachable, or does not reply any more.
        """
        todo = iter([item for item in items if item.key not in kept])
        kept.resumed = done = sum(item.key in kept for item in items)
        if done == len(items):
            return
        model = context.model(model_name)
        try:
            await model.check()
            kept.claim(str(await model.identity()))
        except ModelCallError as error:
            raise UserError(f"models.{model_name} cannot be called ({error.kind}): {error}") from None
        asker = Asker(model, self, wait=self.wait, log=context.log)
        streak = 0

        async def worker() -> None:
            nonlocal done, streak
            for item in todo:
                try:
                    kept.add(item.key, await request(asker, item.value))
                    streak = 0
                except ModelCallError as error:
                    kept.failures.append(CallFailure(item.where, error.kind, str(error)[:2_000], error.attempts))
                    streak = 0 if error.kind in REPLIED else streak + 1
                    if error.kind == "unreachable" or streak >= MAX_STREAK:
                        what = (
                            "the model is unreachable" if error.kind == "unreachable" else f"{streak} failures in a row"
                        )
                        remedy = f"The same command continues with the {len(kept):,} replies in {str(kept.file)!r}"
                        raise UserError(f"{what}: {kept.failures[-1]}\n{remedy}") from None
                done += 1
                context.progress("call", done, len(items), unit=self.unit)
                context.pause()
                await asyncio.sleep(0)  # cached replies must not keep the other workers from running

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.concurrency):
                    tasks.create_task(worker())
        except BaseExceptionGroup as group:  # a task group wraps even a single cause
            raise group.exceptions[0] from None
        where = {item.where: i for i, item in enumerate(items)}
        kept.failures.sort(key=lambda failure: where[failure.where])


@dataclass(frozen=True)
class CallItem(Generic[T]):
    """Something to call the model for; `key` depends on all that decides the reply, except the model."""

    key: str
    where: str
    value: T


@dataclass(frozen=True)
class CallFailure:
    """An item without a reply: where it is, the kind of the failure, the detail, and how often it was tried."""

    where: str
    kind: str
    detail: str
    tries: int

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.where}: {self.kind} after {self.tries} {'try' if self.tries == 1 else 'tries'}: {self.detail}"


@dataclass
class KeptReplies:
    """Replies on disk by key, and the failures of this start of the command."""

    results: ResumableJsonl
    note: Mapping[str, Any]
    positions: dict[str, int]
    failures: list[CallFailure] = field(default_factory=list)
    resumed: int = 0

    @property
    def file(self) -> Path:
        """The file that they are in."""
        return self.results.file

    def claim(self, identity: str) -> None:
        """Note which model replies from now on; a `UserError` if the replies that are there are another's."""
        self.results.claim({**self.note, "identity": identity})
        self.note = {**self.note, "identity": identity}

    def __len__(self) -> int:
        return len(self.positions)

    def __contains__(self, key: str) -> bool:
        return key in self.positions

    def __getitem__(self, key: str) -> Any:
        """Return a reply."""
        return self.results.read(self.positions[key])["value"]

    def add(self, key: str, value: Any) -> None:
        """Keep a reply."""
        self.positions[key] = self.results.append({"key": key, "value": value})

    @property
    def identity(self) -> str:
        """The model whose replies these are."""
        return str(self.note["identity"])

    def facts(self) -> dict[str, Any]:
        """Return what made the replies, and the failures, for the provenance."""
        failures = [vars(failure) for failure in self.failures[:MAX_LISTED]]
        return {**self.results.note, "resumed": self.resumed, "failed": len(self.failures), "failures": failures}

    def lines(self) -> list[str]:
        """Return the failures for people."""
        if not self.failures:
            return []
        more = f"; the first {MAX_SHOWN}" if len(self.failures) > MAX_SHOWN else ""
        lines = [f"  {printable(str(failure), 500)}" for failure in self.failures[:MAX_SHOWN]]
        return [f"{len(self.failures):,} without a reply{more}:", *lines, "The same command requests them again"]


__all__ = ["CallFailure", "CallItem", "KeptReplies", "ModelCallJob"]
