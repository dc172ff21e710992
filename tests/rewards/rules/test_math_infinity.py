"""Infinity: an answer that is infinite or undefined equals no finite truth."""

import pytest

from tests.rewards.rules.ask import value

FINITE = ["42", "-7", "0", "\\frac{1}{3}", "\\sqrt{2}", "\\pi", "x^2+1", "x=5", "\\{1,2\\}", "(1,2)", "[0,1)", "x>2"]

INFINITE = [
    "\\max(1,\\infty)",
    "\\min(1,-\\infty)",
    "\\exp(\\sqrt{\\infty})",
    "\\ln(||\\frac{1}{0}||)",
    "\\infty",
    "-\\infty",
    "\\infty-\\infty",
    "0\\cdot\\infty",
    "\\frac{\\infty}{\\infty}",
    "\\infty^0",
    "\\frac{1}{0}",
    "\\frac{0}{0}",
    "\\frac{1}{1-1}",
    "\\ln 0",
    "\\ln(2-2)",
    "|\\frac{1}{0}|",
    "\\tan(\\frac{\\pi}{2})",
    "(-1)!",
    "42+\\infty",
    "x+\\infty",
    "\\{1,\\infty\\}",
    "(\\infty,\\infty)",
    "(0,\\infty)",
    "\\cos(\\infty)",
    "\\frac{42}{\\infty}+42",
    "42+0\\cdot\\frac{1}{0}",
]


@pytest.mark.parametrize("answer", INFINITE)
def test_an_infinite_answer_is_wrong_for_every_finite_truth(answer: str) -> None:
    assert [truth for truth in FINITE if value("math", f"\\boxed{{{answer}}}", truth)] == []


@pytest.mark.parametrize(
    ("right", "answer", "verdict"),
    [
        ("\\infty", "\\infty", 1.0),
        ("\\infty", "+\\infty", 1.0),
        ("\\infty", "infinity", 1.0),
        ("-\\infty", "-\\infty", 1.0),
        ("(0,\\infty)", "(0, \\infty)", 1.0),
        ("(0,\\infty)", "x>0", 1.0),
        ("x>0", "(0,\\infty)", 1.0),
        ("\\infty", "-\\infty", 0.0),
        ("-\\infty", "\\infty", 0.0),
        ("\\infty", "\\frac{1}{0}", 0.0),
        ("\\infty", "\\infty-\\infty", 0.0),
        ("\\infty", "\\max(1,\\infty)-\\infty", 0.0),
        ("\\infty", "10^{300}", 0.0),
        ("(0,\\infty)", "[0,\\infty)", 0.0),
        ("(0,\\infty)", "(1,\\infty)", 0.0),
        ("(0,\\infty)", "(0,1)", 0.0),
        ("(0,1)", "(0,\\infty)", 0.0),
        ("(-\\infty,0)", "(0,\\infty)", 0.0),
    ],
)
def test_infinity_where_the_truth_has_it(right: str, answer: str, verdict: float) -> None:
    assert value("math", f"\\boxed{{{answer}}}", right) == verdict


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("0", "\\Gamma(0)"),
        ("0", "\\zeta(0)"),
        ("5", "5\\text{ tens}"),
        ("5", "5\\text{ nines}"),
        ("7", "7\\text{ zero}"),
        ("7", "\\text{eight: }7"),
    ],
)
def test_what_may_be_a_function_or_another_number_is_not_taken_for_a_product_or_a_unit(truth: str, answer: str) -> None:
    assert value("math", f"\\boxed{{{answer}}}", truth) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{8}... or \\boxed{7}",
        "\\boxed{7} nope, 8",
        "\\boxed{7}. Actually 8.",
        "If you claim \\boxed{7}, you would be wrong.",
    ],
)
def test_an_answer_that_is_taken_back_is_no_answer(text: str) -> None:
    assert value("math", text, "7") == 0.0
