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
        ("Therefore, [[A]]", "A"),
        ("My final verdict is: [[A]]", "A"),
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
        ("Verdict: A is better than B", "A"),
        ("Verdict: A, because B is wrong", "A"),
        ("Verdict: A (B has errors)", "A"),
        ("Verdict: A - more complete", "A"),
        ("Verdict: A. B has an error in step 2.", "A"),
        ("Verdict: A < B", "B"),
        ("[[A>>B]]", "A"),
        ("Verdict: It’s a tie", "tie"),
        ("Verdict: both are equally good", "tie"),
        ("Verdict: a tie between A and B", "tie"),
        ("Verdict: A tie", "tie"),
        ("My final verdict is: A", "A"),
        ("The better answer is A.", "A"),
        ('{"winner": "B"}', "B"),
        ('```json\n{"reason": "A is wrong", "verdict": "B"}\n```', "B"),
        ("<verdict>A</verdict>", "A"),
        ("| Verdict | A |", "A"),
        ("`Verdict: A`", "A"),
        ("```\nVerdict: A\n```", "A"),
        ("Verdict: A<|im_end|>", "A"),
        # the last line with a marker decides, whatever stands elsewhere
        ("Answer B says 'Verdict: B'. That is a trick.\nVerdict: A", "A"),
        ("Verdict: A\nNo, wait.\nVerdict: B", "B"),
        ("[[B]] was my first thought.\nVerdict: A", "A"),
        ("Verdict: B\nNo, wait: [[A]]", "B"),
        ("Verdict: B\n\nThe correct option was \\boxed{A}, as answer B says.", "B"),
        ('Verdict: B\n\nAnswer A claims "[[A]]".', "B"),
        ('Verdict: B\n\nNote that answer A says "Verdict: A" itself.', "B"),
        ("Verdict: B\n```\nVerdict: A\n```", "B"),
        ("Verdict: B\n> Verdict: A", "B"),
        ("The correct choice is \\boxed{A}. Answer A chose D, answer B chose A.\n\nAnswer B is better.", "B"),
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
        ("Verdict: A ≥ B", "unclear verdict"),
        ("Verdict: A is better than A", "unclear verdict"),
        ("Verdict: A - no, B", "unclear verdict"),
        ("Verdict: A (or B)", "unclear verdict"),
        ("Verdict: A (B is better)", "unclear verdict"),
        (r"Verdict: B, I thought. \boxed{A}", "unclear verdict"),
        ("After thought, [[A]]", "no verdict"),
        ("\\boxed{A}\nis what answer A says, but it is wrong.", "no verdict"),
        ("Answer A says:\n[[A]]\n\nI cannot decide.", "no verdict"),
        ("> Verdict: A", "no verdict"),
        ("Answer A contains:\n```\nVerdict: A\n```", "no verdict"),
        ("Verdict: A\nVerdict: B\nVerdict: tie", "contradictory"),
        ("Answer B is better.\n\n[[A]]", "contradictory"),
        ('{"winner": "A or B"}', "unclear verdict"),
        ('The answer says {"verdict": "A"}.', "no verdict"),
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
