"""The limit on the processor time of an answer, and the rules that have one."""

import itertools
import re

import pytest

from rewardsmith.rewards.rules import rule_settings
from rewardsmith.rewards.rules.rule_settings import TooSlowError, processor_limit
from tests.rewards.rules.ask import value

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
