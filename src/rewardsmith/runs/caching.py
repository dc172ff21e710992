"""`rewardsmith cache`: show and clear the verdict cache."""

from __future__ import annotations

import json as jsonlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.cache import CacheUsage, VerdictCache

PIPE_COLUMNS = 200
"""Width where the output is not a terminal."""

NAME_COLUMNS = 60
"""Characters shown of a model's name and of its identity."""


def show(folder: Path | None, *, json: bool = False) -> None:
    """Print what is stored for each model, as a table or as JSON; `folder` None is the user's own cache."""
    with closing(_opened(folder)) as cache:
        models, size = cache.contents(), cache.size()
        count = sum(one.verdicts for one in models)
        if json:
            rows = [asdict(one) for one in models]
            shown = {"folder": str(cache.folder), "verdicts": count, "bytes_on_disk": size, "models": rows}
            sys.stdout.write(jsonlib.dumps(shown, indent=2) + "\n")
        elif not models:
            sys.stdout.write(f"no verdicts in {cache.folder}\n")
        else:
            console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
            console.print(_table(models))
            console.print(f"{_counted(count)}, {decimal(size)} on disk in {cache.folder}", soft_wrap=True, markup=False)


def clear(
    folder: Path | None,
    *,
    model: str | None = None,
    older_than: float | None = None,
    agreed: Callable[[str], bool] = lambda _: True,
) -> bool:
    """Remove verdicts and print how many; return whether the user agreed.

    Args:
        folder: of the cache; None takes the user's own.
        model: only of the model with this name or identity.
        older_than: only what is at least so many days old.
        agreed: gets the question to put to the user before anything is removed.
    """
    if older_than is not None and not 0 <= older_than < math.inf:
        raise UserError(f"--older-than is {older_than:g}: it must be a number of days, such as 30")
    before = None if older_than is None else time.time() - older_than * 86400
    with closing(_opened(folder)) as cache:
        models = cache.contents()
        names = {name for one in models for name in (one.model, one.identity)}
        if models and model is not None and model not in names:
            known = listing({one.model for one in models})
            raise UserError(f"there are no verdicts of a model {model!r}.{nearest(model, names)} Known: {known}")
        selected = cache.contents(model, before)
        if not selected:
            what = f"no verdicts in {cache.folder}" if not models else "no verdict is that old"
            sys.stdout.write(f"{what}: there is nothing to remove\n")
            return True
        count = _counted(sum(one.verdicts for one in selected))
        by = ", ".join(sorted({printable(one.model, NAME_COLUMNS) for one in selected}))
        if not agreed(f"Remove {count} by {by} from {cache.folder}? The models will be called again."):
            return False
        size = cache.size()
        removed = cache.clear(model, before)
        freed = decimal(max(size - cache.size(), 0))
        sys.stdout.write(f"removed {_counted(removed)}; {freed} of disk space freed\n")
        return True


def _opened(folder: Path | None) -> VerdictCache:
    if folder is not None and not folder.expanduser().is_dir():
        raise UserError(f"--folder is {str(folder)!r}: there is no such folder")
    return VerdictCache(folder, lambda message: sys.stderr.write(f"{message}\n"))


def _table(models: Sequence[CacheUsage]) -> Table:
    """Return a table for 80 columns: each model has its identity in the line below."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("model", overflow="fold")
    table.add_column("verb", no_wrap=True)
    for column in ("verdicts", "size", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("oldest", "newest"):
        table.add_column(column, no_wrap=True)
    for one in models:
        name, identity = printable(one.model, NAME_COLUMNS), printable(one.identity, NAME_COLUMNS)
        tokens = one.prompt_tokens + one.tokens  # unknown for numbers and vectors
        days = (datetime.fromtimestamp(seconds).strftime("%Y-%m-%d") for seconds in (one.oldest, one.newest))
        table.add_row(
            Text.assemble(name, "\n", (f"  {identity}", "dim")),
            *(one.verb, f"{one.verdicts:,}", decimal(one.bytes), f"{tokens:,}" if tokens else "", *days),
        )
    return table


def _counted(count: int) -> str:
    return f"{count:,} verdict{'' if count == 1 else 's'}"
