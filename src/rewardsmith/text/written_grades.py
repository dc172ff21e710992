"""The answer of a grading judge, as one that learns to grade should write it."""

from __future__ import annotations

import re

from rewardsmith.text.criteria import DECIMALS
from rewardsmith.text.grades import read_grade
from rewardsmith.text.grading import plain
from rewardsmith.text.reading import Unreadable

MARKER = "Total Score"

_VERDICT = re.compile(
    r"[^A-Za-z0-9\n]{0,20}(?:boxed\{)?(?:(?:the|my|final|overall)[ \t]){0,3}[*_ ]{0,5}total[ _-]score\b", re.IGNORECASE
)
_OPEN = re.compile(r"\n?[ \t]{0,3}(?:```[a-z]{0,20}|-{3,20}|\*{3,20})[ \t]*\Z")


def write_grade(analysis: str, share: float, total: float) -> str:
    """Return an analysis that ends with the verdict in the one form that was asked for; `read_grade` reads it back.

    The verdict that the analysis has itself, if it begins a line near the end, and what follows it, is left out.

    Args:
        analysis: what a judge wrote, with a verdict that gives this share.
        share: of the points, from 0 to 1.
        total: points in all.

    Raises:
        Unreadable: nothing but the verdict is there, or what is left would be read as another grade.
    """
    lines = analysis.strip().split("\n")
    last = next((i for i in range(len(lines) - 1, -1, -1) if _VERDICT.match(lines[i])), len(lines))
    before = _OPEN.sub("", "\n".join(lines[:last]).strip()).rstrip()  # a rule, or the fence that held the verdict
    if not before.strip("#*_-=| \n`"):
        raise Unreadable("no analysis", "there is nothing but the verdict")
    points = round(share * total, DECIMALS)
    text = f"{before}\n\n{MARKER}: {plain(points)}/{plain(total)}"
    found = read_grade(text, total)
    if abs(found.points - points) > 10**-DECIMALS or found.out_of != total:
        raise Unreadable("contradictory", f"the analysis would be read as {found.points:g} out of {found.out_of:g}")
    return text


__all__ = ["MARKER", "write_grade"]
