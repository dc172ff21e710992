"""The format of tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rewards.rules.ask import problem, value

GOOD = "<think>2+2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        (GOOD, {}, 1.0),
        (f"\n{GOOD}  ", {}, 1.0),
        (GOOD + " bye", {}, 0.0),
        ("well " + GOOD, {}, 0.0),
        ("<think>x</think> so <answer>4</answer>", {}, 0.0),
        ("well " + GOOD + " bye", {"outside": True}, 1.0),
        ("<answer>4</answer><think>x</think>", {}, 0.0),
        ("<answer>4</answer><think>x</think>", {"outside": True}, 0.0),
        ("<think><answer>4</answer></think>", {}, 0.0),
        (GOOD + GOOD, {"outside": True}, 0.0),
        ("<think>x</think></think><answer>4</answer>", {"outside": True}, 0.0),
        ("<think>x <answer>4</answer>", {}, 0.0),
        ("</think>x<think><answer>4</answer>", {}, 0.0),
        ("<think> </think><answer>4</answer>", {}, 0.0),
        ("<think> </think><answer>4</answer>", {"empty": True}, 1.0),
        ("2+2</think><answer>4</answer>", {}, 0.0),
        ("2+2</think><answer>4</answer>", {"opened": True}, 1.0),
        (GOOD, {"opened": True}, 1.0),
        ("2+2<answer>4</answer>", {"opened": True}, 0.0),
        ("<THINK>x</THINK><answer>4</answer>", {}, 0.0),
        ("<think>x</think> 4", {"tags": ["think"], "outside": True}, 1.0),
        ("x</think> 4 </think>", {"tags": ["think"], "outside": True, "opened": True}, 0.0),
        ("<a>1</a><b>2</b><c>3</c>", {"tags": ["a", "b", "c"]}, 1.0),
        ("<a>1</a><c>3</c><b>2</b>", {"tags": ["a", "b", "c"]}, 0.0),
        ("", {}, 0.0),
        ("", {"bad": -1.0}, -1.0),
        (GOOD, {"good": 0.25}, 0.25),
        # Of six: each tag, each content, the order, the outside.
        (GOOD, {"partial": True}, 1.0),
        (GOOD + " bye", {"partial": True}, 5 / 6),
        ("<think>x</think><answer></answer>", {"partial": True}, 5 / 6),
        ("<answer>4</answer><think>x</think>", {"partial": True}, 4 / 6),
        ("<think>x</think> 4", {"partial": True}, 2 / 6),
        ("4", {"partial": True}, 0.0),
        ("4", {"partial": True, "bad": -1.0}, -1.0),
        ("<think>x</think> 4", {"partial": True, "bad": -1.0}, -1 + 2 * 2 / 6),
    ],
)
def test_verdicts(text: str, settings: dict, verdict: float) -> None:
    assert value("tags", text, **settings) == pytest.approx(verdict, abs=1e-12)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (["<think>"], "is no tag"),
        ([], "at least 1"),
        (["a", "a"], "twice"),
        ([""], "is no tag"),
        (["a b"], "is no tag"),
    ],
)
def test_names_of_tags_are_checked(tags: list[str], words: str) -> None:
    assert words in problem("tags", tags=tags)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", " "]), max_size=8))
def test_only_one_order_is_right(pieces: list[str]) -> None:
    kept = [piece for piece in pieces if piece != " "]
    right = kept in (
        ["<think>", *["x"] * n, "</think>", "<answer>", *["x"] * m, "</answer>"]
        for n in range(1, 5)
        for m in range(1, 5)
    )
    assert value("tags", "".join(pieces)) == float(right)
    assert (value("tags", "".join(pieces), partial=True) == 1.0) == right
