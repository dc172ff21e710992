"""Criteria from JSON values, as data and rewards read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.criteria import Criterion, NotCriteria, listed, read_criteria, total_of, what_is_wrong

GOOD = [
    ("  be right ", "be right"),
    (["be right", "be short"], (Criterion("be right", 1.0, "c1"), Criterion("be short", 1.0, "c2"))),
    ([{"text": " a ", "points": 2}], (Criterion("a", 2.0, "c1"),)),
    ([{"criterion": "a", "weight": -0.5}, "b"], (Criterion("a", -0.5, "c1"), Criterion("b", 1.0, "c2"))),
    ([{"text": "a", "points": 0.1234567, "name": "x"}], (Criterion("a", 0.123457, "c1"),)),
]


@pytest.mark.parametrize(("value", "expected"), GOOD)
def test_what_is_read(value: object, expected: object) -> None:
    assert read_criteria(value, "criteria", "the row") == expected


BAD = [
    (None, "the row has no 'criteria': text, or a list of criteria"),
    ([], "the row has no 'criteria'"),
    (" ", "the row has an unreadable 'criteria'"),
    ({"a": 1}, "the row has an unreadable 'criteria'"),
    (["a", ""], "entry 2 of 'criteria' of the row has no text"),
    ([{"text": "a", "points": "1"}], "entry 1 of 'criteria' of the row has no number of points"),
    ([{"text": "a", "points": True}], "no number of points"),
    ([{"text": "a", "points": float("nan")}], "no number of points"),
    ([{"text": "a", "points": 10**400}], "no number of points"),
    ([{"text": "a", "points": 0}], "'criteria' of the row has an entry of 0 points"),
    ([{"text": "a", "points": -1}], "has nothing that earns points"),
    (["a"] * 201, "has 201 entries: at most 200"),
    ([{"text": "a", "points": 10_001}], "has more than 10,000 points in all"),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_what_is_refused(value: object, message: str) -> None:
    with pytest.raises(NotCriteria) as caught:
        read_criteria(value, "criteria", "the row")
    assert message in str(caught.value)


def test_total_and_list() -> None:
    criteria = [Criterion("a", 2.5, "c1"), Criterion("b", -1, "c2"), Criterion("c", 7.5, "c3")]
    assert total_of(criteria) == 10
    assert listed(criteria) == "1. (points: 2.5) a\n2. (points: -1) b\n3. (points: 7.5) c"
    assert what_is_wrong(criteria) == ""


@given(st.recursive(st.none() | st.floats() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_anything_is_criteria_or_refused(value: object) -> None:
    try:
        found = read_criteria(value, "criteria", "the row")
    except NotCriteria:
        return
    assert found == value.strip() if isinstance(value, str) else total_of(found) > 0
