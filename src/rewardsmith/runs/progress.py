"""What the user sees while a run is going: one line per stage with the numbers that matter."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from rewardsmith.runs.forms import is_share
from rewardsmith.runs.log import printable_lines
from rewardsmith.trainers.protocol import Update

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
    "time/wait": "waiting {:.1f} s",
    "groups/s": "{:,.1f} groups/s",
}
_OF_POLICY = ("reward/mean", "reward/accuracy")
_QUIET_SECONDS = 10.0
_HELD_OUT = re.compile(r"validation/.+/accuracy_fresh")
_PROCESS = re.compile(r"learned/(.+)/(?:accuracy_fresh|trust)")
_SHORT_WAIT = 0.5  # seconds of waiting for rewards that are not worth a word


class Progress:
    """A progress bar on a terminal; elsewhere a line every few seconds.

    Args:
        console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._total = 0
        self._said = 0.0
        self._validation = ""
        self._percent = True

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(printable_lines(text), style="dim", highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int, done: int, unit: str = "steps") -> Iterator[None]:
        """Show a stage of `total` steps, or other units, while the block runs."""
        self._stage, self._total, self._said, self._validation = name, total, time.monotonic(), ""
        self._percent = True  # until a validation tells otherwise
        if not self._console.is_terminal:
            self.say(
                f"{name}: {total} {unit.removesuffix('s') if total == 1 else unit}"
                + (f", going on after {done}" if done else "")
            )
            yield
            return
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),  # it may name parts of a reward
        )
        with RichProgress(*columns, console=self._console) as self._bar:
            self._task = self._bar.add_task(name, total=total, completed=done, numbers="")
            yield
        self._bar = None

    def step(self, update: Update) -> None:
        """Show what a step brought."""
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
        text = "  ".join([*numbers, self._validation]).strip()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=update.step, numbers=text)
        elif update.step in (0, self._total) or time.monotonic() - self._said > _QUIET_SECONDS:
            self._said = time.monotonic()
            self.say(f"{self._stage} {update.step}/{self._total}  {text}")


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
