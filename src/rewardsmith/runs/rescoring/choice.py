"""Which reward `RECIPE[:path]` means: that of a stage, a part of one, or a file that is a reward table itself.

In the place of the recipe may stand the folder of a run: then models have the weights that the run gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rewardsmith.config import Chosen, Refers, Settings, problems_in
from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest
from rewardsmith.recipe import Around, Recipe, explain, load_table, parse_models, parse_recipe, places
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.component import Component
from rewardsmith.runs.rescoring.trained import as_trained, learned_on, trained_in

RECIPE = "recipe.toml"
"""The file of a run folder that holds its recipe."""


@dataclass(frozen=True)
class Found:
    """A reward of a file.

    Attributes:
        reward: the reward.
        models: the `[models]` of the file.
        cache: of the recipe; see `Recipe.cache`.
        seed: of the recipe.
        doubts: by the name of a model, what the user should know when it is loaded: its weights may not be those meant.
    """

    reward: Chosen
    models: Mapping[str, Chosen] = field(default_factory=dict)
    cache: str | None = None
    seed: int = 0
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked(self) -> dict[str, Chosen]:
        """The models that the reward names, and those of which they are copies."""
        names = {
            value
            for _, table in places(self.reward)
            for info, value in _values(table)
            if any(isinstance(mark, Refers) and mark.table == "models" for mark in info.metadata)
        }
        copies = {name: getattr(model.settings, "copy_of", None) for name, model in self.models.items()}
        for _ in copies:  # a copy may be of a copy
            names |= {copies.get(name) for name in names}
        return {name: model for name, model in self.models.items() if name in names}


def _values(table: Settings | Chosen) -> Iterator[tuple[FieldInfo, Any]]:
    for settings in (table.settings, table.slot) if isinstance(table, Chosen) else (table,):
        if settings is not None:
            yield from ((info, getattr(settings, name)) for name, info in type(settings).model_fields.items())


def find_reward(where: str, overrides: Sequence[str] = ()) -> Found:
    """Return the reward that `where` names, with its settings checked, and the models of the file.

    Args:
        where: a TOML file, and where it has several rewards `:` and a path: the name of a stage (`policy`), or a dotted
            path to a reward (`policy.reward.parts.judge`, `stages.1.validation.reward`). A file with a `type` at its
            top is a reward by itself, and a path leads to one of its parts (`parts.judge`); it may have `[models]`.
            A run folder stands for its recipe, with the models that the run published.
        overrides: changes of the file as `key.path=value`.

    Raises:
        UserError: when there is no such file or reward, or when it is not clear which one is meant.
        RecipeError: with every problem that was found in the file.
    """
    name, path = _split(where)
    run = Path(name) if Path(name).is_dir() else None
    file = name if run is None else str(run / RECIPE)
    if run is not None and not is_run(name):
        raise UserError(f"--reward {where!r}: the folder has no {RECIPE}: name the folder of a run, or a TOML file")
    if run is None and not Path(name).exists():
        raise _missing(name)
    table = load_table(file, overrides)
    if not is_reward(table):
        recipe = parse_recipe(table, source=file)
        if run is None:
            return _found(recipe, name, path, _untrained(recipe, where))
        recipe, doubts = as_trained(recipe, run, overrides)
        found = _found(recipe, name, path, doubts)
        return replace(found, doubts=learned_on(recipe, found.reward) | doubts)
    found = _in_table(table, file)
    known = {name: reward for name, reward in _rewards(found.reward) if name}
    if path and path not in known:
        raise _unknown(file, path, known, known)
    return replace(found, reward=known[path]) if path else found


def _missing(name: str) -> UserError:
    """Return what to say of a file or run that is not there, with the nearest name at the first place that is wrong."""
    path = Path(name)
    gone = next(place for place in (*reversed(path.parents), path) if not place.exists())
    try:
        inside = sorted(gone.parent.iterdir())
    except OSError:  # it may not be looked into, or is a file
        inside = []
    fits = [p.name for p in inside if (p.suffix == ".toml" or is_run(str(p)) if gone == path else p.is_dir())]
    return UserError(f"there is no recipe{'' if path.suffix else ' or run'} {name!r}.{nearest(gone.name, fits)}")


def _found(recipe: Recipe, file: str, path: str, doubts: Mapping[str, str]) -> Found:
    return Found(_in_recipe(recipe, file, path), recipe.models, recipe.cache, recipe.seed, doubts)


def is_run(where: str) -> bool:
    """Whether `RUN[:path]` names the folder of a run."""
    return any((Path(name) / RECIPE).is_file() for name in (where, where.rpartition(":")[0]) if name)


def _untrained(recipe: Recipe, where: str) -> dict[str, str]:
    """Return a word on each model of a recipe that its stages train: here it is untrained."""
    file, path = _split(where)
    run = Path(file).parent
    return {
        name: f"models.{name} is as before the stage {stage}, which trains it; with its weights after a run:"
        f" --reward {run if (run / 'models' / name).is_dir() else 'RUN'}{path and f':{path}'}"
        for name, stage in trained_in(recipe).items()
    }


def is_reward(table: Mapping[str, Any]) -> bool:
    """Whether a file is a reward table itself, and no recipe."""
    return "type" in table and "stages" not in table


def explain_reward(table: dict[str, Any], source: str) -> str:
    """Return a reward table, its models and its cache as TOML with every default; `source` names it in messages.

    Raises:
        RecipeError: with every problem that was found.
    """
    found = _in_table(table, source)
    try:
        Component.root(found.reward)  # what is wrong between its settings is found only then
    except UserError as error:
        raise RecipeError(source, [Problem("reward", str(error))]) from None
    # What is not in a table of its own comes first: TOML would take it for a part of the table before it.
    around = explain(Around.model_construct(cache=found.cache, models=dict(found.models)))
    settings, _, models = around.partition("\n\n")
    return f"{settings.strip()}\n{explain(found.reward)}" + (f"\n{models}" if models else "")


def _in_table(table: dict[str, Any], file: str) -> Found:
    table = dict(table)
    beside: dict[str, Any] = {name: table.pop(name) for name in ("models", "cache") if name in table}
    try:
        chosen = REWARD.choose(table)
    except PydanticCustomError as error:
        raise RecipeError(file, problems_in(error, "reward")) from None
    around = parse_models(beside, chosen, source=file)
    return Found(chosen, around.models, around.cache)


def _split(where: str) -> tuple[str, str]:
    """Take the path off; a file whose own name has a colon is still found."""
    file, colon, path = where.rpartition(":")
    if not colon or Path(where).exists():
        return where, ""
    if not file or not path:
        raise UserError(f"cannot read --reward {where!r}: write RECIPE, or RECIPE:path such as recipe.toml:policy")
    return file, path


def _in_recipe(recipe: Recipe, file: str, path: str) -> Chosen:
    names = [str(getattr(stage.settings, "name", i)) for i, stage in enumerate(recipe.stages)]
    known: dict[str, Chosen] = {}
    for place, reward in _rewards(recipe):
        head, number, rest = [*place.split(".", 2), "", ""][:3]
        known[f"{names[int(number)]}.{rest}" if head == "stages" else place] = reward
    # Those that stand for themselves, not inside another reward: what a user most likely means.
    outer = {n: r for n, r in known.items() if not any(n.startswith(f"{other}.") for other in known)}
    if not path:
        return _only(file, outer)
    wanted = path.removeprefix("stages.")
    first, _, rest = wanted.partition(".")
    if first not in names and first.isdecimal() and len(first) < 9 and int(first) < len(names):
        wanted = f"{names[int(first)]}.{rest}".rstrip(".")
    wanted = f"{wanted}.reward" if wanted in names else wanted
    if wanted not in known:
        raise _unknown(file, path, known, outer)
    return known[wanted]


def _rewards(table: Settings | Chosen) -> Iterator[tuple[str, Chosen]]:
    for place, inner in places(table):
        if isinstance(inner, Chosen) and hasattr(inner.target, "score"):
            yield place, inner


def _only(file: str, rewards: dict[str, Chosen]) -> Chosen:
    """Return the reward that all places share; stages that ask for the same one do not make it two."""
    if not rewards:
        raise UserError(f"{file} has no reward: none of its stages scores anything")
    first, *others = rewards.values()
    if any(other != first for other in others):
        raise UserError(f"{file} has several rewards: say which, as in {file}:{_short(rewards)[0]}. {_list(rewards)}")
    return first


def _unknown(file: str, path: str, known: dict[str, Chosen], shown: dict[str, Chosen]) -> UserError:
    return UserError(f"{file} has no reward {path!r}.{nearest(path, [*_short(known), *known])} {_list(shown)}")


def _short(names: dict[str, Chosen]) -> list[str]:
    """Return the names as one would write them: a stage's own reward goes by the name of the stage."""
    return [name.removesuffix(".reward") if name.count(".") == 1 else name for name in names]


def _list(names: dict[str, Chosen]) -> str:
    return f"Known: {listing(_short(names))}"
