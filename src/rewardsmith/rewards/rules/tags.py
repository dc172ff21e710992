"""The format `<think>…</think><answer>…</answer>`, or another list of tags."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from rewardsmith.rewards.rules.settings import Bad, Good, between
from rewardsmith.types import Prompt


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
    found = [span for span in spans if span is not None]
    whole = len(found) == len(spans)
    in_order = whole and all(one[3] <= other[0] for one, other in pairwise(found))
    holds.append(in_order)
    holds.append(in_order and (outside or not _between(text, found).strip()))
    share = sum(holds) / len(holds) if partial else float(all(holds))
    return between(share, good, bad)


def _span(text: str, tag: str) -> tuple[int, int, int, int] | None:
    """Return where the opening tag, the content, the closing tag and the rest begin; None unless there is just one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start, end = text.find(opening), text.find(closing)
    if start < 0 or end < start or text.rfind(opening) != start or text.rfind(closing) != end:
        return None
    return start, start + len(opening), end, end + len(closing)


def _between(text: str, spans: list[tuple[int, int, int, int]]) -> str:
    edges = [0, *(edge for span in spans for edge in (span[0], span[3])), len(text)]
    return "".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2))
