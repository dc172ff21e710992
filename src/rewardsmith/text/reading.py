"""What the readers of judges' answers share: how they say no, whose words they read, and what they overlook."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")

_THOUGHT = r"(?:think|thinking|thought|seed:think)"
_CLOSED = re.compile(rf"</{_THOUGHT}\s{{0,9}}>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_OPEN = re.compile(rf"\s*+(?:<{_THOUGHT}\s{{0,9}}>|\[THINK\]|◁think▷|<\|channel\|>(?!final))", re.IGNORECASE)
_FINAL = re.compile(r"<\|channel\|>final[^<\n]{0,80}<\|message\|>|(?<=assistant)final(?=\W|[A-Z])")
_UNMARKED = re.compile(r"\s*+analysis(?=[A-Z])")  # the same channels, by a server that leaves out special tokens
_AROUND_A_NAME = "\"'`“”‘’«»"

_FENCE = re.compile(r"[ \t]{0,12}(?P<mark>`{3,}+|~{3,}+)(?P<info>[^`]*+)\Z")
_QUOTING = re.compile(
    r"\b(?:says?|said|contains?|claims?|ends?|writes?|wrote|includes?|reads|states?|shows?|quot[a-z]{1,6}|fakes?|was)\b",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_END_TOKEN = re.compile(r"(?:\s{0,9}(?:<[|｜][^<>|｜\n]{1,40}[|｜]>|</s>)){1,5}\s*+\Z")


class Unreadable(ValueError):  # noqa: N818 it is the text that is so
    """A text holds no verdict that may be used.

    Attributes:
        reason: why, in a few words that are the same for all texts of a kind, so that they can be counted.
        invalid: True when a verdict was read, but lies outside what is allowed.
    """

    def __init__(self, reason: str, detail: str = "", *, invalid: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.invalid = invalid


class Absent(Unreadable):
    """A text does not even begin to give a verdict."""


def after_thinking(text: str) -> str:
    """Return what follows the last closed thought, or the whole text if there is none.

    A thought that was only closed counts: some chat templates open it in the prompt. A tag that a sentence, a pair of
    quotation marks or parentheses only mention is none, and one that opens counts at the beginning alone.

    Raises:
        Unreadable: a thought was begun and not ended.
    """
    last = None
    for tag in _CLOSED.finditer(text):
        if not _is_mentioned(text, tag):
            last = tag
    rest = text[last.end() :] if last else text
    if _OPEN.match(rest) or _UNMARKED.match(rest):
        channel = None
        for final in _FINAL.finditer(rest):
            channel = final
        if channel is None:
            raise Unreadable("unfinished thought")
        return rest[channel.end() :]
    return rest.removeprefix(start[0]) if (start := _FINAL.match(rest.lstrip())) else rest


def _is_mentioned(text: str, tag: re.Match[str]) -> bool:
    """Whether a tag is a word of a sentence, as in "the </think> tag", and not the end of a thought."""
    before, after = text[max(0, tag.start() - 40) : tag.start()], text[tag.end() : tag.end() + 40]
    if before[-1:] and before[-1:] in _AROUND_A_NAME and after[:1] and after[:1] in _AROUND_A_NAME:
        return True
    line = before.rpartition("\n")[2]
    follows = after.lstrip(" \t")[:1]
    within = line[-1:] in (" ", "\t", "(") and line.rstrip(" \t")[-1:] not in ("", ".", "!", "?", ":")
    return within and follows not in ("", "\n") and (after[:1] in (" ", "\t") or follows in ").,;")


def tidied(text: str) -> str:
    """Return a text without look-alikes: full-width signs, invisible characters, other ends of lines, end tokens."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return _END_TOKEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("’", "'"))


def untagged(text: str, names: str) -> str:
    """Return a text with `<name>value</name>` on lines of their own as `name: value`; `names` is a pattern."""
    return re.sub(
        rf"^[ \t]*+<(?P<name>{names})>\s{{0,20}}(?P<value>[^<>\n]{{0,200}}?)\s{{0,20}}</(?P=name)>[ \t]*$",
        r"\g<name>: \g<value>",
        text,
        flags=re.IGNORECASE | re.MULTILINE,
    )


def voices(text: str) -> tuple[str, ...]:
    """Return a judge's own words; then, where the text ends with a fenced block, what that block holds with them.

    Lines that begin with > and fenced blocks are what others said: they become empty lines, so that lines keep their
    numbers. A block at the very end may be the verdict itself, for a reader that finds none outside, unless the line
    above says that it is a quotation.
    """
    own, block = list[str](), dict[int, str]()
    fence, ends_so = "", False
    for line in text.split("\n"):
        said = "" if line.lstrip(" \t").startswith(">") else line
        mark = _FENCE.match(line)
        if fence:
            if mark and mark["mark"].startswith(fence) and not mark["info"].strip():
                fence = ""
            else:
                block[len(own)] = said
            own.append("")
        elif mark:
            above = next((said for said in reversed(own[-3:]) if said.strip()), "")
            fence, ends_so, block = mark["mark"], not _QUOTING.search(above[-400:]), {}
            own.append("")
        else:
            own.append(said)
            ends_so = ends_so and not line.strip()
    if not ends_so:
        return ("\n".join(own),)
    return "\n".join(own), "\n".join(block.get(place, line) for place, line in enumerate(own))


def read_own(text: str, read: Callable[[str], V]) -> V:
    """Read a judge's own words, and its last fenced block only where they do not even begin to give a verdict.

    Raises:
        Unreadable: by `read`.
    """
    first, *rest = voices(text)
    try:
        return read(first)
    except Absent:
        if not rest:
            raise
        return read(rest[0])


__all__ = ["Absent", "Unreadable", "after_thinking", "read_own", "tidied", "untagged", "voices"]
