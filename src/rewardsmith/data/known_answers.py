r"""Answers of which it is known by construction what they are worth: right ones, wrong ones, right ones by a wrong way.

A data source that knows its own truth may have `known_answers(prompt, rng)`, which yields them. For any other data they
are made from a reference solution:

    reference        2+3=5 and 5+4=9, so \boxed{9}      right, and every step holds
    wrong-answer     2+3=5 and 5+4=9, so \boxed{10}     wrong
    corrupted-step   2+3=6 and 5+4=9, so \boxed{9}      right by a broken way
    no-conclusion    2+3=5 and 5+4=9, so                no answer
"""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardsmith.data.distractors import distractors, same_answer, same_number
from rewardsmith.text.answers import BOX, box_at, boxed, extract, hashed, stated_at
from rewardsmith.text.numbers import find_numbers, read_number
from rewardsmith.types import Prompt

MAX_CHARS = 20_000
"""Characters of the longest text that is edited; none is made of a longer one."""

MAX_BOXES = 20
"""The last boxes of a text, in which its final answer is replaced."""

MAX_WRONG = 2
"""Copies of a reference solution with a wrong final answer."""


@dataclass(frozen=True)
class KnownAnswer:
    """One answer to a prompt, of a kind such as `reference`, `wrong-answer`, `corrupted-step` or `miracle`."""

    kind: str
    text: str
    right: bool  # its final answer is right
    sound: bool  # and every step on the way to it


FORMS: Mapping[str, Callable[[str], str]] = {
    "bare": lambda answer: answer,
    "boxed": lambda answer: f"\\boxed{{{answer}}}",
    "hash-line": lambda answer: f"#### {answer}",
    "hash": lambda answer: f"#{answer}",
    "stated": lambda answer: f"The answer is {answer}.",
    "tagged": lambda answer: f"<answer>{answer}</answer>",
    "boxed-sentence": lambda answer: f"The final answer is $\\boxed{{{answer}}}$.",
    "thought-and-tagged": lambda answer: f"<think>\nI work it out.\n</think>\n<answer>{answer}</answer>",
    "thought-and-boxed": lambda answer: f"<think>\nI work it out.\n</think>\n\\boxed{{{answer}}}",
    "tagged-boxed": lambda answer: f"<think>\nI work it out.\n</think>\n<answer>\\boxed{{{answer}}}</answer>",
    "json": lambda answer: json.dumps({"answer": answer}, ensure_ascii=False),
    "line": lambda answer: f"Answer: {answer}",
    "bracketed": lambda answer: f"({answer})",
}
"""How a bare final answer may be written, by name; an audit uses the one in which a reward tells
the right answer from a wrong one best."""


# ---- the final answer in a text ------------------------------------------------------------------------------------


def final_answer(prompt: Prompt) -> str:
    """Return the true final answer of a prompt as text, of several accepted ones the first; "" where there is none."""
    return next(iter(final_answers(prompt)), "")


def final_answers(prompt: Prompt) -> list[str]:
    """Return all accepted final answers of a prompt as text, each once: one, or those of a list, as rules read them.

    Of a whole solution it is what stands in its box or after `####`. A table is no answer, nor is a list with one.
    """
    given: Any = prompt.answer if isinstance(prompt.answer, list | tuple) else (prompt.answer,)
    if any(isinstance(one, Mapping | list | tuple) for one in given):
        return []
    texts = [str(one).strip() for one in given if one is not None]
    return list(dict.fromkeys(found for text in texts if (found := hashed(text) or boxed(text) or text)))


def stated_answer(prompt: Prompt, solution: str) -> str:
    """Return the accepted answer that a solution states; "" where it states none: a solution that cannot be used.

    That is the one in its box, after `####` or after "the answer is", or else the last one that it mentions.
    """
    accepted, found = final_answers(prompt), found_answer(solution[-MAX_CHARS:])
    for answer in accepted:
        if same_answer(found, answer) and _final_places(solution, answer):
            return answer
    last = [(places[-1][1], -number) for number, one in enumerate(accepted) if (places := _final_places(solution, one))]
    return accepted[-max(last)[1]] if last else ""


