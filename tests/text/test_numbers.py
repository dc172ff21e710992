"""Numbers in texts."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.numbers import MAX_CHARS, Number, first_number, last_number, read_number
from tests.rewards.hostile import megabytes

LAST_NUMBER = [
    *(("5", "5"), ("it is 42.", "42"), ("-5", "-5"), ("− 5 and −7", "-7"), ("3 - 5", "5"), ("10-5", "5")),
    *(("x=-5", "-5"), ("$-1,234.50", "-1234.50"), ("-$5", "-5"), ("€ 7", "7"), ("1,234,567 of them", "1234567")),
    *(("1{,}234", "1234"), ("10\\,000", "10000"), ("1,2345", "2345"), ("1, 2, 3", "3"), ("3,5", "5"), (".5", "0.5")),
    *(("0.50", "0.50"), ("3/4", "3/4"), ("1 3/4 cups", "1 3/4"), ("\\frac{3}{4}", "3/4"), ("-\\dfrac{3}{4}", "-3/4")),
    *(("\\frac{-3}{4}", "-3/4"), ("\\frac34", "3/4"), ("1\\frac{3}{4}", "1 3/4"), ("3/4/2020", "2020")),
    *(("50%", "50%"), ("50 \\%", "50%"), ("1.5e6", "1.5e6"), ("3 \\times 10^{5}", "3e5"), ("3×10^-5", "3e-5")),
    *(("12 m^2", "12"), ("12 cm2", "12"), ("6 m s^{-1}", "6"), ("4 x_1", "4"), ("10^5", "10^5"), ("2**10", "2**10")),
    *(("7 and x", "7"), ("1.2.3", None), ("H2O", None), ("x_1", None), ("٣", None), ("²", None), ("none", None)),
    ("", None),
]


def test_last_number() -> None:
    for text, found in LAST_NUMBER:
        assert (text, last_number(text)) == (text, found)


READ_NUMBER = [
    *(("5", Number(Fraction(5))), (" -5 ", Number(Fraction(-5))), ("+5", Number(Fraction(5)))),
    *(("1,234.5", Number(Fraction(2469, 2), rounded=True)), ("50%", Number(Fraction(50), percent=True))),
    *(("1 1/2", Number(Fraction(3, 2))), ("-1\\frac{1}{2}", Number(Fraction(-3, 2)))),
    *(("1e3", Number(Fraction(1000), rounded=True)), ("1e-3", Number(Fraction(1, 1000), rounded=True))),
    *(("007", Number(Fraction(7))), ("$18", Number(Fraction(18))), ("3/0", None), ("1e301", None)),
    *(("1e999999", None), ("1e99999999999", None), ("2^10", None), ("5 apples", None), ("", None), ("inf", None)),
    *(("nan", None), ("0x10", None), ("1_000", None)),
]


def test_read_number() -> None:
    for text, number in READ_NUMBER:
        assert (text, read_number(text)) == (text, number)


def test_a_number_beyond_the_bound_is_none_and_does_not_give_way_to_an_earlier_one() -> None:
    assert last_number("7" * MAX_CHARS) == "7" * MAX_CHARS
    assert last_number("5 " + "7" * (MAX_CHARS + 1)) is None
    assert last_number("5 " + "7" * 10_000_000) is None
    assert read_number("7" * (MAX_CHARS + 1)) is None
    assert first_number("7" * (MAX_CHARS + 1)) is None
    assert last_number("5 1e9999999") is None or last_number("5 1e9999999") == "5"


def test_megabytes() -> None:
    for text in megabytes().values():
        for find in (last_number, first_number, read_number):
            find(text)


@given(st.text(alphabet="ab ,.;:()\n"), st.fractions(max_denominator=999), st.text(alphabet="ab ,;:()\n"))
def test_a_fraction_is_found_and_read(before: str, value: Fraction, after: str) -> None:
    text = f"{before} {value} {after}"
    assert read_number(last_number(text)).value == value


@given(st.integers(-(10**30), 10**30))
def test_thousands_separators_change_nothing(value: int) -> None:
    assert read_number(f"{value:,}") == read_number(str(value)) == Number(Fraction(value))


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    found = last_number(text)
    assert found is None or len(found) <= MAX_CHARS + 20
    read_number(text)
    first_number(text)
