"""What the user sees of a run: the progress of its stages on the console, and `run.log`.

2026-03-01 14:02:11 policy: 40 steps
2026-03-01 14:09:53 error: the disk of 'runs/quickstart' is full. …
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from rewardsmith.errors import UserError
from rewardsmith.trainers.trainer import Update
from rewardsmith.viewer.display_rules import is_share

LOG = "run.log"

_SHOWN = {
    "epoch": "epoch {:.2f}",
    "loss": "loss {:.3f}",
    "reward/mean": "reward {:.3f}",
    "reward/accuracy": "right {:.0%}",
    "reward/failed": "failed {:.0%}",
    "validation/loss": "held out {:.3f}",
    "validation/accuracy": "accuracy {:.1%}",
    "validation/mad": "deviation {:.3f}",
    "validation/verified": "verified {:.1%}",
    "tokens/s": "{:,.0f} tokens/s",
    "time/wait": "waited {:.1f} s for rewards",
    "groups/s": "{:,.1f} groups/s",
}
_MIN_SHOWN = {"reward/failed": 1e-9, "time/wait": 0.5}
QUIET_SECONDS = 10.0  # between two lines about steps
_PHASE_SECONDS = 30.0  # without any line, after which the phase of a long step is shown
_RATED_SECONDS = 3600.0  # the last ones, from which the time left is estimated
_HELD_OUT = re.compile(r"validation/.+/accuracy_fresh")
_LEARNED = re.compile(r"learned/(.+)/accuracy_fresh")


def printable_lines(text: str) -> str:
    """Return a text in which nothing but the ends of lines steers a terminal: it may quote a model's output."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


class RunLog(logging.Handler):
    """Adds lines to `run.log`; what cannot be written is left out, because a full disk has its own message."""

    def __init__(self, file: Path) -> None:
        super().__init__(logging.WARNING)
        self._file = file

    def write(self, text: str) -> None:
        """Add a message; lines after its first are indented."""
        lines = printable_lines(text.strip("\n")).replace("\n", "\n    ")
        with suppress(OSError), self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {lines}\n")

    def failed(self, error: BaseException) -> None:
        """Add why the run ended: a user's mistake by its message, anything else with its traceback."""
        self.write(f"error: {error}" if isinstance(error, UserError) else "".join(traceback.format_exception(error)))

    def emit(self, record: logging.LogRecord) -> None:
        """Add a warning of this package; show it on the console too where the program has set up no logging."""
        self.write(f"warning: {record.getMessage()}")
        others = [*logging.root.handlers, *logging.getLogger("rewardsmith").handlers]
        if others == [self] and logging.lastResort is not None:
            logging.lastResort.handle(record)

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Add the warnings of this package while the block runs."""
        logger = logging.getLogger("rewardsmith")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


class Progress:
    """A bar with the numbers of the last step and the phase of the present one; without a terminal, some lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._written = 0.0
        self._begin("", 0, 0, "steps")

    def _begin(self, name: str, total: int, done: int, unit: str) -> None:
        self._unit = unit
        self._numbers: list[str] = []
        self._validation = ""
        self._percent = True
        self._phase, self._phase_begun, self._phase_done = "", 0.0, 0
        self._phase_text: list[str] = []
        self._bar = _Bar(self._console, lambda: (self._numbers, self._phase_text))
        self._bar.add_task(name, total=total or None, completed=done)  # 0 is unknown

    def log(self, text: str) -> None:
        """Write a line."""
        style = "yellow" if text.startswith("warning") else "dim"
        self._console.print(printable_lines(text), style=style, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int, done: int, unit: str = "steps") -> Iterator[None]:
        """Show a stage of `total` steps, or other units, while the block runs."""
        self._begin(name, total, done, unit)
        self._written = time.monotonic()
        if not self._live:
            self.log(f"{name}: {total} {unit}{f', resuming after {done}' if done else ''}")
        with self._bar if self._live else nullcontext():
            yield
            self._phase_text = []

    def within(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show how far a part of the present step is: `done` of `total` (0 is unknown); cheap to call."""
        now = time.monotonic()
        if phase != self._phase or done < self._phase_done:
            self._phase, self._phase_begun = phase, now
        self._phase_done = done
        seconds = now - self._phase_begun
        count = f" {done:,}/{total:,} {unit}" if total else f" {done:,} {unit}" if done else ""
        rate = [f"{tokens / seconds:,.0f} tokens/s"] if tokens and seconds >= 1 else []
        self._phase_text = [f"{phase}{count}", *rate, f"for {_clock(seconds)}"]
        if not self._live and now - self._written > _PHASE_SECONDS:
            self._written = now
            task = self._bar.tasks[0]
            text = "  ".join(self._phase_text)
            self.log(f"{task.description} step {task.completed + 1:.0f}/{task.total or 0:.0f}: {text}")

    def step(self, update: Update) -> None:
        """Show the metrics of a step."""
        task = self._bar.tasks[0]
        self._bar.update(task.id, completed=update.step)
        self._numbers = self._step_numbers(update.metrics)
        self._phase, self._phase_text = "", []
        now = time.monotonic()
        if not self._live and (update.step in (0, task.total) or now - self._written > QUIET_SECONDS):
            self._written = now
            times = [f"elapsed {_clock(task.elapsed or 0.0)}"]
            if task.time_remaining:
                times.append(f"left {_clock(task.time_remaining)}")
            if task.speed and self._unit == "steps":
                times.append(f"{1 / task.speed:.2f} s/step")
            self.log("  ".join([f"{task.description} {update.step}/{task.total or 0:.0f}", *self._numbers, *times]))

    def _step_numbers(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the numbers of a step that matter, and those of the last validation."""
        for name, value in metrics.items():
            if name.startswith("validation/mean@"):
                self._percent = self._percent and is_share(name, [metrics])
                self._validation = f"held out {value:.1%}" if self._percent else f"held out {value:.3f}"
        if held_out := [value for name, value in metrics.items() if _HELD_OUT.fullmatch(name)]:
            self._validation = "held out " + " ".join(f"{value:.1%}" for value in held_out)
        numbers = [
            form.format(metrics[name])
            for name, form in _SHOWN.items()
            if name in metrics and not metrics[name] < _MIN_SHOWN.get(name, float("-inf"))
        ]
        for name, value in metrics.items():
            if learned := _LEARNED.fullmatch(name):
                numbers.append(f"{learned[1]}: pairs in order {value:.0%}")
        if metrics.get("groups/kept") == 0:
            numbers.append("no group to learn from")
        return [*numbers, self._validation] if self._validation else numbers


class _Bar(RichProgress):
    """The bar of one stage, with lines of numbers below it."""

    def __init__(self, console: Console, numbers: Callable[[], Iterable[list[str]]]) -> None:
        self._lines = numbers
        super().__init__(
            TextColumn("{task.description}", markup=False, style="bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            get_time=time.monotonic,
            speed_estimate_period=_RATED_SECONDS,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar, the numbers of the last step and the phase of the present one."""
        yield self.make_tasks_table(self.tasks)
        for style, items in zip(("", "dim"), self._lines(), strict=True):
            if items:
                yield Text("  " + "  ".join(items), style=style)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
