"""What the user sees while a run is going: how far it is, the numbers that matter, and what is being done."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rewardsmith.runs.forms import is_share
from rewardsmith.runs.log import printable_lines
from rewardsmith.trainers.trainer import Update

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
_QUIET_SECONDS = 10.0  # between two lines about steps
_PHASE_SECONDS = 30.0  # without any line, after which the phase of a long step is shown
_RATED_STEPS = 20  # the last ones, from which the time left is estimated
_SHORTEST_BAR, _LONGEST_BAR = 4, 24
_HELD_OUT = re.compile(r"validation/.+/accuracy_fresh")
_PROCESS = re.compile(r"learned/(.+)/(?:accuracy_fresh|trust)")
_SHORT_WAIT = 0.5  # seconds of waiting for rewards that are not worth a word


class Progress:
    """A few lines that stay up to date on a terminal; elsewhere a line every few seconds.

    Args:
        console: where to write.
    """

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
        self._written, self._validation = time.monotonic(), ""
        self._percent = True  # until a validation tells otherwise
        if not self._live:
            self.log(
                f"{name}: {total} {unit.removesuffix('s') if total == 1 else unit}"
                + (f", resuming after {done}" if done else "")
            )
            yield
            return
        with Live(get_renderable=lambda: self._now, console=self._console):
            yield
            self._now.phase = None

    def within(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show how far a part of the present step is; it may be called as often as one likes.

        Args:
            phase: what is being done, such as `writing`.
            done: how much of it is done.
            total: how much there is; 0 where nobody knows.
            unit: of both, such as `rollouts`.
            tokens: written so far, where that is counted.
        """
        now, time_ = self._now, time.monotonic()
        if now.phase is None or now.phase.name != phase or done < now.phase.done:
            now.phase = _Phase(phase, time_)
        now.phase.done, now.phase.total, now.phase.unit, now.phase.tokens = done, total, unit, tokens
        if not self._live and time_ - self._written > _PHASE_SECONDS:
            self._written = time_
            self.log(f"{now.name} step {now.done + 1}/{now.total}: {'  '.join(now.phase.items())}")

    def step(self, update: Update) -> None:
        """Show what a step brought."""
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
        least = {"reward/failed": 1e-9, "time/wait": _SHORT_WAIT}
        shown = {name: value for name, value in update.metrics.items() if not value < least.get(name, -math.inf)}
        learned = _learned(shown)
        if learned and not any(name.startswith("policy/") for name in shown):
            # The policy stays as it is: what it gets says nothing about what is trained.
            shown = {name: value for name, value in shown.items() if name not in _OF_POLICY}
        numbers = [form.format(shown[name]) for name, form in _SHOWN.items() if name in shown]
        at = sum(name in shown for name in ("loss", *_OF_POLICY))  # after what comes first
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
        """Return how long the stage has taken, how long it will, and how long a step takes."""
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
        fits = name.cell_len + len(head) + 4 + _SHORTEST_BAR <= width
        end = head if fits else count
        name.truncate(max(1, width - len(end) - 4 - _SHORTEST_BAR), overflow="ellipsis")
        bar = max(1, min(_LONGEST_BAR, width - name.cell_len - len(end) - 4))
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
    """Return what each process reward model of a step has learned: pairs of fresh rollouts in order, and its loss.

    Beside a policy that learns too there is room for the first only.
    """
    parts = dict.fromkeys(found[1] for name in metrics if (found := _PROCESS.fullmatch(name)))
    alone = not any(name.startswith("policy/") for name in metrics)
    said = []
    for part in parts:
        order, loss = (metrics.get(f"learned/{part}/{name}") for name in ("accuracy_fresh", "loss"))
        numbers = [] if order is None else [f"{'pairs ' if alone else ''}in order {order:.0%}"]
        numbers += [f"loss {loss:.3f}"] if alone and loss is not None else []
        said += [f"{part}: {'  '.join(numbers)}" if len(parts) > 1 else "  ".join(numbers)] if numbers else []
    return said
