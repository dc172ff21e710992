"""JSON that satisfies a schema. Schemas never fetch anything and are applied in bounded time."""

from __future__ import annotations

import json as standard
import math
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.rule_settings import Bad, Final, Good, TooSlowError, answer_part, processor_limit
from rewardsmith.types import Prompt

MAX_DEPTH = 64
"""Levels that an answer may nest."""

MAX_DIGITS = 300
"""Digits of an integer, in an answer or a schema; with more it is larger than any float to compare it with."""

RECURSION_LIMIT = 4_000
"""For an answer of 64 levels with a dozen keywords for each; far from the end of the stack."""

_FENCE = re.compile(r"^[ \t]*```[^\n`]*$", re.MULTILINE)
_FENCED_TAIL = 1_000_000


def _checked_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a schema of a recipe, checked."""
    if schema is not None:
        try:
            _validator(standard.dumps(schema, sort_keys=True))
        except (CannotScore, TypeError) as error:  # TOML has dates, which JSON has not
            raise ValueError(f"cannot be used: {error}") from None
    return schema


def json(
    prompt: Prompt,
    text: str,
    *,
    satisfies: Annotated[
        dict[str, Any] | None,
        AfterValidator(_checked_schema),
        Field(description='the JSON schema; without it the prompt\'s info["schema"] is taken, or any JSON will do'),
    ] = None,
    fenced: Annotated[bool, Field(description="read the last block between ``` lines, where there is one")] = True,
    max_length: Annotated[int, Field(ge=1, description="maximum number of characters; longer JSON is bad")] = 100_000,
    final: Final = "auto",
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`good` when the text is JSON and satisfies the schema, else `bad`.

    Repeated keys, NaN, infinite numbers, integers of more than 300 digits, nesting beyond 64 levels, and what takes too
    long to compare with the schema, are bad. References stay within the schema; nothing is ever fetched. A schema that
    cannot be used makes the prompt invalid.
    """
    schema = prompt.info.get("schema") if satisfies is None else satisfies
    if schema is not None:  # files often keep it as text
        schema = _validator(schema if isinstance(schema, str) else standard.dumps(schema, sort_keys=True))
    answer = answer_part(text, final) or ""
    try:
        value = _read(_unfenced(answer) if fenced else answer, max_length)
    except (ValueError, RecursionError):
        return bad
    return good if schema is None or _is_valid(schema, value) else bad


# ---- answers ---------------------------------------------------------------------------------------------------------


def _unfenced(text: str) -> str:
    tail = text[-_FENCED_TAIL:]
    fences = list(_FENCE.finditer(tail))
    if len(fences) < 2:
        return text
    opening, closing = fences[len(fences) // 2 * 2 - 2 :][:2]
    return tail[opening.end() : closing.start()]


def _read(text: str, max_length: int) -> object:
    """Return the value of a text; ValueError or RecursionError where it is no JSON, or too large."""
    text = text.strip()
    if len(text) > max_length:
        raise ValueError("too long")
    value: object = standard.loads(
        text, object_pairs_hook=_distinct, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded
    )
    if _depth(value) > MAX_DEPTH:
        raise ValueError("too deep")
    return value


def _depth(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is repeated")
    return table


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("the number is too large")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def _is_valid(validator: Any, value: object) -> bool:
    """Return whether a value satisfies a schema; False if that takes too long."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 slow to load, as all of jsonschema

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        with processor_limit():
            return bool(validator.is_valid(value))
    except (TooSlowError, RecursionError, ArithmeticError, MemoryError):
        return False
    except (Unresolvable, re.error) as error:
        raise CannotScore("invalid", f"the schema cannot be applied: {type(error).__name__}: {error}") from None
    finally:
        sys.setrecursionlimit(before)


# ---- schemas ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    """Return a validator for a schema, given as JSON text so that it can be cached."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema.validators import Draft202012Validator, extend, validator_for  # noqa: PLC0415
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        schema = standard.loads(schema_text, parse_int=_bounded)
        if not isinstance(schema, dict | bool):
            raise CannotScore("invalid", f"a JSON schema is a table, not a {type(schema).__name__}")
        kind: Any = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        _resolve(schema)
    except SchemaError as error:
        raise CannotScore("invalid", f"the schema is broken: {error.message[:500]}") from None
    except Unresolvable as error:
        raise CannotScore("invalid", f"the schema refers to {error.ref!r}, which it does not hold") from None
    except (ValueError, RecursionError) as error:
        raise CannotScore("invalid", f"the schema cannot be read: {error}") from None
    # This registry holds the standard's own documents and has no way to fetch others.
    make: Any = extend  # has no types
    return make(kind, {"uniqueItems": _unique})(schema, registry=REGISTRY)


def _unique(validator: Any, unique: object, instance: object, schema: object) -> Iterator[Exception]:
    """Apply `uniqueItems` in linear time; jsonschema compares all pairs of objects."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if unique and isinstance(instance, list):
        entries = {standard.dumps(_canonical(item), sort_keys=True) for item in instance}
        if len(entries) < len(instance):
            yield ValidationError("the entries are not unique")


def _canonical(value: object) -> object:
    """Return a value in which numbers that are equal look alike: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    return [_canonical(inner) for inner in value] if isinstance(value, list) else value


def _resolve(schema: object) -> None:
    """Raise for a reference that leads nowhere (`Unresolvable`), or in circles (`CannotScore`).

    A part with an address of its own is left for later.
    """
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415
    from referencing import Resource  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    tables = list(_tables(schema))
    if not isinstance(schema, dict) or any("$id" in table for table in tables[1:]):
        return
    resolver = REGISTRY.resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
    targets = {
        id(table): resolver.lookup(table["$ref"]).contents for table in tables if isinstance(table.get("$ref"), str)
    }
    done: set[int] = set()
    for table in tables:
        _require_end(table, targets, done, frozenset())


def _require_end(part: object, targets: Mapping[int, Any], done: set[int], above: frozenset[int]) -> None:
    """Raise `CannotScore` for a schema that applies itself to the same value, again and again."""
    if not isinstance(part, dict) or id(part) in done:
        return
    if id(part) in above:
        raise CannotScore("invalid", "the schema refers to itself in a circle, without going deeper into the value")
    inner = [targets.get(id(part)), *(part.get(key) for key in ("not", "if", "then", "else"))]
    inner += [one for key in ("allOf", "anyOf", "oneOf") if isinstance(part.get(key), list) for one in part[key]]
    for key in ("dependentSchemas", "dependencies"):
        inner += part[key].values() if isinstance(part.get(key), dict) else ()
    for one in inner:
        _require_end(one, targets, done, above | {id(part)})
    done.add(id(part))


def _tables(value: object) -> Iterator[dict[str, Any]]:
    """Yield each table of a schema, at any depth, the outermost first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _tables(inner)
