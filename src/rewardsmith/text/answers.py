r"""Finding the answer in what a model wrote: strings in, strings out.

Each way of looking returns None when it finds nothing. All of them take linear time, so that a hostile text of many
megabytes costs no more than reading it.

    >>> extract("2 + 2 = 4, so the answer is \\boxed{4}.", ["boxed", "stated"])
    '4'
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rewardsmith.text.numbers import last_number

TAIL = 200_000
"""Characters at the end of a text in which "the answer is" is looked for."""

REACH = 4_000
"""Characters after "the answer is" that are looked at; a longer statement is cut."""

LARGEST_BOX = 100_000
"""Characters of a box in which its end is looked for."""

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_FILLED_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*+(?!\{\s*+\})")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\s$]{1,1000}")

_CUE = re.compile(
    r"\banswers?\b(?: (?:to|of|for) [^.:\n]{1,80}?)?[\s*_`]{0,4}"
    r"(?::|=|\b(?:(?:should|must|would|will) be|is|are|was|equals?)\b)",
    re.IGNORECASE,
)
_LINE = re.compile(r"^[ \t]*\**A\**:", re.MULTILINE)
_LISTED = re.compile(r"^[ \t]*\**B\**:", re.MULTILINE)
_FILLER = re.compile(
    r"(?:[\s:*_`]|(?:therefore|thus|hence|simply|just|exactly|equal to|given by)\b,?)*+", re.IGNORECASE
)
_END = re.compile(
    r"\$\$.*?\$\$|\\\[.*?\\\]|\\\(.*?\\\)|(?<!\\)\$[^$\n]*[^$\n\s\\]\$(?![0-9])"  # mathematics hides full stops
    r"|(?P<end>\n|(?:[.?]|(?<![0-9)])!)(?=[\s*_\"')\]]|$))",
    re.DOTALL,
)
_SHORT = re.compile(r"(?:\b(?:approx|dr|mr|mrs|ms|st|vs|no|inc|jr)|\b[a-z]\.[a-z])$", re.IGNORECASE)
_AROUND = " \t\r\n*_`\"'"
_WRAPPED = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))


class FoundAnswer(NamedTuple):
    """What was found, and where it stands with all that belongs to it."""

    content: str
    start: int
    end: int


def boxed(text: str) -> str | None:
    r"""Return what the last `\boxed{…}` or `\fbox{…}` holds, or the word after a `\boxed` without braces.

    A last box that is never closed is no answer, whatever earlier boxes hold. An empty box is passed over: a text may
    name the form after its answer. Escaped braces (`\{`) do not count.
    """
    found = boxed_at(text)
    return found.content if found else None


def boxed_at(text: str) -> FoundAnswer | None:
    """Return what `boxed` finds, and where."""
    last = _last(_FILLED_BOX, text)
    return box_at(text, last) if last else None


def box_at(text: str, mark: re.Match[str]) -> FoundAnswer | None:
    """Return the box that a mark opens; None where it holds nothing, or does not end."""
    if not text.startswith("{", mark.end()):
        word = _BARE.match(text, mark.end())
        content = word[0].rstrip(".,;:") if word else ""
        return FoundAnswer(content, mark.start(), mark.end() + len(content)) if content else None
    depth = 0
    for brace in _BRACE.finditer(text, mark.end(), mark.end() + LARGEST_BOX):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            content = text[mark.end() + 1 : brace.start()].strip()
            return FoundAnswer(content, mark.start(), brace.end()) if content else None
    return None


def stated(text: str) -> str | None:
    """Return what follows the last "answer is", "answers are", "answer:" or, at the start of a line, "A:".

    The statement ends with its line or sentence; a decimal point is no full stop, neither is one within `$…$`, and the
    mark of 5! is kept. A line "A:" does not count where another starts with "B:": that is a list of options.
    """
    found = stated_at(text)
    return found.content if found else None


def stated_at(text: str) -> FoundAnswer | None:
    """Return what `stated` finds, and where, from its cue on."""
    text, skipped = text[-TAIL:], max(0, len(text) - TAIL)
    cues = [_last(_CUE, text), None if _LISTED.search(text) else _last(_LINE, text)]
    cue = max((cue for cue in cues if cue), key=lambda cue: cue.end(), default=None)
    if cue is None:
        return None
    rest = text[cue.end() : cue.end() + REACH]
    filler = _FILLER.match(rest)
    begun = filler.end() if filler else 0
    rest = rest[begun:]
    for stop in _END.finditer(rest):
        if stop["end"] and not (stop[0] == "." and _SHORT.search(rest, max(0, stop.start() - 8), stop.start())):
            rest = rest[: stop.start()]
            break
    content = unwrapped(rest)
    return FoundAnswer(content, skipped + cue.start(), skipped + cue.end() + begun + len(rest)) if content else None


def hashed(text: str) -> str | None:
    """Return the line after the last `####`, as in GSM8K, without commas and `$`; None when it has no digit."""
    _, mark, after = text.rpartition("####")
    line = after.lstrip(" \t")[:1_000].partition("\n")[0].replace(",", "").replace("$", "").strip()
    return line if mark and any(character in "0123456789" for character in line) else None


def final(text: str) -> str | None:
    """Return what comes after the last `</think>`; all of a text without such tags; None while it is still thinking."""
    _, closed, after = text.rpartition("</think>")
    if closed:
        return after.strip()
    return None if "<think>" in after else text.strip()


def tagged(text: str, tag: str = "answer") -> str | None:
    """Return what the last `<tag>…</tag>` that is not empty holds; None when it is not closed."""
    found = tagged_at(text, tag)
    return found.content if found else None


def tagged_at(text: str, tag: str = "answer") -> FoundAnswer | None:
    """Return what `tagged` finds, and where, with its tags."""
    opened = _last(re.compile(rf"<{re.escape(tag)}>(?!\s*+</{re.escape(tag)}>)"), text)
    if opened is None:
        return None
    content, closed, _ = text[opened.end() :].partition(f"</{tag}>")
    end = opened.end() + len(content) + len(closed)
    return FoundAnswer(content.strip(), opened.start(), end) if closed and content.strip() else None


def whole(text: str) -> str | None:
    """Return all of the text, without white space around it."""
    return text.strip() or None


def unwrapped(text: str) -> str:
    r"""Return a phrase without the quotation marks, emphasis, end of sentence and `$…$` or `\(…\)` around it."""
    text = text.strip(_AROUND).rstrip(".,;:?").rstrip(_AROUND)
    for opening, closing in _WRAPPED:
        inner = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and opening not in inner and inner:
            return inner.strip().rstrip(".,;:")
    return text


WAYS: dict[str, Callable[[str], str | None]] = {
    "boxed": boxed,
    "stated": stated,
    "hash": hashed,
    "tagged": tagged,
    "number": last_number,
    "final": final,
    "text": whole,
}


def extract(text: str, ways: Sequence[str]) -> str | None:
    """Return what the first of the named ways that finds something finds; None when none does."""
    return next((found for way in ways if (found := WAYS[way](text)) is not None), None)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of a pattern."""
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
