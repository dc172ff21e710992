"""`rewardsmith cache`, from its options to what it prints."""

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
from rich.table import Table
from rich.text import Text

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.cache import Holding, VerdictCache, cache_folder

WIDE = 200
DAY = 86400.0
NAME = 60
"""Characters shown of a model's name and of its identity."""


def show(folder: Path | None, *, json: bool = False) -> None:
    """Print what is kept of each model.

    Args:
        folder: of the cache; None takes the user's own.
        json: print JSON instead of a table.

    Raises:
        UserError: for whatever a user can mend.
    """
    with closing(_opened(folder)) as cache:
        held, size = cache.holdings(), cache.size()
        count = sum(one.verdicts for one in held)
        if json:
            models = [asdict(one) for one in held]
            shown = {"folder": str(cache.folder), "verdicts": count, "bytes_on_disk": size, "models": models}
            sys.stdout.write(jsonlib.dumps(shown, indent=2) + "\n")
        elif not held:
            sys.stdout.write(f"no verdicts in {cache.folder}\n")
        else:
            # A file or a pipe has no width of its own.
            console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
            console.print(_table(held))
            console.print(f"{_counted(count)}, {_size(size)} on disk in {cache.folder}", soft_wrap=True, markup=False)


def clear(
    folder: Path | None,
    *,
    model: str | None = None,
    older_than: float | None = None,
    agreed: Callable[[str], bool] = lambda _: True,
) -> bool:
    """Remove verdicts and print how many went; return whether it was agreed to.

    Args:
        folder: of the cache; None takes the user's own.
        model: only of the model with this name or identity.
        older_than: only what was written so many days ago or earlier.
        agreed: asked before anything is removed, with the question to put to the user.

    Raises:
        UserError: for whatever a user can mend.
    """
    if older_than is not None and not 0 <= older_than < math.inf:
        raise UserError(f"--older-than is {older_than:g}: it must be a number of days, such as 30")
    before = None if older_than is None else time.time() - older_than * DAY
    with closing(_opened(folder)) as cache:
        held = cache.holdings()
        names = {name for one in held for name in (one.model, one.identity)}
        if held and model is not None and model not in names:
            known = listing({one.model for one in held})
            raise UserError(f"no verdict is by a model {model!r}.{nearest(model, names)} There are: {known}")
        chosen = cache.holdings(model, before)
        if not chosen:
            what = f"no verdicts in {cache.folder}" if not held else "no verdict is that old"
            sys.stdout.write(f"{what}: there is nothing to remove\n")
            return True
        count = _counted(sum(one.verdicts for one in chosen))
        models = ", ".join(sorted({printable(one.model, NAME) for one in chosen}))
        if not agreed(f"Remove {count} by {models} from {cache.folder}? They will be asked anew."):
            return False
        size = cache.size()
        gone = cache.clear(model, before)
        back = max(size - cache.size(), 0)
        sys.stdout.write(f"removed {_counted(gone)}; {_size(back)} of the disk came back\n")
        return True


def _opened(folder: Path | None) -> VerdictCache:
    if folder is not None and not folder.expanduser().is_dir():
        raise UserError(f"--folder is {str(folder)!r}: there is no such folder")
    return VerdictCache(cache_folder() if folder is None else folder, _say)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _table(held: Sequence[Holding]) -> Table:
    """Return a table for 80 columns: each model has its identity in the line below."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("model", overflow="fold")
    table.add_column("verb", no_wrap=True)
    for column in ("verdicts", "size", "tokens"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("oldest", "newest"):
        table.add_column(column, no_wrap=True)
    for one in held:
        model = Text.assemble(printable(one.model, NAME), "\n", (f"  {printable(one.identity, NAME)}", "dim"))
        tokens = one.prompt_tokens + one.tokens
        count = f"{tokens:,}" if tokens else ""  # not known, as for numbers and vectors
        table.add_row(
            model, Text(one.verb), f"{one.verdicts:,}", _size(one.bytes), count, _day(one.oldest), _day(one.newest)
        )
    return table


def _counted(count: int) -> str:
    return f"{count:,} verdict{'' if count == 1 else 's'}"


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
