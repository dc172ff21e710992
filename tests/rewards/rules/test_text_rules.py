"""Rules on the text itself: length, format, repetition, patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.text_rules import has_repeated, repeated_share
from tests.rewards.rules.ask import problem, value


@pytest.mark.parametrize(
    ("words", "settings", "verdict"),
    [
        (10, {}, 1.0),
        (10, {"min_length": 10}, 1.0),
        (9, {"min_length": 10}, 0.0),
        (10, {"max_length": 10}, 1.0),
        (11, {"max_length": 10}, 0.0),
        (0, {"max_length": 0}, 1.0),
        (11, {"max_length": 10, "soft": 4}, 3 / 4),
        (12, {"max_length": 10, "soft": 4}, 2 / 4),
        (14, {"max_length": 10, "soft": 4}, 0.0),
        (99, {"max_length": 10, "soft": 4}, 0.0),
        (8, {"min_length": 10, "soft": 4}, 2 / 4),
        (6, {"min_length": 10, "soft": 4}, 0.0),
        (12, {"max_length": 10, "soft": 4, "good": 0.0, "bad": -1.0}, -0.5),
        (99, {"max_length": 10, "good": 0.1, "bad": -0.3}, -0.3),
        (7, {"unit": "characters", "min_length": 14, "max_length": 14}, 1.0),  # "w w …" has 14 characters
        (7, {"unit": "characters", "max_length": 13}, 0.0),
    ],
)
def test_length(words: int, settings: dict, verdict: float) -> None:
    assert value("length", "w " * words, **settings) == pytest.approx(verdict, abs=1e-12)


def test_length_of_the_part_that_is_read() -> None:
    assert value("length", "<think>a b c</think>d", max_length=1, final="auto") == 1.0
    assert value("length", "<think>a b c</think>d", max_length=1) == 0.0
    assert value("length", "<think>a b c", min_length=1, final="auto") == 0.0


def test_bounds_of_a_length_must_be_in_order() -> None:
    with pytest.raises(CannotScore, match="no length is between"):
        value("length", "a", min_length=3, max_length=2)
    assert "min_length" in problem("length", min_length=-1)


PASSAGE = "".join(chr(33 + (i * i * 7 + i // 5) % 90) for i in range(300))


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        (PASSAGE, {}, 1.0),
        (PASSAGE + " and " + PASSAGE, {}, 0.0),
        (PASSAGE + " and " + PASSAGE[1:], {}, 1.0),  # 299 characters
        (PASSAGE + " and " + PASSAGE[1:], {"characters": 299}, 0.0),
        (PASSAGE + " and " + PASSAGE, {"characters": 0}, 1.0),
        ("a" * 300, {}, 1.0),
        ("a" * 301, {}, 0.0),
        ("so so so " * 40, {}, 0.0),
        ("one two three four", {"words": 2, "share": 0.0}, 1.0),
        ("one two one two", {"words": 2, "share": 0.0}, 0.0),
        ("one two one two", {"words": 2, "share": 0.34}, 1.0),  # one of three pairs
        ("one two one two", {"words": 2, "share": 0.33}, 0.0),
        ("a b c d e f g h " * 3, {"share": 0.4}, 0.0),
        ("", {}, 1.0),
        (PASSAGE * 2, {"good": 0.0, "bad": -1.0}, -1.0),
    ],
)
def test_repetition(text: str, settings: dict, verdict: float) -> None:
    assert value("repetition", text, **settings) == verdict


@given(st.text(alphabet="ab", max_size=40), st.integers(1, 8))
def test_repeated_passages_are_those_that_occur_twice(text: str, length: int) -> None:
    windows = [text[i : i + length] for i in range(len(text) - length + 1)]
    assert has_repeated(text, length) == (len(set(windows)) < len(windows))


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(1, 4))
def test_the_share_of_repeated_sequences(words: list[str], length: int) -> None:
    sequences = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    share = 1 - len(set(sequences)) / len(sequences) if sequences else 0.0
    assert repeated_share(" ".join(words), length) == pytest.approx(share)


def test_a_collision_of_hashes_is_no_repetition() -> None:
    """Thue-Morse words collide under every polynomial hash modulo a power of two."""
    word = "a"
    while len(word) < 2048:
        word += word.translate(str.maketrans("ab", "ba"))
    other = word.translate(str.maketrans("ab", "ba"))
    windows = [(word + "-" + other)[i : i + 2048] for i in range(2050)]
    assert len(set(windows)) == len(windows)
    assert not has_repeated(word + "-" + other, 2048)


def test_megabytes_without_repetition() -> None:
    text = " ".join(str(i) for i in range(200_000))
    assert value("repetition", text, share=0.01) == 1.0
    assert value("repetition", text + text[-400:], share=0.01) == 0.0


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("fine", {}, 1.0),
        ("<|im_start|>assistant", {}, 0.0),
        ("so [INST] so", {}, 0.0),
        ("so [INST] so", {"bad": -1.0}, -1.0),
        ("as an AI", {"strings": ["as an AI", "I cannot"]}, 0.0),
        ("as a human", {"strings": ["as an AI", "I cannot"]}, 1.0),
        ("<|im_start|>", {"strings": ["x"]}, 1.0),
        ("", {}, 1.0),
    ],
)
def test_absent(text: str, settings: dict, verdict: float) -> None:
    assert value("absent", text, **settings) == verdict


def test_an_empty_string_occurs_everywhere_and_is_refused() -> None:
    assert "strings.0" in problem("absent", strings=[""])
    assert "strings" in problem("absent", strings=[])


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("\\boxed{5}", {}, 1.0),
        ("\\boxed{wrong}", {}, 1.0),
        ("\\boxed{}", {}, 0.0),
        ("\\boxed{5", {}, 0.0),
        ("5", {"bad": -1.0}, -1.0),
        ("<think>\\boxed{5}</think>5", {}, 0.0),
        ("<think>\\boxed{5}</think>5", {"final": "never"}, 1.0),
    ],
)
def test_has_boxed(text: str, settings: dict, verdict: float) -> None:
    assert value("has_boxed", text, **settings) == verdict


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
def test_verdicts_tags(text: str, settings: dict, verdict: float) -> None:
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


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("abc 12", {"pattern": r"\d+"}, 1.0),
        ("abc", {"pattern": r"\d+"}, 0.0),
        ("abc 12", {"pattern": r"\d+", "match": "fullmatch"}, 0.0),
        (" 12\n", {"pattern": r"\d+", "match": "fullmatch"}, 1.0),
        ("ABC", {"pattern": "(?i)abc"}, 1.0),
        ("#12", {"pattern": r"#(?P<answer>\d+)"}, 1.0),
        ("#13", {"pattern": r"#(?P<answer>\d+)"}, 0.0),
        ("#13 #12", {"pattern": r"#(?P<answer>\d+)"}, 1.0),  # the last match counts
        ("#12 #13", {"pattern": r"#(?P<answer>\d+)"}, 0.0),
        ("no", {"pattern": r"no|(?P<answer>\d+)"}, 0.0),
        ("x", {"pattern": "y", "bad": -1.0}, -1.0),
        ("y", {"pattern": "y", "good": 0.5}, 0.5),
        ("<think>y</think>x", {"pattern": "y", "final": "auto"}, 0.0),
        ("<think>y", {"pattern": "y", "final": "auto"}, 0.0),
        ("<think>y", {"pattern": "y"}, 1.0),
        ("", {"pattern": "x*"}, 1.0),
    ],
)
def test_verdicts_regex(text: str, settings: dict, verdict: float) -> None:
    assert value("regex", text, 12, **settings) == verdict


def test_the_answer_is_needed_only_where_it_is_compared() -> None:
    assert value("regex", "y", None, pattern="y") == 1.0
    with pytest.raises(CannotScore):
        value("regex", "y", None, pattern="(?P<answer>y)")


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<x", "a{999999999999}", "(?P<a>.)(?P<a>.)"])
def test_a_bad_pattern_is_found_when_the_recipe_is_read(pattern: str) -> None:
    assert "is no regular expression" in problem("regex", pattern=pattern)


def test_a_pattern_is_needed() -> None:
    assert "is missing" in problem("regex")
    assert "at least 1" in problem("regex", pattern="")
