"""When a text leans on the reference of a problem, and when it only looks so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.references import COPIED, Tied

NAMED = [
    ("How many?", "72", "The total is 72 clips."),
    ("How many?", "72", "It says $72$."),
    ("How many?", "72", "It ends with 72."),
    ("How many?", "1,234", "The count of 1234 is shown."),
    ("How many?", "1234", r"The count of 1{,}234 is shown."),
    ("Find it.", r"\frac{3}{7}", r"Shows that it is $\frac{3}{7}$."),
    ("Find it.", "-3", "Arrives at -3."),
    ("Find it.", "3/7", "The ratio 3/7 is derived."),
    ("Find x.", "2", "The answer is 2."),
    ("Find x.", "2", "The final answer must be 2."),
    ("Find x.", "2", "Obtains 2."),
    ("Find x.", "2", r"Writes \boxed{2}."),
    ("Is it even?", "yes", "The conclusion: yes."),
    ("Is it even?", "Yes", "The answer is yes, with a proof."),
    ("Which town?", "Paris", "The result is Paris."),
    ("Work modulo 1000.", "1000", "The result equals 1000."),
    ("Which share?", "72", "Obtains 72%."),
    ("Which share?", "72%", "Obtains 72%."),
    ("How many?", "72", "It comes to 72.0 in the end."),
    ("How many?", "72.0", "It comes to 72."),
    ("Find (x, y).", "(1,2)", "Shows that the pair (1, 2) is the only one."),
    ("Find (x, y).", "(1, 2)", "Shows that the pair (1,2) is the only one."),
    ("Find x.", "5", "The final answer is x = 5."),
    ("Find x.", "x = 5", "Finds that x=5 holds."),
    ("Which one?", "A", "Chooses (A) with a reason."),
    ("Which one?", "A", "Picks option A."),
    ("Which one?", "(A)", "The answer is A."),
    ("Which one?", "A", "Says that the answer must be (A)."),
    ("Which one?", "C", r"Writes \boxed{C}."),
    ("Which one?", "C", r"Writes \boxed{\text{C}}."),
]
NOT_NAMED = [
    ("How many?", "72", "The total is 172, or 720, or 7.2, or 72.5."),
    ("How many?", "72", "Uses x^72 and 72/5."),
    ("Find it.", r"\frac{3}{7}", r"Uses \frac{13}{7} and \frac{3}{70}."),
    ("Find it.", "-3", "Solves x-3 = 0."),
    ("Find x.", "2", "Uses x^2, both of the 2 cases, and step 2."),
    ("Is it even?", "yes", "The conclusion leaves yes and no open."),
    ("Is it even?", "no", "The conclusion has no gap."),
    ("Work modulo 1000.", "1000", "Reduces modulo 1000 at each step."),
    ("How many?", "10", "Worth 2 of the 10 points; 10% of them for the form."),
    ("Find x.", "", "Anything at all."),
    ("Which one?", "A", "Reaches a conclusion that follows. A proof is needed; a result of a sum is not."),
    ("Which one?", "A", "The answer a reader wants is given, and option a reader may doubt is ruled out."),
    ("Which one?", "A", "Rules out options (A) to (E) one by one, except one."),
    ("Which one?", "A", "Part (a) is done."),
    ("Is it even?", "no", "Reaches no conclusion without a proof."),
    ("How many?", "72", "It is 72.05, or 72.01."),
    ("Find it.", "3.5", "See step 3. 5 cases follow."),
    ("Find it.", "-3", "Subtracts: x - 3 = 0."),
    ("Find x.", "5", "Tries n = 5 first."),
    ("Find x.", "$", "Costs $5."),
]


@pytest.mark.parametrize(("question", "answer", "text"), NAMED)
def test_an_answer_that_is_named(question: str, answer: str, text: str) -> None:
    assert Tied(question, [answer]).why(text).startswith("names the answer")


@pytest.mark.parametrize(("question", "answer", "text"), NOT_NAMED)
def test_what_only_looks_so(question: str, answer: str, text: str) -> None:
    assert Tied(question, [answer]).why(text) == ""


WORDS = [
    "we",
    "first",
    "count",
    "the",
    "red",
    "ones",
    "then",
    "the",
    "blue",
    "ones",
    "and",
    "finally",
    "take",
    "the",
    "difference",
    "of",
    "both",
]


def test_words_of_the_solution() -> None:
    tied = Tied("Count them.", (), " ".join(WORDS))
    assert tied.why(f"The grader checks: {' '.join(WORDS[2 : 2 + COPIED]).upper()}!").startswith("copies the reference")
    assert tied.why(" ".join(WORDS[2 : 1 + COPIED])) == ""
    assert Tied(" ".join(WORDS), (), " ".join(WORDS)).why(" ".join(WORDS)) == ""  # the problem says so itself


@given(st.text(), st.lists(st.text(), max_size=3), st.text(), st.text())
def test_it_never_raises(question: str, answers: list[str], solution: str, text: str) -> None:
    assert isinstance(Tied(question, answers, solution).why(text), str)


def test_megabytes() -> None:
    tied = Tied("x" * 2_000_000, ["9" * 2_000_000, "17"], "word " * 400_000)
    assert tied.why("result is " * 100_000) == ""
