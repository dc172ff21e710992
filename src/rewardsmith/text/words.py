"""The strings of a tiny world of translation: a dictionary, what can be wrong with a translation, and what is true.

A word is one letter. The source language has twelve, `a` to `l`; the target language has twelve, `M` to `X`. A sentence
is translated word by word:

    kab   ->   PTQ

Every source word has a *false friend* too: a target word that looks like its translation and is not. Four source words
are `HARD`: there both hasty translators and hasty annotators are taken in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SOURCE_WORDS = "abcdefghijkl"
TARGET_WORDS = "MNOPQRSTUVWX"

DICTIONARY = dict(zip(SOURCE_WORDS, "TQXMVOSNWRPU", strict=True))
"""The right translation of each word: a fixed random permutation."""

FALSE_FRIENDS = dict(zip(SOURCE_WORDS, "QVOTRXUPSMWN", strict=True))
"""A wrong one that is easily taken for it, never the right one."""

HARD = "cfik"
"""Where false friends take people in."""

HIGHEST = 10
"""Score of a translation without errors."""

PER_ERROR = 2
"""What each error costs, down to 0."""

LONGEST = 64
"""Characters; a longer text is no translation of a sentence of this world, and is not looked at any further."""


@dataclass(frozen=True)
class Pair:
    """A source word and what stands in its place.

    Attributes:
        source: the word; "" beside a target word that is one too many.
        target: the character in its place; "" where there is none.
    """

    source: str
    target: str

    @property
    def right(self) -> bool:
        """Whether the one translates the other."""
        return DICTIONARY.get(self.source) == self.target


def translate(sentence: str) -> str:
    """Return the right translation of a sentence.

    Raises:
        ValueError: it has characters that are no source words, or none at all.
    """
    if not sentence or not set(sentence) <= set(SOURCE_WORDS):
        raise ValueError(f"{sentence!r} is not a sentence of this world: letters from a to l")
    return "".join(map(DICTIONARY.__getitem__, sentence))


def pairs(sentence: str, text: str) -> list[Pair]:
    """Return what stands in the place of each source word, and then what is left over.

    Args:
        sentence: such as `kab`.
        text: a translation, without white space around it; of any form: it is untrusted. Only the first `LONGEST`
            characters are looked at.
    """
    text = text[:LONGEST]
    count = max(len(sentence), len(text))
    return [Pair(sentence[i : i + 1], text[i : i + 1]) for i in range(count)]


def errors(sentence: str, text: str) -> int:
    """Return how many words of a translation are wrong, missing or too many."""
    return sum(not pair.right for pair in pairs(sentence, text))


def quality(sentence: str, text: str) -> float:
    """Return 1 − errors / words, at least 0."""
    return max(0.0, 1 - errors(sentence, text) / len(sentence))


def score_of(errors: int) -> int:
    """Return the score from 0 to 10 for so many errors."""
    return max(0, HIGHEST - PER_ERROR * errors)


def write_analysis(
    letters: str, compared: Sequence[Sequence[Pair]], wrong: Sequence[Sequence[bool]], scores: Sequence[float]
) -> str:
    """Return the comparison of several translations: each pair is copied and marked, then comes the score.

        A:kP.aT.bV!=8
        B:kW!aT.b-!=6
        C:kP.aT.bQ.+Q!=8

    A full stop marks a pair as right, an exclamation mark as wrong. The copy makes each check local, and the score at
    the end of the line makes the ranking one of numbers: a small model can learn both.

    Args:
        letters: what the translations are called.
        compared: the pairs of each.
        wrong: for each pair whether it is marked as wrong.
        scores: of each.
    """
    lines = []
    for letter, found, marks, score in zip(letters, compared, wrong, scores, strict=True):
        marked = (
            f"{pair.source or '+'}{pair.target or '-'}{'!' if bad else '.'}"
            for pair, bad in zip(found, marks, strict=True)
        )
        lines.append(f"{letter}:{''.join(marked)}={score:g}")
    return "\n".join(lines)
