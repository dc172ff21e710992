"""The letters that name candidates in an analysis, and the same analysis for another order of the candidates.

    mentions = find_mentions("A good idea, but B > A. Candidate A omits a word.", 2)
    mentions.renamed((1, 0))          # "A good idea, but A > B. Candidate B omits a word."

A capital letter that stands alone is a mention, a word, or ambiguous:

- after a noun such as "Translation", next to an operator or another letter ("A > B", "A and C"), before a colon, a
  score or a possessive, alone in emphasis, parentheses, quotation marks or a table cell, it is a mention;
- "A" at the start of a sentence is an article, unless a word follows that cannot follow an article ("A is", "A omits");
  "I" is a pronoun; a letter of a name ("vitamin C", "C++") and letters inside a quotation are words;
- all others are mentions, unless the text could mean something else ("Plan B", "A-D", "Samuel B. Jones").

One ambiguous letter makes the analysis ambiguous: it is refused, not guessed. So is a renaming after which a letter
would be read as a word ("C good" would become "A good"). Renaming and renaming back therefore gives the same text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

WINDOW = 48
"""Characters on either side of a letter that decide what it is: the time is linear in the length of the text."""

_CJK = "\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORD = rf"[^\W_{_CJK}]"  # a character of words that have spaces around them
_CJK_NOUN = "译文|翻译|候选|选项|版本|回答|答案"
_NOUN = f"translation|candidate|response|answer|option|version|output|hypothesis|rendering|rendition|{_CJK_NOUN}"
_MORE_NOUNS = "system|text|model|sentence|variant|entry|submission|choice|mt"
_OPEN, _CLOSE = "[*_`\"'“‘(\\[（「]{0,4}", "[*_`\"'”’)\\]）」]{0,4}"

_ALONE = re.compile(rf"(?<!{_WORD})[A-Z](?!{_WORD})")
_QUOTED = re.compile(
    r'"[^"\n]{1,400}"|“[^”\n]{1,400}”|「[^」\n]{1,400}」|«[^»\n]{1,400}»|`[^`\n]{1,400}`'
    r"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?!\w)"
)
_ONLY_NAMES = re.compile(rf"\W{{0,6}}(?:(?i:{_NOUN})s?\s)?[A-Z](?:\W{{1,6}}(?:and\s|or\s)?[A-Z])*\W{{0,6}}")


def _between(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for another letter on the right and on the left, with this between the two."""
    right = re.compile(rf"{_CLOSE}(?:{pattern}){_OPEN}([A-Z])(?!{_WORD})")
    return right, re.compile(rf"(?<!{_WORD})([A-Z]){_CLOSE}(?:{pattern}){_OPEN}\Z")


_AFTER_NOUN = re.compile(
    rf"(?i:(?<!{_WORD})(?:{_NOUN}|{_MORE_NOUNS})s?)(?:[ \t]{{0,2}}#?|-){_OPEN}\Z|(?:{_CJK_NOUN})\Z"
)
_COMPARED = _between(r"\s{0,2}[><=≥≤≈~≻≫→]{1,3}\s{0,2}")
_JOINED = _between(
    r"\s{0,2}(?:,\s{0,2}(?:and\s|or\s)?|and\s|or\s|&|/|[、和与及或比]|vs\.?\s|versus\s|than\s|over\s|to\s|nor\s"
    rf"|but not\s)\s{{0,2}}(?:(?i:{_NOUN})\s)?"
)
_RANGE = _between(r"\s?[-–—]\s?|\sthrough\s|\sthru\s|至|到")
_ABBREVIATED = (re.compile(r"\.([A-Z])"), re.compile(r"([A-Z])\.\Z"))
_LABEL = re.compile(
    rf"{_CLOSE}\s{{0,2}}[:：]|['’]s\b|\s{{0,2}}(?:\(|=|→|->)\s?\d|\s[-–—]\s"
    r"|\s\d{1,3}(?:\.\d{1,3})?(?:/\d{1,3})?\s{0,2}(?:[,;.)\n]|\Z)"
)
_LINE_LABEL = (re.compile(r"(?:\A|\n)[\s>#*•+-]{0,12}(?:\d{1,3}[.)]\s{0,3})?[*_(\[]{0,3}\Z"),
               re.compile(r"[*_]{0,3}(?:[.)]\s|\s{0,9}(?:\n|\Z))"))  # fmt: skip
_CELL = (re.compile(r"\|\s{0,20}[*_]{0,3}\Z"), re.compile(r"[*_]{0,3}\s{0,20}\|"))
_WRAPPED = dict(zip("([“‘\"'`*_（「", ")]”’\"'`*_）」", strict=True))
_NEAR_CJK = (re.compile(rf"[{_CJK}]\Z"), re.compile(rf"\s?[{_CJK}]"))

