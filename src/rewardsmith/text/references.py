"""Whether a text leans on a reference: names its answer, or copies its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

COPIED = 12
"""Words in a row that two texts do not share by chance."""

MOST_WORDS = 20_000
"""Words of a reference that are looked at."""

MOST_ANSWER = 200
"""Characters of an answer that is looked for; a longer one is found by its words."""

_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_SIGNS = re.compile(r"[$\\](?=[$()\[\]!,;: ]|\Z)|\$")
_NOUNS = (
    r"(?:(?:answer|result|conclusion|solution|value)\W{0,4}"
    r"(?:(?:is|being|of|as|to|be|equals?|reads?|should|must)\W{1,4}){0,3}|boxed\W{0,4})"
)
_VERBS = (
    r"(?:(?:obtains?|obtaining|concludes?|arriv(?:es?|ing)\W{1,4}at|reach(?:es|ing)?|gets?)\W{1,4}"
    r"(?:(?:with|that|at|is)\W{1,4}){0,2})"
)
_NAME = r"(?:[a-z]\w{0,9}\s?=\s?)?"  # the answer is x = 5
_CHOICE = re.compile(r"\(?([A-Za-z])\)?\.?")
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\w+|[^\w\s]")
_LOOSE = frozenset(",;:=()[]{}")
"""Signs around which blanks mean nothing."""


class Tied:
    r"""Finds out whether a text leans on the reference of a problem.

    An answer counts wherever it stands by itself. Where that says nothing, because it is a single digit, a word, or
    part of the problem, it counts where it is given as the answer: "the answer is 2", "obtains 2", `\boxed{2}`. A
    letter counts, in its own case, as "(A)", "option A" or "the answer is A".

    Args:
        question: the problem.
        answers: right answers.
        solution: a reference solution.
    """

    def __init__(self, question: str, answers: Sequence[str] = (), solution: str = "") -> None:
        asked = _plain(question)
        found = [answer for answer in map(_plain, answers) if 0 < len(answer) <= MOST_ANSWER]
        self._answers = [(answer, _pattern(answer, asked)) for answer in dict.fromkeys(found)]
        own = set(_runs(solution))
        self._copied = own - set(_runs(question)) if own else own

    def why(self, text: str) -> str:
        """Return what a text does, such as `names the answer 42`; "" if it does not lean on the reference."""
        plain = _plain(text)
        for answer, pattern in self._answers:
            if pattern.search(plain):
                return f"names the answer {answer[:60]!r}"
        copied = next((run for run in _runs(text) if run in self._copied), None)
        return "" if copied is None else f"copies the reference solution ({' '.join(copied)[:80]!r})"


def _pattern(answer: str, question: str) -> re.Pattern[str]:
    choice = _CHOICE.fullmatch(answer)
    if choice:
        return _choice(choice[1])
    # Neither a part of a longer number or word, nor of an expression such as x^2.
    alone = rf"(?<![\w^.,/]){_spelled(answer)}(?!\w|[.,/][0-9]|\^|\s?(?:points?|marks?)(?!\w))"
    if answer.isalpha():
        return re.compile(_NOUNS + alone, re.IGNORECASE)
    said = rf"(?:{_NOUNS}|{_VERBS}){_NAME}{alone}"
    worth = rf"{alone}(?!\s?%)"  # what an item is worth, unless it is said to be the answer
    ordinary = len(answer) < 2 or re.search(worth, question, re.IGNORECASE) is not None
    return re.compile(said if ordinary else f"{worth}|{said}", re.IGNORECASE)


def _choice(letter: str) -> re.Pattern[str]:
    """Return how one of several options is named; a letter alone is an article, or a variable."""
    several = r"(?!\W{0,3}(?:,|to|through|and|or|[-–])\W{0,3}\(?[A-Za-z]\b)"  # options (A) to (E)
    named = r"(?i:option|choice|answer)s?\W{1,4}(?:(?i:is|being|as|must|should|be|option|choice)\W{1,4}){0,3}"
    return re.compile(
        rf"(?:(?<!\w)\({letter}\)|(?:{named}|boxed\W{{1,4}}(?:(?:text|textbf|mathrm|mathbf)\W{{1,4}})?){letter}(?!\w)){several}"
    )


def _spelled(answer: str) -> str:
    """Return the pattern of an answer however its blanks are set; a whole number may have zeros after its point."""
    parts: list[str] = []
    end, loose = 0, True
    for token in _TOKEN.finditer(answer):
        sign = token[0] in _LOOSE
        if parts:
            parts.append(r"\s*" if sign or loose else r"\s+" if token.start() > end else "")
        parts.append(re.escape(token[0]))
        end, loose = token.end(), sign
    whole = re.fullmatch(r"([-+]?[0-9]+)(?:\.0+)?", answer)
    return rf"{re.escape(whole[1])}(?:\.0+)?" if whole else "".join(parts)


def _plain(text: str) -> str:
    """Return a text without the marks that change nothing: dollar signs, separators of thousands, blanks."""
    return " ".join(_SIGNS.sub("", _THOUSANDS.sub("", text)).split())


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())[:MOST_WORDS]
    return (tuple(words[i : i + COPIED]) for i in range(len(words) - COPIED + 1))


__all__ = ["COPIED", "Tied"]
