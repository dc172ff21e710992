"""Where a text mentions the letters of options, and whether it denies them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_FONTS = (
    r"text(?:bf|it|rm|sf|tt|sc|normal)?|math(?:rm|bf|sf|it|cal|bb|tt)|mbox|operatorname|emph|underline|boldsymbol"
    r"|bm|bf|rm|it"
)
_LATEX = (
    (re.compile(r"~~(?=\S)"), " not "),  # struck out
    (re.compile(rf"\\(?:{_FONTS}|boxed|fbox|displaystyle|left|right|quad|qquad|tag)(?![A-Za-z])"), " "),
    (re.compile(r"\\(?:lor|vee|cup)(?![A-Za-z])|[∨∪]"), " or "),
    (re.compile(r"\\(?:land|wedge|cap)(?![A-Za-z])|[∧∩]"), " and "),
    (re.compile(r"\\(?:neg|lnot|neq?|not)(?![A-Za-z])|[¬≠]"), " not "),
    (re.compile(r"\\[()\[\],;:! ~]|[{}$~]"), " "),
    (re.compile(r"\\([&%#_{}])"), r"\1"),
)

_FULL_WIDTH = {0xFF01 + offset: 0x21 + offset for offset in range(94)}

_NAMES = r"(?i:(?:options?|choices?|letters?)(?:\s+is|\s?:)?)\s{0,3}"
_VERBS = r"(?i:choose|chose|chosen|pick|picked|select|selected|go\s+with|going\s+with|went\s+with)(?:\s?:)?\s{0,3}"
_OPENING, _CLOSING = r"[(\[<*_`\"']{0,5}", r"(?:\s?[)\]>*_`\"'.:]){0,5}"
_JOINED = (
    r"\s{0,3}(?:,?\s{0,3}(?:and/or|or|and|nor|as\s+well\s+as|plus|versus|vs\.?|through|to)\b|[,/|&+–—-])[\s,]{0,3}"
    r"(?:(?i:or|and|also|maybe|perhaps|possibly|even|probably|likely|else|either|potentially|alternatively)\b[\s,]{0,3}){0,2}"
)

_AFTER_LETTER = r"(?:or|and|nor|to|through|because|since|is|are|as|but|if|which|plus|versus|vs)\b"

# What denies the letter that follows: directly, or with a few words of the same clause between.
_DENYING = (
    r"(?:\b(?:not|never|neither|nor|except(?:\s+for)?|exclud(?:e|ed|ing)|eliminat(?:e|ed|ing)"
    r"|rul(?:e|ed|ing)\s+out|discard(?:ed|ing)?|reject(?:ed|ing)?|besides|unlike|hardly|avoid|skip|ignore|minus"
    r"|without|(?<!\bno )doubt|disagree|no\s+way|far\s+from|opposite\s+of|complement\s+of"
    r"|(?:other|rather)\s+than|instead\s+of|apart\s+from|aside\s+from|cannot"
    r"|(?:all|any|every|everything|anything|each|options?|choices?|nothing)\s+but)|n['’]t)"
)
_BREAK = r"(?:but|so|then|hence|therefore|thus|and|while|because|since|as|if|when|means)\b"
_DENIED = re.compile(
    rf"{_DENYING}(?:\s{{0,3}}:?\s{{0,5}}|(?:[ \t]{{1,3}}(?!{_BREAK})[\w'’-]{{1,20}}){{1,7}}[ \t]{{1,3}})"
    r"[\s*_(\[]{0,5}$",
    re.IGNORECASE,
)
_NOT_THE_ANSWER = re.compile(
    rf"(?:{_DENYING}|\b(?:false|untrue|wrong|impossible|unlikely))\s+(?:(?:think|believe|agree|say|says|said|feel|suppose|sure|certain|clear|true|convinced|that|if|whether|it|is"
    r"|the|case|my|our|its|correct|right|final|best|likely)\s+){0,7}$",
    re.IGNORECASE,
)
_REFUTED = re.compile(
    r"[\s*_)\]]{0,4}(?:[?✗✘❌]|excluded\b|(?:is|are|was|were|seems?|looks?|would\s+be|must\s+be)\s+(?:\w+ly\s+|both\s+|all\s+)?"
    r"(?:wrong|incorrect|false|not|out|invalid|impossible|eliminated|ruled\s+out|excluded|never|unlikely|untrue)\b"
    r"|(?:is|are|was|were|ca|could|would|should|must|wo)n['’]t\b|cannot\b|(?:can|could|would|should|must|will)\s+not\b"
    r"|or\s+not\b|can\s+be\s+(?:eliminated|ruled\s+out|excluded|discarded)\b|fails?\b"
    r"|(?:does|do)(?:\s+not|n['’]t)\s+(?:work|fit|hold|match|apply|satisfy|make\s+sense)\b)",
    re.IGNORECASE,
)


def without_latex(text: str) -> str:
    r"""Return a text without the LaTeX around letters, of the same meaning: `B \text{ or } C` is `B or C`."""
    text = text if text.isascii() else text.translate(_FULL_WIDTH)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text


@dataclass(frozen=True)
class Group:
    """Letters that are mentioned together, such as "(B)", "B or C" or "A, B and D".

    Attributes:
        letters: which.
        start: where it begins.
        end: where it ends.
        mark: what says that letters of options are meant: "bracket", "name" (option B, I choose B), or "".
        denied: whether the text says that it is not these, or only asks.
    """

    letters: frozenset[str]
    start: int
    end: int
    mark: str
    denied: bool


class Options:
    """How the letters of one set of options are recognised.

    Args:
        letters: capital letters, such as "ABCD".
    """

    def __init__(self, letters: str) -> None:
        upper, lower = f"[{letters}]", f"[{letters.lower()}]"
        word = r"(?![A-Za-z0-9]|['’][A-Za-z])"
        article = rf"(?!(?<=[AI])\s+(?!{_AFTER_LETTER})[a-z])"
        following = rf"(?<![:.])\s{{1,3}}(?={_OPENING}{upper}{_CLOSING}(?:\s|[,;]|$))"
        one = (
            rf"(?:{_NAMES}|{_VERBS})?(?:{_OPENING}{upper}{word}{article}|[(\[]\s?{lower}\s?[.:]?[)\]])"
            rf"(?:\s?[.:]?\s?[)\]])?{_CLOSING}"
        )
        self._group = re.compile(rf"(?<![A-Za-z0-9\\^])(?:{one})(?:(?:{_JOINED}|{following})(?:{one})){{0,25}}")
        self._letter = re.compile(rf"(?<![A-Za-z])(?:{upper}|{lower})(?![A-Za-z])")
        self._named = re.compile(rf"(?:{_NAMES}|{_VERBS}){_OPENING}{upper}")
        self._bracketed = re.compile(rf"[(\[]\s?(?:{upper}|{lower})\s?[.:]?\s?[)\]]|{upper}\s?\)")

    def group_at(self, text: str, at: int = 0) -> Group | None:
        """Return the group that begins there."""
        found = self._group.match(text, at)
        return self._made(text, found) if found else None

    def groups(self, text: str) -> Iterator[Group]:
        """Yield all groups in a text, in order."""
        return (self._made(text, found) for found in self._group.finditer(text))

    def _made(self, text: str, found: re.Match[str]) -> Group:
        mark = "bracket" if self._bracketed.search(found[0]) else "name" if self._named.search(found[0]) else ""
        letters = frozenset(letter[0].upper() for letter in self._letter.finditer(found[0]))
        is_denied = denied(text[max(0, found.start() - 200) : found.start()]) or refuted(
            text[found.end() : found.end() + 100]
        )
        return Group(letters, found.start(), found.end(), mark, is_denied)


def denied(before: str) -> bool:
    """Say whether a text that ends there denies the letter that follows."""
    return _DENIED.search(before[-200:]) is not None


def not_the_answer(before: str) -> bool:
    """Say whether a text that ends there denies what follows about the answer: "I don't think that the"."""
    return _NOT_THE_ANSWER.search(before[-200:]) is not None


def refuted(after: str) -> bool:
    """Say whether a text that begins there takes back the letter before it, or makes a question of it."""
    return _REFUTED.match(after[:100]) is not None


@lru_cache(maxsize=32)
def options_of(letters: str) -> Options:
    """Return how letters are recognised."""
    return Options(letters)
