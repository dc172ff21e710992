"""`rewardsmith cache`: show and clear the verdict cache."""

from __future__ import annotations

import math
import sys
import time
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.filesize import decimal

from rewardsmith.console import Columns, Table, count_of, print_json, print_tables
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.cache import VerdictCache

cache = App(name="cache", help="Show or delete the cached replies of models.")

CacheFolder = Annotated[
    Path | None, Parameter(help="folder of the cache; default: $REWARDSMITH_CACHE, or ~/.cache/rewardsmith")
]


@cache.command
def stats(*, folder: CacheFolder = None, json: Annotated[bool, Parameter(help="print JSON")] = False) -> None:
    """Show the cached replies of each model: their number, size, tokens and age.

    Example: `rewardsmith cache stats`
    """
    with closing(_opened(folder)) as opened:
        models, size = opened.contents(), opened.size()
    count = sum(one.verdicts for one in models)
    if json:
        rows = [asdict(one) for one in models]
        print_json({"folder": str(opened.folder), "verdicts": count, "bytes_on_disk": size, "models": rows})
    elif not models:
        sys.stdout.write(f"no verdicts in {opened.folder}\n")
    else:
        columns: Columns = {
            "model": "text", "identity": "text", "verb": "text", "verdicts": "count", "size": "text",
            "tokens": "count", "oldest": "text", "newest": "text",
        }  # fmt: skip
        table = [
            (
                one.model,
                one.identity,
                one.verb,
                one.verdicts,
                decimal(one.bytes),
                one.prompt_tokens + one.tokens or None,  # unknown for numbers and vectors
                *(datetime.fromtimestamp(seconds).strftime("%Y-%m-%d") for seconds in (one.oldest, one.newest)),
            )
            for one in models
        ]
        disk = f"{count_of(count, 'verdict')}, {decimal(size)} on disk in {opened.folder}"
        print_tables([Table("", columns, table), disk])


@cache.command
def clear(
    *,
    folder: CacheFolder = None,
    model: Annotated[str | None, Parameter(help="only this model: its name in the recipe, or its identity")] = None,
    older_than: Annotated[float | None, Parameter(help="only replies that are older than so many days")] = None,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], help="delete without confirmation")] = False,
) -> int:
    """Delete cached replies and return their disk space. Models are called again when a reply is needed.

    Everything, after confirmation: `rewardsmith cache clear`

    Replies of one model that are older than 30 days: `rewardsmith cache clear --model judge --older-than 30 --yes`
    """
    if older_than is not None and not 0 <= older_than < math.inf:
        raise UserError(f"--older-than is {older_than:g}: it must be a number of days, such as 30")
    before = None if older_than is None else time.time() - older_than * 86400
    with closing(_opened(folder)) as opened:
        models = opened.contents()
        names = {name for one in models for name in (one.model, one.identity)}
        if models and model is not None and model not in names:
            known = listing({one.model for one in models})
            raise UserError(f"there are no verdicts of a model {model!r}.{nearest(model, names)} Known: {known}")
        selected = opened.contents(model, before)
        if not selected:
            sys.stdout.write(f"no verdicts in {opened.folder} to remove\n")
            return 0
        if not yes:
            count = count_of(sum(one.verdicts for one in selected), "verdict")
            by = ", ".join(sorted({printable(one.model, 60) for one in selected}))
            sys.stdout.write(f"Remove {count} by {by} from {opened.folder}? The models will be called again. [y/N] ")
            sys.stdout.flush()
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                sys.stderr.write("nothing was deleted; --yes skips the confirmation\n")
                return 1
        size = opened.size()
        removed = count_of(opened.clear(model, before), "verdict")
        sys.stdout.write(f"removed {removed}; {decimal(max(size - opened.size(), 0))} of disk space freed\n")
    return 0


def _opened(folder: Path | None) -> VerdictCache:
    if folder is not None and not folder.expanduser().is_dir():
        raise UserError(f"--folder is {str(folder)!r}: there is no such folder")
    return VerdictCache(folder, lambda message: sys.stderr.write(f"{message}\n"))
