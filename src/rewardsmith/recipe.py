"""One TOML file describes a run: models, data, and the stages in order.

    recipe = load_recipe("recipes/quickstart.toml", ["stages.policy.steps=10"])
    print(explain(recipe))

Everything is checked before any model is loaded, and all problems are reported at once.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from rewardsmith.config import Choice, Chosen, Refers, Settings, problems_of, summary
from rewardsmith.data import SOURCE
from rewardsmith.engines.model_settings import offload_problems
from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest
from rewardsmith.masking import HIDDEN, names_secret, shown, without_secrets
from rewardsmith.recipe_files import read_recipe
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.scale.scale_settings import ScaleSettings

ModelChoice = Annotated[Chosen, Choice("model", "rewardsmith.engines:MODELS", default="embedded")]
StageChoice = Annotated[Chosen, Choice("stage", "rewardsmith.trainers:STAGES")]
TrackerChoice = Annotated[
    Chosen, Choice("tracker", "rewardsmith.runs.trackers:TRACKERS", methods=("start", "log", "close"))
]

ModelTables = Annotated[dict[str, ModelChoice], Field(description="the models that take part, by name")]
CacheFolder = Annotated[
    str | None,
    Field(
        description='folder of the verdict cache; not set: ~/.cache/rewardsmith, or $REWARDSMITH_CACHE; "" keeps none'
    ),
]


class Around(Settings):
    """What a reward table may have in addition: the models that it calls, and the folder of their cached verdicts."""

    cache: CacheFolder = None
    models: ModelTables = Field(default={})


class Recipe(Settings):
    """What a run does. A recipe file is this table."""

    title: str = Field(default="", description="one line for people: what this recipe shows")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of everything that is random in the run")
    workers: int | None = Field(
        default=None, ge=1, description="processes that run rules; not set: one for each CPU core"
    )
    cache: CacheFolder = None
    models: ModelTables = Field(default={})
    data: dict[str, Annotated[Chosen, SOURCE]] = Field(
        default={}, description="where prompts and demonstrations come from, by name"
    )
    scale: ScaleSettings | None = Field(default=None, description="several GPUs or machines, for `run --on verl`")
    trackers: list[TrackerChoice] = Field(
        default=[], description="where metrics are also written: tensorboard, wandb, trackio"
    )
    stages: list[StageChoice] = Field(min_length=1, description="what happens, in order")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the validated recipe of a file after `key.path=value` overrides; a `RecipeError` has every problem."""
    return parse_recipe(load_table(path, overrides), source=str(path))


