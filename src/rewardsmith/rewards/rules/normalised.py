"""Equality of what is said, not of how it is spelled."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import extract as find
from rewardsmith.types import Prompt

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(
    prompt: Prompt,
    text: str,
    *,
    articles: Annotated[bool, Field(description="pass over a, an and the")] = True,
    punctuation: Annotated[bool, Field(description="pass over punctuation")] = True,
    extract: Extract = ("text",),
    final: Final = "auto",
) -> float:
    """1 when the text is an answer but for case, Unicode forms, white space, punctuation and articles, else 0."""
    golds = [normal(answer, articles=articles, punctuation=punctuation) for answer in truths(prompt)]
    if not all(golds):
        raise CannotScore("invalid", f"an answer of the prompt {prompt.id!r} is empty")
    said = spoken(text, final)
    found = find(said, extract) if said else None
    # Unicode forms of a hostile text take quadratic time; what is much longer than the answers is none of them.
    if found is None or len(found) > 1_000 + 4 * max(len(answer) for answer in truths(prompt)):
        return 0.0
    return float(normal(found, articles=articles, punctuation=punctuation) in golds)


def normal(text: str, *, articles: bool = True, punctuation: bool = True) -> str:
    """Return a text as it is compared; what would leave nothing ("?", "The") is left out, step by step."""
    plain = " ".join(unicodedata.normalize("NFKC", text.replace("−", "-")).casefold().split())
    bare = " ".join(_without_punctuation(plain).split()) if punctuation else plain
    shorn = " ".join(_ARTICLES.sub(" ", bare).split()) if articles else bare
    return shorn or bare or plain


def _without_punctuation(text: str) -> str:
    """Return a text without punctuation, but for signs that change what is meant: 3.5, -5, 50%, C#."""
    kept = []
    for at, mark in enumerate(text):
        before, after = text[at - 1 : at], text[at + 1 : at + 2]
        number = after.isdigit() and (mark == "." or (mark == "-" and not before.isalnum()))
        if number or mark in "%#" or not unicodedata.category(mark).startswith("P"):
            kept.append(mark)
        elif mark not in "'’." and not (mark == "," and before.isdigit() and after.isdigit()):
            kept.append(" ")
    return "".join(kept)
