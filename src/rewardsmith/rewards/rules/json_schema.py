"""JSON schemas that never fetch anything. Imported when the first schema is met: it loads jsonschema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from rewardsmith.rewards.protocol import CannotScore


@lru_cache(maxsize=256)
def validator(schema_text: str) -> Any:
    """Return a validator for a schema, given as JSON text so that it can be remembered.

    Raises:
        CannotScore: for a schema that is broken, or refers to something outside itself and the standard.
    """
    schema = json.loads(schema_text)
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
    return kind(schema, registry=REGISTRY)


def is_valid(checker: Any, value: object) -> bool:
    """Say whether a value satisfies a schema.

    Raises:
        CannotScore: where the schema, not the value, is to blame.
    """
    try:
        return bool(checker.is_valid(value))
    except Unresolvable as error:
        raise CannotScore("invalid", f"the schema refers to {error.ref!r}, which it does not hold") from None
    except (RecursionError, re.error) as error:
        raise CannotScore("invalid", f"the schema cannot be applied: {type(error).__name__}: {error}") from None


def _resolve(schema: object) -> None:
    """Raise `Unresolvable` for a reference that leads nowhere; a part with an address of its own is left for later."""
    found = list(_entries(schema))
    if isinstance(schema, dict) and not any(key == "$id" and table is not schema for key, _, table in found):
        resolver = REGISTRY.resolver_with_root(Resource.from_contents(schema, default_specification=DRAFT202012))
        for key, reference, _ in found:
            if key == "$ref" and isinstance(reference, str):
                resolver.lookup(reference)


def _entries(value: object) -> Iterator[tuple[str, object, object]]:
    """Yield each (key, value, table) of a schema, at any depth."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield key, inner, value
        yield from _entries(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _entries(inner)
