"""From a name in a recipe to a component with checked settings.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, Strict, ValidationError, create_model
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from rewardsmith.errors import Problem, RecipeError, UserError, a, listing, nearest
from rewardsmith.hints import hint
from rewardsmith.masking import HIDDEN, names_secret, shown


class Settings(BaseModel):
    """A table of a recipe: unknown keys, wrong types and numbers that are not finite are errors.

    Attributes:
        rare: settings that most recipes leave at their default; `rewardsmith explain` shows them with `--all`.
    """

    rare: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True)
class Chosen:
    """A table with a `type`: the function or class behind the name, and its validated settings with every default.

    `slot` has the settings of the place where the choice stands, such as the weight of a reward in a sum. `given` is a
    Python object in the place of a name: the component itself, or what `target` wraps.
    """

    name: str
    target: Callable[..., Any]
    settings: Settings
    slot: Settings | None = None
    given: Any = None

    def arguments(self) -> dict[str, Any]:
        """Return the settings as keyword arguments for `target`."""
        return {name: getattr(self.settings, name) for name in type(self.settings).model_fields}

    def build(self) -> Any:
        """Return `target` called with the settings; a stage, whose settings are the target, returns them."""
        if self.target is type(self.settings):
            return self.settings
        if isinstance(self.target, type) and isinstance(self.given, self.target):
            return self.given
        try:
            return self.target(*([] if self.given is None else [self.given]), **self.arguments())
        except UserError:
            raise
        except Exception as error:  # a user's own class may raise anything
            raise UserError(f"{self.name} could not be made: {type(error).__name__}: {error}") from error


def as_json(value: Any) -> Any:
    """Return settings and choices as JSON values, with every default, to compare those of two runs."""
    if isinstance(value, Chosen):
        return {"type": value.name, **(as_json(value.slot) or {}), **as_json(value.settings)}
    if isinstance(value, Settings):
        return {name: as_json(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@dataclass(frozen=True)
class Refers:
    """Marks a setting that must name an entry of a table of the recipe, such as `models`.

    `offer` is what a model must be able to do here (`learn`, `value`, `chat`, `rate`, `embed`; "" for any), `offer_if`
    another setting of the same table, and what the model must be able to do where that one is set.
    """

    table: str
    offer: str = ""
    offer_if: tuple[str, str] | None = None

    def within(self, settings: Mapping[str, Any]) -> Refers:
        """Return the mark with the offer that the other settings of its table call for."""
        if self.offer_if is None or settings.get(self.offer_if[0]) is None:
            return self
        return Refers(self.table, self.offer_if[1])


@dataclass(frozen=True)
class Choice:
    """Marks a setting that chooses a component: `Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS")]`.

    The setting is a table with a `type` and the component's settings, or just the name. From Python the type may be a
    class, a function or an object instead of a name.

    Attributes:
        what: what is chosen, for messages: "reward".
        table: `module:NAME` of the dictionary of names, imported at its first use: it may load torch.
        slot: settings that belong to the place and stand in the same table as those of the component.
        default: the type of a table without one; "" where it must have one.
        methods: what a class must have to be chosen.
        inputs: how many positional arguments a function must take; 0 where a class is chosen.
        otherwise: advice about a function where a class is needed, or the other way round; has {name}.
        wraps: `module:Class` that makes a component of a Python object which is none, such as a plain function.
    """

    what: str
    table: str
    slot: type[Settings] | None = None
    default: str = ""
    methods: tuple[str, ...] = ()
    inputs: int = 0
    otherwise: str = ""
    wraps: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with `choose`."""
        return no_info_plain_validator_function(self.choose)

    def choose(self, value: object) -> Chosen:
        """Return the component that a table or a name stands for; a `PydanticCustomError` holds all problems."""
        if isinstance(value, Chosen):
            return value
        table = value if isinstance(value, dict) else {"type": value}
        names = import_name(self.table)
        name = table.get("type", self.default)
        if name is None or isinstance(name, bool | int | float | dict):
            raise PydanticCustomError("not_a_table", f"must be a table with a type, or the name of {a(self.what)}")
        if isinstance(name, str) and name == "":
            raise PydanticCustomError("no_type", f'has no type. Set type = "…". Known: {listing(names)}')
        place = self.slot.model_fields if self.slot else {}
        try:
            target, given = self._resolve(names, name)
            is_itself = isinstance(target, type) and isinstance(given, target)
            model = Settings if is_itself else settings_of(target)
            if clash := {"type", *place} & set(model.model_fields):
                raise UserError(f"{name} has a setting {min(clash)!r}, which means something else here: rename it")
        except UserError as error:
            raise _found([Problem("type", str(error), shown(name) if isinstance(name, str) else "")]) from None
        name = name if isinstance(name, str) else python_name(name)
        problems: list[Problem] = []
        settings: list[Any] = []
        for kind, at_place in ((model, False), (self.slot, True)):
            part = {key: inner for key, inner in table.items() if key != "type" and (key in place) == at_place}
            try:
                settings.append(kind.model_validate(part) if kind else None)
            except ValidationError as error:
                assert kind is not None
                problems += problems_of(error, kind, owner=f'{self.what} "{name}"', also=place)
        if problems:
            raise _found(problems)
        own, at_place_settings = settings
        return Chosen(name, target, own, at_place_settings, given)

    def _resolve(self, names: Mapping[str, Callable[..., Any]], name: object) -> tuple[Callable[..., Any], Any]:
        """Return what `name` stands for, and the Python object that it is made of, if any.

        That is an entry of `names`, or the object at `module:Name`; from Python also a class, a function or an object.
        """
        if isinstance(name, str) and name in names:
            return names[name], None
        if isinstance(name, str) and ":" not in name:
            meant = hint(name, self.what) or nearest(name, names)
            raise UserError(f"unknown {self.what}.{meant} Known: {listing(names)}, or your own as module:Name")
        if isinstance(name, str) and name.endswith("()"):
            raise UserError(f"{name} was an object of a Python program: give {a(self.what)} again from Python")
        target: Any = import_name(name) if isinstance(name, str) else name
        if self.inputs:
            fits, needed = _takes(target, self.inputs), f"a function of {self.inputs} positional arguments"
            needed += "; its settings are keyword-only, after a *"
        else:
            fits = all(callable(getattr(target, one, None)) for one in self.methods)
            needed = f"a class with {'(), '.join(self.methods)}()" if self.methods else "a class"
            if fits and self.methods and not isinstance(target, type):
                return type(target), target
            fits = fits and isinstance(target, type)
        if not fits and self.wraps and not isinstance(target, type):
            return import_name(self.wraps), target
        if not fits:
            advice = f". {self.otherwise.format(name=name)}" if self.otherwise else ""
            shown_name = name if isinstance(name, str) else python_name(name)
            raise UserError(f"{shown_name} cannot be {a(self.what)}: it must be {needed}{advice}")
        return target, None


