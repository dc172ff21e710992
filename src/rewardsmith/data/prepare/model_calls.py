"""Jobs that call a model for every row: many requests at once, replies kept on disk as they come, failures listed.

The replies to `rubrics.parquet` are in `rubrics.replies.jsonl`. After a stop or a kill the same command continues; a
file never mixes the replies of two models, or of two ways to call one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from rewardsmith.data.prepare.prepare_job import Preparation, PrepareJob
from rewardsmith.data.prepare.row_files import require_outputs
from rewardsmith.data.rollout_rows import RolloutSelection
from rewardsmith.data.rows import ANSWER, MAX_LISTED, MAX_SHOWN, PROMPT, Layout, Row, printable
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.llm import Asker, ModelCallError, RequestSettings
from rewardsmith.storage import ResumableJsonl

T = TypeVar("T")

MAX_STREAK = 20
"""Requests in a row without any reply, after which something is wrong with all of them, such as a used up quota."""

REPLIED = ("unparsable", "invalid", "truncated")
"""Failures of a single row: the model did reply."""

DECISIVE = ("temperature", "top_p", "temperature_step", "max_temperature")
"""Request settings that change replies. Limits and the seed may be changed to continue after a failure."""


@dataclass(frozen=True)
class CallItem(Generic[T]):
    """Something to call the model for; `key` depends on all that decides the reply, except the model."""

    key: str
    where: str
    value: T


class ModelCallJob(PrepareJob, RequestSettings, RolloutSelection):
    """A job that calls a model for every row."""

    unit: ClassVar[str]

    limit: int | None = Field(default=None, ge=1, description="only the first rows, or groups of rollouts")
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

    async def write_replies(
        self,
        context: JobContext,
        prepared: Preparation,
        model_name: str,
        items: Sequence[CallItem[T]],
        request: Callable[[Asker, T], Awaitable[Mapping[str, Any]]],
        rows: Callable[[Callable[[str], Any]], Awaitable[Iterable[tuple[int, Row]]]],
        *,
        outs: Sequence[Path],
        made_by: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Result:
        """Call the model for each item that has no reply yet, and write the rows.

        `rows` is called with a function that returns the reply to a key, None without one. Replies are kept with a
        field `made_by`: the model, the seed and what is given here. Those of an earlier start are used if `made_by` and
        `settings` are the same.
        """
        file = ResumableJsonl(self.out.expanduser().with_name(f"{self.out.stem}.replies.jsonl"))
        require_outputs(outs, prepared.files, replace=context.fresh or file.file.exists())
        note = {"command": self.command, "request": {name: getattr(self, name) for name in DECISIVE}}
        with file.open(fresh=context.fresh):
            calls = ModelCalls(self, context, file, {**note, **made_by, **settings}, {**made_by, "seed": self.seed})
            failures = await calls.run(model_name, items, request)
            failed = len(failures) / max(1, len(items))
            lines = [f"  {printable(_line(failure), 500)}" for failure in failures[:MAX_SHOWN]]
            if failures:
                more = f"; the first {MAX_SHOWN}" if len(failures) > MAX_SHOWN else ""
                lines.insert(0, f"{len(failures):,} without a reply{more}:")
                lines.append("The same command requests them again")
            if failed == 1:
                return Result(notes=["nothing is written: there is no reply", *lines], failed=1.0)
            facts = {"resumed": calls.resumed, "failed": len(failures), "failures": failures[:MAX_LISTED]}
            result = await prepared.write(context, outs, await rows(calls.reply), {**file.note, **facts})
        return replace(result, notes=[*result.notes, *lines], failed=failed)


def _line(failure: Mapping[str, Any]) -> str:
    return f"{failure['where']}: {failure['kind']} after {failure['tries']} tries: {failure['detail']}"


class ModelCalls:
    """The calls of a job; `positions` are those of the replies on disk, by key, and `resumed` were there before."""

    def __init__(
        self,
        job: ModelCallJob,
        context: JobContext,
        file: ResumableJsonl,
        note: Mapping[str, Any],
        made_by: Mapping[str, Any],
    ) -> None:
        self._job, self._context, self._file, self._note, self._made_by = job, context, file, note, made_by
        file.check(note)
        self.positions: dict[str, int] = {entry["key"]: position for position, entry in file.entries()}
        self.resumed = 0

    def reply(self, key: str) -> Any:
        """Return the reply to a key; None if there is none."""
        return self._file.read(self.positions[key])["value"] if key in self.positions else None

    async def run(
        self,
        model_name: str,
        items: Sequence[CallItem[T]],
        request: Callable[[Asker, T], Awaitable[Mapping[str, Any]]],
    ) -> list[dict[str, Any]]:
        """Request a reply for each item that has none yet, and return the failures, in the order of the items.

        The model is not opened if all have a reply. A `UserError` if it stays unreachable, or does not reply any more.
        """
        missing = [(i, item) for i, item in enumerate(items) if item.key not in self.positions]
        self.resumed = done = len(items) - len(missing)
        if not missing:
            return []
        model = self._context.model(model_name)
        try:
            await model.check()
            identity = str(await model.identity())
        except ModelCallError as error:
            raise UserError(f"models.{model_name} cannot be called ({error.kind}): {error}") from None
        self._file.claim({**self._note, "identity": identity})
        made_by = {"model": identity, **self._made_by}
        asker = Asker(model, self._job, wait=self._job.wait, log=self._context.log)
        failures: dict[int, dict[str, Any]] = {}
        streak, todo = 0, iter(missing)

        async def worker() -> None:
            nonlocal done, streak
            for i, item in todo:
                try:
                    reply = await request(asker, item.value)
                    value = {**reply, "made_by": made_by | reply.get("made_by", {})}
                    self.positions[item.key] = self._file.append({"key": item.key, "value": value})
                    streak = 0
                except ModelCallError as error:
                    detail = {"kind": error.kind, "detail": str(error)[:2_000], "tries": error.attempts}
                    failures[i] = {"where": item.where, **detail}
                    streak = 0 if error.kind in REPLIED else streak + 1
                    if error.kind == "unreachable" or streak >= MAX_STREAK:
                        kept = f"the {len(self.positions):,} replies in {str(self._file.file)!r}"
                        raise UserError(
                            f"{streak} failures in a row, the last: {_line(failures[i])}\n"
                            f"The same command continues with {kept}"
                        ) from None
                done += 1
                self._context.progress("call", done, len(items), unit=self._job.unit)
                self._context.pause()
                await asyncio.sleep(0)  # cached replies must not keep the other workers from running

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._job.concurrency):
                    tasks.create_task(worker())
        except BaseExceptionGroup as group:  # a task group wraps even a single cause
            raise group.exceptions[0] from None
        return [failures[i] for i in sorted(failures)]