def load_table(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a TOML file, or a shipped recipe by name, after the overrides; its `module:Name`s can then be imported."""
    file, table = read_recipe(path)
    for change in overrides:
        override(table, change)
    # A user's own `module:Name` may be in the folder of the recipe or in the current one. Last: nothing is shadowed.
    for folder in (str(file.resolve().parent), str(Path.cwd())):
        if folder not in sys.path:
            sys.path.append(folder)
    return table


def parse_recipe(table: dict[str, Any], *, source: str = "recipe") -> Recipe:
    """Return the validated recipe of an already parsed table; `source` names it in messages."""
    recipe: Recipe = _parsed(Recipe, table, source)
    _refuse(source, [*_dangling(recipe, vars(recipe)), *_stage_names(recipe), *_model_problems(recipe, recipe.models)])
    return recipe


def parse_models(
    table: dict[str, Any], reward: Settings | Chosen, *, source: str, given: Collection[str] = ()
) -> Around:
    """Return the validated `[models]` and `cache` of a reward; every model that it names must be there, or `given`."""
    around: Around = _parsed(Around, table, source)
    require_models(reward, around.models, source=source, given=given)
    return around


def require_models(
    whole: Settings | Chosen, models: Mapping[str, Chosen], *, source: str, given: Collection[str] = ()
) -> None:
    """Raise a `RecipeError` unless every model that a table names is there, and can do what it is named for."""
    _refuse(source, [*_dangling(whole, {"models": models}, given), *_model_problems(whole, models)])


def _parsed(kind: type[Settings], table: dict[str, Any], source: str) -> Any:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise RecipeError(source, problems_of(error, kind)) from None


def _refuse(source: str, problems: list[Problem]) -> None:
    if problems:
        raise RecipeError(source, problems)


def override(table: dict[str, Any], change: str) -> None:
    """Apply `key.path=value` to a parsed recipe, in place.

    The value is TOML (`0.1`, `true`, `[1, 2]`, `"text"`); anything else is taken as text. An entry of a list is named
    by its number from 0, by its `name` or by its `type`: `stages.1.steps=5`, `stages.policy.steps=5`. Missing
    tables are made. A stage has either steps or epochs: the one that is set takes the place of the other.
    """
    key, equals, text = change.partition("=")
    if names_secret(key.rpartition(".")[2]) or without_secrets(change) != change:
        change = f"{key}={HIDDEN}"  # for messages
    if not equals or not key.strip():
        raise UserError(f"cannot read the override {change!r}: write it as key.path=value")
    set_value(table, key, _value(text), shown_as=change)


def set_value(table: dict[str, Any], key: str, value: object, *, shown_as: str = "") -> None:
    """Set `key.path` of a parsed recipe to a value, in place; see `override`."""
    change = shown_as or key
    try:
        *parents, last = _key_path(key)
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read the key of the override {change!r}: {error}") from None
    place: Any = table
    try:
        for part in parents:
            place = _enter(place, part)
        if not isinstance(place, dict | list):
            raise UserError(f"{'.'.join(parents)} is {shown(place)}, not a table")
        key_or_index: Any = _index(place, last) if isinstance(place, list) else last
        place[key_or_index] = value
        if parents[:1] == ["stages"] and len(parents) == 2 and last in _EITHER and isinstance(place, dict):
            place.pop(_EITHER[last], None)
    except UserError as error:
        raise UserError(f"cannot apply the override {change!r}: {error}") from None


_EITHER = {"steps": "epochs", "epochs": "steps"}
"""Settings of a stage of which it has one."""


def _key_path(key: str) -> list[str]:
    """Split a dotted key by TOML's own rules, so that quoted keys work."""
    path: list[str] = []
    node: Any = tomllib.loads(f"{key} = 0")
    if not node:
        raise ValueError("it is empty")  # a comment
    while isinstance(node, dict):
        ((part, node),) = node.items()
        path.append(part)
    return path


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break in the text must not smuggle in a second key


def _enter(place: Any, part: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part)]
    if not isinstance(place, dict):
        raise UserError(f"{part} is inside {shown(place)}, which is not a table")
    inner = place.setdefault(part, {})
    if isinstance(inner, str):  # `loss = "clip"` is short for a table with a type
        inner = place[part] = {"type": inner}
    return inner


def _index(entries: list[Any], part: str) -> int:
    if part.isdecimal():
        if len(part) < 9 and int(part) < len(entries):
            return int(part)
        raise UserError(f"there are {len(entries)} entries, counted from 0")
    names = [{str(e.get("name")), str(e.get("type"))} if isinstance(e, dict) else set() for e in entries]
    matches = [i for i, name in enumerate(names) if part in name]
    if len(matches) == 1:
        return matches[0]
    known = {n for name in names for n in name} - {"None"}
    reason = "several entries match; use a number" if matches else f"no entry has that name.{nearest(part, known)}"
    raise UserError(f"{part!r}: {reason} Known: {listing(known)}")


# ---- the resolved recipe, for checks and for people ---------------------------------------------------------------


