"""The letter that a model chose among several options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rewardsmith.text.answers import TAIL, boxed, stated

_OPENING = r"[\s({\[*_$]{0,12}(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s?\{\s?)?[({\[*_]{0,4}"
_CLOSING = r"[)}\]*_.:$\s]{0,12}"


@dataclass(frozen=True)
class _Patterns:
    """How the letters of one set are recognised."""

    leading: re.Pattern[str]
    another: re.Pattern[str]
    lone: re.Pattern[str]
    listed: re.Pattern[str]
    bold: re.Pattern[str]
    bracketed: re.Pattern[str]
    named: re.Pattern[str]


@lru_cache(maxsize=32)
def _patterns(letters: str) -> _Patterns:
    upper, either = f"[{letters}]", f"[{letters}{letters.lower()}]"
    return _Patterns(
        leading=re.compile(rf"(?i:option|choice|letter)?{_OPENING}({either})(?![A-Za-z0-9'’])"),
        another=re.compile(rf"{_CLOSING}(?:,|/|&|\\&|or\b|and\b)\s*{_OPENING}({upper})(?![A-Za-z0-9'’])"),
        lone=re.compile(rf"(?i:option|choice|letter)?{_OPENING}({either}){_CLOSING}"),
        listed=re.compile(rf"(?<![A-Za-z0-9])\(?({upper})[).:]\s"),
        bold=re.compile(rf"\*\*\s?\(?({upper})(?:\)|\b)[.:]?(?:\s[^*\n]{{0,200}})?\*\*"),
        bracketed=re.compile(rf"\(({either})\)"),
        named=re.compile(rf"\b(?i:option|choice|letter|choose|chose|pick|select)\s+\(?({upper})\b(?!')"),
    )


def choice(text: str, letters: str = "ABCDE") -> str | None:
    r"""Return the letter that a text chooses; None when it chooses none, or more than one.

    The first of these that occurs decides: the last `\boxed{…}`; the last "answer is …"; a lone letter as the last
    line; an answer of one line that begins with "B." or "(B)"; letters in bold; in brackets; after "option", "choose"
    and the like. The article "A" and the pronoun "I" are not letters of an option. Except for boxes, only the last
    200,000 characters are searched.

    Args:
        text: what the model wrote.
        letters: capital letters of the options, such as "ABCD".
    """
    patterns = _patterns(letters)
    for phrase in (boxed(text), stated(text)):
        found = _leading(phrase, patterns) if phrase else set()
        if found:
            return _only(found)
    stripped = text[-TAIL:].strip()
    last = stripped[-60:].rpartition("\n")[2]
    lone = patterns.lone.fullmatch(last) if len(last) < 60 or len(stripped) < 60 else None
    if lone:
        return lone[1].upper()
    if "\n" not in stripped and patterns.listed.match(stripped):
        return _only({match[1] for match in patterns.listed.finditer(stripped)})
    for pattern in (patterns.bold, patterns.bracketed, patterns.named):
        found = {match[1].upper() for match in pattern.finditer(stripped)}
        if found:
            return _only(found)
    return None


def _only(found: set[str]) -> str | None:
    return next(iter(found)) if len(found) == 1 else None


def _leading(phrase: str, patterns: _Patterns) -> set[str]:
    """Return the letters that a phrase such as "B", "(B) 42" or "B or C" begins with."""
    first = patterns.leading.match(phrase)
    if first is None:
        return set()
    letter, rest = first[1], phrase[first.end() :]
    alone = not rest.strip(" )}]*_.:$\n")
    marked = rest[:1] in (")", "}", "]", "*", "_", ".", ":", ",", "$")
    if (letter.islower() and not (alone or marked)) or rest.lstrip()[:1] in ("=", "+", "^"):
        return set()  # the article, or a variable
    found = {letter.upper()}
    other = patterns.another.match(rest)
    if other:
        return found | {other[1]}
    if letter in "AI" and not (alone or marked) and not re.match(r"\s+(?:because|since|as|which|is|[-–—(])", rest):
        return set()  # "the answer is A matter of taste"
    return found
