"""The verdict of a judge who compared two answers, called A and B."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from rewardsmith.text.reading import Unreadable

Winner = Literal["A", "B", "tie"]

TAIL = 20_000
"""Characters at the end of an answer in which the verdict is looked for."""

_MARKER = re.compile(
    r"\b(?:verdict|winner|decision|better (?:answer|response|candidate))\b[ \t*_`]{0,8}:", re.IGNORECASE
)
_BRACKETS = re.compile(r"\[\[([^\[\]\n]{1,40})\]\]")
_BOX = re.compile(r"\\boxed\{(?:\\text\{)?([^{}\n]{1,40})\}")
_MARKUP = re.compile(r"[*_`#\"$()\[\]]|\\boxed|\\text|[{}]")
_NOUN = r"(?:(?:the )?(?:candidate|answer|response|option|assistant|translation) )?"
_ONE = re.compile(rf"{_NOUN}(?-i:([AB]))(?: (?:is|was) (?:(?:clearly|slightly|much) )?better| wins)?", re.IGNORECASE)
_ORDER = re.compile(r"([AB]) ?([>=]) ?([AB])")
_TIE = re.compile(
    r"(?:it(?:'s| is) )?(?:a )?(?:tie|tied|draw|equal|equally good|both are equal|neither|neither is better)",
    re.IGNORECASE,
)


def read_comparison(text: str) -> Winner:
    r"""Return which of two answers a judge prefers.

    The last of these decides: what follows `Verdict:` (or `Winner:`, `Decision:`) on its line or the next one, `[[A]]`,
    and `\boxed{A}`; where none of them occurs, the last line. There it must say `A`, `B` or `tie` and nothing else but
    a noun, "is better" and markup; `A > B` and `A = B` are understood too. Letters within a sentence, such as "not A"
    or "A or B", are no verdict.

    Raises:
        Unreadable: `no verdict` when nothing is where a verdict should be; `unclear verdict` when it is something else.
    """
    tail = unicodedata.normalize("NFKC", text[-TAIL:])
    marked = max(_marked(tail), default=None)
    if marked is not None:
        said = marked[1]
    else:
        said = next((line for line in reversed(tail.split("\n")) if line.strip()), "")
        if not said or len(said) > 80:
            raise Unreadable("no verdict", "there is no line with one")
    winner = _winner(said)
    if winner is None:
        raise Unreadable("no verdict" if marked is None else "unclear verdict", repr(said[:80]))
    return winner


def _marked(text: str) -> Iterator[tuple[int, str]]:
    """Yield where a mark of each kind stands last, and what it says."""
    for pattern in (_BRACKETS, _BOX):
        for match in list(pattern.finditer(text))[-1:]:
            yield match.start(), match[1]
    for match in list(_MARKER.finditer(text))[-1:]:
        lines = text[match.end() :].split("\n")[:4]
        yield match.start(), next((line for line in lines if _MARKUP.sub("", line).strip()), "")


def _winner(said: str) -> Winner | None:
    plain = " ".join(_MARKUP.sub("", said).split()).rstrip(".! ")
    if match := _ONE.fullmatch(plain):
        return "A" if match[1] == "A" else "B"
    if match := _ORDER.fullmatch(plain):
        first, sign, second = match.groups()
        if first == second:
            return None
        return "tie" if sign == "=" else "A" if first == "A" else "B"
    return "tie" if _TIE.fullmatch(plain) else None
