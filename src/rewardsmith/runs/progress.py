"""What the user sees of a run: the progress of its stages on the console, and `run.log`.

2026-03-01 14:02:11 policy: 40 steps
2026-03-01 14:09:53 error: the disk of 'runs/quickstart' is full. …
"""

from __future__ import annotations

import logging
import math
import re
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rewardsmith.errors import UserError
from rewardsmith.runs.summary import is_share
from rewardsmith.trainers.trainer import Update

LOG = "run.log"

_SHOWN = {
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
_OF_POLICY = ("reward/mean", "reward/accuracy")
_MIN_SHOWN = {"reward/failed": 1e-9, "time/wait": 0.5}
_QUIET_SECONDS = 10.0  # between two lines about steps
_PHASE_SECONDS = 30.0  # without any line, after which the phase of a long step is shown
_RATED_STEPS = 20  # the last ones, from which the time left is estimated
_MIN_BAR, _MAX_BAR = 4, 24
_HELD_OUT = re.compile(r"validation/.+/accuracy_fresh")
_PROCESS = re.compile(r"learned/(.+)/(?:accuracy_fresh|trust)")


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
    """A few lines that stay up to date on a terminal; elsewhere a line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._now = _Stage("", 0, 0, "steps")
        self._written = 0.0
        self._validation = ""
        self._percent = True

    def log(self, text: str) -> None:
        """Write a line."""
        style = "yellow" if text.startswith("warning") else "dim"
        self._console.print(printable_lines(text), style=style, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int, done: int, unit: str = "steps") -> Iterator[None]:
        """Show a stage of `total` steps, or other units, while the block runs."""
        self._now = _Stage(name, total, done, unit)
        self._written, self._validation, self._percent = time.monotonic(), "", True
        if not self._live:
            resuming = f", resuming after {done}" if done else ""
            self.log(f"{name}: {total} {unit.removesuffix('s') if total == 1 else unit}{resuming}")
            yield
            return
        with Live(get_renderable=lambda: self._now, console=self._console):
            yield
            self._now.phase = None

    def within(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show how far a part of the present step is: `done` of `total` (0 is unknown); cheap to call."""
        now, time_ = self._now, time.monotonic()
        if now.phase is None or now.phase.name != phase or done < now.phase.done:
            now.phase = _Phase(phase, time_)
        now.phase.done, now.phase.total, now.phase.unit, now.phase.tokens = done, total, unit, tokens
        if not self._live and time_ - self._written > _PHASE_SECONDS:
            self._written = time_
            self.log(f"{now.name} step {now.done + 1}/{now.total}: {'  '.join(now.phase.items())}")

    def step(self, update: Update) -> None:
        """Show the metrics of a step."""
        self._now.take(update.step, self._numbers(update))
        if self._live:
            return
        if update.step in (0, self._now.total) or time.monotonic() - self._written > _QUIET_SECONDS:
            self._written = time.monotonic()
            now = self._now
            self.log("  ".join([f"{now.name} {now.done}/{now.total}", *now.numbers, *now.times()]))

    def _numbers(self, update: Update) -> list[str]:
        """Return the numbers of a step that matter, and those of the last validation."""
        for name, value in update.metrics.items():
            if name.startswith("validation/mean@"):
                self._percent = self._percent and is_share(name, [update.metrics])
                self._validation = f"held out {value:.1%}" if self._percent else f"held out {value:.3f}"
        if held_out := [value for name, value in update.metrics.items() if _HELD_OUT.fullmatch(name)]:
            self._validation = "held out " + " ".join(f"{value:.1%}" for value in held_out)
        shown = {name: value for name, value in update.metrics.items() if not value < _MIN_SHOWN.get(name, -math.inf)}
        learned = _learned(shown)
        if learned and not any(name.startswith("policy/") for name in shown):
            # The policy stays as it is: its rewards are not what is trained.
            shown = {name: value for name, value in shown.items() if name not in _OF_POLICY}
        numbers = [form.format(shown[name]) for name, form in _SHOWN.items() if name in shown]
        at = sum(name in shown for name in ("loss", *_OF_POLICY))
        numbers[at:at] = learned
        if shown.get("groups/kept") == 0:
            numbers.append("no group to learn from")
        return [*numbers, self._validation] if self._validation else numbers


@dataclass
class _Phase:
    """A part of a step: what is being done since when, and how far it is."""

    name: str
    begun: float
    done: int = 0
    total: int = 0
    unit: str = ""
    tokens: int = 0

    def items(self) -> list[str]:
        seconds = time.monotonic() - self.begun
        count = f" {self.done:,}/{self.total:,} {self.unit}" if self.total else ""
        if not self.total and self.done:
            count = f" {self.done:,} {self.unit}"
        rate = [f"{self.tokens / seconds:,.0f} tokens/s"] if self.tokens and seconds >= 1 else []
        return [f"{self.name}{count}", *rate, f"for {_clock(seconds)}"]


class _Stage:
    """A stage as a terminal shows it, in lines that fit: bar and times, the numbers of the last step, the phase."""

    def __init__(self, name: str, total: int, done: int, unit: str) -> None:
        self.name, self.total, self.done = name, total, done
        self.numbers: list[str] = []
        self.phase: _Phase | None = None
        self._unit = unit.removesuffix("s")
        self._begun = time.monotonic()
        self._ends = deque([(done, self._begun)], maxlen=_RATED_STEPS + 1)  # of the last steps

    def take(self, done: int, numbers: list[str]) -> None:
        """Note that a step is done."""
        if done > self._ends[-1][0]:
            self._ends.append((done, time.monotonic()))
        elif len(self._ends) == 1:
            self._ends[0] = (done, time.monotonic())  # what comes before the first step is not part of any
        self.done, self.numbers, self.phase = done, numbers, None

    def times(self) -> list[str]:
        """Return the elapsed time, the estimated time left, and the time of a step."""
        now = time.monotonic()
        elapsed = f"elapsed {_clock(now - self._begun)}"
        (first, begun), (last, ended) = self._ends[0], self._ends[-1]
        if last == first:
            return [elapsed]
        each = (ended - begun) / (last - first)
        rate = [f"{each:.{2 if each < 10 else 1}f} s/step"] if self._unit == "step" else []
        left = max(0.0, each * (self.total - self.done) - (now - ended))
        return [elapsed, *([f"left {_clock(left)}"] if self.done < self.total else []), *rate]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, count, times = options.max_width, f"{self.done}/{self.total}", self.times()
        name = Text(self.name, style="bold", no_wrap=True, overflow="ellipsis")
        head = "  ".join([count, *times])
        fits = name.cell_len + len(head) + 4 + _MIN_BAR <= width
        end = head if fits else count
        name.truncate(max(1, width - len(end) - 4 - _MIN_BAR), overflow="ellipsis")
        bar = max(1, min(_MAX_BAR, width - name.cell_len - len(end) - 4))
        row = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        row.add_row(name, ProgressBar(max(1, self.total), self.done, width=bar), Text(end, no_wrap=True))
        yield row
        yield from _lines([] if fits else times, width)
        yield from _lines(self.numbers, width)
        yield from _lines([] if self.phase is None else self.phase.items(), width, style="dim")


def _lines(items: Sequence[str], width: int, style: str = "") -> Iterator[Text]:
    """Yield the items as indented lines that fit the width; one that is wider than a line is cut off."""
    line = ""
    for item in items:
        if line and cell_len(line) + 2 + cell_len(item) > width:
            yield Text(line, style=style, no_wrap=True, overflow="ellipsis")
            line = ""
        line += f"  {item}"
    if line:
        yield Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _learned(metrics: Mapping[str, float]) -> list[str]:
    """Return, for each process reward model, its pairs of fresh rollouts in order, and its loss if no policy learns."""
    parts = dict.fromkeys(found[1] for name in metrics if (found := _PROCESS.fullmatch(name)))
    alone = not any(name.startswith("policy/") for name in metrics)
    lines = []
    for part in parts:
        order, loss = (metrics.get(f"learned/{part}/{name}") for name in ("accuracy_fresh", "loss"))
        numbers = [] if order is None else [f"{'pairs ' if alone else ''}in order {order:.0%}"]
        numbers += [f"loss {loss:.3f}"] if alone and loss is not None else []
        if numbers:
            lines.append(f"{part}: {'  '.join(numbers)}" if len(parts) > 1 else "  ".join(numbers))
    return lines
