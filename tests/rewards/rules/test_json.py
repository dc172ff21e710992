"""JSON and schemas. No answer chooses a failure: one that takes too long is bad, and only a schema can be invalid."""

import json
import socket
import tomllib
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules import json_rule
from rewardsmith.rewards.rules.json_rule import MAX_DEPTH, MAX_DIGITS
from rewardsmith.rewards.rules.rule_settings import processor_limit
from tests.rewards.rules.rule_values import problem, value

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"name": "Ada", "age": 36}', 1.0), ('\n {"name": "Ada"} ', 1.0), ('```json\n{"name": "Ada"}\n```', 1.0),
        ('Here:\n```\n{"name": "Ada"}\n```\nBye.', 1.0), ('```\n{"age": 1}\n```\nno:\n```\n{"name": "Ada"}\n```', 1.0),
        ('<think>{"name": 1}</think>{"name": "Ada"}', 1.0), ('{"name": "Ada", "age": -1}', 0.0),
        ('{"name": "Ada", "age": 1.5}', 0.0), ('{"age": 36}', 0.0), ('{"name": "Ada", "title": "Countess"}', 0.0),
        ('{"name": "Ada"} and more', 0.0), ('Here: {"name": "Ada"}', 0.0), ('{"name": "Ada", "name": "Bea"}', 0.0),
        ("{'name': 'Ada'}", 0.0), ('{"name": "Ada",}', 0.0), ('<think>{"name": "Ada"}', 0.0), ("[]", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_verdicts(text: str, verdict: float) -> None:
    assert value("json", text, satisfies=PERSON) == verdict
    assert value("json", text, info={"schema": PERSON}) == verdict
    assert value("json", text, info={"schema": json.dumps(PERSON)}) == verdict
    assert value("json", text, satisfies=PERSON, good=0.5, bad=-1.0) == (0.5 if verdict else -1.0)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("5", 1.0), ("null", 1.0), ('"\\ud800"', 1.0), ("NaN", 0.0), ("[Infinity]", 0.0), ("[-Infinity]", 0.0),
        ("1e999", 0.0), ("9" * 401, 0.0), ("9" * 5_000, 0.0), ("[" * MAX_DEPTH + "]" * MAX_DEPTH, 1.0),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 0.0), ("[" * 1_000_000, 0.0), ('["' + "[" * 1_000 + '"]', 1.0),
        ('["\\"' + "[" * 1_000 + '"]', 1.0), ("[" + " " * 100_000 + "]", 0.0), ("\0", 0.0), ("\ufeff5", 0.0),
        ("5 6", 0.0),
    ],
)  # fmt: skip
def test_without_a_schema_any_json_of_bounded_size_will_do(text: str, verdict: float) -> None:
    assert value("json", text) == verdict


