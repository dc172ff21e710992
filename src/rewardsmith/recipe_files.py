"""Recipe files by path, or by the name of a recipe that is part of the package: `quickstart`, `prime/online`."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from glob import escape, glob
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError, listing, nearest

ALIASES = {
    "bradley_terry": "bradley_terry/lifecycle",
    "judge": "start/judge",
    "own_reward": "start/own_reward",
    "prime": "prime/online",
    "ranker": "grrm/lifecycle",
    "rubric": "rrm/lifecycle",
}
"""Short names of recipes that are in a folder."""


@cache
def recipes_folder() -> Path:
    """Return the folder of the shipped recipes: in an installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if (folder / "quickstart.toml").is_file():
            return folder
    raise UserError(f"the recipes are missing from {package}: install rewardsmith again")


@cache
def shipped_recipes() -> dict[str, Path]:
    """Return the files of the shipped recipes by name: the path below the folder, without its suffix, or an alias."""
    folder = recipes_folder()
    files = {str(file.relative_to(folder).with_suffix("").as_posix()): file for file in folder.rglob("*.toml")}
    aliases = {short: files[name] for short, name in ALIASES.items()}
    return dict(sorted((aliases | files).items()))


def recipe_names() -> dict[str, Path]:
    """Return the files of the shipped recipes, each by one name: the alias, where there is one."""
    return {name: file for name, file in shipped_recipes().items() if name not in ALIASES.values()}


def completions(word: str) -> list[str]:
    """Return what a recipe that begins with `word` can be: a shipped one, a TOML file, or a folder."""
    paths = [Path(path) for path in glob(f"{escape(word)}*")]
    return [
        *(name for name in recipe_names() if name.startswith(word)),
        *(f"{path}/" for path in paths if path.is_dir()),
        *(str(path) for path in paths if path.suffix == ".toml" and path.is_file()),
    ]


def shipped_recipe(name: str) -> Path | None:
    """Return the file of a shipped recipe; a dash and an underscore are the same, `recipes/NAME.toml` is NAME."""
    if name.startswith("recipes/"):
        name = name.removeprefix("recipes/").removesuffix(".toml")
    return shipped_recipes().get(name.replace("-", "_"))


def find_recipe(path: str | Path) -> Path:
    """Return the file of a recipe: `path` itself, or the shipped recipe of that name where there is no such file."""
    file = Path(path)
    if os.path.exists(file) and not os.path.isdir(file):  # unlike Path's, these never raise
        return file
    shipped = shipped_recipe(file.as_posix())
    if shipped is not None:
        return shipped
    if os.path.isdir(file):
        raise UserError(f"cannot read the recipe {str(file)!r}: it is a folder. Name a TOML file in it")
    others = [other.name for other in file.parent.glob("*.toml")] if file.parent.is_dir() else []
    meant = nearest(file.name, others) or nearest(file.as_posix().removesuffix(".toml"), shipped_recipes())
    known = "" if file.suffix == ".toml" else f" Known: {listing(recipe_names())}, or the path of a TOML file"
    raise UserError(f"there is no recipe {str(file)!r}.{meant}{known}")


def read_recipe(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of a recipe and its content, not yet checked."""
    file = find_recipe(path)
    try:
        return file, tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the recipe {str(file)!r}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or an integer of thousands of digits
        raise UserError(f"{file}: not valid TOML: {error}") from None
