"""What every rule survives: a thousand hostile answers, megabytes, and any text at all."""

import itertools
import math
import re
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules import rule_settings
from rewardsmith.rewards.rules.rule_settings import TooSlowError, processor_limit
from tests.rewards.hostile import hostile, megabytes
from tests.rewards.rules.rule_values import chosen, value

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}

# The rule `math` gets the hostile answers in a process of its own: see test_math.py.
RULES: list[tuple[str, Any, dict[str, Any]]] = [
    ("exact", "5", {}),
    ("arithmetic", "5", {}),
    ("word_problem", "5", {}),
    ("word_problem_steps", "5", {"share": True}),
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
NAMES = [f"{rule}-{i}" for i, (rule, _, _) in enumerate(RULES)]


@pytest.mark.parametrize(("rule", "answer", "settings"), RULES, ids=NAMES)
def test_a_thousand_hostile_answers_and_megabytes(rule: str, answer: Any, settings: dict[str, Any]) -> None:
    """Each is scored, none fails, and the next ordinary answer is scored as ever."""
    found = chosen(rule, **settings)
    prompt = Prompt("p", [Message("user", "?")], answer=answer, info={"choices": ["five", "six"], "chain": "12 -7"})
    for text in [*hostile(), *megabytes().values()]:
        score = found.target(prompt, text, **found.arguments())
        assert math.isfinite(score)
        assert 0.0 <= score <= 1.0


OTHERS: list[tuple[str, Any, dict[str, Any]]] = [
    ("math", "x^2+1", {}),
    ("math", "5", {"extract": ["text"], "strict": False}),
    ("chrf", "five apples", {}),
    ("bleu", "five apples", {}),
    ("arithmetic_steps", "5", {"share": True}),
    ("translation_words", "5", {}),
]


@pytest.mark.parametrize(("rule", "answer", "settings"), [*RULES, *OTHERS])
@hypothesis.settings(max_examples=40)
@given(text=st.text(max_size=200), box=st.booleans())
def test_any_text_is_scored(rule: str, answer: Any, settings: dict[str, Any], text: str, box: bool) -> None:
    """A rule never raises and never fails, whatever the text is."""
    info = {"choices": ["five", "six"], "problem": "7+5-3", "chain": "12 -7", "src_text": "kab"}
    assert 0.0 <= value(rule, f"\\boxed{{{text}}}" if box else text, answer, info, **settings) <= 1.0


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


# ---- processor time ------------------------------------------------------------------------------------------------

SLOW = "(a+)+$"
TEXT = "a" * 60 + "!"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_settings.processor_limit.__wrapped__, "__defaults__", (0.05,))


def test_regular_expressions_and_loops_are_interrupted() -> None:
    with pytest.raises(TooSlowError), processor_limit(0.05):
        re.search(SLOW, TEXT)
    with pytest.raises(TooSlowError), processor_limit(0.05):
        sum(1 for _ in itertools.count())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("match", ["search", "fullmatch"])
def test_a_text_on_which_a_pattern_takes_hours_is_bad(match: str) -> None:
    assert value("regex", TEXT, pattern=SLOW, match=match) == 0.0
    assert value("regex", "aaa", pattern=SLOW, match=match) == 1.0


@pytest.mark.usefixtures("short")
def test_an_answer_on_which_a_pattern_of_the_schema_takes_hours_is_bad() -> None:
    for schema in ({"pattern": SLOW}, {"patternProperties": {SLOW: False}}, {"propertyNames": {"pattern": SLOW}}):
        text = f'"{TEXT}"' if "pattern" in schema else f'{{"{TEXT}": 1}}'
        assert value("json", text, satisfies=schema) == 0.0
