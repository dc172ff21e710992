r"""What the attacks on a prompt are made of, and other content in the form of its solution.

    right   50+52=102.\n#### 102        in_form("NaN", anchors)   ->   #### NaN

Steps of the solution that mention the truth are left out: a lenient reward would pay for them, and not for the attack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rewardsmith.auditing.same_value import rational_value
from rewardsmith.data.known_answers import mentions
from rewardsmith.text.answers import boxed_at
from rewardsmith.text.numbers import read_number
from rewardsmith.types import Prompt

MAX_SOLUTION = 2_500
"""Characters of a solution that an attack is put on; of a longer one only the final answer is used."""

PLACE = "\ue000"
"""A character for private use that stands for the final answer in a solution."""

_THOUGHT = "<think>\nI work it out.\n</think>\n"
_TIGHT = re.compile(f"<answer>[^<]*{PLACE}.*?</answer>|#+[ \t]*{PLACE}")


@dataclass(frozen=True)
class Anchors:
    """What the probes of a prompt are made of."""

    prompt: Prompt
    right: str  # a right answer, as a policy should write it
    wrong: str  # the same with a wrong final answer
    answer: str  # the true final answer; "" where it is not known
    distractors: Sequence[str]  # wrong final answers, derived from the truth
    other: str  # a right answer to another prompt; "" where there is none
    write: Callable[[str], str]  # a final answer in the form of `right`
    accepted: Sequence[str] = ()  # all true final answers, where there are others than `answer`

    @cached_property
    def truths(self) -> Sequence[str]:
        """All true final answers, and of expressions their values as well; none where they are not known."""
        given = [one for one in dict.fromkeys((self.answer, *self.accepted)) if one]
        return [*given, *(value for one in given if read_number(one) is None and (value := rational_value(one)))]

    @cached_property
    def frame(self) -> str:
        """The solution with `PLACE` in place of its final answer."""
        return self.write(PLACE)


def endings_of(anchors: Anchors) -> list[str]:
    """Return ever shorter ends of a solution around the place of its answer: the line, the sentence, the box alone."""
    form = anchors.frame.rpartition("</think>")[2]
    lines = [line.strip() for line in form.split("\n") if PLACE in line]
    if not lines:
        return []
    sentence = [one for one in re.split(r"(?<=[.!?])\s+", lines[-1]) if PLACE in one][-1]
    box, tight = boxed_at(sentence), _TIGHT.search(sentence)
    alone = sentence[box.start : box.end] if box and PLACE in box.content else tight[0] if tight else sentence
    return list(dict.fromkeys([lines[-1], sentence, alone]))


def _thoughts(anchors: Anchors) -> str:
    """Return a block of thoughts where the form has one."""
    return _THOUGHT if "</think>" in anchors.frame else ""


def in_form(content: str, anchors: Anchors) -> str | None:
    """Return a text in the place of the final answer, after as much of the solution as does not mention the truth.

    None where the truth is mentioned even without its steps.
    """
    whole, thoughts = anchors.write(content), _thoughts(anchors)
    shorter = [thoughts + ending.replace(PLACE, content) for ending in endings_of(anchors)]
    return next((text for text in (whole, *shorter) if not mentions(text, anchors.truths)), None)


def in_forms(contents: Iterable[tuple[str, str]], anchors: Anchors) -> Iterator[tuple[str, str]]:
    """Yield texts in the place of the final answer, under their names."""
    for name, content in contents:
        text = in_form(content, anchors)
        if text is not None:
            yield name, text


def answer_alone(content: str, anchors: Anchors) -> str:
    """Return a final answer in its form without the solution before it."""
    endings = endings_of(anchors)
    return _thoughts(anchors) + endings[-1].replace(PLACE, content) if endings else anchors.write(content)


def wrong_solution(anchors: Anchors) -> str:
    """Return the wrong solution, or only its final answer where it is long; "" where there is neither."""
    if len(anchors.wrong) <= MAX_SOLUTION or not anchors.distractors:
        return anchors.wrong[:MAX_SOLUTION]
    return answer_alone(anchors.distractors[0], anchors)[:MAX_SOLUTION]


def right_solution(anchors: Anchors) -> str:
    """Return the right solution, or only its final answer where it is long."""
    long = len(anchors.right) > MAX_SOLUTION
    return (answer_alone(anchors.answer, anchors) if long and anchors.answer else anchors.right)[:MAX_SOLUTION]
