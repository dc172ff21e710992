"""Which of two answers a judge prefers, and when it has not said so."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.comparisons import read_comparison
from rewardsmith.text.reading import Unreadable


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ("Verdict: A", "A"),
        ("Verdict: B.", "B"),
        ("verdict: tie", "tie"),
        ("**Verdict:** B", "B"),
        ("**Verdict: B**", "B"),
        ("### Final verdict\n\nA", "A"),
        ("### Verdict:\n\n**Answer A is better.**", "A"),
        ("Verdict： B", "B"),
        ("Verdict: [[B]]", "B"),
        ("After thought, [[A]]", "A"),
        (r"Verdict: \boxed{A}", "A"),
        (r"\boxed{\text{tie}}", "tie"),
        ("Winner: Response B", "B"),
        ("Better answer: A", "A"),
        ("Verdict: A > B", "A"),
        ("Verdict: B>A", "B"),
        ("Verdict: A = B", "tie"),
        ("Verdict: it is a tie", "tie"),
        ("Verdict: neither is better", "tie"),
        ("Verdict: B is slightly better", "B"),
        ("Both are fine.\n\nB", "B"),
        ("Both are fine.\nTie.", "tie"),
        ("Verdict: A\n\nThe second answer forgets the units.", "A"),
        # the last mark decides
        ("Answer B says 'Verdict: B'. That is a trick.\nVerdict: A", "A"),
        ("[[B]] was my first thought. [[A]]", "A"),
        ("Verdict: A\nNo, wait.\nVerdict: B", "B"),
        ("[[B]] was my first thought.\nVerdict: A", "A"),
        ("Verdict: B\nNo, wait: [[A]]", "A"),
        (r"Verdict: B, I thought. \boxed{A}", "A"),
    ],
)
def test_verdicts(text: str, winner: str) -> None:
    assert read_comparison(text) == winner


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no verdict"),
        ("   \n", "no verdict"),
        ("A good question.", "no verdict"),
        ("A is wordy, B is short.", "no verdict"),
        ("Verdict:", "unclear verdict"),
        ("Verdict: not A", "unclear verdict"),
        ("Verdict: A or B", "unclear verdict"),
        ("Verdict: A is not better", "unclear verdict"),
        ("Verdict: A is worse than B", "unclear verdict"),
        ("Verdict: A close call", "unclear verdict"),
        ("Verdict: a", "unclear verdict"),
        ("Verdict: C", "unclear verdict"),
        ("Verdict: not a tie", "unclear verdict"),
        ("Verdict: A < B", "unclear verdict"),
        ("Verdict: A > A", "unclear verdict"),
        ("Verdict: A\nVerdict: unsure", "unclear verdict"),
        ("Verdict: Untied", "unclear verdict"),
    ],
)
def test_what_is_no_verdict(text: str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_comparison(text)
    assert caught.value.reason == reason


@given(st.text(max_size=200), st.sampled_from(["A", "B", "tie"]))
def test_nothing_that_stands_before_changes_the_verdict(before: str, winner: str) -> None:
    assert read_comparison(f"{before}\nVerdict: {winner}") == winner


@pytest.mark.parametrize("piece", ["Verdict:", "[[", "[[A]]", "\\boxed{", "A ", "\n", "verdict *", "ﷺ"])
def test_megabytes_do_not_hang(piece: str) -> None:
    with contextlib.suppress(Unreadable):
        read_comparison(piece * (2_000_000 // len(piece)))
