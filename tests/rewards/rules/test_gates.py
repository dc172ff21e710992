"""Length, repetition, strings that must not occur, and boxes."""

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
