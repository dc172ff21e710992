"""What the parsers of judges' replies share: the error, whose words they read, labelled lines, JSON within prose."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

V = TypeVar("V")

MAX_TAIL = 50_000
"""Characters at the end of a reply that are parsed."""

MAX_LINE = 2_000
"""Characters of a line that are parsed; what is cut off is marked with an ellipsis."""

MAX_BROKEN_OBJECTS = 200
"""JSON objects that cannot be decoded before the search ends: each error costs time with its place in the text."""

_THOUGHT = r"(?:think|thinking|thought|seed:think)"
_CLOSED = re.compile(rf"</{_THOUGHT}\s{{0,9}}>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_OPEN = re.compile(rf"\s*+(?:<{_THOUGHT}\s{{0,9}}>|\[THINK\]|◁think▷|<\|channel\|>(?!final))", re.IGNORECASE)
_FINAL = re.compile(r"<\|channel\|>final[^<\n]{0,80}<\|message\|>|(?<=assistant)final(?=\W|[A-Z])")
_UNMARKED = re.compile(r"\s*+analysis(?=[A-Z])")  # the same channels, by a server that drops special tokens
_QUOTATION_MARKS = "\"'`“”‘’«»"

_FENCE = re.compile(r"[ \t]{0,12}(?P<mark>`{3,}+|~{3,}+)(?P<info>[^`]*+)\Z")
_QUOTES_OTHERS = re.compile(
    r"\b(?:says?|said|contains?|claims?|ends?|writes?|wrote|includes?|reads|states?|shows?|quot[a-z]{1,6}|fakes?|was)\b",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_END_TOKEN = re.compile(r"(?:\s{0,9}(?:<[|｜][^<>|｜\n]{1,40}[|｜]>|</s>)){1,5}\s*+\Z")
_TAGGED = re.compile(r"^[ \t]*+<(?P<name>\w{1,40})>\s{0,20}([^<>\n]{0,200}?)\s{0,20}</(?P=name)>[ \t]*$", re.MULTILINE)
# Markup becomes a space and never nothing: 1*0 must not read as 10. An underscore between digits stays.
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text[a-z]{0,4}|math[a-z]{1,4})[ \t]{0,5}\{?|</?(?:b|i|strong|em|u|score|code)>|\\[()\[\]]|[*`$]"
    r"|(?<![0-9])_|_(?![0-9])",
    re.IGNORECASE,
)
_LEAD = (
    r"[ \t#|•+-]{0,20}(?:[0-9]{1,2}[.)][ \t]{1,5})?(?:(?:so|thus|hence|therefore|finally)\b[,:]?[ \t]{1,5})?"
    r"(?:(?:the|my|our|your)[ \t]{1,5})?(?:(?:final|overall|total)[ \t]{1,5})?"
)
_COLON = r"[ \t]{0,9}(?:is\b[ \t]{0,9}(?=[:=]))?(?:[-=]>|[:=|?≈→]|(?<=[ \t])[-–—]{1,3}[ \t]|—)+"
_OBJECT = re.compile(r'\{\s*+["}]')
# NaN and Infinity are not JSON. Models write raw line breaks into strings, which strict would refuse.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None, strict=False)


class Unparsable(ValueError):  # noqa: N818 it is the text that is so
    """A reply holds no verdict that may be used: `reason` can be counted, `invalid` verdicts lie outside a range."""

    def __init__(self, reason: str, detail: str = "", *, invalid: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.invalid = reason, detail, invalid


class NoVerdict(Unparsable):
    """A reply does not even begin to give a verdict."""


# ---- whose words -------------------------------------------------------------------------------------------------


def after_thinking(text: str) -> str:
    """Return what follows the last closed thought, or the whole text if there is none; raise if one is not closed.

    A thought that is only closed counts, since some chat templates open it in the prompt. A tag that a sentence or
    quotation marks only mention does not count, and an opening tag counts at the beginning alone.
    """
    last = None
    for tag in _CLOSED.finditer(text):
        if not _is_mentioned(text, tag):
            last = tag
    rest = text[last.end() :] if last else text
    if _OPEN.match(rest) or _UNMARKED.match(rest):
        channel = None
        for channel in _FINAL.finditer(rest):  # noqa: B007 the last one
            pass
        if channel is None:
            raise Unparsable("unfinished thought")
        return rest[channel.end() :]
    return rest.removeprefix(start[0]) if (start := _FINAL.match(rest.lstrip())) else rest


def _is_mentioned(text: str, tag: re.Match[str]) -> bool:
    """Whether a tag is a word of a sentence, as in "the </think> tag", and not the end of a thought."""
    before, after = text[max(0, tag.start() - 40) : tag.start()], text[tag.end() : tag.end() + 40]
    if before[-1:] and before[-1:] in _QUOTATION_MARKS and after[:1] and after[:1] in _QUOTATION_MARKS:
        return True
    line = before.rpartition("\n")[2]
    follows = after.lstrip(" \t")[:1]
    within = line[-1:] in (" ", "\t", "(") and line.rstrip(" \t")[-1:] not in ("", ".", "!", "?", ":")
    return within and follows not in ("", "\n") and (after[:1] in (" ", "\t") or follows in ").,;")


def normalise(text: str) -> str:
    """Return a text without look-alikes: full-width signs, invisible characters, other line ends, end tokens."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return _END_TOKEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("’", "'"))


