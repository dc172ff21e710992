"""Answers of mathematics, compared by what they mean."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.rewards.protocol import CannotScore
from rewardsmith.rewards.rules.math_bounds import beyond
from rewardsmith.rewards.rules.math_forms import Form, read_form
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import WAYS, boxed, hashed
from rewardsmith.text.numbers import Number
from rewardsmith.types import Prompt

LONGEST = 10_000
"""Characters of the longest answer that is looked at."""

_FORMULA = re.compile(r"[^$\\]*(?:\$([^$\n]*[^$\s])\$(?![0-9])|\\\(([^$\n]+?)\\\))[^$\\]*")
_REASON = re.compile(r",?\s(?:because|since|as|which|for|when|where|so|if|after|given|in order)\s")


def math(
    prompt: Prompt,
    text: str,
    *,
    extract: Extract = ("boxed", "stated", "number"),
    final: Final = "auto",
    precision: Annotated[
        int, Field(ge=0, le=15, description="decimal places to which a rounded number must agree")
    ] = 6,
    strict: Annotated[bool, Field(description="names of variables matter, and a set is no tuple")] = True,
) -> float:
    r"""1 when the answer that the text gives is mathematically the prompt's, else 0.

    The prompt's answer is LaTeX, a number, text with a `\boxed{…}`, or a list of answers of which any will do. One that
    cannot be read makes the prompt invalid; an answer of the model that cannot be read, or would take too long to
    compute with, is wrong.
    """
    golds = [_gold(answer) for answer in truths(prompt)]
    found = _found(text, extract, final)
    return float(found is not None and any(_agree(gold, found, precision, strict) for gold in golds))


def _found(text: str, ways: Extract, final: str) -> str | None:
    said = spoken(text, final)
    for way in ways if said else ():
        assert said is not None
        found = WAYS[way](said)
        if found is not None:
            inner = boxed(found) or found
            if way not in ("boxed", "number") and inner is found:
                inner = _spoken_formula(found[: LONGEST + 1])
            return inner if len(inner) <= LONGEST else None
    return None


def _spoken_formula(phrase: str) -> str:
    """Return what a sentence says the answer is: its only formula, or all up to "because" and the like."""
    formula = _FORMULA.fullmatch(phrase)
    return formula[1] or formula[2] if formula else _REASON.split(phrase, maxsplit=1)[0]


def _agree(right: Form, found: str, precision: int, strict: bool) -> bool:
    """Compare by text, then as numbers, then as words; only what is left is computed with."""
    answer = read_form(found, counted=right.number is not None)
    if (right.name and answer.name and right.name != answer.name and strict) or (
        right.unit and answer.unit and right.unit != answer.unit
    ):
        return False
    if right.key == answer.key:
        return bool(answer.key)
    if right.number and answer.number:
        return _same_number(right.number, answer.number, precision)
    if right.words or answer.words:
        return _plain_words(right) == _plain_words(answer)
    if beyond(answer.latex) or _other_base(right, answer) or (strict and {_set(right), _set(answer)} == {True, False}):
        return False
    from rewardsmith.rewards.rules.math_algebra import parsed, same  # noqa: PLC0415 loads sympy

    answers = parsed(answer.latex)
    return any(same(one, other, precision, strict) for one in _expressions(right.latex) for other in answers)


def _same_number(right: Number, answer: Number, precision: int) -> bool:
    """Compare exactly, unless one is rounded; a percent sign may be missing on a number above 1, as in "9" for 9%."""
    pairs = [(right.share, answer.share)]
    if right.percent != answer.percent and abs(right.value) > 1 and abs(answer.value) > 1:
        pairs.append((right.value, answer.value))
    if not (right.rounded or answer.rounded):
        return any(a == b for a, b in pairs)
    # The second bound keeps 0.0000001 and 0.0000002 apart, which agree to six places.
    return any(
        abs(a - b) * 2 * 10**precision <= 1 and abs(a - b) * 10 ** max(precision - 2, 0) <= abs(a) for a, b in pairs
    )


def _plain_words(form: Form) -> str:
    return form.words or form.key.casefold()


def _other_base(right: Form, answer: Form) -> bool:
    """Say whether numbers are written to different bases, 101_2 and 101_3, which the parser would not see."""
    bases = [re.fullmatch(r"[0-9A-F.]+_\{?([0-9]+)\}?", form.key) for form in (right, answer)]
    return bases[0] is not None and bases[1] is not None and bases[0][1] != bases[1][1]


def _set(form: Form) -> bool | None:
    """Say whether braces (a set) or other brackets (a point, an interval) are around it all; None without any."""
    first, last = form.latex[:2], form.latex[-1:]
    return True if first == "\\{" and last == "}" else False if first[:1] in ("(", "[") and last in (")", "]") else None


@lru_cache(maxsize=4096)
def _gold(answer: str) -> Form:
    """Return the prompt's answer, read once per worker; mathematics that is no plain number must be parsable."""
    form = read_form(boxed(answer) or hashed(answer) or answer if len(answer) <= LONGEST else "")
    if not form.key:
        raise CannotScore("invalid", f"the prompt's answer is empty, or longer than {LONGEST:,} characters")
    if form.number or form.words:
        return form
    why = beyond(form.latex)
    if why:
        raise CannotScore("invalid", f"the prompt's answer is too large to compute with ({why}): {answer[:200]!r}")
    if not _expressions(form.latex) and re.search(r"[\\^_{}]", form.latex):
        raise CannotScore("invalid", f"the prompt's answer cannot be read: {answer[:200]!r}")
    return form


@lru_cache(maxsize=4096)
def _expressions(latex: str) -> tuple[Any, ...]:
    """Return the prompt's answer as math-verify reads it, once per worker."""
    from rewardsmith.rewards.rules.math_algebra import parsed  # noqa: PLC0415 loads sympy

    return tuple(parsed(latex))
