"""What a flag names: a reward, data or a model of a recipe or a run; a file, a folder or a server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from rewardsmith.config import Chosen, Settings, problems_in
from rewardsmith.data import SOURCE
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest
from rewardsmith.recipe import (
    Around,
    Recipe,
    explain,
    load_recipe,
    load_table,
    override,
    parse_models,
    parse_recipe,
    places,
    references,
)
from rewardsmith.recipe_files import shipped_recipe, shipped_recipes
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.component import Component
from rewardsmith.runs.preflight import copies_of
from rewardsmith.trainers.process.implicit_parts import process_parts

RECIPE = "recipe.toml"
"""The file of a run folder that holds its recipe."""

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class NamedReward:
    """A reward of a file, with the models and settings of that file.

    `warnings` has, by the name of a model, a message for when it is loaded: its weights may not be those meant.
    """

    reward: Chosen
    models: Mapping[str, Chosen] = field(default_factory=dict)
    cache: str | None = None
    seed: int = 0
    warnings: Mapping[str, str] = field(default_factory=dict)


def find_reward(where: str, overrides: Sequence[str] = ()) -> NamedReward:
    """Return the reward that `where` names, with its settings checked, and the models of the file.

    `where` is a TOML file, and where it has several rewards `:` and a path: the name of a stage (`policy`), or a dotted
    path to a reward (`policy.reward.parts.judge`, `stages.1.validation.reward`). A file with a `type` at its top is a
    reward table, and a path leads to one of its parts (`parts.judge`); it may have `[models]`. A run folder stands for
    its recipe, with the models that the run published.
    """
    name, path = _split(where)
    run = Path(name) if Path(name).is_dir() else None
    file = name if run is None else str(run / RECIPE)
    if run is not None and not Path(file).is_file():
        raise UserError(f"--reward {where!r}: the folder has no {RECIPE}: name the folder of a run, or a TOML file")
    if run is None and not Path(name).exists() and shipped_recipe(name) is None:
        parent = Path(name).parent
        siblings = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        meant = nearest(Path(name).name, siblings) or nearest(name, shipped_recipes())
        remedy = " Give a TOML file, a run folder, or a name that `rewardsmith list recipes` shows"
        raise UserError(f"there is no recipe or run {name!r}.{meant or remedy}")
    table = load_table(file, overrides)
    if is_reward(table):
        found = parse_reward(table, file)
        parts = {place: reward for place, reward in _rewards(found.reward) if place}
        if path and path not in parts:
            raise _unknown(file, path, parts, parts)
        return replace(found, reward=parts[path]) if path else found
    recipe = parse_recipe(table, source=file)
    if run is None:
        warnings = untrained_warnings(recipe, Path(name).parent, path)
    else:
        recipe, warnings = with_trained_models(recipe, run, overrides)
    return NamedReward(_select(recipe, name, path), recipe.models, recipe.cache, recipe.seed, warnings)


def _split(where: str, flag: str = "--reward") -> tuple[str, str]:
    """Return file and path; a file whose own name has a colon is still found."""
    file, colon, path = where.rpartition(":")
    if not colon or Path(where).exists():
        return where, ""
    if not file or not path:
        raise UserError(f"cannot read {flag} {where!r}: write RECIPE, or RECIPE:path such as recipe.toml:policy")
    return file, path


def is_reward(table: Mapping[str, Any]) -> bool:
    """Whether a file is a reward table, and no recipe."""
    return "type" in table and "stages" not in table


def explain_reward(table: dict[str, Any], source: str) -> str:
    """Return a reward table, its models and its cache as TOML with every default; `source` names it in messages."""
    found = parse_reward(table, source)
    try:
        Component.root(found.reward)  # finds what is wrong between its settings
    except UserError as error:
        raise RecipeError(source, [Problem("reward", str(error))]) from None
    # What is not in a table of its own comes first: TOML would take it for a part of the table before it.
    around = explain(Around.model_construct(cache=found.cache, models=dict(found.models)))
    settings, _, models = around.partition("\n\n")
    return f"{settings.strip()}\n{explain(found.reward)}" + (f"\n{models}" if models else "")


def parse_reward(table: dict[str, Any], file: str, given: Collection[str] = ()) -> NamedReward:
    """Return the reward of a table that may have `[models]` and `cache`; `file` names it in messages.

    `given` are the names of models that the program has as objects.
    """
    around: dict[str, Any] = {name: table[name] for name in ("models", "cache") if name in table}
    try:
        chosen = REWARD.choose({name: value for name, value in table.items() if name not in around})
    except PydanticCustomError as error:
        raise RecipeError(file, problems_in(error, "reward")) from None
    parsed = parse_models(around, chosen, source=file, given=given)
    return NamedReward(chosen, parsed.models, parsed.cache)


def _select(recipe: Recipe, file: str, path: str) -> Chosen:
    """Return the reward at a path of a recipe; without a path the only one, which several stages may share."""
    stages = [str(getattr(stage.settings, "name", i)) for i, stage in enumerate(recipe.stages)]
    known: dict[str, Chosen] = {}
    for place, reward in _rewards(recipe):
        number, _, rest = place.removeprefix("stages.").partition(".")
        known[f"{stages[int(number)]}.{rest}"] = reward
    # Rewards that are not inside another one.
    outer = {n: r for n, r in known.items() if not any(n.startswith(f"{other}.") for other in known)}
    if not path:
        if not outer:
            raise UserError(f"{file} has no reward: none of its stages scores anything")
        first, *others = outer.values()
        if any(other != first for other in others):
            names = _short_names(outer)
            raise UserError(f"{file} has several rewards: name one, as in {file}:{names[0]}. Known: {listing(names)}")
        return first
    stage, dot, rest = path.removeprefix("stages.").partition(".")
    numbered = dict(zip(map(str, range(len(stages))), stages, strict=True))
    wanted = f"{numbered.get(stage, stage)}.{rest if dot else 'reward'}"
    if wanted not in known:
        raise _unknown(file, path, known, outer)
    return known[wanted]


def _rewards(table: Settings | Chosen) -> Iterator[tuple[str, Chosen]]:
    for place, inner in places(table):
        if isinstance(inner, Chosen) and hasattr(inner.target, "score"):
            yield place, inner


def _unknown(file: str, path: str, known: Mapping[str, Chosen], listed: Mapping[str, Chosen]) -> UserError:
    hint = nearest(path, [*_short_names(known), *known])
    return UserError(f"{file} has no reward {path!r}.{hint} Known: {listing(_short_names(listed))}")


def _short_names(names: Mapping[str, Chosen]) -> list[str]:
    """Return the names as one would write them: a stage's own reward goes by the name of the stage."""
    return [name.removesuffix(".reward") if name.count(".") == 1 else name for name in names]


