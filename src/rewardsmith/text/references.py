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
_SAID = (
    r"(?:(?:answer|result|conclusion|solution|value)\W{0,4}(?:(?:is|being|of|as|to|be|equals?|reads?|should|must)\W{1,4}){0,3}"
    r"|(?:obtains?|obtaining|concludes?|arriv(?:es?|ing)\W{1,4}at|reach(?:es|ing)?|gets?)\W{1,4}(?:(?:with|that|at|is)\W{1,4}){0,2}"
    r"|boxed\W{0,4})"
)


class Tied:
    r"""Finds out whether a text leans on the reference of a problem.

    An answer counts wherever it stands by itself. Where that says nothing, because it is a single character, a word, or
    part of the problem, it counts where it is given as the answer: "the answer is 2", "obtains 2", `\boxed{2}`.

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
    # Neither a part of a longer number or word, nor of an expression such as x^2, nor what an item is worth.
    alone = rf"(?<![\w^.,/]){re.escape(answer)}(?!\w|[.,/][0-9]|\^|\s?(?:points?|marks?|%)(?!\w))"
    ordinary = len(answer) < 2 or answer.isalpha() or re.search(alone, question) is not None
    return re.compile(_SAID + alone if ordinary else alone)


def _plain(text: str) -> str:
    """Return a text without the marks that change nothing: case, dollar signs, separators of thousands, blanks."""
    return " ".join(_SIGNS.sub("", _THOUSANDS.sub("", text.casefold())).split())


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())[:MOST_WORDS]
    return (tuple(words[i : i + COPIED]) for i in range(len(words) - COPIED + 1))


__all__ = ["COPIED", "Tied"]
