r"""Whether a text stands by the answer that is found in it.

"The answer is not 7", "\boxed{7} is wrong" and "\boxed{7}. Wait, it is 8." hold a 7 and do not give it.
"""

from __future__ import annotations

import re

from rewardsmith.text.answers import BOX, WAYS, FoundAnswer, box_at, boxed_at, stated_at, tagged_at
from rewardsmith.text.numbers import last_number, read_number

_NEGATION = (
    r"(?:\b(?:not|never|neither|nor|cannot|without|excluding|except|wrongly|incorrectly)|\w+n['’]t"
    r"|\b(?:rather|other) than|\binstead of|\banything but|\bfar from|\brules? out|\bruled out)"
)
_FILLERS = (
    r"(?:\s+(?:equal|equals|to|be|is|the|a|an|simply|just|exactly|really|actually|quite|for|even|answer|value|number))*"
)
_MISTAKE = r"(?:mistake|error) to (?:write|say|answer|claim|give|conclude|state|put|choose|pick)"
_DENIED = re.compile(
    rf"(?:{_NEGATION}{_FILLERS}|\\neq?|≠|!=|\b(?:wrong|incorrect|mistaken|false|erroneous)\b[^.!?\n,;]{{0,40}}"
    rf"|\b{_MISTAKE}\b[^.!?\n,;]{{0,40}})[\s$]*(?:[A-Za-z]\s?=)?[\s:$({{*_`\[\\]*\Z",
    re.IGNORECASE,
)
_UNCLAIMED = re.compile(
    r"\b(?:not|never|doubt\w*|false|wrong|incorrect|mistaken|unlikely|den(?:y|ies)|whether|unless|if|suppos\w+|assum\w+"
    rf"|nobody|no way|hardly|{_MISTAKE})\b|\w+n['’]t\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(rf"[^0-9$]*?(?:{_NEGATION}|\b(?:wrong|incorrect|false)\b)[^0-9$]*[0-9$]", re.IGNORECASE)
_CONTRAST = re.compile(r",\s+(?:and\s+|but\s+)?(?:not|never|rather than|instead of)\s", re.IGNORECASE)
_BUT = re.compile(r"not\s[^\n]{1,80}?,?\s+but(?:\s+rather)?\s+(?P<rest>\S.*)", re.IGNORECASE)
_BAD = (
    r"(?:wrong|incorrect|mistaken|false|invalid|a mistake|an error"
    r"|not\s+(?:right|correct|true|valid|it|the\b[^.!?\n]{0,20}answer))"
)
_TAKEN_BACK = re.compile(
    r"\A[\s$}*).,_`'\"]*+(?:\\?[)\]]\s*+)?"
    r"(?:(?:\\{0,2}%|[A-Za-z]{1,12})[\s$})\"]*+(?:</\w{1,20}>\s*+)?(?=is\b|was\b|\\))?(?:\\{1,2}text\s?\{\s*+)?"
    r"(?:is|was|are|would be|seems)?\s*+(?:clearly |obviously )?"
    rf"(?:{_BAD}|n['’]t\b|ruled out|rejected|excluded|impossible)"
    r"|\b(?:this|that|it|which|i|above|answer|result|value|box)\b(?:\s[A-Za-z]+){0,3}?"
    rf"(?:['’]s|['’]m|\s(?:is|was|am|were|seems|looks))(?:\s\w+){{0,2}}?\s{_BAD}"
    r"|\b(?:this|that|it|answer|result)\s(?:isn|wasn)['’]t\s(?:right|correct|true|it|the\b)"
    rf"|\(\s*{_BAD}"
    r"|(?:\A|[\s.!?(])(?:wait|oops|correction|hold on|hmm+,? no|no wait)\b\s*[,.!:…—-]"
    r"|\b(?:scratch that|never ?mind|take (?:that|it|this) back|on second thoughts?"
    r"|(?:made|there is) (?:a|an) (?:mistake|error)|disregard|ignore (?:that|this|the above|my)|just kidding"
    r"|i retract|retract (?:that|this|it)|let me (?:redo|correct|fix))\b"
    r"|\bactually,?\s+(?:it|no|the (?:correct |right |real |final )?answer|that|this|should)\b"
    r"|\A[\s$}*).]*\?\s*no\b"
    r"|\bno,\s+(?:it|that|this|the answer|actually|wait)\b"
    r"|\bnope\b|\bactually,?\s+[$\\]*[0-9]|\bwould be (?:wrong|incorrect)",
    re.IGNORECASE,
)
_DOUBTED = re.compile(
    r"\S\s*(?:[(\[,;—–]|\\{1,2}text\s?\{)\s*"
    rf"(?:(?:this|that|it|which)\b(?:\s\w+){{0,3}}?\s{_BAD}|(?:is|was)\s{_BAD}|(?:wrong|incorrect|mistaken)\b)",
    re.IGNORECASE,
)
"""A remark within an answer that takes it back: 7 (this is wrong)."""

_DENIED_WORDS = re.compile(rf"\A\S{{1,60}}(?:\s\w{{1,12}})?\s(?:is|was)\s(?:clearly |obviously )?{_BAD}", re.IGNORECASE)
"""A statement whose words deny it: 7 is not the answer."""

_CLOSED_TAGS = re.compile(r"\A[\s$}*).,_`'\"%\\]*+(?:</\w{1,20}>\s*+)++")
_JOINED = re.compile(r"[\s$,;.…&\\()\[\]]*(?:(?:and|or|\\?text\s?\{\s*(?:and|or)\s*\})[\s$\\()\[\]]*)?", re.IGNORECASE)
_RUN = re.compile(
    r"[0-9][ \t]+[0-9]+\Z|(?:[-+−]?[0-9]+(?!,[0-9]{3}(?![0-9]))(?:[\s,;]|…|\.\.\.|\\[lc]?dots)+){2,}[-+−]?[0-9]+\Z"
)
_BOUND = re.compile(
    r"(?:\b(?:less|more|fewer|greater|larger|smaller|higher|lower) than|\bat (?:least|most)|\bup to|[<>≤≥]=?"
    r"|\\[lg](?:eq?|t))[\s$]*\Z",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>\n]*>\s*\Z")
_FRACTION = re.compile(r"\\[dtc]?frac\s*\Z")
_LAST = r"\s*\\?[$€£]?\s*[-−]?(?:\\{1,2}[dtc]?frac\s?\{?[-−]?[0-9]+\}?\s?\{?)?[0-9][0-9.,/^{]*\Z"
_EITHER = re.compile(
    rf"[0-9}}]\s*(?:\\{{0,2}}%|°|[A-Za-z]{{1,12}}\.?(?=\s))?\s*,?\s*(?:or|and/or|and)\b(?:\s*[A-Za-z]\s?=)?{_LAST}",
    re.IGNORECASE,
)
_EQUATED = re.compile(rf"[\n:>(#\"$|]\s*(?P<left>[^\n:>(#\"|=]{{1,60}}?)\s*={_LAST}")
"""A last number that the text says another one is: 19 = 9."""

_NEAR = 200
"""Characters before an answer in which a denial is looked for."""

_AFTER = 2_000
"""Characters after an answer, and at the end of the text, in which it may be taken back."""


def claimed(text: str, way: str) -> str | None:
    r"""Return what one of `WAYS` finds; None where it finds nothing, "" where the text denies it or takes it back.

    Boxes with nothing but "and", "or" or a comma between them are one answer, a list.
    """
    if way == "boxed":
        found = boxed_at(text)
        return _unless_denied(text, found and _with_neighbours(text, found))
    if way == "stated":
        return _statement(text)
    if way == "number":
        return _number(text)
    content = WAYS[way](text)
    if way not in ("hash", "tagged") or content is None:
        return content
    found = tagged_at(text) if way == "tagged" else _hashed_at(text, content)
    return "" if _DENIED_WORDS.match(content) else _unless_denied(text, found)


def _unless_denied(text: str, found: FoundAnswer | None) -> str | None:
    if found is None:
        return None
    before = text[max(0, found.start - _NEAR) : found.start]
    content = found.content[:_NEAR]
    denied = _DENIED.search(before) or _REFUSED.match(content) or _DOUBTED.search(content)
    return "" if denied or _taken_back(text, found.end) else found.content


def _taken_back(text: str, end: int) -> bool:
    """Say whether what follows takes an answer back: right after it, or at the very end."""
    rest = text[end:] if len(text) - end <= 2 * _AFTER else f"{text[end : end + _AFTER]}\n{text[-_AFTER:]}"
    return _TAKEN_BACK.search(_CLOSED_TAGS.sub(" ", rest)) is not None


def _statement(text: str) -> str | None:
    found = stated_at(text)
    if found is None:
        return None
    before = re.split(r"[.!?\n,;:]", text[max(0, found.start - _NEAR) : found.start])[-1]
    if _UNCLAIMED.search(before) or _taken_back(text, found.end):
        return ""
    content = found.content
    but = _BUT.fullmatch(content)
    content = but["rest"] if but else _CONTRAST.split(content, maxsplit=1)[0] or content
    denied = _REFUSED.match(content[:_NEAR]) or _DENIED_WORDS.match(content) or _DOUBTED.search(content[:_NEAR])
    return "" if denied or _TAKEN_BACK.search(content, 1) else content


def _number(text: str) -> str | None:
    content = last_number(text)
    if content is None:
        return None
    end = max(text.rfind(digit) for digit in "0123456789") + 1
    near = text[max(0, end - _NEAR) : end]
    head = _FRACTION.sub("", _TAG.sub("", near.rstrip("0123456789.,/ -+−%$€£\\{}^")))
    denied = _DENIED.search(head + " ") or _BOUND.search(head + " ") or _EITHER.search(near) or _RUN.search(near)
    return "" if denied or _equated(text, end, content) or _taken_back(text, end) else content


def _equated(text: str, end: int, content: str) -> bool:
    """Return whether the number that ends there is equated with another one."""
    found = _EQUATED.search("\n" * (end <= _NEAR) + text[max(0, end - _NEAR) : end])
    left, right = read_number(found["left"]) if found else None, read_number(content)
    return left is not None and right is not None and left.value != right.value and left.share != right.share


def _hashed_at(text: str, content: str) -> FoundAnswer:
    start = text.rfind("####")
    closing = text.find("\n", start)
    return FoundAnswer(content, start, len(text) if closing < 0 else closing + 1)


def _with_neighbours(text: str, last: FoundAnswer) -> FoundAnswer:
    """Return the last box together with those before it that are parts of the same list."""
    contents, start = [last.content], last.start
    marks = list(BOX.finditer(text, max(0, last.start - 2_000), last.start))
    for mark in reversed(marks):
        box = box_at(text, mark)
        if box is None or box.end > start or not _JOINED.fullmatch(text, box.end, start):
            break
        start = box.start
        if box.content not in contents:
            contents.insert(0, box.content)
    return FoundAnswer(", ".join(contents), start, last.end)
