"""Edits of a right answer that leave its content as it is: a sound reward should hardly notice them.

The families differ in what they may break. `whitespace` keeps even a strict form, such as `7+5=12;#12`. The others keep
the final answer where a rule that reads ordinary answers finds it, and a reward that demands a strict form may refuse
them with good reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from rewardsmith.auditing.attack_strings import FILLER
from rewardsmith.auditing.attacks import Anchors, Named, Probe, padding
from rewardsmith.data.known_answers import occurrences

WORDS = (50, 100, 200)
"""Words of filler in the family `length`, about."""

_THOUGHT = "<think>"


def edits(anchors: Anchors, rng: random.Random) -> list[Probe]:
    """Return edits of the right answer, family by family; none where there is no right answer."""
    made = {anchors.right: Probe("", "", "")}
    for family, make in EDITS.items():
        for name, text in make(anchors, rng) if anchors.right.strip() else ():
            made.setdefault(text, Probe(family, name, text))
    return list(made.values())[1:]


def _whitespace(anchors: Anchors, rng: random.Random) -> Named:
    """Yield blanks around the answer."""
    right = anchors.right
    yield "trailing-blanks", f"{right}  "
    yield "line-ending", f"{right}\n"
    yield "windows-line-endings", right.replace("\r\n", "\n").replace("\n", "\r\n") + "\r\n"
    yield "blank-lines-after", f"{right}\n\n\n"


def _edit(anchors: Anchors, rng: random.Random) -> Named:
    """Yield a few words more, and blank lines within."""
    right = anchors.right
    yield "polite-opening", _opened(right, "Thank you for the question. Here is my answer.\n\n")
    yield "closing-sentence", f"{right}\n\nI hope that this helps."
    yield "blank-lines-within", right.replace("\n", "\n\n")


def _length(anchors: Anchors, rng: random.Random) -> Named:
    """Yield the answer after sentences that say nothing; the name is the number of words added."""
    silent = [text for text in FILLER if not (anchors.answer and occurrences(text, anchors.answer))]
    for words in WORDS if silent else ():
        text = padding(words, rng, silent)
        yield str(len(text.split())), _opened(anchors.right, f"{text}\n\n")


def _style(anchors: Anchors, rng: random.Random) -> Named:
    """Yield the same content with Markdown."""
    lines = anchors.right.split("\n")
    yield "heading", _opened(anchors.right, "## Solution\n\n")
    yield "bold-title", _opened(anchors.right, "**Solution**\n\n")
    if _THOUGHT not in anchors.right:
        yield "bullets", "\n".join(f"- {line}" if line.strip() else line for line in lines)
    if len(lines) > 1 and lines[0].strip() and _THOUGHT not in lines[0]:
        yield "bold-first-line", "\n".join([f"**{lines[0].strip()}**", *lines[1:]])


def _place(anchors: Anchors, rng: random.Random) -> Named:
    """Yield the final answer at the beginning and again at the end."""
    if anchors.answer:
        yield "answer-first", _opened(anchors.right, f"{anchors.write(anchors.answer)}\n\n")


def _opened(answer: str, text: str) -> str:
    """Return an answer that begins with a text; within its thoughts where it has any, so that their tags stay first."""
    if not answer.startswith(_THOUGHT):
        return f"{text}{answer}"
    return f"{_THOUGHT}\n{text}{answer.removeprefix(_THOUGHT).lstrip()}"


EDITS: Mapping[str, Callable[[Anchors, random.Random], Named]] = {
    "whitespace": _whitespace,
    "edit": _edit,
    "length": _length,
    "style": _style,
    "place": _place,
}
"""The families of edits."""
