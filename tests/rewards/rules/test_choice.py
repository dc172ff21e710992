"""Multiple choice."""

import pytest

from rewardsmith.rewards import CannotScore
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
def test_verdicts(text: str, verdict: float, answer: object) -> None:
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
