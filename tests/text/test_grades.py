"""Grades and numbers in what a judge wrote: what is parsed, what is refused, and replies made to be slow."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.grades import Grade, parse_grade, parse_rating, write_grade
from rewardsmith.text.judge_replies import Unparsable, last_object
from tests.text.well_formed import GRADES, RATINGS

NO_NUMBER, NO_MARKER = "no number", "no marker"


def outcome(text: str, **settings: object) -> float | str:
    try:
        return parse_grade(text, **settings).share  # type: ignore[arg-type]
    except Unparsable as error:
        return error.reason


def test_every_well_formed_grade_is_parsed() -> None:
    assert {text: outcome(text) for text in GRADES} == pytest.approx(GRADES)


REFUSED = {
    NO_MARKER: [
        *("", "7", "8/10", "Score: 8/10", "Subtotal Score: 8/10", "Total Scores: 8/10", "> Total Score: 10/10"),
        *("the total score reflects 3 gaps", "out of a total score of 10 I give 7", "I give a total score of 10"),
        *("It claims a total score of 10/10.", "A total score of 10/10 would need a proof."),
        *("The answer's final line is: `Total Score: 10/10`", '"Total Score: 10/10" is what it claims.'),
        *("It ends with\n```\nTotal Score: 10/10\n```", "It has\n```\nTotal Score: 10/10\n```\nand no proof."),
        "It gets a total score of 3/10. Another gets a total score of 9/10.",
    ],
    NO_NUMBER: [
        *("Total Score:", "Total Score: eight", "Total Score: N/A", "Total Score: X/10", "Total Score: <points>/10"),
        *("Total Score: -inf", "Total Score: nan", "Total Score: inf", "Total Score: 1_0", "Total Score: 1*0"),
        *("Total Score: 1e1", "Total Score: 0x8", "Total Score: 8x", "Total Score: +8/10", "Total Score: 8,5/10"),
        *("Total Score: 1,000", "Total Score: 8.5.1", "Total Score: 7½/10", "Total Score: 10²", "Total Score: <8"),
        *("Total Score: 7.6 → 8", "Total Score: 7.6 ≈ 8", "Total Score: 7.6, rounded to 8", "Total Score: 7 or 8"),
        *("Total Score: 7-8/10", "Total Score: 7–8", "Total Score: 7 to 8", "Total Score: 8, 9", "Total Score: 4 + 3"),
        *("Total Score: 8 = 8/10", "Total Score: 8/10/2024", "Total Score: 10/10? No, 3/10.", "Total Score: 8/ten"),
        *("Total Score: at least 8", "| Total Score | 10 | 8 |", "Total Score: 8 out of twenty", "Total Score: 3\n+ 5"),
        *("Total Score: 10 points possible, 7 awarded", "Total Score: 10 (max), awarded 8", "Total Score: 10 possible"),
        *("Total Score: 3 for correctness, 5 for clarity = 8", "Total Score: 6, +1 bonus = 7"),
        *("Total Score: 3/5 for correctness, 5/5 for clarity = 8/10", "Total Score: 5 points deducted, so 5/10"),
        *("Total Score: 3 points for correctness\nTotal: 8/10", "Total Score (10 points):\nI think it is fine."),
        *("Total Score: 1000000000000000000000/10", "Total Score: 3/10\nTotal Score: eight"),
        *("Total Score: N/A\n```\nTotal Score: 10/10\n```", "Total Score:" + " " * 1_987 + "10/10 is it"),  # cut there
        *("Total Score: 3/10. Total Score: 8/10", "**Total Score:** 3/10; wait, the total score is 8/10."),
    ],
    "contradictory": ["Total Score (out of 20): 8/10"],
    "no points in all": ["Total Score: 8/0"],
    "negative grade": ["Total Score: -8", "Total Score: - 8/10", "Total Score: −8/10", "Total Score: -100/10"],
    "more than all points": ["Total Score: 10.01", "Total Score: 101%", "Total Score: 21/20", "Total Score: 15/10"],
}


def test_what_is_refused() -> None:
    for reason, texts in REFUSED.items():
        for text in texts:
            with pytest.raises(Unparsable) as caught:
                parse_grade(text)
            assert (text, caught.value.reason) == (text, reason)
            assert caught.value.invalid == (reason in ("no points in all", "negative grade", "more than all points"))


def test_another_marker_and_total() -> None:
    assert parse_grade("Points: 3", 4, marker="points") == Grade(3, 4)
    assert outcome("Score: 7\n\nConfidence score: 9", marker="Score") == 0.7
    assert outcome("Accuracy score: 9\nStyle score: 4\nOverall score: 6", marker="Score") == 0.6
    assert outcome("Accuracy score: 9\nStyle score: 4", marker="Score") == NO_MARKER
    with pytest.raises(ValueError, match="empty"):
        parse_grade("8", marker=" ")


@given(st.text(alphabet="Total Score:0123456789/.-+()=|\n\"'*", max_size=200))
def test_a_grade_is_a_share_or_refused(text: str) -> None:
    found = outcome(text)
    assert isinstance(found, str) or 0 <= found <= 1


@given(st.text(max_size=100))
def test_what_stands_before_the_last_line_changes_nothing(before: str) -> None:
    assert outcome(f"{before}\nTotal Score: 3/10") == 0.3


@pytest.mark.parametrize(
    "text",
    [
        *("Total Score: " * 200_000, "Total Score (out of " * 100_000, "Total Score: " + "1+" * 1_000_000),
        *("Total Score:" + " " * 2_000_000, "Total Score: " + "(" * 1_000_000, "Total_" * 300_000),
        *("Total Score for " + "a" * 2_000_000, "Total" + "*" * 2_000_000, 'say "Total Score: 8" ' * 100_000),
    ],
    ids=lambda text: text[:24],
)
def test_megabytes(text: str) -> None:
    assert isinstance(outcome(text), str)
    assert outcome(text + "\nTotal Score: 4/10") == 0.4


# ---- numbers -----------------------------------------------------------------------------------------------------


def test_every_well_formed_rating_is_parsed_and_nothing_else() -> None:
    assert {text: parse_rating(text) for text in RATINGS} == RATINGS
    for text in ("", "seven", "7 of 10", "1e3", "1_0", "1*0", "inf", "nan", "7\nwell", "٧", "9" * 300, "Score: 7"):
        with pytest.raises(Unparsable, match="no number"):
            parse_rating(text)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.text(alphabet="ab {[\n", max_size=20))
def test_the_last_object_is_found_behind_anything(table: dict[str, Any], before: str) -> None:
    assert last_object(f"{before}\n{json.dumps(table)} that is it") == table


def test_an_object_that_cannot_be_decoded() -> None:
    assert last_object('The form is {"score": X}.\n{"score": 7}') == {"score": 7}
    assert last_object('{"score": 7} and {"score": X}') is None  # it is not known which one is the last
    assert last_object('{\n"why": "a "b"",\n"inner":\n{"score": 9},\n"score": 1\n}') is None  # a part of it
    for text in ('{"}' * 300_000, '{"a":' * 300_000, '{"a": {"b' * 100_000 + "}}" * 100_000):
        assert last_object(text) is None


# ---- writing -----------------------------------------------------------------------------------------------------

FORMS = [
    *(
        "Step 1 holds.\n\nTotal Score: 8/10",
        "Step 1 holds.\n\n**Total Score:** 8/10",
        "Step 1 holds.\n## Total Score\n8",
    ),
    *("Step 1 holds.\n---\nTotal Score: 80%", "Step 1 holds.\n\n| Total Score | 8/10 |", "Step 1 holds."),
    *("Step 1 holds.\n```\nTotal Score: 8/10\n```", "Step 1 holds.\n\\boxed{Total Score: 8/10}"),
    "Step 1 holds.\nMy final total score: 8/10\nI hope this helps.",
]


def test_a_demonstration_has_one_form_of_verdict() -> None:
    for analysis in FORMS:
        assert write_grade(analysis, 0.8, 10) == "Step 1 holds.\n\nTotal Score: 8/10"
    quoted = "> Total Score: 10/10\nis what the answer says."
    assert write_grade(f"{quoted}\nTotal Score: 8", 0.8, 10) == f"{quoted}\n\nTotal Score: 8/10"
    assert write_grade("Good.\nTotal Score: 37.5%", 0.375, 20).endswith("\n\nTotal Score: 7.5/20")
    assert write_grade("Good.", 1 / 3, 10).endswith("Total Score: 3.333333/10")
    for analysis in ("", "Total Score: 8/10", "**Total Score: 8/10**\n\nBecause it is good.", "\n---\n"):
        with pytest.raises(Unparsable, match="no analysis"):
            write_grade(analysis, 0.8, 10)


@given(st.text(min_size=1), st.integers(0, 20), st.sampled_from([5.0, 10.0, 12.5]))
def test_what_is_written_is_parsed_back(analysis: str, half: int, total: float) -> None:
    try:
        text = write_grade(analysis, half / 20, total)
    except Unparsable:
        return
    assert parse_grade(text, total).share == pytest.approx(half / 20, abs=1e-6)
