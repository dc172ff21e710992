r"""Yes or no, and which of two answers is better, in what a judge wrote.

A word counts where it is the verdict and not where it merely occurs: on a line `Answer: …` or `Verdict: …`, on a line
of its own at the end, or as a value of a JSON object. Quotations and fenced blocks are not read. Verdicts must agree.

    >>> parse_boolean("The values differ by a sign.\n\nAnswer: **False**")
    False
    >>> parse_comparison("Both are right. The second is shorter.\n\n### Verdict: B")
    'B'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rewardsmith.text.judge_replies import NoVerdict, Unparsable, clean_lines, labelled_lines, own_object, parse_own

PARSER = "verdict-2"
COMPARISON_PARSER = "comparison-2"
"""Versions of the parsers, for the record: they go up whenever a reply would be parsed otherwise."""

YES = ("true", "yes")
NO = ("false", "no")

Winner = Literal["A", "B", "tie"]

# ---- yes or no ---------------------------------------------------------------------------------------------------

_BOOLEAN_LABEL = (
    r"(?:answer|verdict|judge?ment|conclusion|decision|equivalent|equivalence|(?:(?:fully|criterion|condition)\s)?met)"
)
_LAST_LINE_LABEL = r"(?:result|output|correct|match)"  # what is compared may be called so too
_STATEMENT = re.compile(
    r"(?:(?:so|thus|hence|therefore|finally)\b[,:]?\s{1,5})?(?:(?:the|my|our)\s{1,5})?(?:(?:final|overall)\s{1,5})?"
    r"(?:answer|verdict|judge?ment|conclusion|decision)\s{1,9}is\b:?",
    re.IGNORECASE,
)
_EDGE = r"[ \t(\[{<\"'“”‘|:✅✔✓❌✗#•+-]{0,20}"
_CLOSING = " \t)]}>\"'“”’|✅✔✓❌✗\ufe0f"
# What may follow a verdict on its line, and what takes it back: at once, or anywhere in the sentence of a yes.
_FOLLOWS = re.compile(r"[.](?!\s*[0-9])|[,;!(—–]|-\s|(?:because|since|as)\b", re.IGNORECASE)
_TAKEN_BACK = re.compile(r"[\s,;(—–-]{0,9}(?:but|if|or|unless|provided|only|though|and\s+no)\b", re.IGNORECASE)
_AFTER_ALL = re.compile(r"[\s.,;!(—–-]{0,9}(?:but|although|however|actually|wait)\b", re.IGNORECASE)
_HEDGE = re.compile(
    r"\b(?:partial(?:ly)?|partly|in\s+part|mostly|mainly|largely|half|barely|almost|nearly|but|however|except|if|unless"
    r"|(?:al)?though|only|not|no|false|wrong|incorrect|differs?|different)\b|n't\b",
    re.IGNORECASE,
)
_ANOTHER_VERDICT = re.compile(r"\b(?:answer|verdict|judge?ment|conclusion|decision)\s{0,9}(?:is\b|[:=])", re.IGNORECASE)
_CONTINUES = re.compile(r"(?:\b(?:not|never|or)|n't)\Z", re.IGNORECASE)
_OF_ANOTHER = re.compile(
    r"\b(?:models?|reference|student|given|expected|correct|gold|truth|response|candidate|provided|their|its)\b"
    r".{0,80}:[ \t]{0,9}\Z",
    re.IGNORECASE,
)


def parse_boolean(reply: str, *, yes: Sequence[str] = YES, no: Sequence[str] = NO) -> bool:
    """Return the verdict of a reply, or raise `Unparsable`; `yes` and `no` are phrases in lower case."""
    words = _words(tuple(yes), tuple(no))

    def parse(text: str) -> bool:
        verdicts = _booleans(text, words)
        if len(verdicts) == 1:
            return verdicts.pop()
        error = Unparsable if verdicts else NoVerdict
        raise error("contradictory" if verdicts else "no verdict", f"neither {yes[0]} nor {no[0]} for sure")

    return parse_own(reply, parse)


@dataclass(frozen=True)
class _Words:
    """The words for yes, a verdict at the beginning of a text, and a line that is nothing but one."""

    yes: frozenset[str]
    value: re.Pattern[str]
    alone: re.Pattern[str]

    def meaning(self, match: re.Match[str]) -> bool:
        positive = re.sub(r"\s+", " ", match["word"].lower()) in self.yes
        if match["negated"] and not positive:
            raise Unparsable("contradictory", f"{match[0].strip()[:60]!r} is twice a no")
        return positive and not match["negated"]

    def opening(self, text: str, *, or_label: bool = False) -> bool | None:
        """Return the verdict that a text begins with; None where it has none, takes it back, or may be a label."""
        match = self.value.match(text)
        if match is None:
            return None
        rest = text[match.end() :].lstrip(_CLOSING)[:300]
        if rest:
            follows = _FOLLOWS.match(rest)
            if not follows or _TAKEN_BACK.match(rest) or _ANOTHER_VERDICT.search(rest):
                return None
            if or_label and follows[0] not in (",", ".", "!"):
                return None
        verdict = self.meaning(match)
        sentence = re.split(r"[.!](?:\s|\Z)", rest, maxsplit=1)[0]
        return None if verdict and (_AFTER_ALL.match(rest) or _HEDGE.search(sentence)) else verdict


@cache
def _words(yes: tuple[str, ...], no: tuple[str, ...]) -> _Words:
    by_length = sorted((*yes, *no), key=len, reverse=True)
    either = "|".join(re.escape(word).replace(r"\ ", r"\s{1,5}") for word in by_length)
    word = rf"(?P<negated>not\s{{1,5}})?(?P<word>{either})(?![A-Za-z0-9/]|-[A-Za-z]|'[A-Za-z])"
    value = rf"{_EDGE}(?:(?:it|this|that)\s{{1,5}}is\s{{1,5}}|they\s{{1,5}}are\s{{1,5}})?{word}"
    closing = rf"[{re.escape(_CLOSING)}]{{0,20}}"
    return _Words(
        frozenset(yes),
        re.compile(value, re.IGNORECASE),
        re.compile(rf"{_EDGE}{word}{closing}[.!]?{closing}", re.IGNORECASE),
    )


def _booleans(text: str, words: _Words) -> set[bool]:
    """Return the verdicts of a judge's own words: of labelled lines if there are any, else of the first and last."""
    values, text = _object_booleans(text, words)
    lines = clean_lines(text)
    filled = [i for i, line in enumerate(lines) if line]
    if not filled:
        return values
    first, last = filled[0], filled[-1]
    labelled, end, unparsed = set[bool](), -1, False
    for found in labelled_lines(lines, rf"{_BOOLEAN_LABEL}|{_LAST_LINE_LABEL}"):
        if words.alone.fullmatch(lines[found.at]) or (
            re.fullmatch(_LAST_LINE_LABEL, found.label["name"], re.IGNORECASE) and found.at < last
        ):
            continue
        on_next_line = found.value_at > found.at
        verdict = None if on_next_line and not words.alone.fullmatch(found.value) else words.opening(found.value)
        unparsed = verdict is None
        labelled, end = (set(), found.at) if verdict is None else ({*labelled, verdict}, found.value_at)
    alone = {
        i: words.meaning(match) for i in filled if (match := words.alone.fullmatch(lines[i])) and _stands(lines, i)
    }
    later = {verdict for i, verdict in alone.items() if i > end}
    if unparsed:
        return values | later
    opening = words.opening(lines[first], or_label=True)
    found_first = set() if opening is None else {opening}
    if labelled:
        return values | labelled | found_first | later
    statement = _STATEMENT.match(lines[last])
    stated = words.opening(lines[last][statement.end() :]) if statement else None
    return values | found_first | later | (set() if stated is None else {stated})