def parse_own(reply: str, parse: Callable[[str], V]) -> V:
    """Parse the end of a reply in the judge's own words, or its last fenced block if these give no verdict at all.

    `<name>value</name>` on a line of its own becomes `name: value`.
    """
    text = normalise(reply[-MAX_TAIL:])
    text = text if len(reply) <= MAX_TAIL else f"…{text}"  # the first line of a tail is not a whole line
    return parse_own_words(_TAGGED.sub(r"\1: \2", text), parse)


def parse_own_words(text: str, parse: Callable[[str], V]) -> V:
    """Parse a text without quotations and fenced blocks, or else with the block that it ends with."""
    first, *rest = own_words(text)
    try:
        return parse(first)
    except NoVerdict:
        if not rest:
            raise
        return parse(rest[0])


def own_words(text: str) -> tuple[str, ...]:
    """Return a judge's own words; then, where the text ends with a fenced block, its own words with that block.

    Lines that begin with > and fenced blocks quote others: they become empty lines. A block at the very end may be
    the verdict itself, unless the line above it introduces a quotation.
    """
    own, block = list[str](), dict[int, str]()
    fence, ends_with_block = "", False
    for line in text.split("\n"):
        kept = "" if line.lstrip(" \t").startswith(">") else line
        mark = _FENCE.match(line)
        if fence:
            if mark and mark["mark"].startswith(fence) and not mark["info"].strip():
                fence = ""
            else:
                block[len(own)] = kept
            own.append("")
        elif mark:
            above = next((line for line in reversed(own[-3:]) if line.strip()), "")
            fence, ends_with_block, block = mark["mark"], not _QUOTES_OTHERS.search(above[-400:]), {}
            own.append("")
        else:
            own.append(kept)
            ends_with_block = ends_with_block and not line.strip()
    if not ends_with_block:
        return ("\n".join(own),)
    return "\n".join(own), "\n".join(block.get(i, line) for i, line in enumerate(own))


# ---- lines -------------------------------------------------------------------------------------------------------


class LabelledLine(NamedTuple):
    """A line that begins with a label: its index, the match of the label, and its value, there or on the next line."""

    at: int
    label: re.Match[str]
    value: str
    value_at: int


def clean_lines(text: str) -> list[str]:
    """Return the lines without emphasis, LaTeX boxes and simple tags."""
    lines = (line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in text.split("\n"))
    return [_MARKUP.sub(" ", line).strip() for line in lines]


def labelled_lines(lines: Sequence[str], label: str, colon: str = "") -> Iterator[LabelledLine]:
    """Yield the clean lines that begin with a label and a colon, as `**Final verdict:** A` and `| Verdict | A |` do.

    `colon` is a pattern of what may stand in place of the colon.
    """
    pattern = _label_pattern(label, colon or _COLON)
    for index, line in enumerate(lines):
        found = pattern.match(line)
        if found is None:
            continue
        value, at = line[found.end() :].strip(" \t|"), index
        if not value:
            at = next((i for i in range(index + 1, min(index + 4, len(lines))) if lines[i]), index)
            value = lines[at] if at > index else ""
        yield LabelledLine(index, found, value, at)


@cache
def _label_pattern(label: str, colon: str) -> re.Pattern[str]:
    return re.compile(rf"{_LEAD}(?P<name>{label})(?![A-Za-z0-9])(?:{_COLON}|{colon}|[ \t]*\Z)", re.IGNORECASE)


# ---- JSON --------------------------------------------------------------------------------------------------------


class FoundObject(NamedTuple):
    """A JSON object and where it stands: `text[start:end]`."""

    value: dict[str, Any]
    start: int
    end: int


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text that is not part of another one; None when there is none.

    NaN and Infinity become None. Nothing inside an object that cannot be decoded counts, and nothing before one.
    """
    found = _find_object(text)
    return found.value if found else None


def own_object(text: str) -> FoundObject | None:
    """Return the last JSON object if nothing else stands on its lines: one within a sentence is only mentioned."""
    found = _find_object(text)
    if found is None:
        return None
    before = text[max(0, found.start - 200) : found.start].rpartition("\n")[2]
    after = text[found.end : found.end + 200].partition("\n")[0]
    return None if before.strip(" \t`") or after.strip(" \t`.") else found


def _find_object(text: str) -> FoundObject | None:
    found: FoundObject | None = None
    broken, opening = 0, _OBJECT.search(text)
    while opening:
        start = opening.start()
        try:
            value, end = _DECODER.raw_decode(text, start)
            found = FoundObject(value, start, end)
        except (ValueError, RecursionError):  # also numbers of thousands of digits
            found, end, broken = None, _closing_brace(text, start), broken + 1  # what stands within is part of it
            if broken == MAX_BROKEN_OBJECTS:
                return None
        opening = _OBJECT.search(text, end)
    return found


def _closing_brace(text: str, start: int) -> int:
    """Return the end of the object that begins here, by its braces alone; the end of the text if it is not closed."""
    depth = 0
    for brace in re.compile("[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    return len(text)
