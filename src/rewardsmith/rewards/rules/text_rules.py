"""Rules on the text itself, right or wrong: length, format, repetition, patterns."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.rule_settings import (
    Bad,
    Final,
    Good,
    TooSlowError,
    answer_part,
    between,
    processor_limit,
)
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import boxed
from rewardsmith.types import Prompt


def length(
    prompt: Prompt,
    text: str,
    *,
    unit: Annotated[Literal["words", "characters"], Field(description="what is counted")] = "words",
    min_length: Annotated[int, Field(ge=0, description="minimum length that is good")] = 0,
    max_length: Annotated[int | None, Field(ge=0, description="maximum length that is good; not set: none")] = None,
    soft: Annotated[int, Field(ge=0, description="over how many units beyond a bound the value falls to bad")] = 0,
    final: Final = "never",
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`good` between `min_length` and `max_length`, falling linearly to `bad` at `soft` units beyond a bound."""
    if max_length is not None and min_length > max_length:
        raise CannotScore(
            "invalid", f"min_length is {min_length} and max_length is {max_length}: no length is between them"
        )
    answer = answer_part(text, final) or ""
    count = len(answer) if unit == "characters" else len(answer.split())
    beyond = max(min_length - count, count - (count if max_length is None else max_length), 0)
    # A step beyond the bound is bad at once where there is no slope.
    return between(1 - beyond / soft if soft else float(not beyond), good, bad)


def has_boxed(prompt: Prompt, text: str, *, final: Final = "auto", good: Good = 1.0, bad: Bad = 0.0) -> float:
    r"""`good` when the last `\boxed{…}` is closed and not empty, else `bad`; right or wrong does not matter."""
    answer = answer_part(text, final)
    return good if answer and boxed(answer) is not None else bad


def _distinct(tags: tuple[str, ...]) -> tuple[str, ...]:
    for tag in tags:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", tag):
            raise ValueError(f"{tag!r} is no tag: write its name alone, such as think")
    if len(set(tags)) < len(tags):
        raise ValueError("a tag is named twice: each occurs once in an answer")
    return tags


def tags(
    prompt: Prompt,
    text: str,
    *,
    tags: Annotated[
        tuple[str, ...], AfterValidator(_distinct), Field(min_length=1, description="names of the tags, in order")
    ] = ("think", "answer"),
    opened: Annotated[
        bool,
        Field(description="the chat template already opens the first tag, so the answer may begin without it"),
    ] = False,
    outside: Annotated[bool, Field(description="allow other text than white space outside the tags")] = False,
    empty: Annotated[bool, Field(description="allow a tag with nothing but white space in it")] = False,
    partial: Annotated[
        bool, Field(description="give the share of what holds: each tag, each content, the order, the outside")
    ] = False,
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`good` when each tag occurs once, in order, closed, with nothing outside, else `bad`, or the share that holds."""
    if opened and f"<{tags[0]}>" not in text:
        text = f"<{tags[0]}>{text}"
    spans = [_span(text, tag) for tag in tags]
    holds = [span is not None for span in spans]
    holds += [span is not None and (empty or bool(text[span[1] : span[2]].strip())) for span in spans]
    # Nothing is in order, and nothing is outside, while a tag is missing: an empty text earns no share.
    edges = [0, *(edge for span in spans if span for edge in (span[0], span[3])), len(text)]
    in_order = all(holds[: len(tags)]) and edges == sorted(edges)
    others = "".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2))
    holds += [in_order, in_order and (outside or not others.strip())]
    share = sum(holds) / len(holds) if partial else float(all(holds))
    return between(share, good, bad)


def _span(text: str, tag: str) -> tuple[int, int, int, int] | None:
    """Return where the opening tag, the content, the closing tag and the rest begin; None unless there is just one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start, end = text.find(opening), text.find(closing)
    if start < 0 or end < start or text.rfind(opening) != start or text.rfind(closing) != end:
        return None
    return start, start + len(opening), end, end + len(closing)


ROLE_MARKS = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|endoftext|>", "<start_of_turn>", "[INST]",
)  # fmt: skip
"""How chat templates mark whose turn it is; an answer that contains one imitates another speaker."""


def absent(
    prompt: Prompt,
    text: str,
    *,
    strings: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        Field(min_length=1, description="what must not occur; by default the marks of chat templates"),
    ] = ROLE_MARKS,
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`bad` when one of the strings occurs, else `good`."""
    return bad if any(string in text for string in strings) else good


TAIL = 1_000_000
"""Characters at the end of a text that are searched: loops go on to the end, and memory has a bound."""

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_CHECKED = 10_000


def repetition(
    prompt: Prompt,
    text: str,
    *,
    characters: Annotated[
        int, Field(ge=0, description="a passage of this length must not occur twice; 0 for any")
    ] = 300,
    words: Annotated[int, Field(ge=1, description="length of the word sequences whose repetitions are counted")] = 8,
    share: Annotated[float, Field(ge=0, le=1, description="maximum share of repeated sequences; 1 for any")] = 1.0,
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`bad` when a long passage occurs twice, or too many word sequences do, else `good`.

    Occurrences may overlap, so a short loop that runs on counts as well. Only the last million characters are searched.
    """
    text = text[-TAIL:]
    if characters and has_repeated(text, characters):
        return bad
    return bad if share < 1 and repeated_share(text, words) > share else good


def has_repeated(text: str, length: int) -> bool:
    """Return whether some passage of `length` characters occurs twice in a text of n characters, in O(n log n)."""
    count = len(text) - length + 1
    if count < 2:
        return False
    hashes = _window_hashes(text, length)
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    # Equal hashes are looked at, so a collision is never taken for a repetition.
    pairs = zip(order[same[:_CHECKED]].tolist(), order[same[:_CHECKED] + 1].tolist(), strict=True)
    return any(text[i : i + length] == text[j : j + length] for i, j in pairs)


def repeated_share(text: str, length: int) -> float:
    """Return the share of the sequences of `length` words that occurred before in the text."""
    parts = text.split()
    count = len(parts) - length + 1
    if count < 2:
        return 0.0
    distinct = {hash(sequence) for sequence in zip(*(parts[i:] for i in range(length)), strict=False)}
    return 1 - len(distinct) / count


def _window_hashes(text: str, length: int) -> NDArray[np.uint64]:
    """Return the hash of each window: Σ c_j B^j over the window, divided by B^start, all modulo 2^64."""
    # A lone surrogate cannot occur in a rollout; it must not stop a direct caller either.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((codes + np.uint64(1)) * _powers(_BASE, len(codes)))])
    inverse = pow(_BASE, -1, 2**64)
    windows: NDArray[np.uint64] = (sums[length:] - sums[:-length]) * _powers(inverse, len(codes) - length + 1)
    return windows


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)


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
    answer = answer_part(text, final)
    found = None if answer is None else _last_match(compiled, answer, match)
    if found is None:
        return bad
    return good if not golds or (found["answer"] or "").strip() in golds else bad


def _last_match(pattern: re.Pattern[str], text: str, match: str) -> re.Match[str] | None:
    try:
        with processor_limit():  # a pattern with repetitions inside repetitions can take hours to fail
            if match == "fullmatch":
                return pattern.fullmatch(text.strip())
            return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
    except TooSlowError:
        return None
