"""JSON and schemas."""

import json
import socket
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.json_rule import MAX_DEPTH
from tests.rewards.rules.ask import problem, value

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
