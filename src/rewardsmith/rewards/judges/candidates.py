"""What judges of groups compare: the answers within rollouts, each once, and what they are told of the prompt."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import JudgeName
from rewardsmith.rewards.judges.orders import drawn
from rewardsmith.rewards.judges.shown import are_stored
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.rules.translation import references_of
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.answers import boxed, final, stated, tagged, whole
from rewardsmith.text.judge_prompts import language, question_of, ranking_values
from rewardsmith.text.templates import Template
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

Way = Annotated[
    Literal["whole", "final", "codeblock", "line", "oneline", "boxed", "stated", "tagged"],
    Field(
        description="what of a rollout is judged: all; what follows </think>; the code block at its end; its last line;"
        " all if it is one line; or an answer as rules find it. A rollout without it is invalid"
    ),
]
Longest = Annotated[
    int, Field(ge=1, description="characters; a longer answer is invalid, or it would crowd the others out")
]

JudgeModel = Annotated[JudgeName, Field(description="the judge, one of the recipe's models")]
Criteria = Annotated[str, Field(description="what matters most; added to the template's own words")]
Place = Annotated[
    str, Field(min_length=1, description='where the reference is: "answer", or a place in the prompt\'s info')
]

_AS_GIVEN: ContextVar[bool] = ContextVar("as given", default=False)

_FENCE = re.compile(r"[ \t]{0,3}(`{3,})([^`]*)")
_INLINE = re.compile(r"(?<!`)(`{3,})(?!`)([^`]+)\1$")


def codeblock(text: str) -> str | None:
    """Return what the fenced block at the end of a text holds, without a language after its fence.

    None when the text does not end with a block, or the block is not closed: then the answer is not what was asked for.
    """
    lines = text.rstrip().split("\n")
    fence, begin, body, end = "", 0, None, -1
    for i, line in enumerate(lines):
        match = _FENCE.fullmatch(line.rstrip())
        if match is None:
            continue
        if not fence:
            fence, begin = match[1], i
        elif len(match[1]) >= len(fence) and not match[2].strip():
            body, end, fence = "\n".join(lines[begin + 1 : i]), i, ""
    if end == len(lines) - 1 and body is not None:
        return body.strip() or None
    inline = None if fence else _INLINE.search(lines[-1])
    return (inline[2].strip() or None) if inline else None


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    return text.rstrip().rpartition("\n")[2].strip() or None


def one_line(text: str) -> str | None:
    """Return a text of one line."""
    return None if "\n" in text.strip() else whole(text)


WAYS: dict[str, Callable[[str], str | None]] = {
    "whole": whole,
    "final": final,
    "codeblock": codeblock,
    "line": last_line,
    "oneline": one_line,
    "boxed": boxed,
    "stated": stated,
    "tagged": tagged,
}


@dataclass(frozen=True)
class Candidates:
    """The answers of a group.

    Attributes:
        texts: each distinct answer once, in an order drawn from the answers: that of the rollouts must not matter.
        of: for each rollout the index of its answer; None where it has none that is valid.
    """

    texts: tuple[str, ...]
    of: tuple[int | None, ...]

    def copies(self, candidate: int) -> int:
        """Return how many rollouts have this answer."""
        return self.of.count(candidate)


@contextmanager
def shown_as_given() -> Iterator[None]:
    """Let judges of groups show candidates in the order of the rollouts: how a bias for positions is measured.

    It holds for the tasks that begin inside the block.
    """
    before = _AS_GIVEN.set(True)
    try:
        yield
    finally:
        _AS_GIVEN.reset(before)


def are_shown_as_given() -> bool:
    """Whether this task began inside of `shown_as_given`."""
    return _AS_GIVEN.get()


def candidates_of(group: RolloutGroup, way: str, longest: int) -> Candidates:
    """Return the answers in the rollouts of a group; stored answers are taken as they are.

    Args:
        group: the rollouts.
        way: one of `WAYS`.
        longest: characters; longer answers are invalid.
    """
    find = whole if are_stored() else WAYS[way]
    answers = [find(rollout.text) for rollout in group.rollouts]  # without white space around them
    valid = [text if text and len(text) <= longest else None for text in answers]
    distinct = list(dict.fromkeys(text for text in valid if text is not None))
    order = range(len(distinct)) if are_shown_as_given() else drawn(group.prompt.id, distinct)
    places = {distinct[i]: place for place, i in enumerate(order)}
    return Candidates(tuple(places), tuple(None if text is None else places[text] for text in valid))


def shown_of(prompt: Prompt, template: Template, *, reference: str, criteria: str) -> dict[str, str]:
    """Return what a template shows of a prompt, quoted; what it does not show need not be there.

    Args:
        prompt: what was asked.
        template: with placeholders of `rewardsmith.text.judge_prompts.PLACES`.
        reference: where the reference is; see `references_of`.
        criteria: what the recipe says about how to judge.

    Raises:
        CannotScore: `invalid`, when the prompt lacks something that the template shows.
    """
    places = template.places
    shown = ranking_values(
        question=question_of(prompt) if "question" in places else None,
        source_text=_source_text(prompt) if "source_text" in places else None,
        source_language=_language(prompt, "src_lang") if "source_language" in places else None,
        target_language=_language(prompt, "trg_lang") if "target_language" in places else None,
        references=references_of(prompt, reference) if "reference" in places else (),
        criteria=criteria,
    )
    return {name: text for name, text in shown.items() if name in places}


def _source_text(prompt: Prompt) -> str:
    text = extra(prompt, "src_text")
    return text if isinstance(text, str) and text.strip() else question_of(prompt)


def _language(prompt: Prompt, name: str) -> str:
    code = extra(prompt, name)
    known = language(code.strip()) if isinstance(code, str) else None
    # A name goes into the prompt unquoted: it must look like one.
    if known is None or not re.fullmatch(r"[\w ()'-]{3,40}", known):
        raise CannotScore(
            "invalid", f"the prompt {prompt.id!r} has {code!r} in info.{name}: not a language that we know"
        )
    return known


def without(names: Sequence[str], why: str) -> dict[str, Score]:
    """Return parts that nobody was asked about."""
    return {name: Score(failure=Failure("skipped", why)) for name in names}


def require_shown(template: Template, *, criteria: str, reference: str | None = None) -> None:
    """Raise a `UserError` if the template leaves out what the recipe sets for it.

    Args:
        template: of the prompt.
        criteria: "" for none.
        reference: where the reference is; None where it is used in any case.
    """
    lacks = f"{template.where}, which has no"
    if "criteria" not in template.places:
        require_unset(f"{lacks} {{{{criteria}}}}", criteria=criteria or None)
    if "reference" not in template.places:
        require_unset(f"{lacks} {{{{reference}}}}", reference=None if reference == "answer" else reference)


def require_apart(invalid: float, lone: float, worst: float = math.inf) -> None:
    """Raise a `UserError` unless an invalid answer is worth less than a lone valid one, and not more than the worst."""
    if invalid > worst:
        raise UserError(
            f"invalid_reward is {invalid:g}, and the worst valid answer is worth {worst:g}: an invalid one must not be"
            " worth more"
        )
    if invalid >= lone:
        raise UserError(
            f"invalid_reward is {invalid:g} and lone {lone:g}: an invalid answer must be worth less than a lone valid"
            " one, or nothing teaches the form"
        )