def _fields(table: Settings | Chosen) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield (name, field, value) of a table; a choice shows the settings of its place before its own."""
    for settings in (table.slot, table.settings) if isinstance(table, Chosen) else (table,):
        if settings is not None:
            for name, info in type(settings).model_fields.items():
                yield name, info, getattr(settings, name)


def places(value: Any, path: str = "") -> Iterator[tuple[str, Settings | Chosen]]:
    """Yield every table inside a value with its path (`stages.1.reward`), outer before inner."""
    if isinstance(value, Settings | Chosen):
        yield path, value
        for name, _, inner in _fields(value):
            yield from places(inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, f"{path}.{key}")


_OFFERS = {
    "learn": 'a model in this process with head = "language"',
    "value": 'a model in this process with head = "scalar"',
    "write": 'a model that writes: one with head = "language", or a server that serves = "chat"',
    "chat": 'a model that writes: one with head = "language", or a server that serves = "chat"',
    "rate": 'a model that gives a number: one with head = "scalar", or a server that serves = "classify" or "score"',
    "rate_turns": "a model that reads a whole conversation, because the critique follows the answer: one with"
    ' head = "scalar", or a server that serves = "classify". serves = "score" would give the number of the critique',
    "embed": 'a model that gives vectors: type = "sentences", or a server that serves = "embed"',
}


def _dangling(whole: Settings | Chosen, tables: Mapping[str, Any], given: Collection[str] = ()) -> Iterator[Problem]:
    """Yield a problem for every setting that names a model or a data source that is not there."""
    for path, mark, value in marked(whole):
        if mark.table not in tables or value in given:  # a command's own data, an object of a program
            continue
        known = tables[mark.table]
        if value in known and mark.offer and mark.offer not in known[value].settings.offers:
            yield Problem(path, f"needs {_OFFERS[mark.offer]}; models.{value} is another", shown(value))
        elif value not in known:
            hint = f"{nearest(value, known)} Known: {listing(known)}"
            yield Problem(path, f"there is no [{mark.table}.{value}].{hint}", shown(value))


def references(whole: Settings | Chosen) -> Iterator[tuple[str, str, str]]:
    """Yield (path of the setting, `models` or `data`, name) of everything that a table names."""
    for path, mark, value in marked(whole):
        yield path, mark.table, value


def marked(whole: Settings | Chosen) -> Iterator[tuple[str, Refers, str]]:
    """Yield (path, mark, name) of every setting that names an entry of a table of the recipe."""
    for path, table in places(whole):
        settings = {name: value for name, _, value in _fields(table)}
        for name, info, value in _fields(table):
            for mark in info.metadata:
                if isinstance(mark, Refers) and value is not None:
                    yield f"{path}.{name}".lstrip("."), mark.within(settings), value


def _stage_names(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each stage name that is taken or no file name, and for an unknown `same_prompts_as`."""
    names: set[str] = set()
    for i, stage in enumerate(recipe.stages):
        settings: Any = stage.settings
        if settings.name in names:
            yield Problem(f"stages.{i}.name", "another stage has this name: give each its own", shown(settings.name))
        yield from _file_name(f"stages.{i}.name", settings.name)
        other = getattr(settings, "same_prompts_as", "")
        if other and other not in names:
            known = f"{nearest(other, names)} Known: {listing(names)}"
            yield Problem(f"stages.{i}.same_prompts_as", f"is no stage before this one.{known}", shown(other))
        names.add(settings.name)


def _model_problems(whole: Settings | Chosen, models: Mapping[str, Chosen]) -> Iterator[Problem]:
    yield from offload_problems(models)
    copies = {name: getattr(model.settings, "copy_of", None) for name, model in models.items()}
    for name in models:
        yield from _file_name(f"models.{name}", name)
        origin, passed = copies[name], {name}
        while origin in copies and origin not in passed:
            passed.add(origin)
            origin = copies[origin]
        if origin in passed:
            message = "is a copy of itself in the end: one must have an init"
            yield Problem(f"models.{name}.copy_of", message, shown(origin))
    for path, table in places(whole):
        of: Any = table.settings if isinstance(table, Chosen) and table.target is Implicit else None
        if of is None or of.reference != "adapter-off" or of.model not in models:
            continue
        if getattr(models[of.model].settings, "lora", None) is None:
            message = f'models.{of.model} has no adapter: set its lora, or reference = "start"'
            yield Problem(f"{path}.reference".lstrip("."), message, shown(of.reference))


