"""The verdict of a judge who compared two answers, called A and B."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rewardsmith.text.objects import own_object
from rewardsmith.text.reading import Absent, Unreadable, read_own, tidied, untagged

Winner = Literal["A", "B", "tie"]

PARSER = "comparison-1"
"""The version of this reader, for the record: it goes up whenever a text would be read otherwise."""

TAIL = 20_000
"""Characters at the end of an answer in which the verdict is looked for."""

LONGEST_LINE = 300
"""Characters of a line that are looked at, from where its verdict should begin."""

_NAME = r"(?:verdict|winner|decision|better[ \t_]{1,5}(?:answer|response|candidate|translation)|preferred|better)"
_LEAD = (
    r"[ \t#|•+-]{0,20}(?:[0-9]{1,2}[.)][ \t]{1,5})?(?:(?:so|thus|hence|therefore|finally)\b,?[ \t]{1,5})?"
    r"(?:(?:the|my|our)[ \t]{1,5})?(?:(?:final|overall)[ \t]{1,5})?"
)
_MARKER = re.compile(
    rf"{_LEAD}{_NAME}\b[ \t]{{0,9}}(?:is[ \t]{{0,5}})?[:=|]|{_LEAD}{_NAME}[ \t]{{1,5}}[-–—][ \t]", re.I
)
_IS = re.compile(rf"{_LEAD}{_NAME}[ \t]{{1,5}}is[ \t]{{1,5}}", re.IGNORECASE)
_SO = re.compile(r"(?:so|thus|hence|therefore|finally)\b[,:]?[ \t]{1,5}", re.IGNORECASE)

_EMPHASIS = re.compile(r"[*_`$]|</?(?:b|i|strong|em|u)>")
_WRAPPING = re.compile(r"\\(?:boxed|fbox|text[a-z]{0,4}|math[a-z]{1,4})|[#\"“”\[\]{}]|(?<![A-Za-z])'|'(?![A-Za-z])")
_NOUN = r"(?:(?:the )?(?:candidate|answer|response|option|assistant|translation) )?"
_BETTER = (
    r"(?: (?:is|was) (?:(?:clearly|slightly|much|somewhat|far|marginally) )?(?:the )?better"
    rf"(?: (?:answer|response|one))?(?: than {_NOUN}(?-i:(?P<other>[AB])))?(?: overall)?| wins)?"
)
_ONE = re.compile(rf"{_NOUN}(?-i:(?P<one>[AB]))(?![A-Za-z0-9]){_BETTER}", re.IGNORECASE)
_ORDER = re.compile(r"(?P<first>[AB]) ?(?P<sign>>{1,3}|<{1,3}|={1,2}|≈) ?(?P<second>[AB])")
_BOTH = rf"(?:both(?: answers| responses| candidates)?|{_NOUN}(?-i:A) and {_NOUN}(?-i:B)|they)"
_TIE = re.compile(
    r"(?:it(?:'s| is) )?(?:a )?(?:tie|tied|draw|equal|equally good|equally bad|neither|neither is better|no winner)"
    rf"(?: between {_NOUN}(?-i:A) and {_NOUN}(?-i:B))?"
    rf"|{_BOTH} are (?:equal|tied|equally (?:good|bad|strong|weak))",
    re.IGNORECASE,
)
# What may follow a letter, and what makes the letter no verdict when it does.
_REASON = re.compile(r",? (?:because|since|as) | ?\(| [-–—] | ?[;—] ?|\. ", re.IGNORECASE)
_DOUBT = re.compile(
    r"\b(?:or|tie|tied|draw|equal(?:ly)?|wait|actually|however|but|although|not|no|if|unless|maybe|unsure)\b"
    r"|\b(?-i:[AB]) (?:is|was|seems|looks)(?: \w+)? (?:the )?(?:better|best|stronger)|\b(?-i:[AB]) wins|[<>]",
    re.IGNORECASE,
)


def read_comparison(text: str) -> Winner:
    r"""Return which of two answers a judge prefers.

    What follows `Verdict:` (or `Winner:`, `Decision:`) at the beginning of a line decides, there or on the next line;
    the last of them, where there are several. Without one: a JSON object with such a key, or lines that say "the winner
    is A" or "A is better", and the last line, also as `[[A]]` or `\boxed{A}`; these must agree. It must say `A`, `B` or
    `tie` and nothing else but a noun, "is better" and markup; `A > B` and `A = B` are understood too, and after
    `Verdict: A` a reason. Letters within a sentence, such as "not A" or "A or B", are no verdict; quotations and fenced
    blocks are not read.

    Raises:
        Unreadable: `no verdict` when nothing is where a verdict should be; `unclear verdict` when it is something else;
            `contradictory` when lines without a marker disagree, or one marked line right after another, as in a form
            that is copied.
    """
    return read_own(untagged(tidied(text[-TAIL:]), _NAME), _read)


def _read(said: str) -> Winner:
    lines = [_EMPHASIS.sub(" ", line).strip() for line in said.split("\n")]
    marked = [(place, marker.end()) for place, line in enumerate(lines) if (marker := _MARKER.match(line))]
    if marked:
        return _marked(lines, marked)
    found = own_object(said)
    for key, value in found.value.items() if found else ():
        if isinstance(value, str) and re.fullmatch(_NAME, key, re.IGNORECASE):
            return _clear(value)
    filled = [line for line in lines if line]
    said_so = (_unmarked(line, last=place == len(filled) - 1) for place, line in enumerate(filled))
    winners = {winner for winner in said_so if winner is not None}
    if len(winners) > 1:
        raise Unreadable("contradictory", f"there is no marker, and lines say {' and '.join(sorted(winners))}")
    if winners:
        return winners.pop()
    raise Absent("no verdict", repr(filled[-1][:80]) if filled else "there is no line with one")


def _unmarked(line: str, *, last: bool) -> Winner | None:
    """Return what a line says that is a whole statement, or the last one."""
    stated = _IS.match(line)
    line = _SO.sub("", line[stated.end() :][:LONGEST_LINE] if stated else line[: LONGEST_LINE + 1])
    if len(line) > LONGEST_LINE or not (last or stated or re.search(r"\b(?:better|wins)\b", line)):
        return None
    return _winner(line)


def _marked(lines: Sequence[str], marked: Sequence[tuple[int, int]]) -> Winner:
    """Return what the last marked line says, unless the lines right before it are marked and say something else."""
    place, end = marked[-1]
    rest = lines[place][end:].strip(" |")
    if not rest:
        following = next((line for line in lines[place + 1 : place + 4] if line), "")
        if not following:
            raise Absent("unclear verdict", "there is nothing after its marker")
        return _clear(following)
    winner = _clear(rest)
    for earlier, begin in reversed(marked[:-1]):
        if earlier != place - 1:
            break
        place = earlier
        if _winner(lines[earlier][begin:][:LONGEST_LINE].strip(" |"), reasoned=True) != winner:
            raise Unreadable("contradictory", "lines with different verdicts follow each other")
    return winner


def _clear(said: str) -> Winner:
    winner = _winner(said[:LONGEST_LINE], reasoned=True)
    if winner is None:
        raise Unreadable("unclear verdict", repr(said[:80]))
    return winner


def _winner(said: str, *, reasoned: bool = False) -> Winner | None:
    """Return what a line says when that is all that it says, but for a reason where there may be one."""
    plain = " ".join(_WRAPPING.sub(" ", said).split()).strip()
    plain = re.sub(r"\A\((.{1,60})\)\Z", r"\1", plain).rstrip(".!, ✅✔\ufe0f")
    if match := _ORDER.fullmatch(plain):
        first, sign, second = match["first"], match["sign"], match["second"]
        if first == second:
            return None
        return "tie" if sign[0] in "=≈" else "A" if (first == "A") == (sign[0] == ">") else "B"
    if _TIE.fullmatch(plain):
        return "tie"
    one = _ONE.match(plain)
    if one is None or one["one"] == one["other"]:
        return None
    rest = plain[one.end() :]
    if rest and (not reasoned or not _REASON.match(rest) or _DOUBT.search(rest)):
        return None
    return "A" if one["one"] == "A" else "B"


__all__ = ["PARSER", "Winner", "read_comparison"]
