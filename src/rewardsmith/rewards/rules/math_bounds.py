r"""What is parsed at all.

An answer is the model's: a hundred nested roots or ten thousand terms would keep any program busy. Each bound below is
far above what answers of textbooks and contests need, and is checked on the text, before anything is parsed. How large
numbers may become is up to `math_values`.
"""

from __future__ import annotations

import re

LONGEST = 500
"""Characters of the longest expression that is parsed; longer answers are compared as text alone."""

DEEPEST = 10

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
    if len(text) > LONGEST:
        return "length"
    if _depth(text) > DEEPEST:
        return "nesting"
    for pattern, most, what in _COUNTS:
        found = sum(1 for _ in pattern.finditer(text))
        if found > most:
            return what
    return ""


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in text:
        depth += (mark in "({[") - (mark in ")}]")
        deepest = max(deepest, depth)
    return deepest