def named_models(reward: Chosen, models: Mapping[str, Chosen]) -> dict[str, Chosen]:
    """Return the models that a reward names, and those of which they are copies."""
    direct = [name for _, table, name in references(reward) if table == "models" and name in models]
    return {copied: models[copied] for name in direct for copied in copies_of(models, name)}


def recipe_of(where: str, overrides: Sequence[str] = ()) -> tuple[Recipe, Chosen, Path | None] | None:
    """Return the recipe of a place that `find_reward` takes, the stage with the reward, and the run folder if any.

    None for a file that is a reward table. Without a path it is the first stage that has the reward.
    """
    name, path = _split(where)
    run = Path(name) if Path(name).is_dir() else None
    table = load_table(name if run is None else str(run / RECIPE), overrides)
    if is_reward(table):
        return None
    recipe = parse_recipe(table, source=name)
    if run is not None:
        recipe, _ = with_trained_models(recipe, run, overrides)
    wanted = path.removeprefix("stages.").partition(".")[0]
    for i, stage in enumerate(recipe.stages):
        if wanted in (str(i), getattr(stage.settings, "name", "")) or (
            not wanted and any(True for _ in _rewards(stage))
        ):
            return recipe, stage, run
    raise UserError(f"{name} has no stage {wanted!r}")


# ---- data ----------------------------------------------------------------------------------------------------------


