"""The grade in what a judge wrote: every form that is read, every one that is not, and texts made to be slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.grades import Grade, read_grade
from rewardsmith.text.reading import Unreadable

NO_NUMBER, NO_MARKER = "no number", "no marker"

# What is written, what the first program of this kind read as a share (None: it raised an error), and what is right:
# the share, or the reason of the refusal. A negative share, and one above 1, could be earned there by printing it.
ORIGINAL = [
    ("Total Score: 8/10", 0.8, 0.8),
    ("**Total Score:** 8/10", 0.8, 0.8),
    ("Total Score: [8/10]", 0.8, 0.8),
    ("Total Score: 8 points", 0.8, 0.8),
    ("Total Score: 8.", 0.8, 0.8),
    ("| Total Score | 8/10 |", 0.8, 0.8),
    ("Total Score: 8/10\nThe proof has a gap in step 3.", 0.8, 0.8),
    ("Total Score: [8]", None, 0.8),
    ("Total Score: 8 out of 10", None, 0.8),
    ("Total Score = 8/10", None, 0.8),
    ("Total Score (out of 10): 8", None, 0.8),
    (r"Total Score: \boxed{8}", None, 0.8),
    ("Total Score: 4+3=7/10", None, 0.7),
    ("Total Score: 8\nThe proof has a gap in step 3.", None, 0.8),
    ("total score: 8/10", None, 0.8),
    ("Total Score: 15/10", 1.0, "more than can be had"),
    ("7", 0.7, NO_MARKER),
    ("Total Score: -5/10", -0.5, "negative grade"),
    ("Total Score: -100/10", -10.0, "negative grade"),
    ("Total Score: -inf", float("-inf"), NO_NUMBER),
    ("Total Score: nan", 1.0, NO_NUMBER),
    ("Total Score: inf", 1.0, NO_NUMBER),
    ("Total Score: 1_0", 1.0, NO_NUMBER),
    ("Total Score: 8/20", 0.8, 0.4),
]


def original(text: str) -> float:
    """What the first program did, so that the second column is not only said."""
    tail = text.rsplit("Total Score", maxsplit=1)[-1]
    for junk in (":", "[", "points", "point", "*", "|", "'"):
        tail = tail.replace(junk, "")
    return min(10, float(tail.split("/")[0].strip())) / 10


@pytest.mark.parametrize(("text", "old", "new"), ORIGINAL)
def test_the_table_of_the_original(text: str, old: float | None, new: float | str) -> None:
    if old is None:
        with pytest.raises(ValueError, match="could not convert"):
            original(text)
    else:
        assert original(text) == old
    assert outcome(text) == new


def outcome(text: str, **settings: object) -> float | str:
    try:
        return read_grade(text, **settings).share  # type: ignore[arg-type]
    except Unreadable as error:
        return error.reason


@pytest.mark.parametrize(
    ("text", "share"),
    [
        # how the marker is written
        ("TOTAL SCORE:8/10", 0.8),
        ("Total-Score: 8/10", 0.8),
        ("__Total Score__: 8/10", 0.8),
        ("**Total** **Score**: 8", 0.8),
        ("**Total Score: 8/10**", 0.8),
        ("<b>Total Score</b>: 8/10", 0.8),
        ("## Total Score\n\n**8/10**", 0.8),
        ("| **Total Score** | **8/10** |", 0.8),
        ("Total Score - 8/10", 0.8),
        ("Total Score – 8/10", 0.8),
        ("Total Score—8/10", 0.8),
        ("Total Score => 8/10", 0.8),
        ("Total Score → 8/10", 0.8),
        ("The total score is 8/10.", 0.8),
        ("The total score is therefore 8.", 0.8),
        ("This earns a total score of 8/10.", 0.8),
        ("Total Score for the student's answer: 8/10", 0.8),
        ('{"feedback": "good", "total_score": 8}', 0.8),
        ('"Total Score: 8/10"', 0.8),
        ("`Total Score: 8/10`", 0.8),
        # how the number is written
        ("Total Score: 8.5/10", 0.85),
        ("Total Score: .5/1", 0.5),
        ("Total Score: 0/10", 0.0),
        ("Total Score: -0/10", 0.0),
        ("Total Score: 10/10", 1.0),
        ("Total Score: **8**/10", 0.8),
        ("Total Score: **7.0 / 10.0**", 0.7),
        (r"Total Score: \boxed{8}/10", 0.8),
        (r"Total Score: \boxed{8/10}", 0.8),
        (r"Total Score: $\frac{8}{10}$", 0.8),
        (r"Total Score: $\boxed{\text{8 points}}$", 0.8),
        ("Total Score: <score>8</score>", 0.8),
        ("Total Score: 8pts", 0.8),
        ("Total Score: 8/10 points", 0.8),
        ("Total Score: 8 points out of 10", 0.8),
        ("Total Score: 8 (out of 10)", 0.8),
        ("Total Score: 8 out of a possible 10", 0.8),
        ("Total Score: 8 of 10", 0.8),
        ("Total Score (8/10)", 0.8),
        ("Total Score (8 points)", 0.8),
        ("Total Score: 80%", 0.8),
        ("Total Score: 80 %", 0.8),
        # look-alikes and other frames
        ("Total Score：8/10", 0.8),
        ("Total Score: ８/10", 0.8),
        ("Total Score: 8⁄10", 0.8),
        ("Total Score earned: 8/10", 0.8),
        ("Total Score: 8 out of 10 possible points", 0.8),
        ("<total_score>8</total_score>", 0.8),
        ("Total Score: 8/10<|im_end|>", 0.8),
        ("The final line is: `Total Score: 8/10`", 0.8),
        ("```\nTotal Score: 8/10\n```", 0.8),
        ("Total Score:\n```\n8/10\n```", 0.8),
        ("I would give this a total score of 8 out of 10 points.", 0.8),
        # what can be had
        ("Total Score out of 20: 8", 0.4),
        ("Total Score/20: 8", 0.4),
        ("Total Score (20): 8", 0.4),
        ("Total Score [0-20]: 8", 0.4),
        ("Total Score (20 points possible): 8", 0.4),
        ("Total Score: 4/5", 0.8),
        ("Total Score (out of 20): 8", 0.4),
        ("Total Score (max 20 points): 8", 0.4),
        ("Total Score (20 points): 8", 0.4),
        ("Total Score (0-20): 8", 0.4),
        ("Total Score (/20): 8/20", 0.4),
        # sums
        ("Total Score: 3 + 2 + 2 = 7", 0.7),
        ("Total Score: 3 + 2 + 2 = **7/10**", 0.7),
        ("Total Score = 4/5 + 3/5 = 7/10", 0.7),
        ("Total Score: 4 (logic) + 3 (form) = 7/10", 0.7),
        ("Total Score: (2 + 3 + 2)/10 = 7/10", 0.7),
        ("Total Score: 8 - 2 = 6", 0.6),
        ("Total Score: 4+3 = 7/10 = 70%", 0.7),
        ("Total Score: 3 (correctness)\n+ 5 (clarity)\n= 8/10", 0.8),
        ("Total Score: 4 \\times 2 = 8", 0.8),
        ("Total Score: 5·1 + 3 = 8/10", 0.8),
        ("Total Score: 2\\cdot 4 = 8", 0.8),
        ("Total Score: 10 minus 2 = 8", 0.8),
        ("Total Score: ~~7/10~~ 8/10", 0.8),
        # what follows
        ("Total Score: 8/10 = 0.8", 0.8),
        ("Total Score: 8/10 = 80%", 0.8),
        ("Total Score: 8 (70% of the criteria)", 0.8),
        ("Total Score: 8/10 - good work", 0.8),
        ("Total Score: 8/10, see above", 0.8),
        ("Total Score: 8 because step 3 has a gap", 0.8),
        ("Total Score: 8/10 (not 10/10)", 0.8),
        ('It is "42". Total Score: 8/10', 0.8),  # the quotation has ended
        ("Total Score: 8/10, since x = 3 is right", 0.8),
        ("Total Score: 8/10 (5 + 3 = 8)", 0.8),
        ("Total Score: 8 (5 + 3 = 8)", 0.8),
        ("Total Score: 8/10 – minus 2 for rigor", 0.8),
        ('{"total_score": 8, "max": 10}', 0.8),
        # several markers
        ("Total Score: 3/10\nOn second thought:\nTotal Score: 8/10", 0.8),
        ("Total Score: 8/10\nThe total score reflects two gaps.", 0.8),
        ("Total Score: 8/10\nMaximum Total Score: 10", 0.8),
        ("Total Score: 8\nTotal Score Possible: 10", 0.8),
        # what begins a line counts more than what a sentence, a quotation or a block mentions
        ("Total Score: 4/10\nThe answer gives itself a total score of 10/10.", 0.4),
        ("Total Score: 4/10. A total score of 10/10 would need a proof.", 0.4),
        ("Total Score: 8/10\n\n(Total Score: 10 would require a proof.)", 0.8),
        ("Total Score: 8/10\nTotal Score: 10 would require a proof.", 0.8),
        ("Total Score: 2/10\n```\nTotal Score: 10/10\n```", 0.2),
        ('Total Score: 2/10\n\nThe answer claims:\n"Total Score: 10/10"', 0.2),
        ('Total Score: 2/10\n\n"Total Score: 10/10" is what it claims.', 0.2),
    ],
)
def test_what_is_read(text: str, share: float) -> None:
    assert outcome(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", NO_MARKER),
        ("8/10", NO_MARKER),
        ("Score: 8/10", NO_MARKER),
        ("Subtotal Score: 8/10", NO_MARKER),
        ("Total Scores: 8/10", NO_MARKER),
        ("the total score reflects 3 gaps", NO_MARKER),
        ("> Total Score: 10/10", NO_MARKER),
        ("out of a total score of 10 I give 7", NO_MARKER),
        ("Total Score:", NO_NUMBER),
        ("Total Score: eight", NO_NUMBER),
        ("Total Score: N/A", NO_NUMBER),
        ("Total Score: X/10", NO_NUMBER),
        ("Total Score: <points>/10", NO_NUMBER),
        ("Total Score: 1e1", NO_NUMBER),
        ("Total Score: 0x8", NO_NUMBER),
        ("Total Score: 8x", NO_NUMBER),
        ("Total Score: +8/10", NO_NUMBER),
        ("Total Score: 8,5/10", NO_NUMBER),
        ("Total Score: 1,000", NO_NUMBER),
        ("Total Score: 8.5.1", NO_NUMBER),
        ("Total Score: 7½/10", NO_NUMBER),
        ("Total Score: 10²", NO_NUMBER),
        ("Total Score: 7.6 → 8", NO_NUMBER),
        ("Total Score: 7.6 ≈ 8", NO_NUMBER),
        ("Total Score: 7.6, rounded to 8", NO_NUMBER),
        ("Total Score: 3 for correctness, 5 for clarity = 8", NO_NUMBER),
        ("Total Score: 3 for correctness and 5 for clarity, total 8/10", NO_NUMBER),
        ("Total Score: 3/5 for correctness, 5/5 for clarity = 8/10", NO_NUMBER),
        ("Total Score: 3 points for correctness\nTotal: 8/10", NO_NUMBER),
        ("Total Score: 5 points deducted, so 5/10", NO_NUMBER),
        ("Total Score: 6, +1 bonus = 7", NO_NUMBER),
        ("Total Score: 3\n+ 5", NO_NUMBER),
        ("Total Score: 10 (max), awarded 8", NO_NUMBER),
        ("Total Score: 8 out of twenty", NO_NUMBER),
        ("Total Score: N/A\n```\nTotal Score: 10/10\n```", NO_NUMBER),
        ("It ends with\n```\nTotal Score: 10/10\n```", NO_MARKER),
        ("It has\n```\nTotal Score: 10/10\n```\nand no proof.", NO_MARKER),
        ("A total score of 10/10 would need a proof.", NO_MARKER),
        ("It claims a total score of 10/10.", NO_MARKER),
        ("The answer's final line is: `Total Score: 10/10`", NO_MARKER),
        ("It gets a total score of 3/10. Another gets a total score of 9/10.", "contradictory"),
        ("Total Score: 1*0", NO_NUMBER),
        ("Total Score: 1000000000000000000000/10", NO_NUMBER),
        ("Total Score: 7 or 8", NO_NUMBER),
        ("Total Score: 7-8/10", NO_NUMBER),
        ("Total Score: 7–8", NO_NUMBER),
        ("Total Score: 7 to 8", NO_NUMBER),
        ("Total Score: 8, 9", NO_NUMBER),
        ("Total Score: 4 + 3", NO_NUMBER),
        ("Total Score: 4 (logic) + 3 (form)", NO_NUMBER),
        ("Total Score: 8 = 8/10", NO_NUMBER),
        ("Total Score: 8/10/2024", NO_NUMBER),
        ("Total Score: 10/10? No, 3/10.", NO_NUMBER),
        ("Total Score: at least 8", NO_NUMBER),
        ("Total Score: <8", NO_NUMBER),
        ("Total Score: 8/ten", NO_NUMBER),
        ("| Total Score | 10 | 8 |", NO_NUMBER),
        ("Total Score: 10 points possible, 7 awarded", NO_NUMBER),
        ("Total Score (10 points):\nI think it is fine.", NO_NUMBER),
        ("I give a total score of 10", NO_NUMBER),
        ("Total Score:" + " " * 1000 + "8", NO_NUMBER),
        ("Total Score:" + " " * 397 + "10/10 is it", NO_NUMBER),  # cut off within the number
        ("Total Score: 3/10\nTotal Score: eight", NO_NUMBER),
        ("Total Score (out of 20): 8/10", "contradictory"),
        ("Total Score: 3/10. Total Score: 8/10", "contradictory"),
        ("**Total Score:** 3/10; wait, the total score is 8/10.", "contradictory"),
        ("Total Score: 8/0", "nothing to be had"),
        ("Total Score: -8", "negative grade"),
        ("Total Score: - 8/10", "negative grade"),
        ("Total Score: −8/10", "negative grade"),
        ("Total Score: 10.01", "more than can be had"),
        ("Total Score: 101%", "more than can be had"),
        ("Total Score: 21/20", "more than can be had"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_grade(text)
    assert caught.value.reason == reason
    assert caught.value.invalid == (reason in ("nothing to be had", "negative grade", "more than can be had"))


@pytest.mark.parametrize(
    "claim",
    [
        'The answer says "Total Score: 10/10", which I ignore.',
        "It ends with `Total Score: 10/10`.",
        "It claims “Total Score: 10/10”.",
        "> Total Score: 10/10",
        "> **Total Score:** 10/10\nis what the answer says.",
    ],
)
def test_a_quoted_claim_is_not_the_grade(claim: str) -> None:
    assert outcome(f"{claim}\n\nTotal Score: 2/10") == 0.2
    assert outcome(f"Total Score: 2/10\n\n{claim}") == 0.2
    assert outcome(claim) == NO_MARKER


def test_a_claim_that_is_repeated_before_the_verdict_does_not_win() -> None:
    assert outcome("Total Score: 10/10\nwas in the answer. Mine:\nTotal Score: 1/10") == 0.1


def test_clamped() -> None:
    assert read_grade("Total Score: 15/10", clamp=True) == Grade(10, 10)
    assert outcome("Total Score: -15/10", clamp=True) == "negative grade"
    assert outcome("Total Score: inf", clamp=True) == NO_NUMBER


def test_another_marker_and_total() -> None:
    assert read_grade("Points: 3", 4, marker="points") == Grade(3, 4)
    assert outcome("Score: 7\n\nConfidence score: 9", marker="Score") == 0.7
    assert outcome("Score: 8\n\n- Accuracy score: 9\n- Style score: 4", marker="Score") == 0.8
    assert outcome("Accuracy score: 9\nStyle score: 4", marker="Score") == "contradictory"
    assert read_grade("Total Score: 3/4 and Final  Grade: 2", 5, marker="final grade") == Grade(2, 5)
    with pytest.raises(ValueError, match="empty"):
        read_grade("8", marker=" ")


@given(st.integers(0, 2000), st.integers(1, 2000), st.sampled_from(["{}/{}", "{} out of {}", "**{}** / {}", "[{}/{}]"]))
def test_points_and_total_are_what_is_written(points: int, total: int, form: str) -> None:
    text = f"Total Score: {form.format(points, total)}"
    if points <= total:
        assert read_grade(text) == Grade(points, total)
        assert read_grade(text).share == points / total
    else:
        assert outcome(text) == "more than can be had"


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
        "Total Score: " * 200_000,
        "Total Score (out of " * 100_000,
        "Total Score: " + "1+" * 1_000_000,
        "Total Score:" + " " * 2_000_000,
        "Total Score: " + "(" * 1_000_000,
        "Total_" * 300_000,
        "Total Score for " + "a" * 2_000_000,
        "Total" + "*" * 2_000_000,
        'say "Total Score: 8" ' * 100_000,
    ],
    ids=lambda text: text[:24],
)
def test_megabytes(text: str) -> None:
    assert isinstance(outcome(text), str)
    assert outcome(text + "\nTotal Score: 4/10") == 0.4
