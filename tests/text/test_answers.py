"""Finding answers: what counts, what does not, and texts that are made to be slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.answers import WAYS, boxed, extract, final, hashed, stated, tagged, unwrapped
from tests.rewards.hostile import hostile, megabytes

BOXED = [
    *(("so \\boxed{5}.", "5"), ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("\\fbox{a b}", "a b")),
    *(("\\boxed{1} and then \\boxed{2}", "2"), ("\\boxed{\\boxed{3}}", "3"), ("\\boxed {4}", "4")),
    *(("\\boxed 7", "7"), ("\\boxed7.", "7"), ("$\\boxed 12$", "12"), ("\\boxed{\\{1,2\\}}", "\\{1,2\\}")),
    *(("\\boxed{a\\\\}", "a\\\\"), ("\\boxed{\n5\n}", "5"), ("\\boxed{5", None), ("\\boxed{1} \\boxed{2", None)),
    *(("\\boxed{\\}", None), ("\\boxed{}", None), ("\\boxed", None), ("\\boxedx{5}", None), ("boxed{5}", None)),
    ("\\boxed{7} in \\boxed{ }", "7"),
    ("", None),
]


def test_boxed() -> None:
    for text, found in BOXED:
        assert (text, boxed(text)) == (text, found)


STATED = [
    *(("The answer is 5.", "5"), ("The answer is 3.5.", "3.5"), ("The answer is 3.5. And 7 is not.", "3.5")),
    *(("The answer is: 5", "5"), ("the ANSWER: 5", "5"), ("The answers are 3 and 4.", "3 and 4")),
    *(("The answer should be 12!", "12!"), ("The answer is 5! ways", "5! ways"), ("Answer = 5", "5")),
    *(("A: 26", "26"), ("Q: why?\n A: 26 eggs", "26 eggs"), ("**Answer:** **B**", "B"), ("Answer:\n\n5", "5")),
    *(("Answer:\n$$\n5\n$$", "5"), ("final answer is \\[ x^2 \\].", "x^2"), ("The answer is \\(x\\).", "x")),
    *(("The answer is $x = 1. y$ for sure. Yes.", "$x = 1. y$ for sure"), ("The answer is $18.", "$18")),
    ("The answer is $18 and not $20. Really.", "$18 and not $20"),
    ("The answer is $x=1$ and $x=2$.", "$x=1$ and $x=2$"),
    *(("The answer to the question about 3 ducks is 5 eggs.", "5 eggs"), ("The answer is therefore 12", "12")),
    *(('The answer is "Paris".', "Paris"), ("The answer is St. Louis. It is.", "St. Louis")),
    ("The answer is 10 a.m. on Monday. Yes.", "10 a.m. on Monday"),
    *(("The answer is 4.\nWait. The answer is 5.", "5"), ("The answer is 5\nbecause 2+3 = 5", "5")),
    *(("A: 1\nB: 2\nC: 3", None), ("A: 1\nB: 2\nThe answer is 2", "2"), ("The answer is", None)),
    *(("The answer is .", None), ("answers", None), ("the answering is 5", None), ("a: 5", None), ("x A: 5", None)),
    ("", None),
]


def test_stated() -> None:
    for text, found in STATED:
        assert (text, stated(text)) == (text, found)


HASHED = [
    *(("2+3=5\n#### 5", "5"), ("#### 1,234", "1234"), ("#### $5.50 \nbye", "5.50"), ("####-3", "-3")),
    *(("##### 7", "7"), ("#### 1\n#### 2", "2"), ("#### Step", None), ("####", None), ("5", None)),
]


def test_hashed() -> None:
    for text, found in HASHED:
        assert (text, hashed(text)) == (text, found)


FINAL = [
    *(("<think>a</think> b", "b"), ("a</think>b</think>c", "c"), ("no tags", "no tags")),
    *(("<think>never closed", None), ("a</think>", ""), ("a</think> <think> b", "<think> b")),
]


def test_final() -> None:
    for text, found in FINAL:
        assert (text, final(text)) == (text, found)


TAGGED = [
    *(("<answer> 5 </answer>", "5"), ("<answer>1</answer><answer>2</answer>", "2")),
    *(("<answer><answer>3</answer></answer>", "3"), ("<answer>1</answer><answer>2", None)),
    *(("<answer>3</answer> in <answer> </answer>", "3"), ("<answer>3 <answer></answer>", "3 <answer>")),
    *(("<answer></answer>", None), ("</answer>5<answer>", None), ("5", None)),
]


def test_tagged() -> None:
    for text, found in TAGGED:
        assert (text, tagged(text)) == (text, found)


def test_the_first_way_that_finds_something_decides() -> None:
    text = "Some say \\boxed{1}. The answer is 2.\n#### 3\n4"
    assert [extract(text, [way]) for way in ("boxed", "stated", "hash", "number")] == ["1", "2", "3", "4"]
    assert extract(text, ["tagged", "hash", "boxed"]) == "3"
    assert extract(text, ["tagged"]) is None
    assert extract(text, []) is None
    assert extract(" x ", ["text"]) == "x"
    with pytest.raises(KeyError):
        extract(text, ["guess"])


def test_unwrapped() -> None:
    for text in ("$5$", "$$5$$", "\\(5\\)", "\\[5\\]", "**5**", "'5'.", " 5 ", "`5`"):
        assert unwrapped(text) == "5"


def test_hostile_texts_are_read_in_linear_time() -> None:
    """Anything but linear time would take hours here."""
    for text in [*megabytes().values(), *hostile()]:
        for way in WAYS.values():
            found = way(text)
            assert found is None or isinstance(found, str)


@given(st.text(), st.text(), st.text(alphabet="abcxyz0123456789+-*/^ ", min_size=1).filter(str.strip))
def test_what_is_put_in_a_box_comes_out_again(before: str, after: str, content: str) -> None:
    text = f"{before}\n\\boxed{{{content}}} {after}"
    if "\\boxed" not in after and "\\fbox" not in after:
        assert boxed(text) == content.strip()
