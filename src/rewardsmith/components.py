"""How a name in a recipe becomes a thing with checked settings.

A component is anything that a recipe chooses by `type`: a reward, an estimator, a loss, a data source, a stage. Each
room has one literal dictionary of names; `"my_module:MyReward"` works wherever a name does. The settings of a component
are the keyword-only parameters of the function or constructor itself, so there is one place to read them, with their
bounds and descriptions:

    class Arithmetic:
        def __init__(self, *, operations: Annotated[int, Field(ge=1, description="steps in a problem")] = 3): ...

A component with many settings, or with nested tables, is a `Settings` class instead: its fields are the settings.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest


class Settings(BaseModel):
    """A table of a recipe: unknown keys, wrong types and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True)
class Chosen:
    """What a table with a `type` key stands for.

    Attributes:
        name: the type as the recipe gives it.
        target: the function or class behind the name.
        settings: its validated settings, every default filled in.
        beside: validated settings of the place where the choice stands, such as the weight of a reward in a sum.
    """

    name: str
    target: Callable[..., Any]
    settings: Settings
    beside: Settings | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the settings as keyword arguments for `target`."""
        return {name: getattr(self.settings, name) for name in type(self.settings).model_fields}

    def build(self) -> Any:
        """Return `target` called with the settings; a stage, whose settings are the target, returns them."""
        return self.settings if self.target is type(self.settings) else self.target(**self.arguments())


@dataclass(frozen=True)
class Refers:
    """Marks a setting that must name an entry of a table of the recipe, such as `models`."""

    table: str


@dataclass(frozen=True)
class Choice:
    """Marks a setting that chooses a component: `Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS")]`.

    The setting is a table with a `type` and the component's settings, or just the name.

    Attributes:
        noun: what is chosen, for messages.
        table: where the dictionary of names lives, as `module:NAME`. Imported when the first recipe needs it, so that
            reading a recipe without estimators never loads torch.
        beside: settings that belong to the place and stand in the same table as those of the component.
    """

    noun: str
    table: str
    beside: type[Settings] | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic ask us instead of looking into `Chosen`."""
        return no_info_plain_validator_function(lambda value: _choose(self.noun, self.table, self.beside, value))


def build(choice: Choice, table: str | dict[str, Any]) -> Any:
    """Return the component that a table describes, for programs that have no recipe file.

    Raises:
        RecipeError: with every problem that was found in the table.
    """
    try:
        return _choose(choice.noun, choice.table, choice.beside, table).build()
    except PydanticCustomError as error:
        problems = (error.context or {}).get("problems") or [Problem(choice.noun, error.message())]
        raise RecipeError(choice.noun, problems) from None


def named(name: str) -> Any:
    """Return a name as the default of a choice; it is resolved when a recipe is read."""
    return name


def _choose(noun: str, table: str, beside: type[Settings] | None, value: object) -> Chosen:
    if isinstance(value, Chosen):
        return value
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict):
        raise PydanticCustomError("not_a_table", f"must be a table with a type, or the name of a {noun}")
    names = import_name(table)
    if "type" not in value:
        raise PydanticCustomError("no_type", f'has no type. Say which {noun}: type = "…". Known: {listing(names)}')
    name = value["type"]
    try:
        target = resolve(noun, names, name)
        model = settings_of(target)
    except UserError as error:
        raise _problems([Problem("type", str(error), shown(name))]) from None
    own = beside.model_fields if beside else {}
    rest = {key: item for key, item in value.items() if key != "type" and key not in own}
    problems: list[Problem] = []
    settings = _validated(model, rest, problems, owner=f'{noun} "{name}"', also=own)
    place = _validated(beside, {k: v for k, v in value.items() if k in own}, problems, owner=noun) if beside else None
    if problems:
        raise _problems(problems)
    assert settings is not None
    return Chosen(name, target, settings, place)


def _validated(
    model: type[Settings], values: dict[str, Any], problems: list[Problem], *, owner: str, also: Mapping[str, Any] = {}
) -> Settings | None:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems += problems_of(error, model, owner=owner, also=also)
        return None


