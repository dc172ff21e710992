"""Rules that compare an answer with the ground truth."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.answer_rules import normal
from tests.rewards.rules.ask import problem, value

CITIES = ["Rome", "The Hague", "Paris", "Oslo"]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("The answer is C.", 1.0),
        ("\\boxed{C}", 1.0),
        ("<answer>C</answer>", 1.0),
        ("<think>A or B?</think>C", 1.0),
        ("(C)", 1.0),
        ("The answer is D.", 0.0),
        ("The answer is C or D.", 0.0),
        ("<think>C", 0.0),
        ("c'est la vie", 0.0),
        ("", 0.0),
    ],
)
@pytest.mark.parametrize("answer", ["C", "c", "(C)", 2])
def test_verdicts_choice(text: str, verdict: float, answer: object) -> None:
    assert value("choice", text, answer) == verdict


@pytest.mark.parametrize(
    "options",
    [
        CITIES,
        dict(zip("ABCD", CITIES, strict=True)),
        {"label": ["A", "B", "C", "D"], "text": CITIES},
        {"label": ["1", "2", "3", "4"], "text": CITIES},
    ],
)
@pytest.mark.parametrize("key", ["choices", "options"])
def test_the_right_answer_may_be_the_text_of_an_option(options: object, key: str) -> None:
    info = {key: options}
    for text, verdict in [
        ("C", 1.0),
        ("B", 0.0),
        ("The answer is Paris.", 1.0),
        ("\\boxed{the Hague}", 0.0),
        ("Nice", 0.0),
    ]:
        assert value("choice", text, "Paris", info) == verdict
    assert value("choice", "B", "the hague", info) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{C \\text{ or } D}",
        "\\boxed{\\text{not } C}",
        "not (C)",
        "all except (C)",
        "(C) is wrong",
        "I don't think it is C",
        "The answer is C... no, D.",
        "It is not \\boxed{Paris}.",
        "\\boxed{Paris} is wrong.",
        "The answer is not Paris.",
        "I don't think the answer is Paris.",
        "The answer is Paris... no, Rome.",
        "The answer is Paris or Rome.",
        "<answer>not C</answer>",
        "<answer>C or D</answer>",
        "Paris, Rome",
    ],
)
def test_a_hedged_denied_or_withdrawn_option_is_not_chosen(text: str) -> None:
    assert value("choice", text, "C", {"choices": CITIES}) == 0.0


@pytest.mark.parametrize(
    "text",
    ["\\boxed{\\textsf{C}}", "It's C.", "C is correct.", "Not (A), so (C).", "（C）"],
)
def test_ways_to_choose_an_option(text: str) -> None:
    assert value("choice", text, "C", {"choices": CITIES}) == 1.0


@pytest.mark.parametrize("answer", [None, "", "Paris", "Z", 7, -1, True, 1.5, ["A"], {"a": 1}])
def test_a_right_answer_that_is_no_option_is_a_failure(answer: object) -> None:
    with pytest.raises(CannotScore) as caught:
        value("choice", "A", answer)
    assert caught.value.kind == "invalid"


def test_an_option_that_occurs_twice_is_not_looked_up() -> None:
    with pytest.raises(CannotScore):
        value("choice", "A", "Rome", {"choices": ["Rome", "rome"]})


def test_letters() -> None:
    assert value("choice", "The answer is G", "G", letters="ABCDEFGHIJ") == 1.0
    assert value("choice", "The answer is G", 6, letters="ABCDEFGHIJ") == 1.0
    assert "letters" in problem("choice", letters="abc")
    assert "letters" in problem("choice", letters="A")


def test_known_options_are_read_with_their_label_whatever_their_words_are() -> None:
    options = {"choices": ["Both B and C", "not enough information", "None of these"]}
    assert value("choice", "The answer is (B) not enough information.", "B", options) == 1.0
    assert value("choice", "\\boxed{\\text{(A) Both B and C}}", "A", options) == 1.0
    assert value("choice", "C. None of these", "C", options) == 1.0
    assert value("choice", "A. None of these", "C", options) == 0.0


SOLUTION = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * 2 = $<<9*2=18>>18.\n#### 18"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (SOLUTION, 1.0),
        ("#### 18", 1.0),
        ("####18", 1.0),
        ("#### $18.00", 1.0),
        ("#### 18 dollars", 1.0),
        ("A: 18", 1.0),
        ("\\boxed{18}", 1.0),
        ("\\boxed{\\$18}", 1.0),
        ("The answer is 9 * 2 = 18 dollars.", 1.0),
        ("She makes $18", 1.0),
        ("She makes 18 dollars every day.", 1.0),
        ("<think>#### 17</think>#### 18", 1.0),
        ("18 it is, not 17. #### 18", 1.0),
        ("#### 17", 0.0),
        ("#### 18.5", 0.0),
        ("#### -18", 0.0),
        ("#### 1,8", 1.0),  # commas are dropped, as in the data set's own check
        ("18\n#### 17", 0.0),
        ("18 or 17", 0.0),
        ("<think>#### 18", 0.0),
        ("eighteen", 0.0),
        ("18e9999999", 0.0),
        ("The answer is not 18.", 0.0),
        ("The answer is certainly not 18.", 0.0),
        ("It is 17, not 18", 0.0),
        ("The answer is 18 or 17.", 0.0),
        ("The answer is 17 or 18.", 0.0),
        ("\\boxed{18 or 17}", 0.0),
        ("\\boxed{18, 17}", 0.0),
        ("\\boxed{17} or \\boxed{18}", 0.0),
        ("\\boxed{18 17}", 0.0),
        ("\\boxed{1 8}", 0.0),
        ("\\boxed{5 = 18}", 0.0),
        ("\\boxed{x = 5 = 18}", 0.0),
        ("\\boxed{18 \\text{ hundredths}}", 0.0),
        ("#### 18 tenths", 0.0),
        ("#### 18 million", 0.0),
        ("#### 18 dozen", 0.0),
        ("#### 18\nThat is wrong.", 0.0),
        ("\\boxed{18}. Wait, it is 17.", 0.0),
        ("12 13 14 15 16 17 18", 0.0),
        ("The answer is 18, not 17.", 1.0),
        ("The answer is 18 dollars and 0 cents.", 1.0),
        ("The answer is 18 more apples.", 1.0),
        ("\\boxed{1.5 \\text{ dozen}}", 1.0),
        ("", 0.0),
    ],
)
def test_verdicts_gsm8k(text: str, verdict: float) -> None:
    assert value("gsm8k", text, "18") == verdict
    assert value("gsm8k", text, SOLUTION) == verdict


def test_strictly_the_mark_of_the_data_set() -> None:
    assert value("gsm8k", "The answer is 18", "18", extract=["hash"]) == 0.0
    assert value("gsm8k", "#### 18", "18", extract=["hash"]) == 1.0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (18, "18"),
        (18.0, "18"),
        ("1,800", "1800"),
        ("so\nA: 18", "18"),
        (["17", "18"], "18"),
        ("5/2", "2.5"),
        ("$18", "18"),
    ],
)
def test_forms_of_the_right_answer(answer: object, text: str) -> None:
    assert value("gsm8k", f"#### {text}", answer) == 1.0
    assert value("gsm8k", "#### 19", answer) == 0.0


@pytest.mark.parametrize("answer", [None, "", "many", [], {"a": 18}, ["18", "many"], "1e999"])
def test_a_broken_right_answer_is_a_failure_gsm8k(answer: object) -> None:
    with pytest.raises(CannotScore) as caught:
        value("gsm8k", "#### 18", answer)
    assert caught.value.kind == "invalid"


def test_settings_are_checked_gsm8k() -> None:
    assert "must be one of" in problem("gsm8k", extract=["####"])


@given(st.text(alphabet="abc 0123456789\n=$", max_size=60), st.integers(0, 10**9))
def test_only_what_is_marked_counts(before: str, number: int) -> None:
    assert value("gsm8k", f"{before}\n#### {number:,}", number) == 1.0
    assert value("gsm8k", f"{before}\n#### {number + 1}", number) == 0.0


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("\\boxed{100}", {}, 1.0),
        ("The answer is 100.00001.", {}, 1.0),
        ("100.1", {}, 0.0),
        ("100.1", {"relative": 0.001}, 1.0),
        ("100.2", {"relative": 0.001}, 0.0),
        ("99.9", {"relative": 0.001}, 1.0),
        ("100.5", {"absolute": 0.5, "relative": 0.0}, 1.0),
        ("100.51", {"absolute": 0.5, "relative": 0.0}, 0.0),
        ("100.1", {"absolute": 0.01, "relative": 0.01}, 1.0),  # either will do
        ("100.0", {"absolute": 0.0, "relative": 0.0}, 1.0),
        ("100.0000000000000000000001", {"absolute": 0.0, "relative": 0.0}, 0.0),
        ("200/2", {"relative": 0.0}, 1.0),
        ("1e2", {"relative": 0.0}, 1.0),
        ("-100", {}, 0.0),
        ("10000%", {}, 1.0),
        ("100%", {}, 0.0),
        ("100%", {"percent": "drop"}, 1.0),
        ("10000%", {"percent": "refuse"}, 0.0),
        ("100", {"extract": ["boxed"]}, 0.0),
        ("<think>100", {}, 0.0),
        ("<think>100", {"final": "never"}, 1.0),
        ("1e99999", {}, 0.0),
        ("It is not 100", {}, 0.0),
        ("\\boxed{100 or 200}", {}, 0.0),
        ("\\boxed{50 = 100}", {}, 0.0),
        ("\\boxed{100} is wrong", {}, 0.0),
        ("\\boxed{100 \\text{ tenths}}", {}, 0.0),
        ("\\boxed{1 \\text{ hundred}}", {}, 1.0),
        ("hundred", {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_verdicts_numeric(text: str, settings: dict, verdict: float) -> None:
    assert value("numeric", text, "100", **settings) == verdict


def test_a_tenth_is_a_tenth() -> None:
    """In floating point, 0.1 + 0.2 and 0.3 differ, and so would a tolerance of 0."""
    assert value("numeric", "0.3", 0.3, relative=0.0) == 1.0
    assert value("numeric", "3/10", "0.3", relative=0.0) == 1.0


@pytest.mark.parametrize(
    ("answer", "settings"),
    [(None, {}), ("many", {}), ("", {}), ([], {}), ("1e999", {}), ("50%", {"percent": "refuse"}), (["1", "x"], {})],
)
def test_a_broken_right_answer_is_a_failure_numeric(answer: object, settings: dict) -> None:
    with pytest.raises(CannotScore) as caught:
        value("numeric", "50", answer, **settings)
    assert caught.value.kind == "invalid"


def test_several_answers() -> None:
    assert value("numeric", "2", [1, 2]) == 1.0
    assert value("numeric", "3", [1, 2]) == 0.0


def test_settings_are_checked_numeric() -> None:
    assert "absolute" in problem("numeric", absolute=-1.0)
    assert "must be one of share, drop, refuse" in problem("numeric", percent="keep")


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_tolerance_is_the_largest_difference(right: int, off: int, tolerance: int) -> None:
    verdict = value("numeric", str(right + off), right, absolute=float(tolerance), relative=0.0)
    assert verdict == float(off <= tolerance)


@pytest.mark.parametrize(
    ("right", "text", "verdict"),
    [
        ("Paris", "paris", 1.0),
        ("Paris", " Paris.\n", 1.0),
        ("Paris", "“Paris”", 1.0),
        ("The Beatles", "beatles", 1.0),
        ("an apple", "the apple", 1.0),
        ("well-known", "well known", 1.0),
        ("U.S.", "US", 1.0),
        ("don't", "dont", 1.0),
        ("ﬁne", "fine", 1.0),  # a ligature
        ("Straße", "STRASSE", 1.0),
        ("１２", "12", 1.0),
        ("1,234", "1234", 1.0),
        ("the", "The", 1.0),
        ("?", "?", 1.0),
        ("<think>hm</think>Paris", "Paris", 0.0),
        ("Paris", "<think>hm</think>Paris", 1.0),
        ("Paris", "London", 0.0),
        ("Paris", "Paris, France", 0.0),
        ("3.5", "35", 0.0),
        ("-5", "5", 0.0),
        ("−5", "-5", 1.0),
        ("50%", "50", 0.0),
        ("C#", "C", 0.0),
        ("?", "!", 0.0),
        ("?", "", 0.0),
        ("the", "a", 0.0),
        ("Paris", "", 0.0),
        ("Paris", "Paris " * 1_000, 0.0),
    ],
)
def test_verdicts_normalised(right: str, text: str, verdict: float) -> None:
    assert value("normalised", text, right) == verdict


def test_settings() -> None:
    assert value("normalised", "the end", "end", articles=False) == 0.0
    assert value("normalised", "end.", "end", punctuation=False) == 0.0
    assert value("normalised", "The answer is Paris.", "paris", extract=["stated"]) == 1.0
    assert value("normalised", "Paris", "paris", extract=["stated"]) == 0.0


def test_any_of_several_answers() -> None:
    for rule in ("normalised", "exact"):
        assert value(rule, "Oslo", ["Rome", "Oslo"]) == 1.0
        assert value(rule, "Nice", ["Rome", "Oslo"]) == 0.0
        assert value(rule, "7", [7, 8]) == 1.0


@pytest.mark.parametrize("answer", [None, "", " ", [], {"a": 1}, [["Rome"]]])
def test_a_broken_right_answer_is_a_failure_normalised(answer: object) -> None:
    with pytest.raises(CannotScore) as caught:
        value("normalised", "Rome", answer)
    assert caught.value.kind == "invalid"


def test_a_rule_that_compares_with_one_answer_does_not_choose_among_several() -> None:
    with pytest.raises(CannotScore, match="2 answers"):
        value("arithmetic", "#9", ["9", "8"])


@given(st.text(max_size=50))
def test_normal_forms_stay_as_they_are(text: str) -> None:
    assert normal(normal(text, articles=False), articles=False) == normal(text, articles=False)


@given(st.text(min_size=1, max_size=50).filter(str.strip))
def test_an_answer_equals_itself_whatever_its_spaces(text: str) -> None:
    if normal(text):
        assert value("normalised", f"\n {text}\t", text, final="never") == 1.0


PROBLEM = {"problem": "7+5-3"}


@pytest.mark.parametrize(
    ("text", "whole", "share"),
    [
        ("7+5=12;12-3=9;#9", 1.0, 1.0),
        ("7+5=12;12-3=9;#7", 1.0, 1.0),  # the conclusion is another rule's business
        ("7+5=13;13-3=10;#10", 0.0, 0.5),
        ("7+5=13;13-3=9;#9", 0.0, 0.0),  # right, through a wrong step
        ("#9", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("7+5=12;" * 200_000, 0.0, 0.5),
        ("7+5=" + "9" * 1_000_000, 0.0, 0.0),
    ],
)
def test_all_steps_or_their_share(text: str, whole: float, share: float) -> None:
    assert value("arithmetic_steps", text, info=PROBLEM) == whole
    assert value("arithmetic_steps", text, info=PROBLEM, share=True) == share


def test_the_problem_may_come_from_a_file() -> None:
    assert value("arithmetic_steps", "7+5=12;12-3=9;#9", info={"extra_info": PROBLEM}) == 1.0


@pytest.mark.parametrize("info", [{}, {"problem": 7}, {"problem": "7*5"}, {"problem": "7" * 1_000}])
def test_a_prompt_without_a_problem_is_broken(info: dict[str, Any]) -> None:
    with pytest.raises(CannotScore, match=r"info\.problem of the prompt 'p' is .* such as 7\+5-3"):
        value("arithmetic_steps", "7+5=12;12-3=9;#9", info=info)


def test_settings_are_checked_arithmetic_steps() -> None:
    assert "share" in problem("arithmetic_steps", share="yes")


@pytest.mark.parametrize(
    ("text", "quality"),
    [
        ("PTQ", 1.0),
        (" PTQ\n", 1.0),
        ("PTV", 2 / 3),
        ("PTQM", 2 / 3),
        ("PT", 2 / 3),
        ("kab", 0.0),
        ("", 0.0),
        ("PTQ" * 1_000_000, 0.0),
    ],
)
def test_quality(text: str, quality: float) -> None:
    assert value("translation_words", text, info={"src_text": "kab"}) == pytest.approx(quality)


def test_the_sentence_may_lie_where_verl_puts_it() -> None:
    assert value("translation_words", "PTQ", info={"extra_info": {"src_text": "kab"}}) == 1.0


@pytest.mark.parametrize("info", [{}, {"src_text": ""}, {"src_text": 7}, {"src_text": "Guten Tag"}])
def test_a_prompt_without_a_sentence_is_a_failure(info: dict) -> None:
    with pytest.raises(CannotScore) as caught:
        value("translation_words", "PTQ", info=info)
    assert caught.value.kind == "invalid"
