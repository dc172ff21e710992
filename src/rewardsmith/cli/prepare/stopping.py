"""What a user is told who stops a command that makes files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from rewardsmith.runs.stopping import stoppable

STOPPED = 130
"""The exit status after Ctrl-C, as shells have it."""


@contextmanager
def telling_when_stopped(outs: Sequence[Path]) -> Iterator[None]:
    """End quietly after Ctrl-C or a polite kill, and say what is there.

    Args:
        outs: files that appear at the very end, all at once.
    """
    before = [_which(file) for file in outs]
    try:
        with stoppable():
            yield
    except KeyboardInterrupt:
        new = [str(file) for file, one in zip(outs, before, strict=True) if _which(file) != one]
        what = f"{' and '.join(new)} was complete, but not what lies beside it" if new else "nothing was written"
        sys.stderr.write(f"stopped; {what}\n")
        raise typer.Exit(STOPPED) from None


def _which(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that has taken its place."""
    try:
        found = os.stat(file.expanduser())
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


__all__ = ["STOPPED", "telling_when_stopped"]
