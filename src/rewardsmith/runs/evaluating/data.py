"""What `rewardsmith evaluate` reads: files, or a data source of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from rewardsmith.config import Choice, Chosen, problems_in
from rewardsmith.data import open_source
from rewardsmith.data.source import Reads
from rewardsmith.errors import RecipeError, UserError, listing, nearest
from rewardsmith.recipe import load_recipe, override
from rewardsmith.trainers.evaluating.stage import READS
from rewardsmith.trainers.held_out import SEED

ENDLESS = 512
"""Items of a recipe's source where no number is given: a built-in world has no end."""

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_SOURCE = Choice("data source", "rewardsmith.data:SOURCES", methods=("prompts",))


def read_items(
    where: str,
    of: Reads,
    settings: Sequence[str] = (),
    *,
    items: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Any]:
    """Return the items to measure with; what is wrong with any of them is reported first.

    Args:
        where: a JSONL or Parquet file, a folder or pattern of such files, or `RECIPE.toml:NAME`.
        of: what is read.
        settings: of the source, as `key=value`, such as `columns.candidates=mt_texts`.
        items: how many at most; None takes all of a file, and `ENDLESS` of a recipe's source.
        say: tells the user something.

    Raises:
        UserError: for whatever a user can mend.
    """
    from_recipe = _recipe_and_name(where) is not None
    chosen = find_source(where, settings)
    source = open_source(where, chosen)
    read = getattr(source, of, None)
    if read is None:
        raise UserError(f'{where} has no {of}: a source of type "{chosen.name}" has none')
    check = getattr(source, "check", None)
    if check is not None:
        try:
            check(of=of)
        except UserError:
            _require_kind(where, chosen, of)
            raise
    found = list(islice(read(SEED), items or (ENDLESS if from_recipe else None)))
    if not found:
        raise UserError(f"{where} is empty: there is nothing to measure")
    if from_recipe and items is None and len(found) == ENDLESS:
        say(f"{where}: the first {ENDLESS} {of}; --items N takes another number")
    return found


def _recipe_and_name(where: str) -> tuple[str, str] | None:
    file, colon, name = where.rpartition(":")
    if colon and file.endswith(".toml"):
        return file, name
    return (where, "") if where.endswith(".toml") else None


def find_source(where: str, settings: Sequence[str] = ()) -> Chosen:
    """Return the data source that a file, a folder, a pattern or `RECIPE.toml:NAME` stands for."""
    recipe = _recipe_and_name(where)
    return _of_files(where, settings) if recipe is None else _of_recipe(*recipe, settings)


def _require_kind(where: str, chosen: Chosen, of: Reads) -> None:
    """Raise a `UserError` that names another command if the first row is no item of this kind but one of another."""
    if _begins_with(chosen, of):
        return
    other = next((kind for kind, reads in READS.items() if reads != of and _begins_with(chosen, reads)), None)
    if other is not None:
        raise UserError(f"{where} has no {of}: its rows look like {other}. Use rewardsmith evaluate {other} {where}")


def _begins_with(chosen: Chosen, of: Reads) -> bool:
    try:
        return next(iter(getattr(chosen.build(), of)(0)), None) is not None
    except (UserError, AttributeError):
        return False


def _of_recipe(file: str, name: str, settings: Sequence[str]) -> Chosen:
    known = load_recipe(file, [f"data.{name}.{change}" for change in settings] if name else []).data
    if name in known:
        return known[name]
    if name:
        raise UserError(f"{file} has no data {name!r}.{nearest(name, known)} Known: {listing(known)}")
    raise UserError(
        f"say which data of {file} is meant, as in {file}:{next(iter(known), 'NAME')}. Known: {listing(known)}"
    )


def _of_files(where: str, settings: Sequence[str]) -> Chosen:
    path = Path(where)
    inside = {file.suffix.lower() for file in path.iterdir()} if path.is_dir() else {path.suffix.lower()}
    kinds = sorted({SUFFIXES[suffix] for suffix in inside if suffix in SUFFIXES})
    if len(kinds) != 1:
        found = "holds both JSON lines and Parquet files" if kinds else "is no JSONL or Parquet file"
        hint = f".{nearest(path.name, [p.name for p in path.parent.iterdir()])}" if path.parent.is_dir() else ""
        raise UserError(f"DATA {where!r} {found}: name a file, a pattern, or RECIPE.toml:NAME{hint}")
    # Ids matter to nobody here; a file whose ids repeat can be measured with.
    table: dict[str, Any] = {"type": kinds[0], "path": where, "shuffle": False, "id_column": ""}
    for change in settings:
        override(table, change)
    try:
        return _SOURCE.choose(table)
    except PydanticCustomError as error:
        raise RecipeError("--data", problems_in(error, "data source")) from None
