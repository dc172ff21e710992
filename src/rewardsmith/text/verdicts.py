r"""Yes or no in what a judge wrote.

A word counts where it is the verdict and not where it merely occurs. What stands on a line `Answer: …` (or `Verdict:`
and the like) decides. Where there is none: a line of its own, the first word of all before a comma or a full stop, a
sentence of the last line such as "the answer is false", or a value of a JSON object. Quotations and fenced blocks are
not read. "not true" is a no; "untrue", "true, but only if" and the label "Correct: 5" are nothing. Several verdicts
must agree.

    >>> read_boolean("The values differ by a sign.\n\nAnswer: **False**")
    False
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from rewardsmith.text.objects import own_object
from rewardsmith.text.reading import Absent, Unreadable, read_own, tidied, untagged

PARSER = "verdict-1"
"""The version of this reader, for the record: it goes up whenever a text would be read otherwise."""

YES = ("true", "yes")
NO = ("false", "no")

TAIL = 50_000
"""Characters at the end of a text that are read."""

_VERDICT = r"(?:answer|verdict|judge?ment|conclusion|decision)"
_LABEL = r"(?:result|output|correct|match)"  # also what is compared may be called so
_NOUN = rf"(?:{_VERDICT}|{_LABEL}|equivalent|equivalence|(?:(?:fully|criterion|condition)[ \t]{{1,5}})?met)"
_SO = r"(?:(?:so|thus|hence|therefore|finally)\b[,:]?[ \t]{1,5})?"
_LEAD = rf"{_SO}(?:(?:the|my|our|your)[ \t]{{1,5}})?(?:(?:final|overall)[ \t]{{1,5}})?"
_MARK = r"[ \t#|•+-]{0,20}(?:[0-9]{1,2}[.)][ \t]{1,5})?"
_LINE = re.compile(rf"{_MARK}{_LEAD}(?P<noun>{_NOUN})\b[ \t]{{0,9}}[:=|?]", re.IGNORECASE)
_SENTENCE = re.compile(
    rf"(?:\A|(?<=[.!?][ \t])){_MARK}{_LEAD}{_VERDICT}\b(?:[ \t]{{0,9}}[:=]|[ \t]{{1,9}}is\b:?)", re.IGNORECASE
)
_EDGE = r"[ \t(\[{<\"'“”‘|:✅✔✓❌✗-]{0,20}"
_CLOSING = " \t)]}>\"'“”’|✅✔✓❌✗\ufe0f"
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text[a-z]{0,4}|math[a-z]{1,4})[ \t]{0,5}\{|</?(?:b|i|strong|em|u)>|\\[()\[\]]|[*_`$]"
)

# What may follow a verdict on its line, and what takes it back: at once, or anywhere in the sentence of a yes.
_FOLLOWS = re.compile(r"[.](?!\s*[0-9])|[,;!(—–]|-\s|(?:because|since|as)\b", re.IGNORECASE)
_BACK = re.compile(r"[\s,;(—–-]{0,9}(?:but|if|or|unless|provided|only|though|and\s+no)\b", re.IGNORECASE)
_AFTER_ALL = re.compile(r"[\s.,;!(—–-]{0,9}(?:but|although|however|actually|wait)\b", re.IGNORECASE)
_HEDGE = re.compile(
    r"\b(?:partial(?:ly)?|partly|in\s+part|mostly|mainly|largely|half|barely|almost|nearly|but|however|except|if|unless"
    r"|(?:al)?though|only|not|no|false|wrong|incorrect|differs?|different)\b|n't\b",
    re.IGNORECASE,
)
# After a line that ends so, the word on the next one is denied, or another's.
_DENIED = re.compile(r"(?:\b(?:not|never|or)|n't)\Z", re.IGNORECASE)
_OF_ANOTHER = re.compile(
    r"\b(?:models?|reference|student|given|expected|correct|gold|truth|response|candidate|provided|their|its)\b"
    r".{0,80}:[ \t]{0,9}\Z",
    re.IGNORECASE,
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
    words = _words(tuple(yes), tuple(no))

    def read(said: str) -> bool:
        verdicts = _verdicts(said, words)
        if len(verdicts) == 1:
            return verdicts.pop()
        error = Unreadable if verdicts else Absent
        raise error("contradictory" if verdicts else "no verdict", f"neither {yes[0]} nor {no[0]} for sure")

    tail = tidied(text[-TAIL:])
    tail = tail if len(text) <= TAIL else f"…{tail}"  # the first word of a tail is not the first of the text
    return read_own(tail, read)


@dataclass(frozen=True)
class _Words:
    """How verdicts are spelled.

    Attributes:
        yes: words that are a yes.
        value: a verdict at the beginning of a text.
        alone: a line that is nothing but one.
        named: one word for yes and one for no, for what an object says.
    """

    yes: frozenset[str]
    value: re.Pattern[str]
    alone: re.Pattern[str]
    named: dict[bool, str]

    def meaning(self, match: re.Match[str]) -> bool:
        """Return what a match says."""
        positive = re.sub(r"\s+", " ", match["word"].lower()) in self.yes
        if match["negated"] and not positive:
            raise Unreadable("contradictory", f"{match[0].strip()[:60]!r} is twice a no")
        return positive and not match["negated"]

    def settled(self, said: str, *, label: bool = False) -> bool | None:
        """Return the verdict that a text begins with; None where it has none, or takes it back.

        Args:
            said: the rest of a line.
            label: whether the word may be a label, as in "Correct (reference): 5".
        """
        match = self.value.match(said)
        if match is None:
            return None
        rest = said[match.end() :].lstrip(_CLOSING)[:300]
        if rest:
            sure = _FOLLOWS.match(rest)
            if not sure or _BACK.match(rest):
                return None
            if label and sure[0] not in (",", ".", "!"):
                return None
        verdict = self.meaning(match)
        sentence = re.split(r"[.!](?:\s|\Z)", rest, maxsplit=1)[0]
        return None if verdict and (_AFTER_ALL.match(rest) or _HEDGE.search(sentence)) else verdict


@cache
def _words(yes: tuple[str, ...], no: tuple[str, ...]) -> _Words:
    spelled = sorted((*yes, *no), key=len, reverse=True)
    either = "|".join(re.escape(word).replace(r"\ ", r"\s{1,5}") for word in spelled)
    word = rf"(?P<negated>not\s{{1,5}})?(?P<word>{either})(?![A-Za-z0-9/]|-[A-Za-z]|'[A-Za-z])"
    value = rf"{_EDGE}(?:(?:it|this|that)\s{{1,5}}is\s{{1,5}}|they\s{{1,5}}are\s{{1,5}})?{word}"
    alone = rf"{_MARK}{_SO}{_EDGE}{word}[{re.escape(_CLOSING)}]{{0,20}}[.!]?[{re.escape(_CLOSING)}]{{0,20}}"
    return _Words(
        frozenset(yes),
        re.compile(value, re.IGNORECASE),
        re.compile(alone, re.IGNORECASE),
        {True: yes[0], False: no[0]},
    )


def _verdicts(said: str, words: _Words) -> set[bool]:
    """Return what a judge's own words say: the lines with a cue if there are any, else what else is a verdict."""
    said = _MARKUP.sub(" ", untagged(_with_object(said, words), _NOUN))
    lines = [line.rstrip() for line in said.split("\n")]
    cued, read, unread = _cued(lines, words)
    alone = list(_alone(lines, words))
    first = next((i for i, line in enumerate(lines) if line), 0)
    start = words.settled(lines[first], label=True)
    opening = set() if start is None or unread >= first else {start}
    if cued:
        return cued | opening | {verdict for place, verdict in alone if place > read}
    last = _last(lines)
    stated = (words.settled(lines[last][cue.end() :]) for cue in _SENTENCE.finditer(lines[last]) if last > unread)
    later = {verdict for place, verdict in alone if place > unread}
    return opening | later | {verdict for verdict in stated if verdict is not None}


