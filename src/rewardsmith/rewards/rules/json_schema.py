"""JSON schemas that never fetch anything, applied in bounded time. Imported with the first schema: loads jsonschema."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import Draft202012Validator, extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.json_rule import bounded
from rewardsmith.rewards.rules.rule_settings import TooSlowError, processor_limit

_RECURSION_LIMIT = 4_000  # an answer of 64 levels, a dozen keywords for each; far from the end of the stack

# The keywords that apply a schema, one of a list of them, or one of a table of them, to the same value.
_ONE, _LISTED, _TABLED = (
    ("not", "if", "then", "else"),
    ("allOf", "anyOf", "oneOf"),
    ("dependentSchemas", "dependencies"),
)


@lru_cache(maxsize=256)
def validator(schema_text: str) -> Any:
    """Return a validator for a schema, given as JSON text so that it can be cached."""
    try:
        schema = json.loads(schema_text, parse_int=bounded)
    except ValueError as error:
        raise CannotScore("invalid", f"the schema has a number that is too long: {error}") from None
    if not isinstance(schema, dict | bool):
        raise CannotScore("invalid", f"a JSON schema is a table, not a {type(schema).__name__}")
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        _resolve(schema)
    except SchemaError as error:
        raise CannotScore("invalid", f"the schema is broken: {error.message[:500]}") from None
    except Unresolvable as error:
        raise CannotScore("invalid", f"the schema refers to {error.ref!r}, which it does not hold") from None
    except RecursionError:
        raise CannotScore("invalid", "the schema nests too deep") from None
    # This registry holds the standard's own documents and has no way to fetch others.
    make: Any = extend  # has no types
    return make(kind, {"uniqueItems": _unique})(schema, registry=REGISTRY)


def is_valid(checker: Any, value: object) -> bool:
    """Return whether a value satisfies a schema; False if that takes too long."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        with processor_limit():
            return bool(checker.is_valid(value))
    except (TooSlowError, RecursionError, ArithmeticError, MemoryError):
        return False
    except Unresolvable as error:
        raise CannotScore("invalid", f"the schema refers to {error.ref!r}, which it does not hold") from None
    except re.error as error:
        raise CannotScore("invalid", f"the schema cannot be applied: {type(error).__name__}: {error}") from None
    finally:
        sys.setrecursionlimit(before)


def _unique(validator: Any, unique: object, instance: object, schema: object) -> Iterator[ValidationError]:
    """Apply `uniqueItems` in linear time; jsonschema compares all pairs of objects."""
    if unique and isinstance(instance, list):
        entries = [json.dumps(_canonical(item), sort_keys=True) for item in instance]
        if len(set(entries)) < len(entries):
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
    entries = list(_entries(schema))
    if not isinstance(schema, dict) or any(key == "$id" and table is not schema for key, _, table in entries):
        return
    resolver = REGISTRY.resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
    targets: dict[int, Any] = {}
    for key, reference, table in entries:
        if key == "$ref" and isinstance(reference, str):
            targets[id(table)] = resolver.lookup(reference).contents
    done: set[int] = set()
    for table in (schema, *(inner for _, inner, _ in entries)):
        _require_end(table, targets, done, frozenset())


def _require_end(part: object, targets: Mapping[int, Any], done: set[int], above: frozenset[int]) -> None:
    """Raise `CannotScore` for a schema that applies itself to the same value, again and again."""
    if not isinstance(part, dict) or id(part) in done:
        return
    if id(part) in above:
        raise CannotScore("invalid", "the schema refers to itself in a circle, without going deeper into the value")
    inner = [targets.get(id(part)), *(part.get(key) for key in _ONE)]
    inner += [one for key in _LISTED if isinstance(part.get(key), list) for one in part[key]]
    inner += [one for key in _TABLED if isinstance(part.get(key), dict) for one in part[key].values()]
    for one in inner:
        _require_end(one, targets, done, above | {id(part)})
    done.add(id(part))


def _entries(value: object) -> Iterator[tuple[str, object, object]]:
    """Yield each (key, value, table) of a schema, at any depth."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield key, inner, value
        yield from _entries(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _entries(inner)
