"""JSON schemas that never fetch anything, applied in bounded time. Imported with the first schema: loads jsonschema."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
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

MAX_STEPS = 300_000
"""Steps that one answer may cost. A step is a keyword that is applied to a value, or as much work as that takes."""

_MAX_DEPTH = 800  # keywords within keywords: twelve for each level of an answer
_FRAMES = 4_000  # of Python for these, four each; far from the end of the stack

# The keywords that apply a schema, one of a list of them, or one of a table of them, to the same value.
_ONE, _LISTED, _TABLED = (
    ("not", "if", "then", "else"),
    ("allOf", "anyOf", "oneOf"),
    ("dependentSchemas", "dependencies"),
)


class _TooMuchError(Exception):
    """The answer takes more steps than it may."""


class _Steps:
    """The steps that are left for the answer at hand, and how many keywords are applied within one another."""

    left, depth = 0, 0

    @classmethod
    def take(cls, steps: int) -> None:
        cls.left -= steps
        if cls.left < 0 or cls.depth > _MAX_DEPTH:
            raise _TooMuchError


@lru_cache(maxsize=256)
def validator(schema_text: str) -> Any:
    """Return a validator for a schema, given as JSON text so that it can be remembered.

    Raises:
        CannotScore: for a schema that is broken, has no end, or refers to something outside itself and the standard.
    """
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
    return _limited(kind)(schema, registry=REGISTRY)


def is_valid(checker: Any, value: object) -> bool:
    """Return whether a value satisfies a schema; one that takes too long to tell does not.

    Raises:
        CannotScore: where the schema, not the value, is to blame.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    _Steps.left, _Steps.depth = MAX_STEPS, 0
    try:
        with processor_limit():  # a pattern takes one step, however long it takes
            return bool(checker.is_valid(value))
    except (_TooMuchError, TooSlowError, RecursionError, ArithmeticError, MemoryError):
        return False
    except Unresolvable as error:
        raise CannotScore("invalid", f"the schema refers to {error.ref!r}, which it does not hold") from None
    except re.error as error:
        raise CannotScore("invalid", f"the schema cannot be applied: {type(error).__name__}: {error}") from None
    finally:
        sys.setrecursionlimit(before)


@lru_cache(maxsize=16)
def _limited(kind: Any) -> Any:
    """Return a kind of validator that counts its steps, and compares the entries of a list in linear time."""
    keywords = {name: _counted(name, apply) for name, apply in kind.VALIDATORS.items()}
    make: Any = extend  # has no types
    limited = make(kind, {**keywords, "uniqueItems": _unique})
    limited.evolve = _evolve
    return limited


def _evolve(self: Any, **changes: Any) -> Any:
    """Return a validator for another part of a schema; unlike the original, always one that counts its steps."""
    _Steps.take(3)
    found = validator_for(changes.setdefault("schema", self.schema), default=type(self))
    fields = [field for field in self.__attrs_attrs__ if field.init]
    kept = {field.alias: getattr(self, field.name) for field in fields if field.alias not in changes}
    return (found if found is type(self) else _limited(found))(**kept, **changes)


def _counted(name: str, apply: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any]]:
    """Return a keyword's function that takes steps from the answer, more of them for long lists and long messages."""
    pairwise = name.startswith("unevaluated")  # looks each entry up in a list of all
    steps = 5 if name.endswith(("$ref", "Ref")) else 1

    def counted(validator: Any, value: object, instance: object, schema: object) -> Iterator[Any]:
        entries = len(instance) if isinstance(instance, list | dict) else 0
        _Steps.take(steps + (entries + (len(value) if isinstance(value, list | dict) else 0)) // 8)
        if pairwise:
            _Steps.take(entries * entries // 1_000)
        _Steps.depth += 1
        try:
            for error in apply(validator, value, instance, schema) or ():
                _Steps.take(2 + len(error.message) // 512)
                yield error
        finally:
            _Steps.depth -= 1

    return counted


def _unique(validator: Any, wanted: object, instance: object, schema: object) -> Iterator[ValidationError]:
    """Do what `uniqueItems` says."""
    _Steps.take(1)
    if wanted and isinstance(instance, list):
        found = [json.dumps(_canonical(item), sort_keys=True) for item in instance]
        _Steps.take(sum(map(len, found)) // 64)
        if len(set(found)) < len(found):
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
    found = list(_entries(schema))
    if not isinstance(schema, dict) or any(key == "$id" and table is not schema for key, _, table in found):
        return
    resolver = REGISTRY.resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
    targets: dict[int, Any] = {}
    for key, reference, table in found:
        if key == "$ref" and isinstance(reference, str):
            targets[id(table)] = resolver.lookup(reference).contents
    done: set[int] = set()
    for table in (schema, *(inner for _, inner, _ in found)):
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
