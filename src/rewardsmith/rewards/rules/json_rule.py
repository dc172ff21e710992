"""JSON that satisfies a schema."""

from __future__ import annotations

import json as standard
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.rule_settings import Bad, Final, Good, answer_part
from rewardsmith.types import Prompt

MAX_DEPTH = 64
"""Levels that an answer may nest."""

MAX_DIGITS = 300
"""Digits of an integer, in an answer or a schema."""

_TOKEN = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```[^\n`]*$", re.MULTILINE)


def _checked_schema(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a schema of a recipe, checked."""
    if schema is not None:
        from rewardsmith.rewards.rules.json_schema import validator  # noqa: PLC0415 loads jsonschema

        try:
            validator(standard.dumps(schema, sort_keys=True))
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
    if isinstance(schema, str):  # files often keep a schema as text
        schema = _loaded(schema)
    fits = _anything if schema is None else _checker(schema)
    answer = answer_part(text, final)
    found, value = (False, None) if answer is None else _read(_unfenced(answer) if fenced else answer, max_length)
    return good if found and fits(value) else bad


def _anything(value: object) -> bool:
    return True


def _checker(schema: object) -> Callable[[object], bool]:
    from rewardsmith.rewards.rules.json_schema import is_valid, validator  # noqa: PLC0415 loads jsonschema

    return partial(is_valid, validator(standard.dumps(schema, sort_keys=True)))


def _unfenced(text: str) -> str:
    fences = list(_FENCE.finditer(text[-1_000_000:]))
    if len(fences) < 2:
        return text
    opening, closing = fences[len(fences) // 2 * 2 - 2 :][:2]
    return text[-1_000_000:][opening.end() : closing.start()]


def _read(text: str, max_length: int) -> tuple[bool, object]:
    """Return (whether the text is JSON, its value)."""
    text = text.strip()
    if len(text) > max_length or _too_deep(text):
        return False, None
    try:
        return True, standard.loads(
            text, object_pairs_hook=_distinct, parse_constant=_refuse, parse_float=_finite, parse_int=bounded
        )
    except (ValueError, RecursionError):
        return False, None


def _too_deep(text: str) -> bool:
    depth, quoted = 0, False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == '"':
            quoted = not quoted
        elif not quoted and mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif not quoted and mark in "]}":
            depth -= 1
    return False


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


def bounded(digits: str) -> int:
    """Return an integer; ValueError for one that is larger than any float, with which it may be compared."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def _loaded(schema: str) -> object:
    try:
        return standard.loads(schema)
    except (ValueError, RecursionError) as error:
        raise CannotScore("invalid", f"the prompt's schema is no JSON: {error}") from None
