"""What stands beside a capital letter and tells whether it is a candidate's; see `letters.py`.

Patterns named `…_BEFORE` or `AFTER_…` look at the text before the letter and end with it; the others look at the text
after it. All of them are bounded, and look at no more than `WINDOW` characters.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WINDOW = 48
"""Characters on either side of a letter that decide what it is."""

_CJK = "\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORD = rf"[^\W_{_CJK}]"  # a letter or digit of words that have spaces around them
_NOUN = (
    r"(?:translation|candidate|response|answer|option|version|output|hypothesis|rendering|rendition"
    r"|译文|翻译|候选|选项|版本|回答|答案)"
)
_OPEN, _CLOSE = "[*_`\"'“‘(\\[（「]{0,4}", "[*_`\"'”’)\\]）」]{0,4}"
_LETTER = rf"([A-Z])(?!{_WORD})"


class Beside(NamedTuple):
    """Two letters that belong together: how the second follows, seen from the first, and the other way round."""

    after: re.Pattern[str]
    before: re.Pattern[str]


def _pair(between: str) -> Beside:
    after = re.compile(rf"{_CLOSE}{between}{_OPEN}{_LETTER}")
    return Beside(after, re.compile(rf"(?<!{_WORD})([A-Z]){_CLOSE}{between}{_OPEN}\Z"))


ALONE = re.compile(rf"(?<!{_WORD})[A-Z](?!{_WORD})")
QUOTED = re.compile(
    r'"[^"\n]{1,400}"|“[^”\n]{1,400}”|「[^」\n]{1,400}」|«[^»\n]{1,400}»|`[^`\n]{1,400}`'
    r"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?!\w)"
)
ONLY_NAMES = re.compile(rf"\W{{0,6}}(?:(?i:{_NOUN})s?\s)?[A-Z](?:\W{{1,6}}(?:and\s|or\s)?[A-Z])*\W{{0,6}}")
"""A quotation that holds nothing but letters: "A", "B and C", "Translation A"."""

# ---- it is a candidate's ------------------------------------------------------------------------------------------

NOUNS = frozenset(
    (*_NOUN[3:-1].split("|"), "system", "text", "model", "sentence", "variant", "entry", "submission", "choice", "mt")
)
"""Words after which a letter is a candidate's, also in the plural."""
_GAP = re.compile(r"[ \t]{0,2}#?|-")


def word_before(before: str) -> str:
    """Return the word that stands right before a letter, in lower case; of Chinese the last two characters."""
    stem = before.rstrip(" \t#-")
    if not _GAP.fullmatch(before, len(stem)):  # the translation - A good one
        return ""
    if stem and "\u4e00" <= stem[-1] <= "\u9fff":
        return stem[-2:]
    words = stem[-24:].split()
    return words[-1].lstrip("*_`\"'“‘([（「/,.;:").lower() if words and not stem[-1].isspace() else ""


COMPARED = _pair(r"\s{0,2}(?:[><=≥≤≈~≻≫→]{1,3})\s{0,2}")
JOINED = _pair(
    r"\s{0,2}(?:,\s{0,2}(?:and\s|or\s)?|and\s|or\s|&|/|[、和与及或比]|vs\.?\s|versus\s|than\s|over\s|to\s|nor\s"
    rf"|but not\s)\s{{0,2}}(?:(?i:{_NOUN})\s)?"
)
LABEL = re.compile(
    rf"{_CLOSE}\s{{0,2}}[:：]|['’]s\b|\s{{0,2}}(?:\(|=|→|->)\s?\d|\s[-–—]\s"
    r"|\s\d{1,3}(?:\.\d{1,3})?(?:/\d{1,3})?\s{0,2}(?:[,;.)\n]|\Z)"
)
LINE_LABEL = re.compile(r"[*_]{0,3}(?:[.)]\s|\s{0,9}(?:\n|\Z))")
LINE_MARKS = re.compile(r"(?:\A|\n)[\s>#*•+-]{0,12}(?:\d{1,3}[.)]\s{0,3})?[*_(\[]{0,3}\Z")
CELL_AFTER, CELL_BEFORE = re.compile(r"[*_]{0,3}\s{0,20}\|"), re.compile(r"\|\s{0,20}[*_]{0,3}\Z")
WRAPPED = {
    "(": ")",
    "[": "]",
    "“": "”",
    "‘": "’",
    '"': '"',
    "'": "'",
    "`": "`",
    "*": "*",
    "_": "_",
    "（": "）",
    "「": "」",
}
CJK_AFTER, CJK_BEFORE = re.compile(rf"\s?[{_CJK}]"), re.compile(rf"[{_CJK}]\Z")
ENGLISH_AFTER = re.compile(r"\s[a-z]")

