"""A regular expression."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rewardsmith.rewards.rules.limit import TooSlowError, processor_limit
from rewardsmith.rewards.rules.settings import Bad, Final, Good, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.types import Prompt


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _checked(pattern: str) -> str:
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def regex(
    prompt: Prompt,
    text: str,
    *,
    pattern: Annotated[
        str,
        AfterValidator(_checked),
        Field(min_length=1, description="as Python reads it; what a group named answer catches must be the answer"),
    ],
    match: Annotated[
        Literal["search", "fullmatch"],
        Field(description="somewhere in the text, or all of it but for white space around"),
    ] = "search",
    final: Final = "never",
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`good` when the pattern matches, else `bad`; with a group named `answer`, only when it catches the answer.

    Where the pattern matches several times, the last match counts. A text on which matching takes more than 1.5 seconds
    of processor time is bad.
    """
    compiled = _compiled(pattern)
    golds = truths(prompt) if "answer" in compiled.groupindex else ()
    said = spoken(text, final)
    found = None if said is None else _last_match(compiled, said, match)
    if found is None:
        return bad
    return good if not golds or (found["answer"] or "").strip() in golds else bad


def _last_match(pattern: re.Pattern[str], text: str, match: str) -> re.Match[str] | None:
    try:
        with processor_limit():  # a pattern with repetitions inside repetitions can take hours to say no
            if match == "fullmatch":
                return pattern.fullmatch(text.strip())
            return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
    except TooSlowError:
        return None