def _stands(lines: Sequence[str], at: int) -> bool:
    """Whether a word on a line of its own is the judge's: the line above neither goes on nor introduces another's."""
    above = next((line for line in reversed(lines[max(0, at - 3) : at]) if line), "")[-200:]
    another = _OF_ANOTHER.search(above) and next(labelled_lines([above], _BOOLEAN_LABEL), None) is None
    return not another and not _CONTINUES.search(above)


def _object_booleans(text: str, words: _Words) -> tuple[set[bool], str]:
    """Return what the values of the last JSON object say, and the text without it."""
    found = own_object(text)
    if found is None:
        return set(), text
    values = set[bool]()
    for value in found.value.values():
        if isinstance(value, bool):
            values.add(value)
        elif isinstance(value, str) and (match := words.alone.fullmatch(value[:200])):
            values.add(words.meaning(match))
    return values, f"{text[: found.start]}\n{text[found.end :]}"


# ---- which of two ------------------------------------------------------------------------------------------------

_WINNER_LABEL = r"(?:verdict|winner|decision|better[ _]{1,5}(?:answer|response|candidate|translation)|preferred|better)"
_WINNER_IS = re.compile(
    rf"(?:(?:so|thus|hence|therefore|finally)\b[,:]?\s{{1,5}})?(?:(?:the|my|our)\s{{1,5}}(?:(?:final|overall)\s{{1,5}})?"
    rf"{_WINNER_LABEL}\s{{1,5}}is\s{{1,5}})?",
    re.IGNORECASE,
)
_WRAPPING = re.compile(r"[#\"“”\[\]{}]|(?<![A-Za-z])'|'(?![A-Za-z])")
_NOUN = r"(?:(?:the )?(?:candidate|answer|response|option|assistant|translation) )?"
_BETTER = (
    r"(?: (?:is|was) (?:(?:clearly|slightly|much|somewhat|far|marginally) )?(?:the )?better"
    rf"(?: (?:answer|response|one))?(?: than {_NOUN}(?-i:(?P<other>[AB])))?(?: overall)?| wins)?"
)
_ONE = re.compile(rf"{_NOUN}(?-i:(?P<one>[AB]))(?![A-Za-z0-9]){_BETTER}", re.IGNORECASE)
_ORDER = re.compile(r"(?P<first>[AB]) ?(?P<sign>>{1,3}|<{1,3}|={1,2}|≈) ?(?!(?P=first))[AB]")
_TIE = re.compile(
    r"(?:it(?:'s| is) )?(?:a )?(?:tie|tied|draw|equal|equally good|equally bad|neither|neither is better|no winner)"
    rf"(?: between {_NOUN}(?-i:A) and {_NOUN}(?-i:B))?"
    rf"|(?:both(?: answers| responses| candidates)?|{_NOUN}(?-i:A) and {_NOUN}(?-i:B)|they)"
    r" are (?:equal|tied|equally (?:good|bad|strong|weak))",
    re.IGNORECASE,
)
# What may follow a letter, and what makes the letter no verdict when it does.
_REASON = re.compile(r",? (?:because|since|as) | ?\(| [-–—] | ?[;—] ?|\. ", re.IGNORECASE)
_DOUBT = re.compile(
    r"\b(?:or|tie|tied|draw|equal(?:ly)?|wait|actually|however|but|although|not|no|if|unless|maybe|unsure)\b"
    r"|\b(?-i:[AB]) (?:is|was|seems|looks)(?: \w+)? (?:the )?(?:better|best|stronger)|\b(?-i:[AB]) wins|[<>]",
    re.IGNORECASE,
)