def test_settings() -> None:
    assert value("json", "```\n5\n```", fenced=False) == 0.0
    assert value("json", "[1, 2]", max_length=5) == 0.0
    assert value("json", "[1,2]", max_length=5) == 1.0
    assert value("json", "<think>5</think>5", final="never") == 0.0


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nothing"}, "broken"),
        ({"minimum": "3"}, "broken"),
        ({"pattern": "("}, "broken"),
        ({"$ref": "#/$defs/none"}, "none', which it does not hold"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "does not hold"),
        ({"$ref": "file:///etc/passwd"}, "does not hold"),
        ({"properties": {"a": {"$ref": "https://example.com/a"}}}, "does not hold"),
    ],
)
def test_a_schema_that_cannot_be_used(schema: dict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a recipe it is a mistake; in a prompt it is a failure, not a wrong answer. Nothing is fetched."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert words in problem("json", satisfies=schema)
    with pytest.raises(CannotScore, match=words) as caught:
        value("json", '"text"', info={"schema": schema})
    assert caught.value.kind == "invalid"


@pytest.mark.parametrize("schema", ["{", 5, "5", ["a"], {"$ref": "#"}])
def test_a_prompt_with_no_schema_in_its_place_is_a_failure(schema: object) -> None:
    with pytest.raises(CannotScore):
        value("json", "{}", info={"schema": schema})


def test_a_schema_from_a_recipe() -> None:
    table = tomllib.loads('satisfies = { type = "array", items = { type = "integer" }, minItems = 1 }')
    assert value("json", "[1]", **table) == 1.0
    assert value("json", "[]", **table) == 0.0
    assert "cannot be used" in problem("json", **tomllib.loads("satisfies = { const = 2020-01-01 }"))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_all_json_is_read(content: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    assert value("json", text, final="never", fenced=False) == 1.0
    assert value("json", text, satisfies={"const": content}, final="never", fenced=False) == 1.0


# ---- cost ----------------------------------------------------------------------------------------------------------


def nested(depth: int, inner: str) -> str:
    return "[" * depth + inner + "]" * depth


def compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


_TREE = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
TREE = {"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [_TREE, {**_TREE, "minItems": 0}, {"type": "integer"}]}}}
EVALUATED = {"anyOf": [{"items": {"$ref": "#"}, "type": "array"}, {"type": "integer"}], "unevaluatedItems": False}

# A schema, an answer that made the rule fail, and what it gets.
COSTLY: dict[str, tuple[dict[str, Any], str, float]] = {
    "many objects, all different": ({"uniqueItems": True}, compact([{"a": i} for i in range(9_000)]), 1.0),
    "many objects, two alike": ({"uniqueItems": True}, compact([{"a": i % 8_999} for i in range(9_000)]), 0.0),
    "recursive anyOf": (TREE, nested(MAX_DEPTH, '"x"'), 0.0),
    "recursive oneOf": ({"oneOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}, nested(MAX_DEPTH, "1"), 0.0),
    "unevaluated entries at every level": (EVALUATED, nested(MAX_DEPTH, '"x"'), 0.0),
    "a long list in every message": (TREE, "[" * 20 + ",".join(['"x"'] * 20_000) + "]" * 20, 0.0),
}


@pytest.mark.parametrize(("schema", "text", "expected"), COSTLY.values(), ids=COSTLY.keys())
def test_answers_of_any_cost_get_a_value(
    schema: dict[str, Any], text: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rule, "processor_limit", partial(processor_limit, 0.4))
    assert value("json", text, satisfies=schema) == expected


@pytest.mark.parametrize("digits", [MAX_DIGITS + 1, 5_000])
def test_integers_beyond_the_floats_are_bad(digits: int) -> None:
    for schema in ({"multipleOf": 0.5}, {"multipleOf": 3}, {"minimum": 0.5}, {}):
        assert value("json", "9" * digits, satisfies=schema) == 0.0
        assert value("json", "[-" + "9" * digits + "]", satisfies={"items": schema}) == 0.0


@pytest.mark.parametrize(
    ("entries", "unique"),
    [
        ("[1, 1.0]", False), ("[0, -0.0]", False), ("[1, true]", True), ("[0, false]", True), ('[1, "1"]', True),
        ("[[1], [true]]", True), ('[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]', False), ('[{"a": [1]}, {"a": [2]}]', True),
        ("[null, null]", False), ("[1e300, 1.0e300]", False), ("[0.1, 0.10]", False), ('["a", "\\u0061"]', False),
        ("[]", True),
    ],
)  # fmt: skip
def test_unique_entries_are_those_of_the_standard(entries: str, unique: bool) -> None:
    assert value("json", entries, satisfies={"uniqueItems": True}) == float(unique)
    assert value("json", entries, satisfies={"uniqueItems": False}) == 1.0


def test_an_answer_as_deep_as_it_may_be_satisfies_a_recursive_schema() -> None:
    schema = {"allOf": [{"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "integer"}]}]}
    assert value("json", nested(MAX_DEPTH, "1"), satisfies=schema) == 1.0
    assert value("json", nested(MAX_DEPTH, '"x"'), satisfies=schema) == 0.0


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"if": {"type": "string"}, "else": {"$ref": "#"}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"x": {"$ref": "#/properties/x"}}},
        {"multipleOf": 10**400},
        {"maximum": 10**301},
    ],
)
def test_a_schema_without_end_is_invalid_whatever_the_answer(schema: dict[str, Any]) -> None:
    for text in ("5", '{"a": 1}', "no JSON"):
        with pytest.raises(CannotScore) as caught:
            value("json", text, info={"schema": schema})
        assert caught.value.kind == "invalid"
    assert "cannot be used" in problem("json", satisfies=schema)
