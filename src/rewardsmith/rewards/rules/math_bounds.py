r"""What a computer algebra system may be asked to read.

An answer is the model's: `10^{10^{10}}`, `((9!)!)!` or a hundred nested roots would keep it busy for hours. Each bound
below is far above what answers of textbooks and contests need, and is checked on the text, before anything is computed.
"""

from __future__ import annotations

import re

LONGEST = 500
"""Characters of the longest expression that is parsed; longer answers are compared as text alone."""

DEEPEST = 10
POWER = 5_000
GROUP_POWER = 50
RELATION_POWER = 12
DIGITS = 20_000

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
_POWER = re.compile(r"\^|\*\*")
_INTEGER = re.compile(r"[0-9]+")
_FACTORIAL = re.compile(r"(?P<number>[0-9]*)(?P<mark>[)}\]!]?)\s*!")
_BINOMIAL = re.compile(r"\\[dt]?binom|\\choose")
_RELATION = re.compile(r"[=<>]|\\[lg]eq?\b")


def beyond(text: str) -> str:
    """Return what makes an expression too large to compute with, such as "powers"; "" when nothing does."""
    if len(text) > LONGEST:
        return "length"
    if _depth(text) > DEEPEST:
        return "nesting"
    for pattern, most, what in _COUNTS:
        found = sum(1 for _ in pattern.finditer(text))
        if found > most:
            return what
    if _BINOMIAL.search(text) and any(int(n) > POWER for n in _INTEGER.findall(text)):
        return "binomials"
    if any(_large_factorial(text, match) for match in _FACTORIAL.finditer(text)):
        return "factorials"
    related = bool(_RELATION.search(text))
    return "powers" if any(_large_power(text, match, related) for match in _POWER.finditer(text)) else ""


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in text:
        depth += (mark in "({[") - (mark in ")}]")
        deepest = max(deepest, depth)
    return deepest


def _large_factorial(text: str, match: re.Match[str]) -> bool:
    """Say whether a factorial is of a large number, of a factorial, or of a group that holds a large number."""
    if match["mark"] == "!":
        return True
    if match["mark"]:  # the group is not looked up: every number before it counts
        before = text[: match.start("mark")]
        return "!" in before or "^" in before or any(int(n) > 100 for n in _INTEGER.findall(before))
    return bool(match["number"]) and int(match["number"]) > 2_000


def _large_power(text: str, match: re.Match[str], related: bool) -> bool:
    exponent = _exponent(text, match.end())
    numbers = [int(n) for n in _INTEGER.findall(exponent)]
    base = text[: match.start()].rstrip()
    if _POWER.search(exponent) or "!" in exponent or "\\binom" in exponent or _raised(text, match.end(), exponent):
        # A tower: only such as e^{x^2}.
        return not re.search(r"[a-z]", exponent) or max(numbers, default=0) > 9 or exponent.count("^") > 1
    largest = max(numbers, default=0)
    if re.fullmatch(r"[-+]?[0-9]+(?:\.[0-9]+)?", exponent.strip()) is None and largest > 100:
        return True
    if related:
        return largest > RELATION_POWER
    if base.endswith((")", "}", "]")):
        return largest > GROUP_POWER
    digits = re.search(r"[0-9]*$", base)
    return largest > POWER or largest * len(digits[0] if digits else "") > DIGITS


def _exponent(text: str, start: int) -> str:
    """Return what stands after `^`: a group in braces or brackets, a run of digits, or the next command or letter."""
    rest = text[start:].lstrip()
    if rest[:1] in ("{", "("):
        depth = 0
        for at, mark in enumerate(rest):
            depth += (mark in "({[") - (mark in ")}]")
            if depth == 0:
                return rest[1:at]
        return rest
    found = re.match(r"[-+−]?(?:[0-9.]+|\\[A-Za-z]+(?:\{[^{}]*\})*|.)", rest)
    return found[0] if found else ""


def _raised(text: str, start: int, exponent: str) -> bool:
    """Say whether the exponent is itself raised: 9^9^9."""
    after = text[text.find(exponent, start) + len(exponent) :].lstrip(" })")
    return bool(exponent) and after.startswith(("^", "**"))