_SENTENCE_START = re.compile(r"(?:\A|[\n\r.!?:;…([{)\]\"“‘'«|>。！？：；–—-])[\s*_`\"“‘'(#>•+-]{0,12}\Z")
_CLAUSE_END = re.compile(rf"{_CLOSE}[,;.!?](?![A-Za-z0-9])|[)\]]|\s{{0,9}}(?:\n|\Z)")
_NEXT_WORD = re.compile(r"\s([A-Za-z]+)(?![\w'’-])")
_NOT_AFTER_ARTICLE = re.compile(
    r"(?:is|was|were|are|be|been|being|has|had|have|does|did|do|will|would|can|could|should|may|might|must|and|or|but"
    r"|nor|vs|versus|than|then|also|as|at|by|for|from|in|into|of|on|to|with|without|while|whereas|which|who|whose"
    r"|because|since|although|though|however|if|when|where|both|itself|alone|only|even|still|never|always|often|again"
    r"|that)|(?!(?:series|species|news|lens|means|sports|sales|arms|perhaps|besides|yes|times|[a-z]{1,20}ics)\Z)"
    r"[a-z]{1,30}(?<![suiao])s|(?!eu|ew|one|once)[aeio][a-z]{0,30}"  # a verb; or an article would be "An"
)
_PAST_TENSE = re.compile(r"\s[a-z]{3,30}ed\s(?:the|a|an|its|it|this|these|to|every|both)\s")

_NAME_AFTER = re.compile(r"\+|#|-[a-zA-Z0-9]|\.[A-Za-z0-9]|['’](?!s\b)\w|\sto\sZ\b|\s(?:major|minor|flat|sharp)\b")
_NAME_BEFORE = re.compile(
    r"(?i:\b(?:an?|vitamin|hepatitis|appendix|annex|exhibit|influenza|letter)[ \t-])\Z|[A-Za-z]\.\Z|°\s?\Z"
    r"|[A-Za-z0-9][-'’]\Z|letter\s[\"'“]\Z"
)
_AMBIGUOUS_BEFORE = re.compile(
    r"(?i:\b(?:plan|type|grade|class|section|figure|point|team|side|group|level|phase|row|category|part|step|block|room"
    r"|zone|column|note|schedule|series|unit|tier)s?)[ \t#-]{1,3}\Z"
)
_INITIAL = (re.compile(r"\b[A-Z][a-z]{1,30}\.?\s\Z"), re.compile(r"\.\s[A-Z][a-z]"))
# These two search a whole text in lower case: patterns that ignore case are many times slower.
_BY_PLACE = re.compile(
    rf"(?:first|second|third|fourth|fifth|sixth|last|1st|2nd|3rd|[4-9]th)\s(?:{_NOUN})"
    rf"|(?:{_NOUN})\s?#?\d{{1,2}}\b(?![.,]?\d)|第\s?[一二三四五六七八九1-9]\s?[个句条种]?\s?(?:{_CJK_NOUN})"
    r"|(?:译文|候选|选项|版本)\s?[一二三四五六七八九1-9]"
)
_HOW_MANY = re.compile(
    rf"(?:three|four|five|six|seven|eight|nine|ten|[3-9]|[12]\d)\s(?:[a-z]{{1,20}}\s)?(?:(?:{_NOUN})s?\b|of them\b)"
    rf"|[三四五六七八九十]个(?:{_CJK_NOUN})"
)
_SMALL = re.compile(rf"(?:{_NOUN}|Candidate|Translation|Option|Response|Answer)s?\s([b-z])\b(?!['’])")


class AmbiguousLetters(ValueError):  # noqa: N818
    """An analysis cannot be rewritten for another order of the candidates; the message says why."""


@dataclass(frozen=True)
class Mentions:
    """The letters of candidates in an analysis: their positions, and for each the letters that cannot stand there."""

    text: str
    count: int
    places: tuple[int, ...]
    barred: tuple[str, ...]
    doubt: str = ""

    @property
    def named(self) -> frozenset[int]:
        """The candidates that are mentioned."""
        return frozenset(_index(self.text[place]) for place in self.places)

    @property
    def counts_candidates(self) -> bool:
        """Whether the text gives a number of candidates, three or more, so that it cannot be about fewer."""
        return _HOW_MANY.search(self.text.lower()) is not None

    def renamed(self, order: Sequence[int]) -> str:
        """Return the analysis for an order in which the i-th candidate is the one that was `order[i]`-th.

        Raises:
            AmbiguousLetters: a letter is ambiguous, or would be after the renaming.
        """
        if list(order) == list(range(self.count)):
            return self.text
        if self.doubt:
            raise AmbiguousLetters(self.doubt)
        new = {ascii_uppercase[old]: ascii_uppercase[place] for place, old in enumerate(order)}
        pieces, start = list[str](), 0
        for place, barred in zip(self.places, self.barred, strict=True):
            letter = new[self.text[place]]
            if letter in barred:
                raise AmbiguousLetters(f"a letter would become {letter} where {letter} is a word")
            pieces += [self.text[start:place], letter]
            start = place + 1
        return "".join([*pieces, self.text[start:]])