def find_source(where: str, settings: Sequence[str] = (), *, keep_ids: bool = False) -> Chosen:
    """Return the data source that a file, a folder, a pattern or `RECIPE.toml:NAME` stands for.

    `settings` of the source are `key=value`, such as `columns.candidates=mt_texts`.
    """
    file, _, name = (f"{where}:" if where.endswith(".toml") else where).rpartition(":")
    if file.endswith(".toml"):
        known = load_recipe(file, [f"data.{name}.{change}" for change in settings] if name else []).data
        if name not in known:
            hint = f"{nearest(name, known)} Known: {listing(known)}"
            raise UserError(f"{file} has no data {name!r}: name it, as in {file}:{next(iter(known), 'NAME')}.{hint}")
        return known[name]
    path = Path(where)
    suffixes = {file.suffix.lower() for file in path.iterdir()} if path.is_dir() else {path.suffix.lower()}
    kinds = sorted({SUFFIXES[suffix] for suffix in suffixes if suffix in SUFFIXES})
    if len(kinds) != 1:
        problem = "holds both JSON lines and Parquet files" if kinds else "is no JSONL or Parquet file"
        hint = f".{nearest(path.name, [p.name for p in path.parent.iterdir()])}" if path.parent.is_dir() else ""
        raise UserError(f"DATA {where!r} {problem}: name a file, a pattern, or RECIPE.toml:NAME{hint}")
    table: dict[str, Any] = {"type": kinds[0], "path": where, "shuffle": False}
    if not keep_ids:
        table["id_column"] = ""  # a file whose ids repeat can be used all the same
    for change in settings:
        override(table, change)
    try:
        return SOURCE.choose(table)
    except PydanticCustomError as error:
        raise RecipeError("--source", problems_in(error, "data source")) from None


# ---- models --------------------------------------------------------------------------------------------------------

SINGLE = "model"
"""The name of a model that is in no recipe, for overrides such as `models.model.dtype=bfloat16`."""


@dataclass(frozen=True)
class NamedModel:
    """A model by its name among the `models` of its file; `warnings` are as in `NamedReward`."""

    name: str
    models: Mapping[str, Chosen]
    cache: str | None = None
    seed: int = 0
    warnings: Mapping[str, str] = field(default_factory=dict)


def find_model(where: str, flag: str, overrides: Sequence[str] = ()) -> NamedModel:
    """Return the model that `where`, the value of a flag, stands for.

    That is `RECIPE.toml[:NAME]`; `RUN[:NAME]`, with the weights that the run has published; a Hugging Face folder or
    id; or the URL of a server, or several with commas. NAME may be left out where there is one model.
    """
    if where.startswith(("http://", "https://")):
        return _single_model({"type": "server", "urls": where.split(",")}, flag, overrides)
    file, name = _split(where, flag)
    run = Path(file)
    if (run / RECIPE).is_file():
        recipe, warnings = with_trained_models(load_recipe(run / RECIPE, overrides), run, overrides)
        trained = [name for name in recipe.models if (run / "models" / name).is_dir()]
        return _choose_model(file, flag, name, trained or recipe.models, NamedModel("", recipe.models, recipe.cache,
                             recipe.seed, warnings))  # fmt: skip
    if run.suffix == ".toml":
        table = load_table(file, overrides)
        if "stages" in table:
            recipe = parse_recipe(table, source=file)
            warnings = dict(untrained_warnings(recipe, run.parent, name, flag))
            found = NamedModel("", recipe.models, recipe.cache, recipe.seed, warnings)
        else:
            around = parse_models({n: table[n] for n in ("models", "cache") if n in table}, Around(), source=file)
            found = NamedModel("", around.models, around.cache, table.get("seed", 0))
        return _choose_model(file, flag, name, found.models, found)
    if not run.is_dir() and not where.startswith("tiny-"):
        siblings = [path.name for path in run.parent.iterdir()] if run.parent.is_dir() else []
        if where.count("/") != 1 or siblings or where.startswith(("/", ".", "~")):
            kinds = "RECIPE.toml:NAME, RUN:NAME, a Hugging Face folder or id (org/name), or the URL of a server"
            hint = nearest(run.name, siblings)
            raise UserError(f"{flag} {where!r}: there is no such file or folder.{hint} Name a model as {kinds}")
    return _single_model({"init": where}, flag, overrides)


def _single_model(settings: dict[str, Any], flag: str, overrides: Sequence[str]) -> NamedModel:
    table: dict[str, Any] = {"models": {SINGLE: settings}}
    for change in overrides:
        override(table, change)
    around = parse_models(table, Around(), source=flag)
    return NamedModel(SINGLE, around.models, around.cache)


def _choose_model(file: str, flag: str, name: str, offered: Collection[str], found: NamedModel) -> NamedModel:
    """Return the model with the name, or the only one that is offered."""
    if not name and len(offered) == 1:
        return replace(found, name=next(iter(offered)))
    if name not in found.models:
        problem = f"has no model {name!r}.{nearest(name, found.models)}" if name else "has several models: name one."
        problem = problem if found.models else "has no models."
        raise UserError(f"{flag}: {file} {problem} Known: {listing(found.models)}")
    return replace(found, name=name)


