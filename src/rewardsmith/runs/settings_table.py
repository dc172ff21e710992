"""The settings of a component as a table: name, type, bounds, default and description of each."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from rewardsmith.config import Choice, Chosen, Refers, Settings
from rewardsmith.console import Columns, Table
from rewardsmith.recipe import about_setting, toml

SETTINGS_COLUMNS: Columns = {
    "setting": "text", "type": "text", "bounds": "text", "default": "text", "description": "text",
}  # fmt: skip


def settings_table(settings: type[Settings], title: str, *, everything: bool = True) -> Table:
    """Return the settings of a class as rows; those of inner tables have dotted names."""
    rows = list(_rows(settings, "", everything))
    hidden = 0 if everything else sum(1 for _ in _rows(settings, "", True)) - len(rows)
    note = f"{hidden} rare settings are not shown: --all shows them" if hidden else ""
    return Table(title, SETTINGS_COLUMNS, rows, note)


def narrow(table: Table) -> Table:
    """Return a table of settings for a terminal: type and bounds are at the end of the description."""
    rows = []
    for setting, kind, bounds, default, about in table.rows:
        details = ", ".join(str(part) for part in (kind, bounds) if part and part != "text")
        rows.append((setting, default, f"{about} ({details})" if details else about))
    columns: Columns = {"setting": "text", "default": "text", "description": "text"}
    return Table(table.title, columns, rows, table.note)


def _rows(settings: type[Settings], path: str, everything: bool) -> Iterator[tuple[str, ...]]:
    for name, info in settings.model_fields.items():
        if not everything and name in settings.rare:
            continue
        inner = _inner_settings(info.annotation)
        if inner is None or not inner.model_fields:
            yield f"{path}{name}", *_facts(info), about_setting(info)
            if (slot := _slot_of_entries(info.annotation)) is not None:
                yield from (row for row in _rows(slot, f"{path}{name}.NAME.", everything) if ".failure." not in row[0])
        else:
            if info.default is None:
                yield f"{path}{name}", "table", "", "not set", about_setting(info)
            yield from _rows(inner, f"{path}{name}.", everything)


def _inner_settings(kind: Any) -> type[Settings] | None:
    """Return the class of a setting that is a table."""
    if get_origin(kind) is Annotated:
        return _inner_settings(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = [inner for inner in get_args(kind) if inner is not NoneType]
        return _inner_settings(kinds[0]) if len(kinds) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _slot_of_entries(kind: Any) -> type[Settings] | None:
    """Return the settings of the place of each entry, for a table of components such as the parts of a sum."""
    entry = get_args(kind)[1] if get_origin(kind) is dict else None
    choices = [mark for mark in getattr(entry, "__metadata__", ()) if isinstance(mark, Choice)]
    return choices[0].slot if choices else None


def _facts(info: FieldInfo) -> tuple[str, str, str]:
    """Return (type, bounds, default) of a setting."""
    marks = [*info.metadata, *_inner_marks(info.annotation)]
    choice = next((mark for mark in info.metadata if isinstance(mark, Choice)), None)
    if info.is_required():
        default = "required"
    else:
        value = info.get_default(call_default_factory=True)
        value = value.name if isinstance(value, Chosen) else choice.default if choice and value == {} else value
        default = "not set" if value is None else toml(value)
    return _type_name(info.annotation, info.metadata), ", ".join(_bounds(marks)), default


def _inner_marks(kind: Any) -> Iterator[Any]:
    """Yield the marks of the alternatives of a type: of `Annotated[int, Field(ge=1)] | None` those of the int."""
    if get_origin(kind) is Annotated:
        for mark in kind.__metadata__:
            yield from mark.metadata if isinstance(mark, FieldInfo) else [mark]
    elif get_origin(kind) in (Union, UnionType):
        for inner in get_args(kind):
            yield from _inner_marks(inner)


def _bounds(marks: list[Any]) -> Iterator[str]:
    for mark in marks:
        match mark:
            case Ge(ge=bound):
                yield f">= {bound}"
            case Gt(gt=bound):
                yield f"> {bound}"
            case Le(le=bound):
                yield f"<= {bound}"
            case Lt(lt=bound):
                yield f"< {bound}"
            case MinLen(min_length=bound) if bound == 1:
                yield "not empty"
            case MinLen(min_length=bound):
                yield f"length >= {bound}"
            case MaxLen(max_length=bound):
                yield f"length <= {bound}"


def _type_name(kind: Any, marks: Any = ()) -> str:
    """Return a type in the words of a recipe."""
    for mark in marks:
        if isinstance(mark, Choice | Refers):
            return mark.what if isinstance(mark, Choice) else f"name in [{mark.table}]"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        name = _type_name(inner[0], kind.__metadata__)
    elif origin is Literal:
        name = " | ".join(dict.fromkeys(_type_name(type(word)) for word in inner))
    elif origin in (Union, UnionType):
        name = " | ".join(dict.fromkeys(_type_name(one) for one in inner if one is not NoneType))
    elif origin is dict:
        name = f"table of {_type_name(inner[1])}"
    elif origin in (list, tuple, set, frozenset):
        name = f"list of {_type_name(inner[0])}"
    else:
        name = "text" if kind is str else getattr(kind, "__name__", str(kind)).lower()
    return name