def _file_name(path: str, name: str) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", name):
        message = "files are named after it: use up to 64 letters, digits, dots, dashes and underscores"
        yield Problem(path, message, shown(name))


def explain(recipe: Settings | Chosen, *, everything: bool = True) -> str:
    """Return a recipe, or one of its tables, as TOML with its defaults and a comment on every setting; it can be run.

    Without `everything` the rare settings that have their default are left out (`Settings.rare`).
    """
    lines = list(_lines("", recipe, everything))
    hidden = sum(_HIDDEN in line for line in lines)
    text = "\n".join(line for line in lines if _HIDDEN not in line).strip() + "\n"
    return text + (
        f"\n# {hidden} rare settings have their default and are not shown: --all shows them\n" if hidden else ""
    )


_HIDDEN = "\0"  # stands for a setting that is not shown


def _lines(path: str, table: Settings | Chosen, everything: bool) -> Iterator[str]:
    """Yield the settings of one table as aligned lines, then its inner tables."""
    rows: list[tuple[str, str]] = []
    inner: list[tuple[str, FieldInfo, Any]] = []
    if isinstance(table, Chosen):
        rows.append((f"type = {toml(table.name)}", summary(table.target)))
    for name, info, value in _fields(table):
        if not everything and _is_rare(table, name):
            yield from [_HIDDEN] * max(1, sum(len(list(_fields(t))) for _, t in places(value)))
        elif isinstance(value, Chosen) and not any(_fields(value)):
            rows.append((f"{name} = {toml(value.name)}", summary(value.target)))
        elif any(places(value)):
            inner.append((name, info, value))
        elif value is None:
            rows.append((f"# {name} =", f"{about_setting(info)} (not set)".strip()))
        else:
            rows.append((f"{name} = {toml(value)}", about_setting(info)))
    width = min(44, max((len(setting) for setting, _ in rows), default=0))
    yield from (f"{setting:<{width}}  # {about}".rstrip(" #") for setting, about in rows)
    for name, info, value in inner:
        yield from _table_lines(f"{path}.{_key(name)}".lstrip("."), info, value, everything)


def _is_rare(table: Settings | Chosen, name: str) -> bool:
    """Return whether a setting is a rare one that has its default."""
    for settings in (table.slot, table.settings) if isinstance(table, Chosen) else (table,):
        if settings is not None and name in type(settings).rare:
            default = type(settings).model_fields[name].get_default(call_default_factory=True)
            return name not in settings.model_fields_set or getattr(settings, name) == default
    return False


def about_setting(info: FieldInfo) -> str:
    """Return the description of a setting, with its alternatives where it is one of a few words."""
    about, kinds = info.description or "", (info.annotation, *get_args(info.annotation))
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return about if all(word in about for word in words) else f"{about} ({' | '.join(words)})".strip()


def _table_lines(path: str, info: FieldInfo, value: Any, everything: bool) -> Iterator[str]:
    if isinstance(value, Settings | Chosen):
        lines = list(_lines(path, value, everything))
        if any(line != _HIDDEN for line in lines):  # a table of rare settings only has no heading
            yield from ("", f"[{path}]" + (f"  # {info.description}" if info.description else ""))
        yield from lines
    elif isinstance(value, dict):
        for key, inner in value.items():
            about = "" if isinstance(inner, Chosen) else f"  # {summary(type(inner))}"
            yield from ("", f"[{path}.{_key(key)}]{about}", *_lines(f"{path}.{_key(key)}", inner, everything))
    else:
        for inner in value:
            yield from ("", f"[[{path}]]", *_lines(path, inner, everything))


def _key(name: str) -> str:
    return name if name and name.replace("-", "_").isidentifier() and name.isascii() else toml(name)


def toml(value: Any) -> str:
    """Return a plain value as TOML on one line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(toml, value)) + "]"
    # Text; a path; or a date or another default, which can be shown but not be read back.
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in str(value)) + '"'
