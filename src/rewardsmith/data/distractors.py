r"""Wrong final answers that are derived from the right one.

A fixed list of wrong answers is wrong itself as soon as one of them is the truth of a prompt. These are made from the
truth, and none of them equals it or another accepted answer, in writing or as a number:

    9             8, -9, 90, 19
    1/2           3/2, 1/3, -1/2, 2
    \sqrt{3}      \sqrt{4}, \sqrt{13}, …
    \binom{5}{2}  \binom{5}{2}+1, …     another integer may keep the value: \binom{5}{3}
    B             A, C, D
    yes           no

An expression is not evaluated here: `auditing/same_value.py` compares with the equality of the math rule.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from rewardsmith.text.answers import unwrapped
from rewardsmith.text.numbers import Number, read_number

MAX_ANSWER = 2_000
"""Characters of the longest answer that is looked into; distractors of a longer one are made of its beginning."""

_OPPOSITES = (
    ("yes", "no"),
    ("true", "false"),
    ("correct", "incorrect"),
    ("right", "wrong"),
    ("left", "right"),
    ("positive", "negative"),
    ("even", "odd"),
    ("increasing", "decreasing"),
    ("valid", "invalid"),
    ("possible", "impossible"),
    ("male", "female"),
    ("increase", "decrease"),
)
_LETTER = re.compile(r"([(\[]?)([A-Za-z])([)\].:]?)")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s?\{([^{}]*)\}")
_INTEGER = re.compile(r"(?<![0-9A-Za-z.\\])[0-9]{1,15}(?![0-9]|\.[0-9]|_)")
_SYMBOLS = re.compile(r"\\[A-Za-z]+|[\^_=+*/<>|{}∞π√]")
_PRODUCT = r"(?:\\cdot|\\times|[*×·])"
_ZERO = r"(?<![0-9.])0(?![0-9.])"
_FUNCTION = r"(?:sin|cos|tan|cot|sec|csc|max|min|gcd|lcm|b?mod|pmod|operatorname|log|ln)"
_KEEPS_VALUE = re.compile(
    r"\\[dt]?binom|\\choose|[0-9]\s?C\s?[0-9]|\\[lr](?:floor|ceil)|[⌊⌋⌈⌉]"
    rf"|\\{_FUNCTION}(?![A-Za-z])|(?<![A-Za-z]){_FUNCTION}\s?\("
    rf"|{_ZERO}\s?{_PRODUCT}|{_PRODUCT}\s?{_ZERO}|{_ZERO}\s?\(|\)\s?{_ZERO}|\\[dtc]?frac\s?\{{?{_ZERO}|{_ZERO}\s?/"
    r"|(?<![0-9.])[01]\}?\)?\s?(?:\^|\*\*)|(?:\^|\*\*)\s?\{?0(?![0-9.])|(?<![0-9])[01]\s?!"
)
r"""Where another integer may leave the value as it is: \binom{5}{3}, 1^{8}, 0 \cdot 6, \cos(4\pi), \max(3, 8), 1!."""

_RELATION = re.compile(r"[=<>≤≥≠]|\\(?:[lg]eq?|neq?|in|approx)(?![a-z])")
_VOWELS, _CONSONANTS = "aeiou", "bcdfghklmnprstvz"


def distractors(answer: str, rng: random.Random, count: int = 4, *, accepted: Sequence[str] = ()) -> list[str]:
    """Return up to `count` different wrong final answers; fewer where the answer has fewer, none for an empty one.

    None of them is one of the `accepted` answers, those that a rule pays for as well as for `answer`.
    """
    answer = answer.strip()[:MAX_ANSWER]
    if not answer:
        return []
    known = (answer, *accepted)
    return _different(_candidates(answer, rng), known, count) or _different(_scrambled(answer, rng), known, count)


def _different(texts: Iterable[str], known: Sequence[str], count: int) -> list[str]:
    """Return the first `count` texts that equal neither a known answer nor each other."""
    made: list[str] = []
    for text in texts:
        if len(made) == count:
            break
        if text.strip() and not any(same_answer(text, one) for one in (*known, *made)):
            made.append(text)
    return made


def same_answer(one: str, other: str) -> bool:
    """Return whether two final answers may be taken for one: as text, or as numbers with or without a percent sign."""
    if max(len(one), len(other)) > MAX_ANSWER:
        return one.strip() == other.strip()
    first, second = read_number(unwrapped(one)), read_number(unwrapped(other))
    if first is not None and second is not None:
        return same_number(first, second)
    return _bare(one) == _bare(other)


def same_number(one: Number, other: Number) -> bool:
    """Return whether two numbers may be taken for one, with or without their percent signs."""
    return _close(one.value, other.value) or _close(one.share, other.share)


def _close(one: Fraction, other: Fraction) -> bool:
    """Return whether numbers are so close that a tolerance may forgive it."""
    return one == other or abs(one - other) <= max(abs(one), abs(other)) / 10**6


def _bare(text: str) -> str:
    """Return a text without what comparisons pass over: case, blanks, markup and punctuation at its ends."""
    plain = unwrapped(_TEXT.sub(r"\1", text))
    return re.sub(r"[\s$\\,;:!{}()\[\]\"'*`]|\.$", "", plain).casefold()


def _candidates(answer: str, rng: random.Random) -> Iterator[str]:
    """Yield wrong answers of the kind that the answer is of; some may be equal to it after all."""
    number, letter = read_number(answer), _LETTER.fullmatch(answer)
    words = _TEXT.fullmatch(answer)
    if number is not None:
        yield from _numbers(answer, number, rng)
    elif letter and letter[2].isupper():
        alphabet = "ABCDE" if letter[2] in "ABCDE" else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        yield from (f"{letter[1]}{other}{letter[3]}" for other in rng.sample(alphabet, len(alphabet)))
    elif words:
        yield from (f"\\text{{{other}}}" for other in _words(words[1], rng))
    elif may_keep_value(answer):
        yield from _shifted(answer)
    elif _INTEGER.search(answer):
        yield from _other_integers(answer, rng)
    elif "infty" in answer or "∞" in answer:
        yield from ("0", "1", "-1", "100")
    elif letter or _SYMBOLS.search(answer):
        yield from _expressions(answer)
    else:
        yield from _words(answer, rng)


def _numbers(answer: str, number: Number, rng: random.Random) -> Iterator[str]:
    """Yield numbers near the right one, of the other sign, ten times as large, and with digits swapped."""
    value = number.value
    if value.denominator > 1 and not number.rounded:
        top, bottom = value.numerator, value.denominator
        made = [
            Fraction(top + bottom, bottom), Fraction(top, bottom + 1), -value, 1 / value, Fraction(top + 1, bottom),
            value * 10,
        ]  # fmt: skip
        latex = "frac" in answer
        texts = [_fraction(one, latex=latex) for one in made]
    else:
        places = len(_digits_after_point(answer))
        unit = Fraction(1, 10**places)
        near = (value + unit, value - unit, value + 10 * unit, value + 2 * unit)
        far = (-value, value * 10, value * 2, value * 11 / 10) if value else ()
        texts = [_decimal(one, places) for one in (*near, *far, *_swapped_digits(value, unit))]
        if places:
            texts.append(_decimal(value / 10, places + 1))
    rng.shuffle(texts)
    sign = ("\\%" if "\\%" in answer else "%") if number.percent else ""
    yield from (f"{text}{sign}" for text in texts)


def _digits_after_point(answer: str) -> str:
    found = re.search(r"\.([0-9]{1,30})", answer)
    return found[1] if found else ""


def _decimal(value: Fraction, places: int) -> str:
    """Return a number with so many decimal places; the value is a multiple of the last one, or is cut there."""
    scaled = abs(value) * 10**places
    digits = str(scaled.numerator // scaled.denominator).rjust(places + 1, "0")
    whole, part = digits[: len(digits) - places], digits[len(digits) - places :]
    return f"{'-' if value < 0 and int(digits) else ''}{whole}{'.' if part else ''}{part}"


def _fraction(value: Fraction, *, latex: bool) -> str:
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    if bottom == 1:
        return f"{sign}{top}"
    return f"{sign}\\frac{{{top}}}{{{bottom}}}" if latex else f"{sign}{top}/{bottom}"


def _swapped_digits(value: Fraction, unit: Fraction) -> Iterator[Fraction]:
    """Yield numbers with two neighbouring digits of the value swapped."""
    digits = str(abs(value / unit).numerator)
    for i in range(min(len(digits), 30) - 1):
        if digits[i] != digits[i + 1]:
            swapped = digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]
            yield (-1 if value < 0 else 1) * int(swapped) * unit


def _other_integers(answer: str, rng: random.Random) -> Iterator[str]:
    r"""Yield the answer with one of its integers changed: `2\sqrt{3}`, `5 cm`, `(1, 2)`, `12:30`."""
    places = list(_INTEGER.finditer(answer))
    rng.shuffle(places)
    for factor, more in ((1, 1), (1, 10), (1, 3), (10, 7), (1, 2)):
        for place in places:
            yield f"{answer[: place.start()]}{factor * int(place[0]) + more}{answer[place.end() :]}"


def may_keep_value(answer: str) -> bool:
    """Return whether an answer is one expression whose value may stay the same when an integer in it is changed."""
    return bool(_KEEPS_VALUE.search(answer)) and _is_one_value(answer)


def _is_one_value(answer: str) -> bool:
    """Return whether an answer is a value or an equation, and no list, interval or inequality."""
    depth, closing = 0, 0
    for at, mark in enumerate(answer):
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            return False
        closing = closing or (at + 1 if depth == 0 and mark in ")]}" else 0)
    is_bracketed = bool(re.match(r"(?:\\left)?\\?[(\[{]", answer)) and closing == len(answer)
    return not (is_bracketed and "," in answer) and not _RELATION.search(answer.replace("=", ""))


def _shifted(answer: str) -> Iterator[str]:
    """Yield an expression plus a number, which never has its value; of an equation, its right side is changed."""
    left, equals, right = answer.rpartition("=")
    yield from (f"{left}{equals}{right.strip()}{shift}" for shift in ("+1", "-2", "+10", "-7"))


def _expressions(answer: str) -> Iterator[str]:
    """Yield expressions that differ from one without numbers; of an equation, its right side is changed."""
    left, equals, right = answer.rpartition("=")
    lead = f"{left}{equals}"
    for form in ("{}+1", "3({})", "{}-2", "\\frac{{{}}}{{7}}", "5({})+2"):
        yield lead + form.format(right.strip())


def _words(answer: str, rng: random.Random) -> Iterator[str]:
    """Yield other words: the opposite, words with other letters, and of a sentence one with its words in disorder."""
    folded = answer.casefold().strip(" .!")
    for pair in _OPPOSITES:
        if folded in pair:
            other = pair[1 - pair.index(folded)]
            yield other.upper() if answer.isupper() else other.capitalize() if answer[0].isupper() else other
            if pair[0] in ("yes", "true"):
                return  # there is no third
    words = answer.split()
    if len(words) >= 4:
        yield " ".join(reversed(words))
        yield " ".join(words[: len(words) // 2])
    elif answer.isupper() and len(words) == 1:
        yield answer[::-1]
    longest = max(map(len, words))
    places = [i for i, word in enumerate(words) if 2 * len(word) > longest]
    for i in rng.sample(places, len(places))[:3] * 4:
        yield " ".join([*words[:i], _other_word(words[i], rng), *words[i + 1 :]])


def _scrambled(answer: str, rng: random.Random) -> Iterator[str]:
    """Yield texts of the same shape in other letters, for an answer whose usual alternatives are all accepted."""
    for _ in range(12):
        yield " ".join(_other_word(word, rng) for word in answer.split())


def _other_word(word: str, rng: random.Random) -> str:
    """Return a word of the same shape with at least half of its letters changed: nobody takes it for a slip."""
    letters = [i for i, letter in enumerate(word) if letter.isalpha()]
    changed = set(rng.sample(letters, (len(letters) + 1) // 2))
    return "".join(_other_letter(letter, rng) if i in changed else letter for i, letter in enumerate(word)) + (
        "" if letters else "x"
    )


def _other_letter(letter: str, rng: random.Random) -> str:
    folded = letter.casefold()
    pool = _VOWELS if folded in _VOWELS else _CONSONANTS
    if not letter.isascii():  # another letter of the same script
        return chr(ord(letter) + rng.choice((1, 2))) if chr(ord(letter) + 2).isalpha() else "x"
    other = rng.choice([one for one in pool if one != folded])
    return other.upper() if letter.isupper() else other
