"""Answers of mathematics, compared by what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Annotated

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.math.answer_forms import AnswerForm, read_form
from rewardsmith.rewards.rules.math.equivalence import MathComparison
from rewardsmith.rewards.rules.math.evaluation import too_large
from rewardsmith.rewards.rules.math.nodes import Node, UnparsableMath
from rewardsmith.rewards.rules.math.parser import parse
from rewardsmith.rewards.rules.math.units import conflict
from rewardsmith.rewards.rules.rule_settings import Extract, Final, answer_part
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import boxed, hashed
from rewardsmith.text.claims import claimed
from rewardsmith.text.numbers import Number, close
from rewardsmith.types import Prompt

MAX_ANSWER = 10_000
"""Characters of an answer; a longer one is wrong."""

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
    part = answer_part(text, final) or ""
    for way in ways if part else ():
        found = claimed(part, way)
        if found is not None:
            inner = boxed(found) or found
            if way not in ("boxed", "number") and inner is found:
                inner = _REASON.split(found[: MAX_ANSWER + 1], maxsplit=1)[0]  # 7, in "7, because 3 + 4 is 7"
            return inner if len(inner) <= MAX_ANSWER else None
    return None


def _agree(right: AnswerForm, found: str, precision: int, strict: bool) -> bool:
    """Compare by text, then as numbers, then as words; only what is left is computed with."""
    answer = read_form(found, counted=right.number is not None)
    if conflict(right.unit, answer.unit) or _is_share_of_unit(right, answer) or _is_share_of_unit(answer, right):
        return False
    renamed = strict and right.name and answer.name and right.name != answer.name
    if not renamed:
        if right.key == answer.key:
            return bool(answer.key)
        if right.number and answer.number:
            return _same_number(right.number, answer.number, precision)
        if right.words or answer.words:
            return _singular_words(right) == _singular_words(answer)
        if _compare(right.latex, answer.latex, MathComparison(precision, strict).same):
            return True
    equations = "=" in right.whole and "=" in answer.whole
    return equations and _compare(right.whole, answer.whole, MathComparison(precision, strict).same_relation)


def _is_share_of_unit(one: AnswerForm, other: AnswerForm) -> bool:
    """Return whether one is in percent, and the other in a unit."""
    return bool(one.number and one.number.percent and other.unit and other.unit.powers)


def _compare(right: str, answer: str, same: Callable[[Node, Node], bool]) -> bool:
    one, other = _tree(right), _tree(answer)
    return one is not None and other is not None and same(one, other)


@lru_cache(maxsize=4096)
def _tree(latex: str) -> Node | None:
    """Return the tree of a text; None where it is ambiguous, or too long to be parsed."""
    if beyond(latex):
        return None
    try:
        return parse(latex)
    except UnparsableMath:
        return None


def _same_number(right: Number, answer: Number, precision: int) -> bool:
    """Compare exactly, unless one is rounded; a percent sign may be missing on a number above 1, as in "9" for 9%."""
    pairs = [(right.share, answer.share)]
    if right.percent != answer.percent and abs(right.value) > 1 and abs(answer.value) > 1:
        pairs.append((right.value, answer.value))
    if not (right.rounded or answer.rounded):
        return any(a == b for a, b in pairs)
    return any(close(a, b, precision) for a, b in pairs)


def _singular_words(form: AnswerForm) -> str:
    return (form.words or form.key.casefold()).removesuffix("s")


@lru_cache(maxsize=4096)
def _gold(answer: str) -> AnswerForm:
    """Return the prompt's answer, read once per worker; mathematics must be whole, and small enough to compute with."""
    form = read_form(boxed(answer) or hashed(answer) or answer if len(answer) <= MAX_ANSWER else "")
    if not form.key:
        raise CannotScore("invalid", f"the prompt's answer is empty, or longer than {MAX_ANSWER:,} characters")
    if form.number or form.words:
        return form
    tree = _tree(form.latex)
    if beyond(form.whole) or (tree is not None and too_large(tree)):
        raise CannotScore("invalid", f"the prompt's answer is too large to compute with: {answer[:200]!r}")
    bare = form.whole.replace("\\{", "").replace("\\}", "")
    if bare.count("{") != bare.count("}"):
        raise CannotScore("invalid", f"the prompt's answer cannot be read: {answer[:200]!r}")
    return form


# ---- what is parsed at all: a hundred nested roots or ten thousand terms would keep any program busy ----------------

MAX_EXPRESSION, MAX_NESTING = 500, 10
"""Characters and brackets of an expression that is parsed; longer answers are compared as text alone."""

_COUNTS = (
    (re.compile(r"\\sqrt|√"), 10, "roots"),
    (re.compile(r"[/:÷]|\\frac|\\div"), 20, "fractions"),
    (re.compile(r"[,;]"), 40, "entries"),
    (re.compile(r"\\cup|\\cap|∪|∩"), 6, "unions"),
    (re.compile(r"[=<>]|\\[lg]eq?\b|\\neq?\b"), 6, "relations"),
    (re.compile(r"&"), 40, "columns"),
    (re.compile(r"\|"), 12, "bars"),
    (re.compile(r"\^|\*\*"), 30, "powers"),
    (re.compile(r"!"), 6, "factorials"),
    (re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|ln|log|exp|arc\w+)\b"), 12, "functions"),
    (re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|limsup|liminf|bigcup|bigcap)(?![A-Za-z])|[∑∏∫]"), 0, "limits"),
    (re.compile(r"[-+−]\s*[-+−]\s*[-+−]"), 0, "signs"),
    (re.compile(r"[0-9]{301}"), 0, "digits"),
)


def beyond(text: str) -> str:
    """Return what makes an expression too large to be parsed, such as "roots"; "" when nothing does."""
    if len(text) > MAX_EXPRESSION:
        return "length"
    if max(accumulate((mark in "({[") - (mark in ")}]") for mark in text), default=0) > MAX_NESTING:
        return "nesting"
    return next((what for pattern, limit, what in _COUNTS if len(pattern.findall(text)) > limit), "")
