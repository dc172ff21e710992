"""What pydantic found wrong in a table, in the user's words: the path, the value and the remedy."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rewardsmith.errors import Problem, listing, nearest
from rewardsmith.hints import hint
from rewardsmith.masking import HIDDEN, names_secret, without_secrets


def problems_of(
    error: ValidationError, model: type[BaseModel], *, owner: str = "the recipe", also: Iterable[str] = ()
) -> Iterator[Problem]:
    """Yield a problem for each of pydantic's findings.

    Args:
        error: from validating `model`.
        model: what was validated; the known names of an unknown setting are looked up in it.
        owner: what to call the table at the top.
        also: further settings that may stand in the table at the top.
    """
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
        meant = hint(_contexts(at), name) or nearest(name, known)
        return f"unknown setting{where}.{meant} Known: {listing(known)}", value
    if kind == "literal_error":
        options = [part for i, part in enumerate(context["expected"].split("'")) if i % 2]
        word = str(detail["input"])
        meant = hint([f"{context}.{location[-1]}" for context in _contexts(at)], word) or nearest(word, options)
        return f"must be one of {', '.join(options)}.{meant}", value
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a table", value
    if kind in ("string_too_short", "too_short"):
        return f"must have at least {context['min_length']} {'character' if kind[0] == 's' else 'entry'}", value
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return message, "" if isinstance(detail["input"], dict) else value


def _contexts(model: type[BaseModel] | None) -> list[str]:
    """Return the names by which `rewardsmith.hints` may know a table."""
    return [kind.__name__ for kind in model.__mro__] if model else []


def _model_at(model: Any, location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Follow a location from a settings class through tables and lists to the settings class it ends in."""
    kind: Any = model
    for part in location:
        kind = _plain(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[str(part)].annotation
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) in (list, tuple):
            kind = get_args(kind)[0]
        else:
            return None
    kind = _plain(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _plain(kind: Any) -> Any:
    """Strip Annotated and `| None`."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _plain(next((a for a in get_args(kind) if a is not type(None)), None))
    return kind


def shown(value: object) -> str:
    """Return a value as TOML would show it, cut to one short line; what looks like a key is not shown."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    elif isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long integers
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = repr(value)
    text = without_secrets(text)
    return text if len(text) <= 80 else f"{text[:77]}…"
