r"""A grade such as `Total Score: 8/10`, or a number, in what a judge wrote.

The last line that begins with the marker decides, however it is decorated: `**Total Score:** 8 out of 10`,
`| total score | 8/10 |`, `Total Score (out of 10): \boxed{8}`, `Total Score = 4+3 = 7`, or a JSON object with such a
key. Quotations, fenced blocks and markers within a sentence are not the judge's verdict. What follows the number on
its line must not leave a doubt which number is the grade.

    >>> parse_grade("The proof has a gap.\n**Total Score:** 7.5/10").share
    0.75
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rewardsmith.text.judge_prompts import format_number
from rewardsmith.text.judge_replies import (
    NoVerdict,
    Unparsable,
    clean_lines,
    labelled_lines,
    last_object,
    own_object,
    parse_own,
)
from rewardsmith.text.rubrics import DECIMALS

PARSER = "grade-3"
NUMBER_PARSER = "rating-1"
"""Versions of the parsers, for the record: they go up whenever a reply would be parsed otherwise."""

MARKER = "Total Score"

_N = r"(?:[0-9]{1,6}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})(?![0-9_]|[.,][0-9])"
_UNIT = r"(?:points?|pts|marks?)\b\.?"
_OUT_OF = r"(?:out\s+of(?:\s+(?:a|the))?(?:\s+(?:possible|total|maximum))?(?:\s+of)?)"
# A half and a raised figure would become digits of the number before them.
_ODD_FIGURE = re.compile("[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u215f\u2189]")
_CONTINUED = re.compile(r"\n[ \t]{0,20}(?=[+=][^+=])")  # a sum over several lines
_BRACKETS = re.compile(r"[\[\]{}\"“”']")
# Between the marker and the colon: whose grade it is, and how much there is: (out of 10), (max 10), (0-10), /10, (10).
_WHOSE = r"(?:\s+(?:awarded|earned))?(?:\s+for\b[^0-9:=|\n]{1,80})?"
_LIMIT = (
    rf"(?:\s*[(\[]?\s*(?:(?:{_OUT_OF}|max(?:imum)?(?:\s+of)?:?|of|/|0\s*[-–]|0\s+to)\s*)?{_N}"
    rf"(?:\s*{_UNIT})?(?:\s+(?:possible|max))?\s*[)\]]?(?=\s*[:=|]))?"
)
_SUM = r"(?:(?=[0-9(][^=]{0,200}[+×−–-])(?:[0-9.+/ \t×−–-]|\([^()]{0,60}\)){1,200}=[ \t]*)?"  # 4 + 3 =
_GRADE = re.compile(
    rf"(?:(?:is|therefore|thus|now)\b\s*){{0,2}}{_SUM}\(?\s*(?P<minus>[-−–]\s*)?(?P<points>{_N})\s*(?:{_UNIT})?"
    rf"(?:\s*/\s*\(?(?P<over>{_N})|\s*\(?\s*(?:{_OUT_OF}|of)\s+(?P<of>{_N})|\s*\\?(?P<percent>%))?"
    rf"(?:\s*{_UNIT})?\s*\)?(?![0-9A-Za-z_])",
    re.IGNORECASE,
)
_FOLLOWS = re.compile(r"\s*(?:\Z|[.,;!(=—–-]|(?:because|since|as|possible)\b)", re.IGNORECASE)
_OTHER_GRADE = re.compile(rf"({_N})\s{{0,5}}(?:(?:/|out of)\s{{0,5}}({_N})|%)", re.IGNORECASE)
_EQUALS = re.compile(rf"\s*=\s*({_N})\s*(?![0-9/%])")
_REASON = re.compile(r"\s*,?\s*(?:because|since)\b", re.IGNORECASE)
_OTHER_NUMBER = re.compile(r"[0-9=]|\b(?:max(?:imum)?|possible|available)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Grade:
    """The points that a judge gave, at least 0, and how many there are in all."""

    points: float
    out_of: float

    @property
    def share(self) -> float:
        """The points as a share of all points, in [0, 1]."""
        return min(1.0, self.points / self.out_of)


def parse_grade(reply: str, out_of: float = 10.0, *, marker: str = MARKER, clamp: bool = False) -> Grade:
    """Return the grade that the last marker at the beginning of a line gives, or raise `Unparsable`.

    `out_of` are the points in all where the reply has none: `8/20` is 0.4, whatever this is. `clamp` takes more points
    than there are as all points; otherwise they are `invalid`, as negative ones are.
    """
    label = _label(marker)
    text = _ODD_FIGURE.sub(" ? ", reply).replace("\u2044", "/").replace("∕", "/")
    return parse_own(text, lambda own: _parse(own, label, marker, out_of, clamp))


@cache
def _label(marker: str) -> str:
    if not marker.split():
        raise ValueError("the marker of a grade is empty: it needs at least one word")
    words = r"[\s_-]{1,5}".join(map(re.escape, marker.split()))
    return rf"{words}(?![A-Za-z0-9]){_WHOSE}{_LIMIT}"


def _parse(text: str, label: str, marker: str, out_of: float, clamp: bool) -> Grade:
    lines = clean_lines(_CONTINUED.sub(" ", text))
    labelled = list(labelled_lines(lines, label, r"(?=[ \t]*\()|[ \t]+(?=is\b)"))
    if not labelled:
        value = _object_value(text, marker)
        if value is None:
            raise NoVerdict("no marker", f"there is no line `{marker}: …`")
        return _grade(value, None, out_of, clamp)
    last = labelled[-1]
    if not last.value:
        raise NoVerdict("no number", "there is nothing after the last marker")
    limit = re.search(rf"({_N})(?!.*[0-9])", last.label["name"][len(marker) :], re.DOTALL)
    return _grade(last.value, float(limit[1]) if limit else None, out_of, clamp)


def _object_value(text: str, marker: str) -> str | None:
    """Return what a JSON object has under a key that is the marker."""
    found = own_object(text)
    for key, value in found.value.items() if found else ():
        if key.lower().replace("_", " ").replace("-", " ").split() == marker.lower().split():
            return value if isinstance(value, str) else repr(value)
    return None


def _grade(value: str, limit: float | None, out_of: float, clamp: bool) -> Grade:
    value = _BRACKETS.sub(" ", value).strip()
    found = _GRADE.match(value)
    if found is None:
        raise Unparsable("no number", f"after the last marker: {value[:60]!r}")
    stated = 100.0 if found["percent"] else float(found["over"] or found["of"] or 0) if _has_total(found) else None
    points = float(found["points"])
    if not _is_clear(points, stated, value[found.end() :].strip(" \t|")):
        raise Unparsable("no number", f"it is not clear which number is the grade: {value[:60]!r}")
    if limit is not None and stated not in (None, limit):
        raise Unparsable("contradictory", f"out of {limit:g} and out of {stated:g}")
    total = stated if stated is not None else limit if limit is not None else out_of
    if total <= 0:
        raise Unparsable("no points in all", f"out of {total:g}", invalid=True)
    if found["minus"] and points > 0:
        raise Unparsable("negative grade", f"-{points:g}", invalid=True)
    if points > total and not clamp:
        raise Unparsable("more than all points", f"{points:g} out of {total:g}", invalid=True)
    return Grade(min(points, total), total)


def _has_total(found: re.Match[str]) -> bool:
    return found["over"] is not None or found["of"] is not None


def _is_clear(points: float, total: float | None, rest: str) -> bool:
    """Whether what follows a grade leaves no other number that could be it."""
    if not _FOLLOWS.match(rest):
        return False
    if total is None:
        return bool(_REASON.match(rest)) or not _OTHER_NUMBER.search(rest)
    if total <= 0:
        return True
    share = points / total
    others = [float(one) / float(other or 100) for one, other in _OTHER_GRADE.findall(rest) if float(other or 100)]
    equal = _EQUALS.match(rest)
    return all(abs(other - share) < 1e-6 for other in others) and (
        equal is None or any(abs(float(equal[1]) - same) < 1e-6 for same in (points, share))
    )


# ---- numbers -----------------------------------------------------------------------------------------------------

MAX_NUMBER_LINE = 200
_NUMBER = re.compile(r"[-−+]?(?:[0-9]{1,15}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})")
_NUMBER_MARKUP = re.compile(r"\\boxed|[*`$\[\]{}\"'“”‘’]|\s")


def parse_rating(reply: str) -> float:
    """Return the number that is the last line of a reply; only markup may stand around it, and only decimals count."""
    last = reply.rstrip()[-MAX_NUMBER_LINE - 1 :].rpartition("\n")[2]
    number = _decimal(last)
    if number is None:
        raise Unparsable("no number", f"the last line is {last[-60:]!r}, not a number")
    return number


def parse_field(reply: str, key: str) -> float:
    """Return a number of the last JSON object in a reply; true is 1, false is 0, dots in the key reach into tables."""
    value: object = last_object(reply)
    if value is None:
        raise Unparsable("no JSON", "the reply has no object that can be decoded")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    number = _decimal(value) if isinstance(value, str) else value
    if not isinstance(number, bool | int | float) or not -1e15 < number < 1e15:  # also NaN
        raise Unparsable("no number", f"the last object has none under {key!r}")
    return float(number)


def _decimal(text: str) -> float | None:
    if len(text) > MAX_NUMBER_LINE:
        return None
    # Markup becomes a space: 1*0 must not read as 10.
    number = _NUMBER_MARKUP.sub(" ", text).strip().removesuffix(".").rstrip()
    return float(number.replace("−", "-")) if _NUMBER.fullmatch(number) else None


# ---- writing -----------------------------------------------------------------------------------------------------

_OWN_VERDICT = re.compile(
    r"[^A-Za-z0-9\n]{0,20}(?:boxed\{)?(?:(?:the|my|final|overall)[ \t]){0,3}[*_ ]{0,5}total[ _-]score\b", re.IGNORECASE
)
_OPEN_BLOCK = re.compile(r"\n?[ \t]{0,3}(?:```[a-z]{0,20}|-{3,20}|\*{3,20})[ \t]*\Z")


def write_grade(analysis: str, share: float, total: float) -> str:
    """Return an analysis that ends with the verdict in the demanded form, which `parse_grade` reads back.

    The verdict of the analysis itself, if it begins a line, and what follows it are left out. `Unparsable` if nothing
    else is there, or if what is left would be parsed as another grade.
    """
    lines = analysis.strip().split("\n")
    last = next((i for i in range(len(lines) - 1, -1, -1) if _OWN_VERDICT.match(lines[i])), len(lines))
    before = _OPEN_BLOCK.sub("", "\n".join(lines[:last]).strip()).rstrip()
    if not before.strip("#*_-=| \n`"):
        raise Unparsable("no analysis", "there is nothing but the verdict")
    points = round(share * total, DECIMALS)
    text = f"{before}\n\n{MARKER}: {format_number(points)}/{format_number(total)}"
    found = parse_grade(text, total)
    if abs(found.points - points) > 10**-DECIMALS or found.out_of != total:
        raise Unparsable("contradictory", f"the analysis would be parsed as {found.points:g} out of {found.out_of:g}")
    return text
