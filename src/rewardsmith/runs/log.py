"""`run.log`: what a run reported while it went, with times, and why it ended.

    2026-03-01 14:02:11 policy: 40 steps
    2026-03-01 14:09:53 error: the disk of 'runs/quickstart' is full. …

Every start of a run adds to the file. It holds what the console shows, in the same words; an error that nobody expected
has its traceback.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rewardsmith.errors import UserError

LOG = "run.log"


class RunLog:
    """Adds lines to a file. What cannot be written is left out: a full disk has its own message.

    Args:
        file: `run.log` of a run folder.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Add a message; lines after its first are indented."""
        lines = printable_lines(text.strip("\n")).replace("\n", "\n    ")
        with suppress(OSError), self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {lines}\n")

    def failed(self, error: BaseException) -> None:
        """Add why the run ended: a user's mistake by its message, anything else with its traceback."""
        self.write(f"error: {error}" if isinstance(error, UserError) else "".join(traceback.format_exception(error)))

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Add what this package warns of by `logging` while the block runs; the console shows it as before."""
        logger, handler = logging.getLogger("rewardsmith"), _Both(self)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _Both(logging.Handler):
    """Hands a warning to the log, and to the console where the program has set up no logging of its own."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(f"warning: {record.getMessage()}")
        others = [*logging.root.handlers, *logging.getLogger("rewardsmith").handlers]
        if others == [self] and logging.lastResort is not None:
            logging.lastResort.handle(record)


def printable_lines(text: str) -> str:
    """Return a text in which nothing but the ends of lines steers a terminal: it may quote a model's output."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


__all__ = ["LOG", "RunLog", "printable_lines"]
