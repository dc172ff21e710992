"""The letters that name candidates in an analysis, and the same analysis for another order of the candidates.

    mentions = find_mentions("A good idea, but B > A. Candidate A omits a word.", 2)
    mentions.renamed((1, 0))          # "A good idea, but A > B. Candidate B omits a word."

A capital letter that stands alone is the name of a candidate after a noun such as "Translation", next to an operator,
in parentheses or emphasis, and where the words on both sides leave no doubt ("while B omits", "than A."). "A" at the
start of a sentence is an article unless a verb follows, and letters inside a quotation are words. Any other letter is
ambiguous: the analysis is refused, not guessed. No rule depends on which letter it is, so that renaming and renaming
back gives the same text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase

from rewardsmith.text.rankings import NOUN

ANALYSIS_OF_OTHERS = "the analysis mentions candidates that the subgroup leaves out"
AMBIGUOUS_LETTERS = "the letters of the analysis are ambiguous"

WINDOW = 48
"""Characters on either side of a letter that decide what it is: the time is linear in the length of the text."""

_CJK = "\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORD = rf"[^\W_{_CJK}]"  # a character of words that have spaces around them
_CJK_NOUN = "译文|翻译|候选|选项|版本|回答|答案"
_NOUNS = f"translation|candidate|response|answer|option|version|output|hypothesis|rendering|rendition|{_CJK_NOUN}"
_OPEN, _CLOSE = "[*_`\"'“‘(\\[（「]{0,4}", "[*_`\"'”’)\\]）」]{0,4}"

_ALONE = re.compile(rf"(?<!{_WORD})[A-Z](?!{_WORD})")
_QUOTED = re.compile(
    r'"[^"\n]{1,400}"|“[^”\n]{1,400}”|「[^」\n]{1,400}」|«[^»\n]{1,400}»|`[^`\n]{1,400}`'
    r"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?!\w)"
)
_WRAPPED = dict(zip("([“‘\"'`*_（「", ")]”’\"'`*_）」", strict=True))

_Neighbours = tuple[re.Pattern[str], re.Pattern[str]]


def _next_to(pattern: str) -> _Neighbours:
    """Return patterns for another letter on the left and on the right, with this between the two."""
    left = re.compile(rf"(?<!{_WORD})([A-Z]){_CLOSE}(?:{pattern}){_OPEN}\Z")
    return left, re.compile(rf"{_CLOSE}(?:{pattern}){_OPEN}([A-Z])(?!{_WORD})")


_COMPARED = _next_to(r"\s{0,2}[><=≥≤≈~≻≫→]{1,3}\s{0,2}")
_RANGE = _next_to(r"\s?[-–—]\s?|\sthrough\s|\sthru\s|至|到|\.")

_SENTENCE_START = re.compile(r"(?:\A|[\n\r.!?:;…([{)\]\"“‘'«|>。！？：；–—-])[\s*_`\"“‘'(#>•+-]{0,12}\Z")
_LED = re.compile(  # what may stand before the name of a candidate, and not before the letter of another name
    r",\s{0,2}\Z|(?:\A|\n)[\s>#*•+-]{0,12}\d{1,3}[.)]\s{0,3}[*_(\[]{0,3}\Z"
    r"|\b(?i:than|to|over|from|of|in|for|with|by|and|or|but|while|whereas|both|unlike|like|as|not|so|then|because|since"
    r"|that|thus|although|though|prefers?|beats?|puts?|places?|ranks?|is|are|only|hence|between|against|where|if|when"
    r"|also|before|after|behind|above|below|n?either|nor|[a-z]{2,20}ing)\s\Z"
)
_VERB = (  # or another word that cannot follow an article; before a vowel the article would be "An"
    r"(?:is|was|were|are|be|been|being|has|had|have|does|did|do|will|would|can|could|should|may|might|must|but|nor|vs"
    r"|versus|than|then|by|for|from|to|with|without|while|whereas|which|who|whose|because|since|though|however|when"
    r"|where|both|still|never|that)"
    r"|(?!(?:series|species|news|lens|means|sports|sales|arms|perhaps|besides|yes|times|[a-z]{1,20}ics)\b)"
    r"[a-z]{1,30}(?<![suiao])s|(?!eu|ew|one|once)[aeio][a-z]{0,30}"
)
_CLEAR_AFTER = re.compile(
    rf"{_CLOSE}(?:\s{{0,2}}[:：|]|[,;.!?](?![A-Za-z0-9])|[)\]]|\s{{0,9}}(?:\n|\Z))"
    r"|['’]s\b|\s{0,2}(?:\(|=|→|->)\s?\d|\s[-–—]\s|\s\d{1,3}(?:\.\d{1,3})?(?:/\d{1,3})?\s{0,2}(?:[,;.)\n]|\Z)"
    rf"|\s(?:{_VERB})(?![\w'’-])|\s[a-z]{{3,30}}ed\s(?:the|a|an|its|it|this|these|to|every|both)\s"
)
_ARTICLE_AFTER = re.compile(r"\s(?![a-z]{1,30}ly\b)[A-Za-z]")
_OTHER_NAME = (
    re.compile(r"(?i:\b(?:an?|letters?)\s[\"'“]?)\Z|°\s?\Z|[A-Za-z0-9][-'’]\Z"),
    re.compile(r"\+|#|-[a-zA-Z0-9]|\.[A-Za-z0-9]|['’](?!s\b)\w|\sto\sZ\b"),
)


class _NounPatterns:
    """The patterns that depend on what the candidates are called: by a common noun, or by that of the prompt."""

    def __init__(self, noun: str) -> None:
        own = re.escape(noun.lower())
        nouns = _NOUNS if own in _NOUNS.split("|") else f"{_NOUNS}|{own}"
        cjk = _CJK_NOUN if noun.isascii() else f"{_CJK_NOUN}|{own}"
        self.only_names = re.compile(rf"\W{{0,6}}(?:(?i:{nouns})s?\s)?[A-Z](?:\W{{1,6}}(?:and\s|or\s)?[A-Z])*\W{{0,6}}")
        self.after_noun = re.compile(
            rf"(?i:(?<!{_WORD})(?:{nouns}|system|text|model|sentence|variant|entry|submission|choice|mt)s?)"
            rf"(?:[ \t]{{0,2}}#?|-){_OPEN}\Z|(?i:{cjk})\Z"
        )
        self.joined = _next_to(
            r"\s{0,2}(?:,\s{0,2}(?:and\s|or\s)?|and\s|or\s|&|/|[、和与及或比]|vs\.?\s|versus\s|than\s|over\s|to\s|nor\s"
            rf"|but not\s)\s{{0,2}}(?:(?i:{nouns})\s)?"
        )
        # These two search a whole text in lower case: patterns that ignore case are many times slower.
        self.by_place = re.compile(
            rf"(?:first|second|third|fourth|fifth|sixth|last|1st|2nd|3rd|[4-9]th)\s(?:{nouns})"
            rf"|(?:{nouns})\s?#?\d{{1,2}}\b(?![.,]?\d)|第\s?[一二三四五六七八九1-9]\s?[个句条种]?\s?(?:{cjk})"
            r"|(?:译文|候选|选项|版本)\s?[一二三四五六七八九1-9]"
        )
        self.how_many = re.compile(
            r"(?:three|four|five|six|seven|eight|nine|ten|[3-9]|[12]\d)\s(?:[a-z]{1,20}\s)?"
            rf"(?:(?:{nouns})s?\b|of them\b)|[三四五六七八九十]个(?:{cjk})"
        )
        spelled = f"{nouns}|Candidate|Translation|Option|Response|Answer|{re.escape(noun)}"
        self.small = re.compile(rf"(?:{spelled})s?\s([b-z])\b(?!['’])")


_patterns = lru_cache(maxsize=16)(_NounPatterns)


class AnalysisError(Exception):
    """An analysis cannot be used for another order of the candidates; the message has the reason."""


@dataclass(frozen=True)
class Mentions:
    """The positions of the letters of candidates in an analysis; `ambiguous` where some letters may be or not."""

    text: str
    count: int
    places: tuple[int, ...]
    ambiguous: bool
    noun: str = NOUN

    @property
    def named(self) -> frozenset[int]:
        """The candidates that are mentioned."""
        return frozenset(_index(self.text[place]) for place in self.places)

    @property
    def counts_candidates(self) -> bool:
        """Whether the text gives a number of candidates, three or more, so that it cannot be about fewer."""
        return _patterns(self.noun).how_many.search(self.text.lower()) is not None

    def renamed(self, order: Sequence[int]) -> str:
        """Return the analysis for an order in which the i-th candidate is the one that was `order[i]`-th.

        An order may leave candidates out that the analysis does not mention.
        """
        if list(order) == list(range(self.count)):
            return self.text
        if len(order) < self.count and (self.counts_candidates or self.named - {*order}):
            raise AnalysisError(ANALYSIS_OF_OTHERS)
        if self.ambiguous:
            raise AnalysisError(AMBIGUOUS_LETTERS)
        letters = list(self.text)
        for place in self.places:
            letters[place] = ascii_uppercase[order.index(_index(self.text[place]))]
        return "".join(letters)


def find_mentions(text: str, count: int, noun: str = NOUN) -> Mentions:
    """Find the letters of `count` candidates, A, B and so on, in an analysis; the prompt calls them by the noun."""
    patterns = _patterns(noun)
    quotes = [m.span() for m in _QUOTED.finditer(text) if not patterns.only_names.fullmatch(m[0])]
    starts = [start for start, _ in quotes]
    small = any(_index(found[1].upper()) < count for found in patterns.small.finditer(text))
    places, ambiguous = list[int](), small or patterns.by_place.search(text.lower()) is not None
    for match in _ALONE.finditer(text):
        place = match.start()
        quote = bisect_right(starts, place) - 1
        if _index(match[0]) < count:
            found = _is_mention(text, place, count, patterns, quoted=quote >= 0 and place < quotes[quote][1])
            ambiguous = ambiguous or found is None
            places += [place] if found else []
    return Mentions(text, count, tuple(places), ambiguous, noun)


def _index(letter: str) -> int:
    return ord(letter) - ord("A")


def _is_mention(text: str, place: int, count: int, patterns: _NounPatterns, *, quoted: bool) -> bool | None:
    """Return whether the letter at this place names a candidate; None where it is ambiguous."""
    letter, before, after = text[place], text[max(0, place - WINDOW) : place], text[place + 1 : place + 1 + WINDOW]

    def next_to(neighbours: _Neighbours) -> tuple[bool, bool]:
        found = neighbours[0].search(before), neighbours[1].match(after)
        return tuple(match is not None and _index(match[1]) < count for match in found)  # type: ignore[return-value]

    after_noun, compared = bool(patterns.after_noun.search(before)), any(next_to(_COMPARED))
    if quoted:
        return None if after_noun or compared else False
    other_name = _OTHER_NAME[1].match(after) or (not after_noun and _OTHER_NAME[0].search(before))
    if other_name or any(next_to(_RANGE)):
        return None
    wrapped = bool(before and after) and _WRAPPED.get(before[-1]) == after[0]
    if after_noun or compared or wrapped:
        return True
    starts = bool(_SENTENCE_START.search(before))
    joined_left, joined_right = next_to(patterns.joined)
    led = starts or bool(_LED.search(before))
    clear = bool(_CLEAR_AFTER.match(after))
    if count < 9 and (joined_left or (led and (joined_right or clear))):  # of nine candidates, one is called I
        return True
    is_word = letter == "I" or (letter == "A" and starts and not clear and _ARTICLE_AFTER.match(after))
    return False if is_word else None
