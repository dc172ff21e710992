"""Equality but for spelling; and plain equality with several answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.answer_rules import normal
from tests.rewards.rules.ask import value


@pytest.mark.parametrize(
    ("right", "text", "verdict"),
    [
        ("Paris", "paris", 1.0),
        ("Paris", " Paris.\n", 1.0),
        ("Paris", "“Paris”", 1.0),
        ("The Beatles", "beatles", 1.0),
        ("an apple", "the apple", 1.0),
        ("well-known", "well known", 1.0),
        ("U.S.", "US", 1.0),
        ("don't", "dont", 1.0),
        ("ﬁne", "fine", 1.0),  # a ligature
        ("Straße", "STRASSE", 1.0),
        ("１２", "12", 1.0),
        ("1,234", "1234", 1.0),
        ("the", "The", 1.0),
        ("?", "?", 1.0),
        ("<think>hm</think>Paris", "Paris", 0.0),
        ("Paris", "<think>hm</think>Paris", 1.0),
        ("Paris", "London", 0.0),
        ("Paris", "Paris, France", 0.0),
        ("3.5", "35", 0.0),
        ("-5", "5", 0.0),
        ("−5", "-5", 1.0),
        ("50%", "50", 0.0),
        ("C#", "C", 0.0),
        ("?", "!", 0.0),
        ("?", "", 0.0),
        ("the", "a", 0.0),
        ("Paris", "", 0.0),
        ("Paris", "Paris " * 1_000, 0.0),
    ],
)
def test_verdicts(right: str, text: str, verdict: float) -> None:
    assert value("normalised", text, right) == verdict


def test_settings() -> None:
    assert value("normalised", "the end", "end", articles=False) == 0.0
    assert value("normalised", "end.", "end", punctuation=False) == 0.0
    assert value("normalised", "The answer is Paris.", "paris", extract=["stated"]) == 1.0
    assert value("normalised", "Paris", "paris", extract=["stated"]) == 0.0


def test_any_of_several_answers() -> None:
    for rule in ("normalised", "exact"):
        assert value(rule, "Oslo", ["Rome", "Oslo"]) == 1.0
        assert value(rule, "Nice", ["Rome", "Oslo"]) == 0.0
        assert value(rule, "7", [7, 8]) == 1.0


@pytest.mark.parametrize("answer", [None, "", " ", [], {"a": 1}, [["Rome"]]])
def test_a_broken_right_answer_is_a_failure(answer: object) -> None:
    with pytest.raises(CannotScore) as caught:
        value("normalised", "Rome", answer)
    assert caught.value.kind == "invalid"


def test_a_rule_that_compares_with_one_answer_does_not_choose_among_several() -> None:
    with pytest.raises(CannotScore, match="2 answers"):
        value("arithmetic", "#9", ["9", "8"])


@given(st.text(max_size=50))
def test_normal_forms_stay_as_they_are(text: str) -> None:
    assert normal(normal(text, articles=False), articles=False) == normal(text, articles=False)


@given(st.text(min_size=1, max_size=50).filter(str.strip))
def test_an_answer_equals_itself_whatever_its_spaces(text: str) -> None:
    if normal(text):
        assert value("normalised", f"\n {text}\t", text, final="never") == 1.0