def python_name(value: Any) -> str:
    """Return `module:Name` of a function or class, and `module:Class()` of another object."""
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}:{value.__qualname__}"
    return f"{type(value).__module__}:{type(value).__qualname__}()"


def _takes(function: object, inputs: int) -> bool:
    """Return whether something is a function that can be called with so many positional arguments."""
    if not callable(function) or isinstance(function, type):
        return False
    try:
        signature = inspect.signature(function)
        signature.bind(
            *range(inputs), **{p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        )
    except (TypeError, ValueError):
        return False
    return True


DEFAULT: Any = {}
"""The default of a setting that is a choice: an empty table, whose type is the choice's own default."""


def build(choice: Choice, table: str | dict[str, Any]) -> Any:
    """Return the component that a table describes; a `RecipeError` has every problem that was found."""
    try:
        return choice.choose(table).build()
    except PydanticCustomError as error:
        raise RecipeError(choice.what, problems_in(error, choice.what)) from None


def problems_in(error: PydanticCustomError, what: str) -> list[Problem]:
    """Return the problems that `Choice.choose` found."""
    return (error.context or {}).get("problems") or [Problem(what, error.message())]


def import_name(name: str) -> Any:
    """Return the object at `module:Name` (or `module:Outer.Inner`); a `UserError` names the half that is wrong."""
    module_name, _, attributes = name.partition(":")
    if not module_name or not attributes or module_name.startswith(".") or ":" in attributes:
        raise UserError(f"cannot read {name!r}: write module:Name, such as my_rewards:Brevity")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may do anything while it is imported
        raise UserError(
            f"cannot import the module {module_name!r} ({type(error).__name__}: {error})."
            " It must be installed, or be in the folder of the recipe or in the current folder"
        ) from error
    found: Any = module
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            public = [n for n in dir(found) if not n.startswith("_")]
            where = getattr(module, "__file__", None) or "built in"
            raise UserError(f"the module {module_name!r} ({where}) has no {attributes!r}.{nearest(attribute, public)}")
        found = getattr(found, attribute)
    return found


@cache
def settings_of(target: Callable[..., Any]) -> type[Settings]:
    """Return the settings of a component as a class: itself, or one made from its keyword-only parameters."""
    if isinstance(target, type) and issubclass(target, BaseModel):
        if not issubclass(target, Settings):
            raise UserError(f"{target.__name__} must derive from rewardsmith.config.Settings")
        return target
    name = getattr(target, "__name__", type(target).__name__)
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 annotations are evaluated: they may raise anything
        raise UserError(f"cannot read the settings from the signature of {name}: {error}") from None
    if isinstance(target, type):
        given = getattr(target, "given", "")  # the parameter for an object that the class wraps, see `Choice.wraps`
        loose = [p.name for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != given]
        if loose and target.__init__ is not object.__init__:  # type: ignore[misc]
            raise UserError(
                f"the settings of {name} must be keyword-only: write `def __init__(self, *, {loose[0]}, …)`,"
                " or @dataclass(kw_only=True)"
            )
    definitions: dict[str, Any] = {
        p.name: (_readable(hints.get(p.name, Any)), ... if p.default is inspect.Parameter.empty else p.default)
        for p in parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    try:
        return create_model(name, __base__=Settings, __doc__=target.__doc__, **definitions)
    except Exception as error:  # noqa: BLE001 pydantic refuses types and names in many ways
        raise UserError(f"the settings of {name} cannot be read from a recipe: {error}") from None


def _readable(kind: Any) -> Any:
    """Let a TOML list fill a tuple, and text a path or an enum: TOML has no such types of its own."""
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(_readable(k) for k in get_args(kind))]  # noqa: UP007 built at run time
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    lenient = get_origin(base) in (tuple, set, frozenset) or (
        isinstance(base, type) and issubclass(base, Enum | PurePath | tuple)
    )
    return Annotated[kind, Strict(False)] if lenient else kind


def summary(target: object) -> str:
    """Return the first sentence of a component's docstring, as `explain` shows it."""
    text = inspect.getdoc(target) or ""
    return text.split("\n\n")[0].replace("\n", " ").strip().rstrip(".:")


def _found(problems: list[Problem]) -> PydanticCustomError:
    return PydanticCustomError("problems", "{count} problems", {"count": len(problems), "problems": problems})


# ---- what pydantic found wrong: the path, the value and the remedy --------------------------------------------------


def problems_of(
    error: ValidationError, model: type[BaseModel], *, owner: str = "the recipe", also: Iterable[str] = ()
) -> Iterator[Problem]:
    """Yield a problem for each of pydantic's findings; `also` are further settings of the table at the top."""
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"])
        inner = detail.get("ctx", {}).get("problems")
        if inner is not None:  # found inside a component, which names its own paths
            yield from (Problem(f"{path}.{p.path}".strip("."), p.message, p.value) for p in inner)
        else:
            message, value = _worded(detail, model, owner, also)
            yield Problem(path, message, HIDDEN if value and names_secret(path.rpartition(".")[2]) else value)


def _worded(detail: ErrorDetails, model: type[BaseModel], owner: str, also: Iterable[str]) -> tuple[str, str]:
    """Return (message, value) for one finding."""
    kind, location, value = detail["type"], detail["loc"], shown(detail["input"])
    context = detail.get("ctx", {})
    at = _model_at(model, location[:-1])
    if kind == "missing":
        about = at.model_fields[str(location[-1])].description if at else None
        return f"is missing{f': {about}' if about else ''}. It has no default", ""
    if kind == "extra_forbidden":
        known = {*(at.model_fields if at else {}), *(also if at is model else {})}
        where = f" of {owner}" if at is model else ""
        name = str(location[-1])
        meant = hint(name) or nearest(name, known)
        return f"unknown setting{where}.{meant} Known: {listing(known)}", value
    if kind == "literal_error":
        options = [part for i, part in enumerate(context["expected"].split("'")) if i % 2]
        word = str(detail["input"])
        meant = hint(word, str(location[-1])) or nearest(word, options)
        return f"must be one of {', '.join(options)}.{meant}", value
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a table", value
    message = (
        detail["msg"].removeprefix("Value error, ").replace("Input should", "must").replace("String should", "must")
    )
    return message, "" if isinstance(detail["input"], dict) else value


def _model_at(model: Any, location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Follow a location from a settings class through tables and lists to the settings class it ends in."""
    kind: Any = model
    for part in location:
        kind = _without_optional(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[str(part)].annotation
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) in (list, tuple):
            kind = get_args(kind)[0]
        else:
            return None
    kind = _without_optional(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _without_optional(kind: Any) -> Any:
    """Strip Annotated and `| None`."""
    if get_origin(kind) is Annotated:
        return _without_optional(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _without_optional(next((a for a in get_args(kind) if a is not type(None)), None))
    return kind
