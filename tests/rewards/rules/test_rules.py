"""Rules that compare an answer with the ground truth, and rules on the text itself: length, format, repetition."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules import RULES
from rewardsmith.rewards.rules.answer_rules import normal
from rewardsmith.rewards.rules.text_rules import has_repeated, repeated_share
from rewardsmith.text.answers import WAYS
from tests.rewards.rules.rule_values import problem, value

CITIES = ["Rome", "The Hague", "Paris", "Oslo"]
VERDICTS = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("rule", VERDICTS)
def test_labelled_texts(rule: str) -> None:
    info = {"choices": CITIES}
    wrong_verdicts = [
        (truth, settings, text, verdict)
        for truth, settings, right, wrong in VERDICTS[rule]
        for verdict, texts in ((1.0, right), (0.0, wrong))
        for text in texts
        if value(rule, text, truth, info, **settings) != verdict
    ]
    assert wrong_verdicts == []


BROKEN_TRUTHS: dict[str, list[Any]] = {
    "choice": [None, "", "Nice", "Z", 7, -1, True, 1.5, ["A"], {"a": 1}],
    "gsm8k": [None, "", "many", [], {"a": 18}, ["18", "many"], "1e999", "2\\sqrt{3}", "x^2+1"],
    "numeric": [None, "", "many", [], ["1", "x"], "1e999", "3\\pi", "\\sqrt{2}", "√2"],
    "normalised": [None, "", " ", [], {"a": 1}, [["Rome"]]],
    "arithmetic": [["9", "8"], None],
    "exact": [None],
}


@pytest.mark.parametrize("rule", BROKEN_TRUTHS)
def test_a_broken_truth_is_a_failure_and_no_wrong_answer(rule: str) -> None:
    for truth in BROKEN_TRUTHS[rule]:
        with pytest.raises(CannotScore) as caught:
            value(rule, "18", truth)
        assert caught.value.kind == "invalid"


@pytest.mark.parametrize(
    ("rule", "settings", "words"),
    [
        ("choice", {"letters": "abc"}, "letters"), ("gsm8k", {"extract": ["####"]}, "must be one of"),
        ("numeric", {"absolute": -1.0}, "absolute"),
        ("numeric", {"percent": "keep"}, "must be one of share, drop, refuse"),
        ("arithmetic_steps", {"share": "yes"}, "share"), ("length", {"min_length": -1}, "min_length"),
        ("absent", {"strings": [""]}, "strings.0"), ("tags", {"tags": ["<think>"]}, "is no tag"),
        ("tags", {"tags": ["a", "a"]}, "twice"), ("bleu", {"smooth": "ad-k"}, 'Did you mean "add-k"'),
        ("regex", {"pattern": "(?P<a>.)(?P<a>.)"}, "is no regular expression"), ("regex", {}, "is missing"),
    ],
)  # fmt: skip
def test_settings_are_checked(rule: str, settings: dict[str, Any], words: str) -> None:
    assert words in problem(rule, **settings)


# ---- options -------------------------------------------------------------------------------------------------------


OPTIONS = [
    CITIES,
    dict(zip("ABCD", CITIES, strict=True)),
    {"label": ["A", "B", "C", "D"], "text": CITIES},
    {"label": ["1", "2", "3", "4"], "text": CITIES},
]


def test_the_right_answer_may_be_the_text_of_an_option() -> None:
    for info in [{name: options} for options in OPTIONS for name in ("choices", "options")]:
        assert [value("choice", text, "Paris", info) for text in ("C", "The answer is Paris.")] == [1.0, 1.0]
        assert [value("choice", text, "Paris", info) for text in ("B", "\\boxed{the Hague}", "Nice")] == [0.0] * 3
        assert value("choice", "B", "the hague", info) == 1.0


def test_forms_of_an_option() -> None:
    assert [value("choice", "The answer is C.", answer) for answer in ("c", "(C)", 2)] == [1.0] * 3
    assert [value("choice", "The answer is G", right, letters="ABCDEFGHIJ") for right in ("G", 6)] == [1.0] * 2
    with pytest.raises(CannotScore):
        value("choice", "A", "Rome", {"choices": ["Rome", "rome"]})
    options = {"choices": ["Both B and C", "not enough information", "None of these"]}
    assert value("choice", "The answer is (B) not enough information.", "B", options) == 1.0
    assert value("choice", "\\boxed{\\text{(A) Both B and C}}", "A", options) == 1.0
    assert value("choice", "C. None of these", "C", options) == 1.0
    assert value("choice", "A. None of these", "C", options) == 0.0


@pytest.mark.parametrize("label", ["{}) ", "({}) ", "{}. ", "{}: ", "- {}) ", "**{}.** ", "Option {}: "])
@pytest.mark.parametrize("question", ["Which one?", "Choose the correct option:", "The answer is one of these:"])
def test_an_echo_of_the_options_chooses_none(label: str, question: str) -> None:
    listed = [f"{label.format(letter)}{city}" for letter, city in zip("ABCD", CITIES, strict=True)]
    for separator in ("\n", "\n\n", " "):
        echo = separator.join([question, *listed])
        for letter in "ABCD":
            assert value("choice", echo, letter, {"choices": CITIES}) == 0.0
            assert value("choice", f"{echo}\n\nThe answer is {letter}.", letter, {"choices": CITIES}) == 1.0


# ---- numbers and words ---------------------------------------------------------------------------------------------


def test_forms_of_a_true_number() -> None:
    forms = [(18, "18"), (18.0, "18"), ("1,800", "1800"), ("so\nA: 18", "18"), (["17", "18"], "18"), ("5/2", "2.5")]
    for answer, text in forms:
        assert (value("gsm8k", f"#### {text}", answer), value("gsm8k", "#### 19", answer)) == (1.0, 0.0)


@given(st.text(alphabet="abc 0123456789\n=$", max_size=60), st.integers(0, 10**9))
def test_only_what_is_marked_counts(before: str, number: int) -> None:
    assert value("gsm8k", f"{before}\n#### {number:,}", number, extract=["hash"]) == 1.0
    assert value("gsm8k", f"{before}\n#### {number + 1}", number) == 0.0
    assert value("gsm8k", f"The answer is {number}", number, extract=["hash"]) == 0.0


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_tolerance_is_the_largest_difference(right: int, off: int, tolerance: int) -> None:
    verdict = value("numeric", str(right + off), right, absolute=float(tolerance), relative=0.0)
    assert verdict == float(off <= tolerance)


def test_a_tenth_is_a_tenth_and_percent_may_be_refused() -> None:
    """In floating point, 0.1 + 0.2 and 0.3 differ, and so would a tolerance of 0."""
    assert value("numeric", "0.3", 0.3, relative=0.0) == value("numeric", "3/10", "0.3", relative=0.0) == 1.0
    assert [value("numeric", text, [1, 2]) for text in "23"] == [1.0, 0.0]
    with pytest.raises(CannotScore):
        value("numeric", "50", "50%", percent="refuse")


def test_settings_of_normalised_text() -> None:
    assert value("normalised", "the end", "end", articles=False) == 0.0
    assert value("normalised", "end.", "end", punctuation=False) == 0.0
    assert value("normalised", "The answer is Paris.", "paris", extract=["stated"]) == 1.0
    assert value("normalised", "Paris", "paris", extract=["stated"]) == 0.0
    assert value("normalised", "Paris " * 1_000, "Paris") == 0.0
    for rule in ("normalised", "exact"):
        assert [value(rule, text, ["Rome", 7]) for text in ("Rome", "7", "Nice")] == [1.0, 1.0, 0.0]


@given(st.text(max_size=50))
def test_normal_forms(text: str) -> None:
    assert normal(normal(text, articles=False), articles=False) == normal(text, articles=False)
    if text.strip() and normal(text):
        assert value("normalised", f"\n {text}\t", text, final="never") == 1.0


# ---- the built-in worlds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "whole", "share"),
    [
        ("7+5=12;12-3=9;#7", 1.0, 1.0),  # another rule checks the conclusion
        ("7+5=13;13-3=10;#10", 0.0, 0.5),
        ("7+5=13;13-3=9;#9", 0.0, 0.0),  # right, through a wrong step
        ("", 0.0, 0.0),
        ("7+5=12;" * 200_000, 0.0, 0.5),
        ("7+5=" + "9" * 1_000_000, 0.0, 0.0),
    ],
)
def test_steps_of_arithmetic(text: str, whole: float, share: float) -> None:
    for info in ({"problem": "7+5-3"}, {"extra_info": {"problem": "7+5-3"}}):
        assert value("arithmetic_steps", text, info=info) == whole
        assert value("arithmetic_steps", text, info=info, share=True) == share


def test_words_of_a_translation() -> None:
    shares = {"PTQ": 1.0, "PTV": 2 / 3, "PTQM": 2 / 3, "kab": 0.0, "": 0.0, "PTQ" * 1_000_000: 0.0}
    for text, share in shares.items():
        assert value("translation_words", f" {text}\n", info={"src_text": "kab"}) == pytest.approx(share)


def test_a_prompt_of_another_world_is_a_failure() -> None:
    for problem_ in (None, 7, "7*5", "7" * 1_000):
        with pytest.raises(CannotScore, match=r"info\.problem of the prompt 'p' is .* such as 7\+5-3"):
            value("arithmetic_steps", "7+5=12;12-3=9;#9", info={"problem": problem_})
    for source in (None, "", 7, "Guten Tag"):
        with pytest.raises(CannotScore):
            value("translation_words", "PTQ", info={"src_text": source})


# ---- the text itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "settings", "verdict"),
    [
        (10, {}, 1.0), (10, {"min_length": 10, "max_length": 10}, 1.0), (9, {"min_length": 10}, 0.0),
        (11, {"max_length": 10}, 0.0), (11, {"max_length": 10, "soft": 4}, 3 / 4),
        (14, {"max_length": 10, "soft": 4}, 0.0), (8, {"min_length": 10, "soft": 4}, 2 / 4),
        (12, {"max_length": 10, "soft": 4, "good": 0.0, "bad": -1.0}, -0.5),
        (7, {"unit": "characters", "min_length": 14, "max_length": 14}, 1.0),  # "w w …" has 14 characters
    ],
)  # fmt: skip
def test_length(words: int, settings: dict[str, Any], verdict: float) -> None:
    assert value("length", "w " * words, **settings) == pytest.approx(verdict, abs=1e-12)


def test_length_of_the_part_that_is_read() -> None:
    assert value("length", "<think>a b c</think>d", max_length=1, final="auto") == 1.0
    assert value("length", "<think>a b c</think>d", max_length=1) == 0.0
    with pytest.raises(CannotScore, match="no length is between"):
        value("length", "a", min_length=3, max_length=2)


PASSAGE = "".join(chr(33 + (i * i * 7 + i // 5) % 90) for i in range(300))


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        (PASSAGE, {}, 1.0), (PASSAGE + " and " + PASSAGE, {}, 0.0), ("a" * 300, {}, 1.0), ("a" * 301, {}, 0.0),
        (PASSAGE + " and " + PASSAGE[1:], {}, 1.0), (PASSAGE + " and " + PASSAGE[1:], {"characters": 299}, 0.0),
        (PASSAGE + " and " + PASSAGE, {"characters": 0}, 1.0), (PASSAGE * 2, {"good": 0.0, "bad": -1.0}, -1.0),
        ("one two one two", {"words": 2, "share": 0.34}, 1.0),  # one of three pairs
        ("one two one two", {"words": 2, "share": 0.33}, 0.0),
    ],
)  # fmt: skip
def test_repetition(text: str, settings: dict[str, Any], verdict: float) -> None:
    assert value("repetition", text, **settings) == verdict


@given(st.text(alphabet="ab", max_size=40), st.integers(1, 8))
def test_repeated_passages_are_those_that_occur_twice(text: str, length: int) -> None:
    windows = [text[i : i + length] for i in range(len(text) - length + 1)]
    assert has_repeated(text, length) == (len(set(windows)) < len(windows))
    words = list(text)
    sequences = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
    share = 1 - len(set(sequences)) / len(sequences) if sequences else 0.0
    assert repeated_share(" ".join(words), length) == pytest.approx(share)


def test_a_collision_of_hashes_is_no_repetition() -> None:
    """Thue-Morse words collide under every polynomial hash modulo a power of two."""
    word = "a"
    while len(word) < 2048:
        word += word.translate(str.maketrans("ab", "ba"))
    assert not has_repeated(word + "-" + word.translate(str.maketrans("ab", "ba")), 2048)
    text = " ".join(str(i) for i in range(200_000))
    assert value("repetition", text, share=0.01) == 1.0
    assert value("repetition", text + text[-400:], share=0.01) == 0.0


GOOD = "<think>2+2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("", {"bad": -1.0}, -1.0),
        (GOOD, {"good": 0.25}, 0.25),
        # Of six: each tag, each content, the order, the outside.
        (GOOD + " bye", {"partial": True}, 5 / 6),
        ("<think>x</think><answer></answer>", {"partial": True}, 5 / 6),
        ("<answer>4</answer><think>x</think>", {"partial": True}, 4 / 6),
        ("<think>x</think> 4", {"partial": True, "bad": -1.0}, -1 + 2 * 2 / 6),
    ],
)
def test_shares_of_the_tags(text: str, settings: dict[str, Any], verdict: float) -> None:
    assert value("tags", text, **settings) == pytest.approx(verdict, abs=1e-12)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", " "]), max_size=8))
def test_only_one_order_of_tags_is_right(pieces: list[str]) -> None:
    kept = [piece for piece in pieces if piece != " "]
    right = kept in (
        ["<think>", *["x"] * n, "</think>", "<answer>", *["x"] * m, "</answer>"]
        for n in range(1, 5)
        for m in range(1, 5)
    )
    assert value("tags", "".join(pieces)) == float(right)
    assert (value("tags", "".join(pieces), partial=True) == 1.0) == right


def test_a_pattern_needs_the_answer_only_where_it_compares() -> None:
    assert value("regex", "y", None, pattern="y", good=0.5) == 0.5
    assert value("regex", "x", None, pattern="y", bad=-1.0) == -1.0
    with pytest.raises(CannotScore):
        value("regex", "y", None, pattern="(?P<answer>y)")


def test_the_page_lists_every_rule_and_its_recipes_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward.py").write_text("def compute_score(**columns): return 0.0\n")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
    assert [name for name in (*RULES, *WAYS) if f"| `{name}` |" not in page] == []
    for block in re.findall(r"```toml\n(.*?)```", page, flags=re.S):
        make_reward(tomllib.loads(block)["reward"])
