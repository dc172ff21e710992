r"""The grade in what a judge wrote: `Total Score: 8/10`, in the forms in which judges write it.

The last marker decides, however it is written: `**Total Score:** 8 out of 10`, `| total score | 8/10 |`,
`Total Score (out of 10): \boxed{8}`, `Total Score = 4+3 = 7`. A number without a marker is no grade. A marker inside a
quotation is not the judge's own, and one that is only talked about ("the total score reflects …") is none.

    >>> read_grade("The proof has a gap.\n**Total Score:** 7.5/10").share
    0.75
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rewardsmith.text.reading import Unreadable

REACH = 400
"""Characters after a marker in which its number must stand."""

LONGEST_LINE = 2_000
"""Characters before a marker in which the beginning of its line is looked for."""

MOST_MARKERS = 1_000
"""Markers that are looked at, from the last one on; in what a judge means there are a few."""

_N = r"(?:[0-9]{1,6}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})"
_UNIT = r"(?:points?|pts|marks?)"
_OF = r"out\s+of(?:\s+(?:a|the))?(?:\s+(?:possible|total|maximum))?(?:\s+of)?"

_FRACTION = re.compile(rf"\\[dtc]?frac\s*\{{\s*({_N})\s*\}}\s*\{{\s*({_N})\s*\}}")
# Markup becomes a space and never nothing: 1*0 must not read as 10. An underscore between digits stays.
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|quad|,|;|!|[()\[\]])|</?(?:b|i|strong|em|score|u)>|[*`$\[\]{}\"'“”‘’#]"
    r"|(?<![0-9])_|_(?![0-9])",
    re.IGNORECASE,
)
# Only (out of 10), (max 10), (0-10), (/10) and (10 points) say how much can be had; (8) and (8/10) are the grade.
_LIMIT = (
    rf"\(\s*(?:(?:{_OF}|max(?:imum)?(?:\s+of)?:?|of|/|0\s*[-–—]|0\s+to)\s*(?P<limit>{_N})\s*{_UNIT}?"
    rf"|(?P<points_limit>{_N})\s*{_UNIT}(?:\s+max(?:imum)?)?)\s*\)"
)
_WHOSE = r"(?:\s+(?:for|to|awarded)\b[^0-9:=|\n]{1,80})?"
_LINK = r"(?:[-=]{1,2}>|→|[\s|:=≈~]|\b(?:is|was|equals|awarded|therefore|thus|now|equal\s+to|i\.e\.|approximately)\b)"
_SUM = r"(?:(?=[0-9(][^=\n]{0,200}[+×−–-])(?:[0-9.+/ \t×−–-]|\([^()\n]{0,60}\)){1,200}=[ \t]*)?"  # 4 + 3 =
_GRADE = re.compile(
    rf"{_WHOSE}(?:\s*{_LIMIT})?(?P<link>(?:\s+[-–—]{{1,3}}\s+|\s*—\s*|\s+of\b)?{_LINK}*+)"
    rf"{_SUM}\(?[ \t]*(?P<minus>[-−–]\s*)?(?P<points>{_N})(?![0-9_]|[.,][0-9])(?:[ \t]*{_UNIT}\b\.?)?"
    rf"(?:[ \t]*/[ \t]*\(?(?P<over>{_N})\)?|[ \t]*\(?[ \t]*(?:{_OF}|of)\s+(?P<of>{_N})|[ \t]*\\?(?P<percent>%))?"
    rf"(?![0-9_]|[.,][0-9])(?:[ \t]*{_UNIT}\b)?(?![0-9A-Za-z_])",
    re.IGNORECASE,
)
# A marker after which a grade is announced; without one of these it is only talked about.
_ANNOUNCED = re.compile(
    rf"{_WHOSE}\s*(?:\([^()\n]{{0,80}}\)\s*)?(?:[:=|≈→]|[-–—=]{{1,2}}>|\b(?:is|was|equals)\b|of\s+[-−]?[0-9])",
    re.IGNORECASE,
)
# What makes the number before it no grade: the rest of a sum, of a range, of a table row, or of "10 points possible".
_DOUBT = re.compile(
    r"[ \t)]*(?:\([^()\n]{0,200}\)[ \t]*)?"
    r"(?:[+×/:?]|[-−–—~,][ \t]*[0-9]|(?:to|or|and)[ \t]+[0-9]|\|[ \t]*[0-9]|(?P<equals>=)|[0-9]"
    r"|(?:is[ \t]+)?(?:possible|maximum|max|available)\b)",
    re.IGNORECASE,
)
_NOT_EARNED = re.compile(
    r"(?:\b(?:max(?:imum)?|possible|available|highest|perfect|full|out of (?:a|an|the)))[\s*_]*\Z", re.IGNORECASE
)
_QUOTES = "\"'`“”‘’«»「『"


@dataclass(frozen=True)
class Grade:
    """What a judge gave.

    Attributes:
        points: at least 0.
        out_of: what could be had, above 0.
    """

    points: float
    out_of: float

    @property
    def share(self) -> float:
        """The points as a share of what could be had, in [0, 1]."""
        return min(1.0, self.points / self.out_of)


def read_grade(text: str, out_of: float = 10.0, *, marker: str = "Total Score", clamp: bool = False) -> Grade:
    """Return the grade that the last marker gives.

    Args:
        text: what the judge wrote, without its thoughts.
        out_of: what can be had where the text does not say it. `8/20` is 0.4, whatever this is.
        marker: one or more words, in any case.
        clamp: take more than can be had as all that can be had; otherwise it is refused.

    Raises:
        Unreadable: there is no marker, or the last one has no number that is a grade. It is `invalid` where there is
            one that is negative, or too large.
    """
    for rest in _attempts(text, marker):
        found = _GRADE.match(rest)
        if found is None:
            if _ANNOUNCED.match(rest):
                raise Unreadable("no number", f"after the last {marker!r}: {rest[:60]!r}")
            continue  # it is only talked about
        return _checked(found, rest, out_of, clamp)
    raise Unreadable("no marker", f"the answer has no {marker!r} with a number")


def _attempts(text: str, marker: str) -> Iterator[str]:
    """Yield what follows each marker, the last one first, without markup; quotations are passed over."""
    for match in reversed(deque(_marker(marker).finditer(text), maxlen=MOST_MARKERS)):
        if _is_quoted(text, match) or _NOT_EARNED.search(text, max(0, match.start() - 40), match.start()):
            continue
        rest = text[match.end() : match.end() + REACH]
        rest += "x" if match.end() + REACH < len(text) else ""  # a number that is cut off there is none
        yield _MARKUP.sub(" ", _FRACTION.sub(r"\1/\2", rest))


@cache
def _marker(words: str) -> re.Pattern[str]:
    """Return how a marker is found: its words with blanks, underscores, hyphens or emphasis between them."""
    if not words.split():
        raise ValueError("the marker of a grade is empty: it needs at least one word")
    return re.compile(
        r"(?<![A-Za-z0-9])" + r"[\s*_-]{1,5}".join(map(re.escape, words.split())) + r"(?![A-Za-z0-9])", re.IGNORECASE
    )


def _is_quoted(text: str, match: re.Match[str]) -> bool:
    """Whether a marker stands in a quotation: after an opening mark within a line, or in a line that begins with >."""
    line = max(text.rfind("\n", 0, match.start()) + 1, match.start() - LONGEST_LINE)
    before = text[line : match.start()].rstrip("*_")
    if before.lstrip().startswith(">"):
        return True
    if not before or before[-1] not in _QUOTES or not before[:-1].strip(" \t`*_|-#>{[(,:"):
        return False
    return text[match.end() : match.end() + 1] not in _QUOTES or match.end() == len(text)  # a key of JSON is closed


def _checked(found: re.Match[str], rest: str, out_of: float, clamp: bool) -> Grade:
    _require_clear(found, rest)
    points, stated, limit = float(found["points"]), _stated(found), found["limit"] or found["points_limit"]
    if stated is not None and limit is not None and not found["percent"] and float(limit) != stated:
        raise Unreadable("contradictory", f"out of {limit} and out of {stated:g}")
    total = stated if stated is not None else float(limit) if limit is not None else out_of
    if total <= 0:
        raise Unreadable("nothing to be had", f"out of {total:g}", invalid=True)
    if found["minus"] and points > 0:
        raise Unreadable("negative grade", f"-{points:g}", invalid=True)
    if points > total and not clamp:
        raise Unreadable("more than can be had", f"{points:g} out of {total:g}", invalid=True)
    return Grade(min(points, total), total)


def _stated(found: re.Match[str]) -> float | None:
    """Return what the grade itself says can be had."""
    if found["percent"]:
        return 100.0
    number = found["over"] or found["of"]
    return None if number is None else float(number)


def _require_clear(found: re.Match[str], rest: str) -> None:
    """Raise if what follows the number, or leads to it, makes it something else than the grade."""
    doubt = _DOUBT.match(rest, found.end())
    if doubt and not (doubt["equals"] and _stated(found) is not None):
        raise Unreadable("no number", f"it is not clear which of these is the grade: {rest[:60]!r}")
    if re.search(r"\bof\b", found["link"], re.IGNORECASE) and _stated(found) is None:
        raise Unreadable("no number", f"{found['points']} may be the grade or what can be had")


__all__ = ["Grade", "read_grade"]