# ---- it is a candidate's, unless it is I ----------------------------------------------------------------------------

END = re.compile(rf"{_CLOSE}[,;.!?](?![A-Za-z0-9])|[)\]]|\s{{0,9}}(?:\n|\Z)")
STARTS = re.compile(r"(?:\A|[\n\r.!?:;…([{)\]\"“‘'«|>。！？：；–—-])[\s*_`\"“‘'(#>•+-]{0,12}\Z")
"""The beginning of a sentence, where A is an article."""
ASIDE = re.compile(r"\s\(")
NEXT_WORD = re.compile(r"\s([A-Za-z]+)(?![\w'’-])")
PAST = re.compile(r"\s[a-z]{3,30}ed\s(?:the|a|an|its|it|this|these|to|every|both)\s")
_NO_ARTICLE = re.compile(
    r"is|was|were|are|be|been|being|has|had|have|does|did|do|will|would|can|could|should|may|might|must|and|or|but|nor"
    r"|vs|versus|than|then|also|as|at|by|for|from|in|into|of|on|to|with|without|while|whereas|which|who|whose|because"
    r"|since|although|though|however|if|when|where|both|itself|alone|only|even|still|never|always|often|again|that"
)
_VERB = re.compile(
    r"(?!(?:series|species|news|lens|means|sports|sales|arms|perhaps|besides|yes|times|[a-z]{1,20}ics)\Z)"
    r"[a-z]{1,30}(?<![suiao])s"
)
_VOWEL = re.compile(r"(?!eu|ew|one|once)[aeio][a-z]{0,30}")


def cannot_follow_article(word: str) -> bool:
    """Whether "A word" must mean the candidate A: it is a verb, or an article before it would be "An"."""
    return any(pattern.fullmatch(word) for pattern in (_NO_ARTICLE, _VERB, _VOWEL))


# ---- it is part of something else ---------------------------------------------------------------------------------

NAME_AFTER = re.compile(
    r"\+|#|-[a-zA-Z0-9]|\.[A-Za-z0-9]|['’](?!s\b)\w|\sto\sZ\b|\s(?:major|minor|flat|sharp)\b"
    r"|[股级型座轮]|超声|罩杯|类(?!似)"
)
NAME_BEFORE = re.compile(r"[A-Za-z]\.\Z|°\s?\Z|[A-Za-z0-9][-'’]\Z|维生素\Z|letter\s[\"'“]\Z")
NAMES = frozenset(("a", "an", "vitamin", "hepatitis", "appendix", "annex", "exhibit", "influenza", "letter"))
"""Words after which a letter is a name, or a mark at school."""

# ---- it cannot be told --------------------------------------------------------------------------------------------

ABBREVIATED = Beside(re.compile(r"\.([A-Z])"), re.compile(r"([A-Z])\.\Z"))
RANGE = _pair(r"(?:\s?[-–—]\s?|\sthrough\s|\sthru\s|至|到)")
MAYBE_NAMES = frozenset(
    (
        *(
            "plan",
            "type",
            "grade",
            "class",
            "section",
            "figure",
            "point",
            "team",
            "side",
            "group",
            "level",
            "phase",
            "row",
        ),
        *("category", "part", "step", "block", "room", "zone", "column", "note", "schedule", "series", "unit", "tier"),
    )
)
"""Words after which a letter may be a name, or a candidate: the point B makes."""
INITIAL_AFTER, INITIAL_BEFORE = re.compile(r"\.\s[A-Z][a-z]"), re.compile(r"\b[A-Z][a-z]{1,30}\.?\s\Z")
# These search a whole text in lower case: patterns that ignore case are many times slower.
BY_PLACE = re.compile(
    rf"(?:first|second|third|fourth|fifth|sixth|last|1st|2nd|3rd|[4-9]th)\s{_NOUN}|{_NOUN}\s?#?\d{{1,2}}\b(?![.,]?\d)"
    r"|第\s?[一二三四五六七八九1-9]\s?[个句条种]?\s?(?:译文|翻译|候选|选项|版本|回答|答案)"
    r"|(?:译文|候选|选项|版本)\s?[一二三四五六七八九1-9]"
)
HOW_MANY = re.compile(
    rf"(?:three|four|five|six|seven|eight|nine|ten|[3-9]|[12]\d)\s(?:[a-z]{{1,20}}\s)?(?:{_NOUN}s?\b|of them\b)"
    r"|[三四五六七八九十]个(?:译文|翻译|候选|选项|版本)"
)
# This one searches the text as it is.
SMALL = re.compile(rf"{_NOUN[:-1]}|Candidate|Translation|Option|Response|Answer)s?\s([b-z])\b(?!['’])")
