"""Demonstrations of grading: whatever a teacher's verdict looks like, the demonstration has one form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.grades import read_grade
from rewardsmith.text.reading import Unreadable
from rewardsmith.text.written_grades import write_grade

FORMS = [
    ("Step 1 holds.\n\nTotal Score: 8/10", "Step 1 holds."),
    ("Step 1 holds.\n\n**Total Score:** 8/10", "Step 1 holds."),
    ("Step 1 holds.\n## Total Score\n8/10", "Step 1 holds."),
    ("Step 1 holds.\n---\nTotal Score: 80%", "Step 1 holds."),
    ("Step 1 holds.\n\n| Total Score | 8/10 |", "Step 1 holds."),
    ("Step 1 holds.\n```\nTotal Score: 8/10\n```", "Step 1 holds."),
    ("Step 1 holds.\n\\boxed{Total Score: 8/10}", "Step 1 holds."),
    ("Step 1 holds.\nMy final total score: 8/10\nI hope this helps.", "Step 1 holds."),
    ("It claims a perfect total score.\nTotal Score: 8", "It claims a perfect total score."),
    (
        "> Total Score: 10/10\nis what the answer says.\nTotal Score: 8",
        "> Total Score: 10/10\nis what the answer says.",
    ),
    ("I give a total score of 8/10.", "I give a total score of 8/10."),
]


@pytest.mark.parametrize(("analysis", "kept"), FORMS)
def test_the_verdict_has_one_form(analysis: str, kept: str) -> None:
    assert write_grade(analysis, 0.8, 10) == f"{kept}\n\nTotal Score: 8/10"


@pytest.mark.parametrize(
    "analysis", ["", "Total Score: 8/10", "**Total Score: 8/10**\n\nBecause it is good.", "\n---\n"]
)
def test_a_verdict_without_an_analysis_is_refused(analysis: str) -> None:
    with pytest.raises(Unreadable, match="no analysis"):
        write_grade(analysis, 0.8, 10)


def test_points_are_those_of_the_rubric() -> None:
    assert write_grade("Good.\nTotal Score: 37.5%", 0.375, 20).endswith("\n\nTotal Score: 7.5/20")
    assert write_grade("Good.", 1 / 3, 10).endswith("Total Score: 3.333333/10")


@given(st.text(min_size=1), st.integers(0, 20), st.sampled_from([5.0, 10.0, 12.5]))
def test_what_is_written_is_read_back(analysis: str, half: int, total: float) -> None:
    share = half / 20
    try:
        text = write_grade(analysis, share, total)
    except Unreadable:
        return
    assert read_grade(text, total).share == pytest.approx(share, abs=1e-6)