def occurrences(text: str, answer: str) -> list[tuple[int, int]]:
    """Return where an answer stands in a text by itself, and not as a part of another number or word.

    A number is found in every form: 1,000 is 1000, and 1/2 is 0.5. Words are compared without case.
    """
    answer, text = answer.strip(), text[:MAX_CHARS]
    if not answer or len(answer) > len(text):
        return []
    number = read_number(answer)
    if number is not None:
        return [(at.start, at.end) for at in find_numbers(text) if same_number(at.number, number)]
    before = r"(?<![^\W_])" if answer[0].isalnum() else ""
    after = r"(?![^\W_])" if answer[-1].isalnum() else ""
    flags = re.IGNORECASE if len(answer) > 1 else 0
    return [match.span() for match in re.finditer(f"{before}{re.escape(answer)}{after}", text, flags)]


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Return whether one of the answers stands in a text by itself."""
    return any(occurrences(text, answer) for answer in answers)


def with_answer(text: str, truth: str, new: str) -> str | None:
    """Return a solution with its final answer replaced; None where the truth does not occur in it.

    It is replaced in every box, from the statement of the answer on, and at its last occurrence.
    """
    found = _final_places(text, truth)
    if not found:
        return None
    ends = [0, *(end for _, end in found)]
    starts = [*(start for start, _ in found), len(text)]
    return new.join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _final_places(text: str, truth: str) -> list[tuple[int, int]]:
    """Return the occurrences of the truth that state the final answer."""
    found = occurrences(text, truth) if len(text) <= MAX_CHARS else []
    if not found:
        return []
    boxes = [box for mark in deque(BOX.finditer(text), maxlen=MAX_BOXES) if (box := box_at(text, mark))]
    stated, hashes, tag = stated_at(text), text.rfind("####"), text.rfind("<answer>")
    begins = [stated.start if stated else -1, hashes, tag, found[-1][0]]
    holding = [at for at in begins if at >= 0 and any(start >= at for start, _ in found)]
    begin = min(holding)
    boxed_chars = {at for box in boxes for at in range(box.start, box.end)}
    return [(start, end) for start, end in found if start >= begin or start in boxed_chars]


# ---- broken ways ---------------------------------------------------------------------------------------------------

_ITEM = re.compile(
    r"(?:^|\n)[ \t]*(?:[#*-]+[ \t]*)?\Z|\b(?:step|case|part|question|example|equation)[ \t]*\Z", re.IGNORECASE
)
_RESULT = re.compile(r"(?:=|≈|\\approx|\bis|\bare|\bequals|\bget|\bgives|\bmakes)[\s$\\(*]{0,4}\Z")
_OPERAND = re.compile(r"[-+*/×·÷^=<>]\s{0,2}\Z")


def corrupt_step(text: str, truth: str, rng: random.Random) -> str | None:
    """Return a solution with one number on the way changed and its final answer kept; None where there is none.

    The result of a step is changed where there is one, else an operand. Numbers of list items and steps are kept.
    """
    final = _final_places(text, truth)
    if not final:
        return None
    results, operands, kept = [], [], {start for start, _ in final}
    for found in find_numbers(text):
        before, after = text[max(0, found.start - 40) : found.start], text[found.end : found.end + 2]
        if found.start >= final[-1][0] or found.start in kept:
            continue
        if _ITEM.search(before) and not re.match(r"\s?[-+*/=]", after):
            continue
        if _RESULT.search(before):
            results.append(found)
        elif _OPERAND.search(before) or re.match(r"\s?[-+*/×·÷=]", after):
            operands.append(found)
    places = results or operands
    if not places:
        return None
    place = rng.choice(places)
    others = [one for one in distractors(text[place.start : place.end], rng) if not same_answer(one, truth)]
    return f"{text[: place.start]}{others[0]}{text[place.end :]}" if others else None


def without_conclusion(text: str, truth: str) -> str | None:
    """Return a solution that breaks off before its final answer; None where nothing is left, or the answer still is."""
    final = _final_places(text, truth)
    if not final:
        return None
    stated = stated_at(text)
    mark = max(
        (at for at in (text.rfind("\\boxed"), text.rfind("#"), text.rfind("<answer>")) if at >= 0), default=len(text)
    )
    cut = text[: min(final[0][0], mark, stated.start if stated else len(text))].rstrip(" #$*:=(\n")
    return cut if cut and not occurrences(cut, truth) else None


# ---- from a reference ----------------------------------------------------------------------------------------------


def known_answers(
    prompt: Prompt, reference: str, rng: random.Random, *, wrong: Sequence[str] | None = None
) -> list[KnownAnswer]:
    """Return what can be made of a reference solution; only itself where it states no accepted answer.

    `wrong` are wrong final answers to put into it; without them they are derived from the truth.
    """
    accepted, truth = final_answers(prompt), stated_answer(prompt, reference)
    made = [KnownAnswer("reference", reference, right=True, sound=True)]
    if not truth:
        return made if accepted else [*made, *_of_text(reference, rng)]
    derived = distractors(truth, rng, MAX_WRONG, accepted=accepted) if wrong is None else wrong[:MAX_WRONG]
    for final in derived:
        text = with_answer(reference, truth, final)
        if text is not None:
            made.append(KnownAnswer("wrong-answer", text, right=False, sound=False))
    corrupted = corrupt_step(reference, truth, rng)
    if corrupted is not None:
        made.append(KnownAnswer("corrupted-step", corrupted, right=True, sound=False))
    unfinished = without_conclusion(reference, truth)
    if unfinished is not None and not mentions(unfinished, accepted):
        made.append(KnownAnswer("no-conclusion", unfinished, right=False, sound=False))
    return made


def _of_text(reference: str, rng: random.Random) -> Iterator[KnownAnswer]:
    """Yield worse texts of one that has no final answer: cut off, and with its words in disorder."""
    words = reference.split()
    if len(words) < 6:
        return
    yield KnownAnswer("cut-off", " ".join(words[: len(words) // 2]), right=False, sound=False)
    shuffled = rng.sample(words, len(words))
    if shuffled != words:
        yield KnownAnswer("words-in-disorder", " ".join(shuffled), right=False, sound=False)


def found_answer(text: str) -> str:
    """Return the final answer that a text gives in one of the usual forms; the whole text where it has none."""
    return extract(text, ["boxed", "hash", "tagged", "stated"]) or text.rpartition("#")[2].strip()


__all__ = [
    "FORMS",
    "KnownAnswer",
    "corrupt_step",
    "distractors",
    "final_answer",
    "final_answers",
    "found_answer",
    "known_answers",
    "mentions",
    "occurrences",
    "same_answer",
    "stated_answer",
    "with_answer",
    "without_conclusion",
]
