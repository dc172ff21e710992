"""What the commands that ask a model about rows have in common: from a model's table to answers for all of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from rich.console import Console

from rewardsmith.data.preparing.output import require_output
from rewardsmith.data.rows import printable
from rewardsmith.data.rubrics.asking import Asking
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatModel, ModelCallError, Usage
from rewardsmith.runs.model_registry import usage_line
from rewardsmith.runs.preparing.asking import AskAll, Failed, Job
from rewardsmith.runs.preparing.kept import KeptAnswers
from rewardsmith.runs.preparing.models import Named
from rewardsmith.runs.preparing.open_models import Logs, models_of
from rewardsmith.runs.print_prompts import PromptPrinter
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.stopping import Interrupted, stoppable

T = TypeVar("T")

MOST_LISTED = 10
"""Rows without an answer that are shown; all are in the provenance, up to a thousand."""

MOST_KEPT = 1_000

WIDE = 200

_PATIENCE = ("max_tokens", "seed", "tries", "deadline")


@dataclass(frozen=True, kw_only=True)
class How:
    """How rows are gone through, whatever is asked about them.

    Attributes:
        asking: how the model is asked.
        limit: rows at most; None takes all.
        at_once: how many are asked about at the same time.
        wait: seconds that a model which is out of reach is waited for.
        fresh: forget what an earlier start has kept.
        skip_bad: leave out rows that cannot be used.
        fail_above: share of rows without an answer that is too much.
        show_prompts: how many questions to print, with their answers.
        json: print JSON instead of tables.
    """

    asking: Asking = field(default_factory=Asking)
    limit: int | None = None
    at_once: int = 32
    wait: float = 300.0
    fresh: bool = False
    skip_bad: bool = False
    fail_above: float = 1.0
    show_prompts: int = 0
    json: bool = False

    def decides(self) -> dict[str, Any]:
        """Return what of it changes answers. Who was stopped by a limit may raise it, or the seed, and go on."""
        return {name: value for name, value in asdict(self.asking).items() if name not in _PATIENCE}


@dataclass(frozen=True)
class Answered:
    """What asking brought.

    Attributes:
        asked: how many got an answer now.
        resumed: how many had one from an earlier start.
        failed: what stayed without one, by key.
        used: what was asked of each model now.
    """

    asked: int
    resumed: int
    failed: Mapping[str, Failed]
    used: Mapping[str, Usage]

    def enough(self, fail_above: float) -> bool:
        """Whether enough have an answer; without any it never is."""
        count = self.asked + self.resumed + len(self.failed)
        return len(self.failed) < count and len(self.failed) / count <= fail_above

    def as_json(self) -> list[dict[str, Any]]:
        """Return the first failures for a file."""
        return [failed.as_json() for failed in list(self.failed.values())[:MOST_KEPT]]


def answer_all(
    named: Named,
    work: Callable[[ChatModel, str], Callable[[T], Awaitable[Any]]],
    jobs: Callable[[], Iterator[Job[T]]],
    kept: KeptAnswers,
    how: How,
    *,
    verb: str,
    what: str,
) -> Answered:
    """Ask a model about every job that has no answer yet, and keep what it says.

    Args:
        named: the model. It is not opened if there is nothing to ask.
        work: from the model and its identity to what asks about one.
        jobs: gives all of them; it is called twice.
        kept: where answers go; it is open.
        how: see `How`.
        verb: what the model does, for the progress.
        what: comes of it, in the plural.

    Raises:
        UserError: for whatever a user can mend; what was answered before is kept.
        Interrupted: after Ctrl-C or a polite kill.
    """
    keys = dict.fromkeys(job.key for job in jobs())
    resumed = sum(key in kept for key in keys)
    if resumed == len(keys):
        return Answered(0, resumed, {}, {})
    progress = Progress(Console(stderr=True))
    logs = Logs()
    models = models_of(named, progress.log, logs)
    ask: AskAll[T] = AskAll(_nothing, kept, progress, how.at_once, how.wait)
    used: dict[str, Usage] = {}

    async def run() -> None:
        try:
            model: Any = models(named.name)
            identity = await _checked(model, named.name)
            kept.identify(identity)
            shown = PromptPrinter(how.show_prompts, progress.log)(model) if how.show_prompts else model
            ask.work = work(shown, identity)
            await ask(jobs(), resumed)
        finally:
            used.update(models.totals())
            await models.close()

    try:
        with stoppable(), progress.stage(verb, len(keys), resumed, unit=what):
            asyncio.run(run())
    except KeyboardInterrupt:
        count = resumed + ask.asked
        raise Interrupted(f"stopped with {count:,} of {len(keys):,} {what}. The same command goes on") from None
    logs.remove()
    in_order = {key: ask.failed[key] for key in keys if key in ask.failed}  # they came as they were answered
    return Answered(ask.asked, resumed, in_order, used)


async def _nothing(_: object) -> Any:
    raise AssertionError("the model is known by now")


async def _checked(model: Any, name: str) -> str:
    """Return the identity of a model that works."""
    try:
        await model.check()
        return str(await model.identity())
    except ModelCallError as error:
        raise UserError(f"models.{name} cannot be asked ({error.kind}): {error}") from None


def print_result(told: Mapping[str, Any], lines: list[Any], *, as_json: bool) -> None:
    """Print what a command did: JSON for programs, tables and lines for people."""
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return
    # A file or a pipe has no width of its own, and a number that is cut off says nothing.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str), markup=False)


def failure_lines(answered: Answered, what: str) -> Iterator[str]:
    """Yield what is told of the rows that have no answer."""
    failures = list(answered.failed.values())
    if failures:
        first = f"; the first {MOST_LISTED}" if len(failures) > MOST_LISTED else ""
        yield f"{len(failures):,} {'has' if len(failures) == 1 else 'have'} {what}{first}:"
        yield from (f"  {printable(str(failure), 500)}" for failure in failures[:MOST_LISTED])
        yield "The same command asks about them again"


def usage_lines(answered: Answered) -> Iterator[str]:
    """Yield what was asked of each model by this start of the command, and what that cost."""
    for name, used in answered.used.items():
        yield f"{name}, now: {usage_line(used)}"


__all__ = ["Answered", "How", "answer_all", "failure_lines", "print_result", "require_output", "usage_lines"]
