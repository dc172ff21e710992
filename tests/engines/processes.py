"""Looking at processes by their number."""

import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 60.0
"""Seconds after which what should happen has not."""


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def eventually(happens: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    until = time.monotonic() + LIMIT
    while not happens():
        assert time.monotonic() < until, "it has not happened"
        time.sleep(0.02)