def resolve(noun: str, names: Mapping[str, Callable[..., Any]], name: object) -> Callable[..., Any]:
    """Return what `name` stands for: an entry of `names`, or the object at `module:Name`."""
    if not isinstance(name, str):
        raise UserError(f"the name of a {noun} is text")
    if name in names:
        return names[name]
    if ":" in name:
        target: Callable[..., Any] = import_name(name)
        if not callable(target):
            raise UserError(f"{name} is a {type(target).__name__}: a {noun} is a function or a class")
        return target
    raise UserError(f"unknown {noun}.{nearest(name, names)} Known: {listing(names)}, or your own as module:Name")


def import_name(name: str) -> Any:
    """Return the object at `module:Name`; a `UserError` says which half is wrong."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            f"cannot import the module {module_name!r} ({type(error).__name__}: {error})."
            " It must be installed, or lie beside the recipe or in the current folder"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UserError(f"the module {module_name!r} has no {attribute!r}.{nearest(attribute, public)}") from None


@cache
def settings_of(target: Callable[..., Any]) -> type[Settings]:
    """Return the settings of a component as a class: itself, or one made from its keyword-only parameters."""
    if isinstance(target, type) and issubclass(target, BaseModel):
        if not issubclass(target, Settings):
            raise UserError(f"{target.__name__} must derive from rewardsmith.components.Settings")
        return target
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"cannot read the settings from the signature of {target!r}: {error}") from None
    definitions: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is inspect.Parameter.empty else p.default)
        for p in parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return create_model(
        getattr(target, "__name__", "Component"), __base__=Settings, __doc__=target.__doc__, **definitions
    )


def summary(target: object) -> str:
    """Return the first sentence of a component's docstring, as `explain` shows it."""
    text = inspect.getdoc(target) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip().rstrip(".:")


# ---- what is wrong, in the user's words ---------------------------------------------------------------------------


def problems_of(
    error: ValidationError, model: type[BaseModel], *, owner: str = "recipe", also: Mapping[str, Any] = {}
) -> Iterator[Problem]:
    """Yield what pydantic found as problems with the path, the value and the remedy.

    Args:
        error: from validating `model`.
        model: what was validated; the known names of an unknown setting are looked up in it.
        owner: what to call the table at the top.
        also: further settings that may stand in the table at the top.
    """
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"])
        inner = detail.get("ctx", {}).get("problems")
        if inner is not None:
            yield from (Problem(f"{path}.{p.path}" if path else p.path, p.message, p.value) for p in inner)
        else:
            yield Problem(path, *_worded(detail, model, owner, also))


def _worded(detail: ErrorDetails, model: type[BaseModel], owner: str, also: Mapping[str, Any]) -> tuple[str, str]:
    """Return (message, value) for one of pydantic's findings."""
    kind, location, value = detail["type"], detail["loc"], shown(detail["input"])
    if kind == "missing":
        at = _model_at(model, location[:-1])
        about = at.model_fields[str(location[-1])].description if at else None
        return f"is missing{f': {about}' if about else ''}. It has no default", ""
    if kind == "extra_forbidden":
        at = _model_at(model, location[:-1])
        known = {*(at.model_fields if at else {}), *(also if at is model else {})}
        where = owner if at is model else f"[{'.'.join(map(str, location[:-1]))}]"
        return f"unknown setting of {where}.{nearest(str(location[-1]), known)} Known: {listing(known)}", value
    if kind == "literal_error":
        expected = detail["ctx"]["expected"]
        return (
            f"must be {expected}.{nearest(str(detail['input']), [e.strip(' ,') for e in expected.split(chr(39))])}",
            value,
        )
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return message, "" if isinstance(detail["input"], dict) else value


def _model_at(model: Any, location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Follow a location from a settings class through tables and lists to the settings class it ends in."""
    kind: Any = model
    for part in location:
        if get_origin(kind) in (Union, types.UnionType):
            kind = next((a for a in get_args(kind) if a is not type(None)), None)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[str(part)].annotation
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) in (list, tuple):
            kind = get_args(kind)[0]
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _problems(problems: list[Problem]) -> PydanticCustomError:
    return PydanticCustomError("problems", "{count} problems", {"count": len(problems), "problems": problems})


def shown(value: object) -> str:
    """Return a value as TOML would show it, cut to one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    else:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