MAX_VALUE = 300
"""Characters of a verdict and its reason that are parsed."""


def parse_comparison(reply: str) -> Winner:
    r"""Return which of two answers a judge prefers, or raise `Unparsable`.

    The last line with a label such as `Verdict:` decides. Without one: a JSON object with such a key; else all lines
    that are nothing but a statement ("A is better", "the winner is A") and the last line, also as `[[A]]` or
    `\boxed{A}`, and these must agree. It must be `A`, `B`, `tie`, `A > B` or `A = B`; a labelled verdict may have a
    reason behind it.
    """
    return parse_own(reply, _comparison)


def _comparison(text: str) -> Winner:
    lines = clean_lines(text)
    labelled = list(labelled_lines(lines, _WINNER_LABEL))
    if labelled:
        last = labelled[-1]
        if not last.value:
            raise NoVerdict("unclear verdict", "there is nothing after its label")
        winner = _clear(last.value)
        for i, earlier in enumerate(reversed(labelled[:-1]), 1):  # a form that was copied
            if earlier.at == last.at - i and _winner(earlier.value, reasoned=True) != winner:
                raise Unparsable("contradictory", "lines with different verdicts follow each other")
        return winner
    found = own_object(text)
    for key, value in found.value.items() if found else ():
        if isinstance(value, str) and re.fullmatch(_WINNER_LABEL, key, re.IGNORECASE):
            return _clear(value)
    filled = [line for line in lines if line]
    statements = [line for line in filled[:-1] if re.search(r"\b(?:better|wins|winner)\b", line)] + filled[-1:]
    parsed = [_winner(_WINNER_IS.sub("", line, count=1)) for line in statements]
    winners = {winner for winner in parsed if winner}
    if not winners:
        raise NoVerdict("no verdict", repr(filled[-1][:80]) if filled else "the reply is empty")
    if len(winners) > 1:
        raise Unparsable("contradictory", f"lines say {' and '.join(sorted(winners))}, and none has a label")
    return winners.pop()


def _clear(value: str) -> Winner:
    winner = _winner(value, reasoned=True)
    if winner is None:
        raise Unparsable("unclear verdict", repr(value[:80]))
    return winner


def _winner(value: str, *, reasoned: bool = False) -> Winner | None:
    """Return what a line says when that is all that it says, but for a reason where there may be one."""
    if len(value) > MAX_VALUE and not reasoned:
        return None
    value = " ".join(_WRAPPING.sub(" ", value[:MAX_VALUE]).split()).strip()
    value = re.sub(r"\A\((.{1,60})\)\Z", r"\1", value).rstrip(".!, ✅✔\ufe0f")
    match = _ORDER.fullmatch(value)
    if _TIE.fullmatch(value) or (match and match["sign"][0] in "=≈"):
        return "tie"
    if match:
        return "A" if (match["first"] == "A") == (match["sign"][0] == ">") else "B"
    one = _ONE.match(value)
    if one is None or one["one"] == one["other"]:
        return None
    rest = value[one.end() :]
    if rest and (not reasoned or not _REASON.match(rest) or _DOUBT.search(rest)):
        return None
    return "A" if one["one"] == "A" else "B"
