"""The letter that a model chose among several options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from rewardsmith.text.answers import TAIL, boxed, stated
from rewardsmith.text.options import Group, Options, denied, not_the_answer, options_of, refuted, without_latex

_SURELY = (
    r"(?:(?:most\s+)?"
    r"(?:clearly|definitely|indeed|probably|likely|surely|obviously|certainly|simply|actually|really)\s+)?"
)
_CONCLUDING = (
    r"it['’]s|answer['’]s|it\s+is|(?:must|has\s+to)\s+be|so|thus|hence|therefore|doubt|say|definitely|probably|clearly"
)
_BOX_BEFORE = re.compile(
    r"\\(?:boxed|fbox)\s{0,3}(\{[^{}]{0,60}(?:\{[^{}]{0,60}\}[^{}]{0,60}){0,3}\})"
    r"\$?(?:[\s,;/&]{0,5}|[\s.,;]{0,5}(?:\\text\s?\{)?\s?(?:or|and|alternatively)[\s,]{0,3}\}?)\s{0,3}\$?$",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"[\s.,;*)}$]{0,6}(?:(?:or|and|alternatively|also|(?:but\s+)?(?:it\s+)?(?:could|might|may)\s+(?:also\s+|as\s+well\s+)?be)\b"
    r"[\s,]{0,3}(?:also\s+)?|\n\s{0,5})",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"\banswers?\b|^[ \t]*\**A\**:", re.IGNORECASE | re.MULTILINE)
_IS = re.compile(r":|=|\b(?:be|is|are|was|equals?)\b", re.IGNORECASE)
_NOT_BUT = re.compile(r"\s*not\b[^.;]{1,60}?,?\s*\bbut\s+(?:rather\s+)?", re.IGNORECASE)
_WORDS_OF_OPTION = re.compile(r"[\s,:–—-]*(?:both|all|none|neither|either|each)\b", re.IGNORECASE)
_REASON = re.compile(r"[\s,]*(?:because|since|as|for|which|rather|not|\(not)\b", re.IGNORECASE)
_HEDGED = re.compile(r"[\s,;(]*(?:or|possibly|maybe|perhaps|but\s+also|as\s+is|so\s+is)\b", re.IGNORECASE)
_AFTER_A = re.compile(r"\s+(?:because|since|as|which|is|or|and|to|through|[-–—(/&])|[-–—/;|&]")
_TAKEN_BACK = re.compile(
    r"(?:^|(?<=[\s.,;:!?…—–-]))(?:no|nope|wait|actually|sorry|correction|oops|scratch\s+that|i\s+meant?|on\s+second\s+thoughts?)\b"
    r"[\s,.:;!…—–-]{0,5}"
    r"(?:(?:no|wait|actually|sorry|i\s+meant?|it\s+(?:is|must\s+be|should\s+be)|it['’]s|make\s+(?:that|it)|rather"
    r"|the\s+(?:correct\s+|right\s+|final\s+)?answer\s+is)\b[\s,.:;!…—–-]{0,5}){0,4}",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"[\s*_$]{0,4}(?:[.!,;:]?\s{0,5}(?:$|\n)|[.!,;]\s|(?:instead|because|since|is\s+(?:the\s+)?(?:right|correct|answer|best))\b)"
)
_LINE_END = re.compile(r"[\s*_$.!]{0,6}?(?:$|\n)")
_BROKEN_OFF = re.compile(r"\s*(?:\.\.|…|—|–)[.\s]*(?:no|nope|wait|sorry|actually|i\s+mean)\b", re.IGNORECASE)
_LOST = re.compile(
    r"\b(?:scratch\s+that|just\s+kidding|i\s+take\s+(?:that|it)\s+back)[.!]?\s*$|"
    r"(?:\.\.|…|\?|—)\s{0,3}no[.!]?\s*$|\bwait,?\s+no[.!]?\s*$"
    r"|\bno,?\s+(?:that\s+is|that['’]s|this\s+is|it\s+is|it['’]s)\s+(?:wrong|incorrect|false|not\s+(?:right|correct|it|true))[.!]?\s*$",
    re.IGNORECASE,
)


MENTIONS = 500
"""Mentions of letters beyond which a text chooses none."""

LONGEST = 2_000
"""Characters of the longest phrase that chooses a letter."""


class _Patterns(NamedTuple):
    """How a choice is recognised apart from groups of letters."""

    leading: re.Pattern[str]
    single: re.Pattern[str]
    listed: re.Pattern[str]
    bold: re.Pattern[str]
    affirmed: re.Pattern[str]
    ending: re.Pattern[str]
    lower: re.Pattern[str]


@lru_cache(maxsize=32)
def _patterns(letters: str) -> _Patterns:
    upper, either = f"[{letters}]", f"[{letters}{letters.lower()}]"
    around = r"[\s(\[<*_`\"']{0,8}", r"[\s)\]>*_`\"'.:!]{0,8}"
    noun = r"(?:option|choice|letter|answer|ans|solution)"
    name = rf"(?i:(?:the\s+)?(?:correct\s+|right\s+|final\s+)?{noun}\s?(?:is\b|[.:])?)?"
    return _Patterns(
        leading=re.compile(rf"\s*{_SURELY}{name}{around[0]}({either})(?![A-Za-z0-9]|['’][A-Za-z])"),
        single=re.compile(rf"{name}{around[0]}({either}){around[1]}"),
        listed=re.compile(rf"[(\[]?({upper})[)\].:]\s"),
        bold=re.compile(rf"\*\*\s?[(\[]?({upper})(?:[)\]]|\b)[.:]?(?:\s[^*\n]{{0,200}})?\*\*"),
        affirmed=re.compile(
            r"\s+(?:is|must\s+be|would\s+be|has\s+to\s+be)\s+(?:\w+ly\s+)?(?:the\s+)?(?:right|correct|best|answer)\b"
        ),
        ending=re.compile(
            rf"(?:^|\b(?i:{_CONCLUDING})[,:]?\s+(?:it\s+is\s+)?)({upper})(?:,?\s+not\s+\(?{upper}\)?)?[.!]?\s*$"
        ),
        lower=re.compile(rf"\b(?i:option|choice|letter)\s+([{letters.lower()}])\s*[.!]?\s*$"),
    )


def choice(text: str, letters: str = "ABCDE") -> str | None:
    r"""Return the letter that a text chooses; None when it chooses none, or more than one.

    The first of these that occurs decides: a correction at the end ("no, C"); the last `\boxed{…}`; the last "answer is
    …"; a single letter as the last line; an answer of one line that begins with "B." or "(B)"; letters in bold; in
    brackets; after "option", "choose" and the like; "B is correct"; "so it is B" at the end.

    Letters that are denied ("not (B)", "all except (B)", "(B) is wrong") or questioned ("(B)?") are not chosen, and of
    letters that are joined ("B or C") none is. The article "A" and the pronoun "I" are not letters of an option. Except
    for boxes, only the last 200,000 characters are searched.

    Args:
        text: what the model wrote.
        letters: capital letters of the options, such as "ABCD".
    """
    options, patterns = options_of(letters), _patterns(letters)
    tail = text[-TAIL:].strip()
    found = _taken_back(tail, options)
    if found is None:
        found = _in_box(text, options, patterns)
    if found is None:
        found = _in_statement(tail, options, patterns)
    if found is None:
        found = _elsewhere(without_latex(tail), options, patterns)
    return next(iter(found)) if len(found) == 1 else None


def _taken_back(tail: str, options: Options) -> frozenset[str] | None:
    """Return the letters of a correction at the end of a text, as in "B... no, C"; None where there is none."""
    end = without_latex(tail[-400:])
    if _LOST.search(end):
        return frozenset()
    for cue in _TAKEN_BACK.finditer(end):
        group = options.group_at(end, cue.end())
        if cue.start() and group and not group.denied and _FINISHED.match(end, _bare_end(end, group)):
            return group.letters if not _ANSWER.search(end, group.end) else None
    return None


def _bare_end(text: str, group: Group) -> int:
    """Return where a group ends, without the marks of the end of a sentence."""
    return group.start + len(text[group.start : group.end].rstrip(" .:"))


class _Phrase(NamedTuple):
    """What a box holds, or what is stated, with the text before and after it."""

    before: str
    content: str
    after: str


def wording(text: str) -> str | None:
    r"""Return the words in which a text gives its answer: the last `\boxed{…}`, the last "answer is …", or all of it.

    None when they are denied or taken back: "not \boxed{Paris}", "I don't think the answer is Paris".
    """
    phrase = _box(text)
    is_denied = denied if phrase else not_the_answer
    phrase = phrase or _statement(text[-TAIL:].strip())
    if phrase is None:
        return text
    if (
        is_denied(without_latex(phrase.before))
        or refuted(without_latex(phrase.after))
        or _BROKEN_OFF.match(phrase.after)
    ):
        return None
    return phrase.content


def _box(text: str) -> _Phrase | None:
    content = boxed(text)
    if content is None:
        return None
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    end = text.find(content, start) + len(content)
    return _Phrase(text[max(0, start - 400) : start], content, text[end : end + 200].lstrip("}$ "))


def _statement(tail: str) -> _Phrase | None:
    for cue in reversed(list(_ANSWER.finditer(tail))[-50:]):
        rest = tail[cue.start() :]
        phrase = stated(rest)
        if phrase is not None:
            verb = _IS.search(rest)
            end = rest.find(phrase, verb.end() if verb else 0) + len(phrase)
            return _Phrase(tail[max(0, cue.start() - 200) : cue.start()], phrase, rest[end : end + 200])
    return None


def _in_box(text: str, options: Options, patterns: _Patterns) -> frozenset[str] | None:
    r"""Return the letters in the last `\boxed{…}`."""
    phrase = _box(text)
    found = _claimed(without_latex(phrase.content), options, patterns, strict=True) if phrase else None
    if phrase is None or found is None:
        return None
    if denied(without_latex(phrase.before)) or refuted(without_latex(phrase.after)):
        return frozenset()
    other = _BOX_BEFORE.search(phrase.before)
    if other:  # two boxes side by side
        found |= _claimed(without_latex(other[1]), options, patterns, strict=True) or frozenset()
    return found | _also(without_latex(phrase.after), options)


def _in_statement(tail: str, options: Options, patterns: _Patterns) -> frozenset[str] | None:
    """Return the letters in the last "answer is …", unless that is denied or questioned."""
    phrase = _statement(tail)
    if phrase is None or not_the_answer(without_latex(phrase.before)) or refuted(phrase.after):
        return None
    found = _claimed(without_latex(phrase.content), options, patterns, strict=False)
    return found | _also(without_latex(phrase.after), options) if found else found


def _also(after: str, options: Options) -> frozenset[str]:
    """Return the letters that a text adds to the one before it: "Or C.", or another line with a letter alone."""
    joined = _ALSO.match(after)
    group = options.group_at(after, joined.end()) if joined else None
    if joined is None or group is None or group.denied:
        return frozenset()
    ended = _LINE_END if joined[0].endswith(("\n", " ")) and not joined[0].strip(" .,;*)}$\n") else _FINISHED
    return group.letters if ended.match(after, _bare_end(after, group)) else frozenset()


def _claimed(phrase: str, options: Options, patterns: _Patterns, *, strict: bool) -> frozenset[str] | None:
    """Return the letters that a phrase such as "B", "(B) 42" or "B or C" claims; None where it is about something else.

    Args:
        phrase: what is in a box, or after "the answer is".
        options: the letters.
        patterns: how a choice is recognised.
        strict: whether another letter anywhere in the phrase counts too, unless the first is a label: "B maybe C".
    """
    if len(phrase) > LONGEST:
        return None
    switched = _NOT_BUT.match(phrase)
    phrase = phrase[switched.end() :] if switched else phrase
    first = _first_letter(phrase, patterns)
    if first is None:
        groups = [group for group in options.groups(phrase) if group.mark]
        chosen = [group.letters for group in groups if not group.denied]
        return frozenset[str]().union(*chosen) if chosen else frozenset() if groups and strict else None
    group = options.group_at(phrase, first.start(1))
    behind = phrase[group.end if group else first.end() :]
    if refuted(behind):
        return frozenset()
    found = frozenset([first[1].upper()]) | (group.letters if group else frozenset())
    return found | _added(behind, options, label=_is_label(phrase[first.end() :]), strict=strict)


def _first_letter(phrase: str, patterns: _Patterns) -> re.Match[str] | None:
    """Return the letter with which a phrase begins, unless it is an article, a variable or a mark (A+)."""
    first = patterns.leading.match(phrase)
    if first is None:
        return None
    letter, rest = first[1], phrase[first.end() :]
    if re.match(r"\s*[=^+]|-\s*$", rest):
        return None
    if not rest.strip(" )}]*_.:$\n\"'`>!") or _is_label(rest) or rest[:1] in tuple("*_,`\"'"):
        return first
    if letter.islower() or (letter in "AI" and not _AFTER_A.match(rest)):
        return None  # "the answer is A matter of taste"
    return first


def _is_label(rest: str) -> bool:
    """Say whether a letter is the label of an option, by what follows it: "B) 42"."""
    return rest[:1] in tuple(")].:") or rest[:2] == "**"


def _added(behind: str, options: Options, *, label: bool, strict: bool) -> frozenset[str]:
    """Return the letters that the rest of a phrase adds to the first one: "B maybe C", "(B) (C)", "B (or C)"."""
    if _WORDS_OF_OPTION.match(behind) or (strict and _REASON.match(behind)):
        return frozenset()
    listed = options.group_at(behind.strip(" ;|\n"))
    if listed and not label and listed.end == len(behind.strip(" ;|\n")):
        return listed.letters
    counts = strict or _HEDGED.match(behind) is not None
    others = [group for group in options.groups(behind) if not group.denied and (group.mark if label else counts)]
    return frozenset[str]().union(*(group.letters for group in others))


def _elsewhere(text: str, options: Options, patterns: _Patterns) -> frozenset[str]:
    """Return the letters that a text without a box and a statement chooses."""
    last = text.rstrip()[-60:].rpartition("\n")[2].strip()
    single = patterns.single.fullmatch(last)
    if single and (len(last) < 60 or len(text) < 60) and not denied(text.rstrip()[: -len(last)]):
        return frozenset([single[1].upper()])
    stripped = text.strip()
    groups = list(islice(options.groups(stripped), MENTIONS + 1))
    if len(groups) > MENTIONS:
        return frozenset()
    first = patterns.listed.match(stripped) if "\n" not in stripped else None
    if first and _WORDS_OF_OPTION.match(stripped, first.end()):
        return frozenset([first[1]])
    marked = [group for group in groups if group.mark]
    if first and not refuted(stripped[first.end() - 1 :]) and not any(group.start for group in marked):
        return frozenset([first[1]]).union(*(group.letters for group in marked))
    refused: set[str] = set()
    for tier in _tiers(stripped, groups, options, patterns):
        chosen = frozenset[str]().union(*(letters for letters, is_denied in tier if not is_denied))
        refused |= {letter for letters, is_denied in tier if is_denied for letter in letters}
        if chosen:
            return chosen if not chosen & refused else frozenset()
    return frozenset()


def _tiers(
    text: str, groups: Sequence[Group], options: Options, patterns: _Patterns
) -> Iterator[list[tuple[frozenset[str], bool]]]:
    """Yield the letters that a text mentions, with whether it denies them; the clearest mentions first."""
    bold = []
    for found in patterns.bold.finditer(text):
        group = options.group_at(text, found.start())
        is_denied = denied(text[: found.start()]) or refuted(text[found.end() :]) or bool(group and group.denied)
        bold.append((group.letters if group else frozenset([found[1]]), is_denied))
    yield bold
    for mark in ("bracket", "name"):
        yield [(group.letters, group.denied) for group in groups if group.mark == mark]
    yield [
        (group.letters, group.denied)
        for group in groups
        if group.denied or patterns.affirmed.match(text, _bare_end(text, group))
    ]
    for pattern in (patterns.ending, patterns.lower):
        yield [
            (frozenset([found[1].upper()]), denied(text[: found.start(1)]))
            for found in pattern.finditer(text, max(0, len(text) - 200))
        ]
