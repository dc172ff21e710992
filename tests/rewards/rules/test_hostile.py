"""What every rule survives: a thousand hostile answers, megabytes, and any text at all."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.rewards import CannotScore
from tests.rewards.hostile import hostile, megabytes
from tests.rewards.rules.ask import chosen

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}

# The rule `math` is asked in a process of its own: see test_math.py.
ASKED: list[tuple[str, Any, dict[str, Any]]] = [
    ("exact", "5", {}),
    ("arithmetic", "5", {}),
    ("normalised", "five", {}),
    ("normalised", "five", {"extract": ["boxed", "stated", "tagged", "hash", "number", "text"]}),
    ("gsm8k", "5", {}),
    ("numeric", "5", {"extract": ["boxed", "stated", "tagged", "hash", "number"], "final": "never"}),
    ("choice", "A", {}),
    ("regex", "5", {"pattern": r"(?P<answer>[-+]?\d{1,50})"}),
    ("tags", None, {"partial": True}),
    ("json", None, {"satisfies": SCHEMA}),
    ("length", None, {"min_length": 3, "max_length": 100, "soft": 10}),
    ("repetition", None, {"share": 0.5}),
    ("absent", None, {}),
    ("has_boxed", None, {}),
]
NAMES = [f"{rule}-{i}" for i, (rule, _, _) in enumerate(ASKED)]


@pytest.mark.parametrize(("rule", "answer", "settings"), ASKED, ids=NAMES)
def test_a_thousand_hostile_answers_and_megabytes(rule: str, answer: Any, settings: dict[str, Any]) -> None:
    """Each is scored, none fails, and the next ordinary answer is scored as ever."""
    found = chosen(rule, **settings)
    prompt = Prompt("p", [Message("user", "?")], answer=answer, info={"choices": ["five", "six"]})
    for text in [*hostile(), *megabytes().values()]:
        value = found.target(prompt, text, **found.arguments())
        assert math.isfinite(value)
        assert 0.0 <= value <= 1.0


@pytest.mark.parametrize("rule", ["exact", "normalised", "gsm8k", "numeric", "choice", "math", "json"])
@given(answer=st.text() | st.integers() | st.none() | st.lists(st.text(), max_size=3), text=st.text(max_size=20))
def test_any_ground_truth_gives_a_verdict_or_a_failure(rule: str, answer: Any, text: str) -> None:
    found = chosen(rule)
    prompt = Prompt("p", [Message("user", "?")], answer=answer, info={"schema": answer})
    try:
        verdict = found.target(prompt, text, **found.arguments())
    except CannotScore as error:
        verdict = error.kind
    assert verdict in (0.0, 1.0, "invalid")
