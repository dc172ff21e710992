r"""The grade in what a judge wrote: `Total Score: 8/10`, in the forms in which judges write it.

The last marker at the beginning of a line decides, however it is written: `**Total Score:** 8 out of 10`,
`| total score | 8/10 |`, `Total Score (out of 10): \boxed{8}`, `Total Score = 4+3 = 7`; others on the same line must
agree with it. Where there is none, a marker within a sentence counts, and all of them must agree. A number without a
marker is no grade. A marker inside a
quotation or a fenced block is not the judge's own, and one that is only talked about ("the total score reflects …", "a
total score of 10/10 would need …") is none.

    >>> read_grade("The proof has a gap.\n**Total Score:** 7.5/10").share
    0.75
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rewardsmith.text.reading import Absent, Unreadable, read_own, tidied, untagged

PARSER = "grade-2"
"""The version of this reader, for the record: it goes up whenever a text would be read otherwise."""

TAIL = 200_000
"""Characters at the end of a text that are read."""

REACH = 400
"""Characters after a marker in which its number must stand."""

LONGEST_LINE = 2_000
"""Characters before a marker in which the beginning of its line is looked for."""

MOST_MARKERS = 1_000
"""Markers that are looked at, from the last one on; in what a judge means there are a few."""

_N = r"(?:[0-9]{1,6}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})"
_UNIT = r"(?:points?|pts|marks?)"
_OF = r"out\s+of(?:\s+(?:a|the))?(?:\s+(?:possible|total|maximum))?(?:\s+of)?"

# A half and a raised figure would become digits of the number before them.
_ODD_FIGURE = re.compile("[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2080-\u2089\u2150-\u215f\u2189]")
_FRACTION = re.compile(rf"\\[dtc]?frac\s*\{{\s*({_N})\s*\}}\s*\{{\s*({_N})\s*\}}")
_STRUCK = re.compile(r"~~[^~\n]{0,80}~~")
_CONTINUED = re.compile(r"\n[ \t]{0,20}(?=[+=][^+=])")  # a sum over several lines
_TIMES = re.compile(r"\\(?:times|cdot)\b|[·⋅∙]|(?<=[0-9])[ ]?(?<!\*)\*(?!\*)[ ]?(?=[0-9])|\btimes\b(?=\s*[0-9])", re.I)
_MINUS = re.compile(r"\b(?:minus|less)\b(?=\s*[0-9])", re.IGNORECASE)
# Markup becomes a space and never nothing: 1*0 must not read as 10. An underscore between digits stays.
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm|quad|,|;|!|[()\[\]])|</?(?:b|i|strong|em|score|u)>|[*`$\[\]{}\"'“”‘’#]"
    r"|(?<![0-9])_|_(?![0-9])",
    re.IGNORECASE,
)
# (out of 10), (max 10), (0-10), (/10) and (10 points) say how much can be had, and before a colon so do /10 and (10);
# (8) and (8/10) are the grade.
_LIMIT = (
    rf"(?:\(\s*(?:(?:{_OF}|max(?:imum)?(?:\s+of)?:?|of|/|0\s*[-–—]|0\s+to)\s*(?P<limit>{_N})\s*{_UNIT}?"
    rf"|(?P<points_limit>{_N})\s*{_UNIT}(?:\s+(?:max(?:imum)?|possible))?)\s*\)"
    rf"|(?:{_OF}|/|0\s*[-–—]|0\s+to)\s*(?P<bare_limit>{_N})(?:\s*{_UNIT})?\s*(?=[:=|])"
    rf"|\(\s*(?P<lone_limit>{_N})\s*\)\s*(?=[:=]))"
)
_WHOSE = r"(?:\s+(?:awarded|earned|given|achieved|received))?(?:\s+(?:for|to|awarded)\b[^0-9:=|\n]{1,80})?"
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
_IN_A_SENTENCE = re.compile(rf"{_WHOSE}\s*(?:\b(?:is|was|equals|of)\b)", re.IGNORECASE)
# What makes the number before it no grade: the rest of a sum, of a range, of a table row, or of "10 points possible".
_DOUBT = re.compile(
    r"[ \t)]*(?:\((?!max|possible)[^()\n]{0,200}\)[ \t]*)?"
    r"(?:[+×/:?→⇒≈]|[-=]{1,2}>|[-−–—~,][ \t]*[0-9]|(?:to|or|and)[ \t]+[0-9]|\|[ \t]*[0-9]|(?P<equals>=)|[0-9]"
    r"|(?:out[ \t]+of|divided|over)\b|(?P<possible>(?:\(|is[ \t]+)?(?:possible|maximum|max|available)\b))",
    re.IGNORECASE,
)
_ONE_OF_SEVERAL = re.compile(
    r"[ \t,]{0,9}(?:for|deducted|lost|off|rounded|so|making|total|then|but)\b[^\n]{0,300}?(?:\n[^\n]{1,80}?)?[0-9]",
    re.I,
)
_RESULT = re.compile(rf"=[ \t]{{0,9}}(?P<value>{_N})(?:[ \t]{{0,9}}(?:/[ \t]{{0,9}}(?P<over>{_N})|(?P<percent>%)))?")
_ANOTHER = re.compile(r"[0-9]\s{0,5}(?:/\s{0,5}[0-9]|%|out\b)", re.IGNORECASE)
_HYPOTHETICAL = re.compile(r"[\s)]{0,9}(?:would|could|might|requires?|needs?|were|is[ \t]+only|if)\b", re.IGNORECASE)
_NOT_EARNED = re.compile(
    r"(?:\b(?:max(?:imum)?|possible|available|highest|perfect|full|out of (?:a|an|the)))[\s*_]*\Z", re.IGNORECASE
)
_NOT_GIVEN = re.compile(  # words before a marker in a sentence
    r"\b(?:claim(?:s|ed|ing)?|itself|says?|wrote|writes?|asks?|asking|demands?|not|never|if|than|should|(?<!i )would"
    r"|could|wants?)\b|n't\b",
    re.IGNORECASE,
)
_LINE_START = re.compile(
    r"(?:[ \t*_#|•+$✅⭐🏆📊🎯\ufe0f-]|</?(?:b|i|strong|em|u)>|\\(?:text|textbf|boxed|mathbf|\[)\{?"
    r"|[0-9]{1,2}[.)][ \t])*+"
    r"(?:[{\[]?[ \t]{0,20}\"(?=\Z))?(?:(?:so|thus|hence|therefore|finally)\b,?[ \t]{1,5})?(?:(?:the|my)[ \t]{1,5})?"
    r"(?:(?:final|overall)[ \t]{1,5})?[*_]{0,3}\Z",
    re.IGNORECASE,
)
_HERE_IT_IS = re.compile(
    r"\s*(?:here is |this is )?(?:my|the) (?:final |last )?(?:line|grade|score|verdict)(?: is)?:[ \t*]{0,5}[`\"“]\Z",
    re.IGNORECASE,
)
_QUOTES = "\"'`“”‘’«»「『"

_Kind = Literal["line", "sentence", "last", "none"]


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
    """Return the grade that the last marker at the beginning of a line gives, or markers in sentences.

    Args:
        text: what the judge wrote, without its thoughts.
        out_of: what can be had where the text does not say it. `8/20` is 0.4, whatever this is.
        marker: one or more words, in any case.
        clamp: take more than can be had as all that can be had; otherwise it is refused.

    Raises:
        Unreadable: there is no marker, or the last one has no number that is a grade, or several in sentences or on
            its line have different ones. It is `invalid` where there is one that is negative, or too large.
    """
    said = tidied(_ODD_FIGURE.sub(" ? ", text[-TAIL:])).replace("\u2044", "/").replace("∕", "/")
    said = untagged(said, r"[ _-]".join(map(re.escape, marker.split())))
    return read_own(said, lambda own: _read(own, marker, out_of, clamp))


def _read(text: str, marker: str, out_of: float, clamp: bool) -> Grade:
    attempts = list(_attempts(text, _marker(marker)))
    for rest, line in ((rest, line) for kind, rest, line in attempts if kind == "line"):
        found = _GRADE.match(rest)
        if found and not _HYPOTHETICAL.match(rest, found.end()):
            grade = _checked(found, rest, out_of, clamp)
            _require_same(grade, [rest for kind, rest, at in attempts if at == line and kind != "line"], out_of, clamp)
            return grade
        if not found and _ANNOUNCED.match(rest):
            nothing = not rest.strip(" \t\n:=|")
            raise (Absent if nothing else Unreadable)("no number", f"after the last marker: {rest[:60]!r}")
    for kind in ("sentence", "last"):
        grades = list(_mentioned([rest for which, rest, _ in attempts if which == kind], out_of, clamp))
        if len({grade.share for grade in grades}) > 1:
            raise Unreadable("contradictory", f"sentences give {grades[1].share:g} and {grades[0].share:g}")
        if grades:
            return grades[0]
    raise Absent("no marker", f"there is no `{marker}` with a number")


def _require_same(grade: Grade, rests: list[str], out_of: float, clamp: bool) -> None:
    """Raise if other markers on the line of a grade give another: "Total Score: 3/10. Total Score: 8/10"."""
    for rest in rests:
        found = _GRADE.match(rest)
        if found is None or _HYPOTHETICAL.match(rest, found.end()):
            continue
        try:
            other = _checked(found, rest, out_of, clamp)
        except Unreadable:  # it is talked about
            continue
        if other.share != grade.share:
            raise Unreadable("contradictory", f"one line gives {grade.share:g} and {other.share:g}")


def _mentioned(rests: list[str], out_of: float, clamp: bool) -> Iterator[Grade]:
    """Yield the grades of markers within sentences, the last first; that one must be clear, if it is one at all."""
    clear = False
    for rest in rests:
        found = _GRADE.match(rest)
        if found is None:
            if not clear and _ANNOUNCED.match(rest):
                raise Unreadable("no number", f"after the last marker: {rest[:60]!r}")
        elif not _HYPOTHETICAL.match(rest, found.end()):
            try:
                yield _checked(found, rest, out_of, clamp)
            except Unreadable:
                if not clear:
                    raise
            clear = True


def _attempts(text: str, marker: re.Pattern[str]) -> Iterator[tuple[_Kind, str, int]]:
    """Yield how each marker stands, what follows it, without markup, and where its line begins; the last one first."""
    for match in reversed(deque(marker.finditer(text), maxlen=MOST_MARKERS)):
        rest = text[match.end() : match.end() + REACH]
        rest += "x" if match.end() + REACH < len(text) else ""  # a number that is cut off there is none
        rest = _MINUS.sub("−", _TIMES.sub("×", _CONTINUED.sub(" ", _STRUCK.sub(" ", rest))))
        rest = _MARKUP.sub(" ", _FRACTION.sub(r"\1/\2", rest))
        kind = _kind(text, match, rest)
        if kind != "none":
            yield kind, rest, text.rfind("\n", 0, match.start())


@cache
def _marker(words: str) -> re.Pattern[str]:
    """Return how a marker is found: its words with blanks, underscores, hyphens or emphasis between them."""
    if not words.split():
        raise ValueError("the marker of a grade is empty: it needs at least one word")
    return re.compile(
        r"(?<![A-Za-z0-9])" + r"[\s*_-]{1,5}".join(map(re.escape, words.split())) + r"(?![A-Za-z0-9])", re.IGNORECASE
    )


def _kind(text: str, match: re.Match[str], rest: str) -> _Kind:
    """Return whether a marker begins a line, stands in a sentence, is the quoted last line, or is not to be read."""
    line = max(text.rfind("\n", 0, match.start()) + 1, match.start() - LONGEST_LINE)
    before = text[line : match.start()]
    after = text[match.end() : match.end() + 1]
    if _NOT_EARNED.search(before[-40:]):
        return "none"
    bare = before.rstrip("*_")
    is_key = bool(after) and after in "\"'"
    if _LINE_START.match(before) and (is_key or bare[-1:] != '"') and not _IN_A_SENTENCE.match(rest):
        return "line"
    if bare and bare[-1] in _QUOTES and bare[:-1].strip(" \t`*_|-#>{[(,:") and not is_key:
        last = _HERE_IT_IS.match(bare) and not text[match.end() : match.end() + REACH].partition("\n")[2].strip()
        return "last" if last else "none"
    sentence = re.split(r"[.!?]\s", before)[-1]
    return "none" if _NOT_GIVEN.search(sentence[-80:]) else "sentence"


def _checked(found: re.Match[str], rest: str, out_of: float, clamp: bool) -> Grade:
    _require_clear(found, rest)
    points, stated = float(found["points"]), _stated(found)
    limit = found["limit"] or found["points_limit"] or found["bare_limit"] or found["lone_limit"]
    if limit is not None and stated not in (None, float(limit)):
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
    stated = _stated(found)
    doubt = _DOUBT.match(rest, found.end())
    unclear = doubt and not (stated is not None and (doubt["equals"] or doubt["possible"]))
    if unclear or _ONE_OF_SEVERAL.match(rest, found.end()) or not _agrees(found, rest):
        raise Unreadable("no number", f"it is not clear which of these is the grade: {rest[:60]!r}")
    if re.search(r"\bof\b", found["link"], re.IGNORECASE) and stated is None:
        raise Unreadable("no number", f"{found['points']} may be the grade or what can be had")


def _agrees(found: re.Match[str], rest: str) -> bool:
    """Whether the last result of a sum on the same line, if there is one, is the grade."""
    line = rest[found.end() :].partition("\n")[0]
    total = _stated(found)
    if "=" not in line or (total is not None and not _ANOTHER.search(line)):  # 8/10, since x = 3
        return True
    result = _RESULT.match(line, line.rindex("="))
    if result is None:
        return False
    points, value = float(found["points"]), float(result["value"])
    over = 100.0 if result["percent"] else float(result["over"] or 0)
    if over:
        return total is not None and abs(value * total - points * over) < 1e-6 * over
    return value == points or bool(total and abs(value - points / total) < 1e-6)


__all__ = ["PARSER", "Grade", "read_grade"]
