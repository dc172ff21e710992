"""Call the command line in this process."""

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from rewardsmith import cli


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str


def call(*arguments: str) -> Outcome:
    """Run `rewardsmith ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["rewardsmith", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Outcome(status, out.getvalue(), err.getvalue())