# ---- the models of a run ---------------------------------------------------------------------------------------------


def with_trained_models(recipe: Recipe, run: Path, overrides: Sequence[str]) -> tuple[Recipe, dict[str, str]]:
    """Return a recipe with the models that a run has published, and with the references of its implicit rewards.

    An implicit reward compares two models. The run stores what the second was when its stage began, or it is the same
    model without its adapter. A model whose initial weights are among the overrides is left alone. Returned are the
    recipe, and warnings by the name of a model.
    """
    warnings, trained = {}, training_stages(recipe)
    changed = {override.partition("=")[0].strip() for override in overrides}
    models = dict(recipe.models)
    implicit = {part.settings.model for stage in recipe.stages for part in process_parts(stage).values()}  # type: ignore[attr-defined]
    for name, model in recipe.models.items():
        own = {"models", f"models.{name}", f"models.{name}.init", f"models.{name}.copy_of"}
        if not isinstance(model.settings, ModelSettings) or own & changed:
            continue  # a served model, or one that the user has changed
        published, origin = run / "models" / name, model.settings.copy_of
        if published.is_dir():
            models[name] = replace(model, settings=_published(model.settings, published, adapter=name in implicit))
        elif name in trained:
            warnings[name] = f"{run} has not published models.{name}: it is as before the stage {trained[name]}"
        elif origin in trained:
            warnings[name] = f"{run} has not published models.{name}: it is a copy of {origin} as it is now"
    stages = [_with_references(stage, models, run / "references") for stage in recipe.stages]
    return recipe.model_copy(update={"models": models, "stages": stages}), warnings


def _published(settings: ModelSettings, folder: Path, *, adapter: bool) -> ModelSettings:
    """Return the table of a published model; with `adapter`, its adapter stays separate and can be switched off."""
    if adapter and settings.lora is not None:
        return settings.model_copy(update={"lora": settings.lora.model_copy(update={"init": str(folder / "adapter")})})
    # The adapter has been merged into what is published.
    return settings.model_copy(update={"init": str(folder), "copy_of": None, "lora": None})


def _with_references(stage: Chosen, models: dict[str, Chosen], references: Path) -> Chosen:
    """Return a stage whose implicit rewards name their reference; one that the run stored is added to `models`."""
    settings: Any = stage.settings
    parts = dict(process_parts(stage))
    for name, part in parts.items():
        implicit: Any = part.settings
        model: Any = models[implicit.model].settings
        if implicit.reference != "start" or implicit.reference_model is not None:
            continue
        stored = references / f"{settings.name}.{name}"
        if stored.is_dir():
            reference = stored.name
            while reference in models:
                reference += "_"
            initial = model.model_copy(update={"init": str(stored), "copy_of": None, "lora": None})
            models[reference] = replace(models[implicit.model], settings=initial)
            parts[name] = replace(part, settings=implicit.model_copy(update={"reference_model": reference}))
        elif model.lora is not None:  # it began with a new adapter, which changes nothing
            parts[name] = replace(part, settings=implicit.model_copy(update={"reference": "adapter-off"}))
    if not parts:
        return stage
    reward: Any = settings.reward.settings
    changed = reward.model_copy(update={"parts": {**reward.parts, **parts}})
    whole = replace(settings.reward, settings=changed)
    return replace(stage, settings=settings.model_copy(update={"reward": whole}))


def untrained_warnings(recipe: Recipe, run: Path, path: str, flag: str = "--reward") -> Mapping[str, str]:
    """Return a warning for each model of a recipe file that its stages train: here it has its initial weights."""
    return {
        name: f"models.{name} is as before the stage {stage}, which trains it; with its weights after a run:"
        f" {flag} {run if (run / 'models' / name).is_dir() else 'RUN'}{path and f':{path}'}"
        for name, stage in training_stages(recipe).items()
    }


def training_stages(recipe: Recipe) -> dict[str, str]:
    """Return the models that are trained, and the first stage in which each is."""
    trained: dict[str, str] = {}
    for stage in recipe.stages:
        tables: list[Any] = [table.settings if isinstance(table, Chosen) else table for _, table in places(stage)]
        names = [table.model for table in tables if hasattr(table, "optimizer") and hasattr(table, "model")]
        parts: list[Any] = [part.settings for part in process_parts(stage).values()]
        for name in [*names, *(part.model for part in parts if part.update != "none")]:
            trained.setdefault(name, str(getattr(stage.settings, "name", stage.name)))
    return trained