def find_mentions(text: str, count: int) -> Mentions:
    """Find the letters of `count` candidates, A, B and so on, in an analysis."""
    quotes = [m.span() for m in _QUOTED.finditer(text) if not _ONLY_NAMES.fullmatch(m[0])]
    starts = [start for start, _ in quotes]
    found, doubt = list[tuple[int, str]](), _other_names(text, count)
    for match in _ALONE.finditer(text):
        place = match.start()
        quote = bisect_right(starts, place) - 1
        if _index(match[0]) < count:
            try:
                barred = _barred(text, place, count, quoted=quote >= 0 and place < quotes[quote][1])
            except AmbiguousLetters as error:
                doubt = doubt or f"{error}: {text[max(0, place - 20) : place + 20]!r}"
            else:
                found += [] if barred is None else [(place, barred)]
    return Mentions(text, count, tuple(place for place, _ in found), tuple(barred for _, barred in found), doubt)


def _index(letter: str) -> int:
    return ord(letter) - ord("A")


def _other_names(text: str, count: int) -> str:
    """Return how an analysis names candidates other than by capital letters, "" if it does not."""
    if found := _BY_PLACE.search(text.lower()):
        return f"it names a candidate by its place: {found[0]!r}"
    small = next((found for found in _SMALL.finditer(text) if _index(found[1].upper()) < count), None)
    return "" if small is None else f"it names a candidate by a small letter: {small[0]!r}"


def _barred(text: str, place: int, count: int, *, quoted: bool) -> str | None:
    """Return the letters that would be words at this place: "", "I" or "AI"; None where this letter is a word."""
    letter, before, after = text[place], text[max(0, place - WINDOW) : place], text[place + 1 : place + 1 + WINDOW]

    def pair(patterns: tuple[re.Pattern[str], re.Pattern[str]]) -> bool:
        found = (patterns[0].match(after), patterns[1].search(before))
        return any(match is not None and _index(match[1]) < count for match in found)

    def around(patterns: tuple[re.Pattern[str], re.Pattern[str]]) -> bool:
        return bool(patterns[1].match(after) and patterns[0].search(before))

    after_noun = _AFTER_NOUN.search(before) is not None
    if quoted:
        if after_noun or pair(_COMPARED):
            raise AmbiguousLetters("a letter in a quotation may be that of a candidate")
        return None
    wrapped = bool(before and after) and _WRAPPED.get(before[-1]) == after[0]
    named = (
        after_noun or wrapped or bool(_LABEL.match(after)) or around(_LINE_LABEL) or around(_CELL) or pair(_COMPARED)
    )
    if not after_noun:
        if pair(_ABBREVIATED):
            raise AmbiguousLetters("it may be an abbreviation, or two candidates")
        if pair(_RANGE):
            raise AmbiguousLetters("it may be a range of candidates")
        if _AMBIGUOUS_BEFORE.search(before) or (not named and around(_INITIAL)):
            raise AmbiguousLetters("it may be a name or an initial, or a candidate")
        if _NAME_BEFORE.search(before) or _NAME_AFTER.match(after):
            return None
    if named:
        return ""
    if not pair(_JOINED) and (_NEAR_CJK[0].search(before) or _NEAR_CJK[1].match(after)):
        raise AmbiguousLetters("it stands in Chinese, Japanese or Korean writing without a noun")
    if _is_article_place(letter, before, after, joined=pair(_JOINED)):
        return None if letter in "AI" else "AI"
    if letter == "I" and pair(_JOINED):
        raise AmbiguousLetters("I may be a candidate or the speaker")
    return None if letter == "I" else "I"


def _is_article_place(letter: str, before: str, after: str, *, joined: bool) -> bool:
    """Whether "A" would be an article, or the first word of a title, at this place."""
    if joined or _CLAUSE_END.match(after):
        return False
    word = _NEXT_WORD.match(after)
    if _SENTENCE_START.search(before):
        if letter == "A" and after.startswith(" ("):
            raise AmbiguousLetters("A may be a candidate or an article")
        return not ((word and _NOT_AFTER_ARTICLE.fullmatch(word[1])) or _PAST_TENSE.match(after))
    titled = word is not None and word[1][0].isupper()
    if titled and letter == "A":
        raise AmbiguousLetters("A may be a candidate or the first word of a title")
    return titled


__all__ = ["AmbiguousLetters", "Mentions", "find_mentions"]
