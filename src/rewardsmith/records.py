"""The types as JSON lines: what every run writes to disk and reads back, unchanged.

    line = dumps(scored_group)
    assert loads(ScoredGroup, line) == scored_group

Token data is base64 of little-endian numbers (`{"int32": "AQAAAAIAAAA="}`); lists of numbers are accepted when reading.
Lines may come from users' files: whatever is wrong with one is a `UserError` that names the field.
"""

from __future__ import annotations

import base64
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from rewardsmith.errors import UserError, listing, nearest

if TYPE_CHECKING:
    from rewardsmith.types import ScoredGroup

Noun = TypeVar("Noun")

_ARRAY = get_origin(NDArray[Any])  # numpy.ndarray, or the alias itself in newer releases of numpy
_DTYPES = {"int32": "<i4", "float32": "<f4", "float64": "<f8", "bool": "|b1"}


def dumps(noun: object) -> str:
    """Return `noun` as one line of JSON."""
    return json.dumps(to_json(noun), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(kind: type[Noun], line: str | bytes) -> Noun:
    """Return the `kind` that `line` holds; a `UserError` names what is wrong with it."""
    return from_json(kind, read_json(line))


def read_json(text: str | bytes) -> Any:
    """Return JSON from outside as plain values; a `UserError` if it is none, repeats a key or is nested too deeply."""
    try:
        return json.loads(text, object_pairs_hook=_table)
    except UserError:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise UserError(f"not JSON: {error}") from None
    except RecursionError:
        raise UserError("not usable JSON: nested too deeply") from None


def to_json(value: object) -> Any:
    """Return a noun, or anything inside one, as plain JSON values."""
    if isinstance(value, np.ndarray):
        name = value.dtype.name
        data = np.ascontiguousarray(value, dtype=_DTYPES[name]).tobytes()
        return {name: base64.b64encode(data).decode("ascii")}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def flat_rows(scored: ScoredGroup, advantages: Sequence[float | None] = ()) -> Iterator[dict[str, Any]]:
    """Yield one table without inner tables for each rollout: text, reward, failure, advantage, and the parts.

    A part has the columns `part/NAME` (None where it has no value), `part/NAME/failure` and `part/NAME/feedback`.
    """
    group = scored.group
    for i, (rollout, score) in enumerate(zip(group.rollouts, scored.scores, strict=True)):
        row: dict[str, Any] = {
            "prompt_id": group.prompt.id,
            "source": group.prompt.source,
            "prompt": group.prompt.messages[-1].content,
            "answer": group.prompt.answer,
            "rollout": i,
            "response": rollout.text,
            "tokens": len(rollout.tokens),
            "stop_reason": rollout.stop_reason,
            "reward": score.value,
            "advantage": advantages[i] if i < len(advantages) else None,
            "failure": score.failure and score.failure.kind,
            "failure_detail": score.failure and score.failure.detail,
            "feedback": score.feedback,
        }
        for name, part in score.named_parts():
            row[f"part/{name}"] = part.value
            row[f"part/{name}/failure"] = part.failure and part.failure.kind
            row[f"part/{name}/feedback"] = part.feedback
        yield row


def from_json(kind: type[Noun], value: object) -> Noun:
    """Return the `kind` that the plain JSON `value` describes; missing fields take their defaults."""
    try:
        return _decode(kind, value, kind.__name__)  # type: ignore[no-any-return]
    except RecursionError:
        raise UserError("not usable JSON: nested too deeply") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, value: Any, path: str) -> Any:
    """Turn the plain `value` into `kind`, one level at a time; `path` names the place in error messages."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None else _decode(inner, value, path)
    if origin is _ARRAY:
        return _decode_array(value, path)
    if is_dataclass(kind):
        return _decode_noun(typing.cast(type, kind), value, path)
    if origin is Sequence and _is_encoded(arguments[0]):
        if not isinstance(value, list):
            raise UserError(f"{path} is {_shown(value)}: it must be a list")
        return tuple(_decode(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise UserError(f"{path} is {_shown(value)}: it must be a table")
        return {key: _decode(arguments[1], item, f"{path}.{_printable(key)}") for key, item in value.items()}
    return value  # checked by the noun itself


def _is_encoded(kind: Any) -> bool:
    """Whether entries of a list are nouns or arrays, of which some may be None; other values are read as they are."""
    inner = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) in (Union, types.UnionType) and len(inner) == 1:
        return _is_encoded(inner[0])
    return is_dataclass(kind) or get_origin(kind) is _ARRAY


def _decode_noun(kind: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise UserError(f"{path} is {_shown(value)}: it must be a table with the fields of {kind.__name__}")
    known = {f.name: f for f in fields(kind)}
    for key in value:
        if key not in known:
            raise UserError(
                f"{path} has an unknown field {key!r}.{nearest(key, known)} {kind.__name__} has: {listing(known)}"
            )
    for name, f in known.items():
        if name not in value and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{path} has no field {name!r}: {kind.__name__} needs it")
    inner = {key: _decode(_hints(kind)[key], item, f"{path}.{key}") for key, item in value.items()}
    try:
        return kind(**inner)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: {error}") from None


def _decode_array(value: Any, path: str) -> NDArray[Any] | list[Any]:
    if isinstance(value, list):
        return value
    for name, text in value.items() if isinstance(value, dict) and len(value) == 1 else ():
        if name in _DTYPES and isinstance(text, str):
            try:
                return np.frombuffer(base64.b64decode(text, validate=True), dtype=_DTYPES[name])
            except ValueError as error:
                raise UserError(f"{path} is not base64 of {name} numbers: {error}") from None
    raise UserError(f'{path} is {_shown(value)}: it must be a list, or base64 such as {{"float32": "AACAPw=="}}')


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a table; of two values for one key none can be trusted."""
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        raise UserError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} appears twice in one object")
    return table


def _printable(key: str) -> str:
    """Escape what cannot be written as UTF-8: a lone surrogate in a message would break the printing of it."""
    return key.encode("utf-8", "backslashreplace").decode("utf-8")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
