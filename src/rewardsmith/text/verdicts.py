r"""Yes or no in what a judge wrote.

A word counts where it is the verdict and not where it merely occurs: as the whole answer, as a line of its own, as the
first word before a comma or a full stop, in a `\boxed{…}`, as a value of a JSON object, or after `Answer:`, `Verdict:`
and the like. "not true" is a no, "untrue" and "it would be true if" are nothing. Several verdicts must agree.

    >>> read_boolean("The values differ by a sign.\n\nAnswer: **False**")
    False
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from rewardsmith.text.answers import boxed
from rewardsmith.text.objects import last_object
from rewardsmith.text.reading import Unreadable

YES = ("true", "yes")
NO = ("false", "no")

TAIL = 50_000
"""Characters at the end of a text that are read."""

_EDGE = r"[\s*_`\"'“”‘’$()\[\]{}#>|-]{0,20}"
_CUE = (
    r"(?:(?<=\n)|(?<=[.!?][ \t])|^)[\s*_#>-]{0,20}"
    r"(?:(?:so|thus|hence|therefore),? )?(?:(?:the|my|our|your) )?(?:final )?"
    r"(?:answer|verdict|judge?ment|conclusion|decision|result|output|equivalent|equivalence|correct|met)\b"
    r"[\s*_`]{0,5}(?::|=|\bis\b:?)"
)


def read_boolean(text: str, *, yes: Sequence[str] = YES, no: Sequence[str] = NO) -> bool:
    """Return the verdict of a text.

    Args:
        text: what the judge wrote, without its thoughts; only the end of a long one is read.
        yes: words and phrases for yes, in lower case; with "not" before them they are a no.
        no: words and phrases for no.

    Raises:
        Unreadable: there is no verdict, or there are several that disagree.
    """
    verdicts = set(_verdicts(text[-TAIL:], tuple(yes), tuple(no)))
    if len(verdicts) != 1:
        raise Unreadable("contradictory" if verdicts else "no verdict", f"neither {yes[0]} nor {no[0]} for sure")
    return verdicts.pop()


def _verdicts(text: str, yes: tuple[str, ...], no: tuple[str, ...]) -> Iterator[bool]:
    alone, stated = _patterns(yes, no)

    def value(match: re.Match[str] | None) -> Iterator[bool]:
        if match is not None and match["word"]:
            positive = re.sub(r"\s+", " ", match["word"].lower()) in yes
            if match["negated"] and not positive:
                raise Unreadable("contradictory", f"{match[0].strip()[:60]!r} is twice a no")
            yield positive and not match["negated"]

    for line in alone.finditer(text):
        yield from value(line)
    for cue in stated.finditer(text):
        yield from value(cue)
    box = boxed(text)
    yield from value(alone.fullmatch(box.removeprefix("\\text") if box else ""))
    for said in (last_object(text) or {}).values():
        if isinstance(said, bool):
            yield said
        elif isinstance(said, str):
            yield from value(alone.fullmatch(said[:200]))


@cache
def _patterns(yes: tuple[str, ...], no: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what a line that is nothing but a verdict looks like, and a verdict after a cue or at the very start."""
    words = sorted((*yes, *no), key=len, reverse=True)
    either = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in words)
    word = rf"(?P<negated>not\s+)?(?P<word>{either})(?![A-Za-z0-9_'’]|-[A-Za-z])"
    hedged = r"\s*(?:but|if|or|unless|provided|only|though|and\s+no)\b"
    end = rf"[*_`\"'“”‘’$)\]}}]{{0,10}}(?=[ \t]*(?:\.(?!\s*[0-9])|[;:!\n—–(]|,(?!{hedged})|-\s|$))"
    return (
        re.compile(rf"^{_EDGE}{word}{_EDGE}[.!]?{_EDGE}$", re.IGNORECASE | re.MULTILINE),
        re.compile(rf"(?:{_CUE}|\A){_EDGE}(?:\\(?:text|boxed)\{{)?{word}{end}", re.IGNORECASE),
    )


__all__ = ["NO", "YES", "read_boolean"]
