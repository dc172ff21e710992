"""Numbers in words."""

from fractions import Fraction

import pytest

from rewardsmith.text.number_words import number_in_words


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("zero", 0),
        ("seven", 7),
        ("Twenty-one", 21),
        ("ninety nine", 99),
        ("one hundred", 100),
        ("three hundred and five", 305),
        ("two thousand twenty four", 2024),
        ("five million", 5_000_000),
        ("minus one", -1),
        ("negative ten", -10),
        ("one half", Fraction(1, 2)),
        ("two thirds", Fraction(2, 3)),
        ("three quarters", Fraction(3, 4)),
        ("minus one fifth", Fraction(-1, 5)),
        ("fifth", 5),
        ("twelfth", 12),
        ("two three", None),
        ("one twenty", None),
        ("twenty eleven", None),
        ("one thirds", None),
        ("four thirds", None),
        ("hundred", None),
        ("seven apples", None),
        ("not seven", None),
        ("seven or eight", None),
        ("and", None),
        ("minus", None),
        ("half", None),
        ("", None),
    ],
)
def test_number_in_words(text: str, number: object) -> None:
    assert number_in_words(text) == number