def _cued(lines: Sequence[str], words: _Words) -> tuple[set[bool], int, int]:
    """Return what the lines with a cue say, and the places of the last that was read and of the last that was not."""
    said: defaultdict[str, set[bool]] = defaultdict(set)
    read, unread, last = -1, -1, _last(lines)
    for place, line in enumerate(lines):
        cue = _LINE.match(line)
        if cue is None or (re.match(_LABEL, cue["noun"], re.IGNORECASE) and place < last):
            continue
        rest, at = line[cue.end() :], place
        if not rest.strip(" \t|"):  # its word stands on the next line
            at = next((i for i in range(place + 1, min(place + 4, len(lines))) if lines[i]), place)
            rest = lines[at] if at > place and words.alone.fullmatch(lines[at]) else ""
        verdict = words.settled(rest)
        if verdict is None:
            said[cue["noun"].lower()].clear()
            unread = place
        else:
            said[cue["noun"].lower()].add(verdict)
            read = at
    return set().union(*said.values()), read, unread


def _last(lines: Sequence[str]) -> int:
    """Return the place of the last line that is not empty."""
    return next((place for place in reversed(range(len(lines))) if lines[place]), 0)


def _alone(lines: Sequence[str], words: _Words) -> Iterator[tuple[int, bool]]:
    """Yield the lines that are nothing but a verdict, unless the line before says that it is none."""
    before = ""
    for place, line in enumerate(lines):
        match = words.alone.fullmatch(line)
        others = _OF_ANOTHER.search(before[-200:]) and not _LINE.match(before)
        if match and not others and not _DENIED.search(before[-200:]):
            yield place, words.meaning(match)
        before = line or before


def _with_object(said: str, words: _Words) -> str:
    """Return what is said, with lines that say what its values say in place of the last object."""
    found = own_object(said)
    if found is None:
        return said
    values = list[bool]()
    for value in found.value.values():
        if isinstance(value, bool):
            values.append(value)
        elif isinstance(value, str) and (match := words.alone.fullmatch(value[:200])):
            values.append(words.meaning(match))
    lines = "\n".join(words.named[value] for value in values)
    return f"{said[: found.start]}\n{lines}\n{said[found.end :]}"


__all__ = ["NO", "PARSER", "YES", "read_boolean"]
