"""Judges of groups: the distinct answers of the rollouts, and the orders in which they are shown.

Orders and pairs are drawn from the texts, so that a group gets the same prompts whatever the order of its rollouts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation, RequestSettings, joined_replies, settle
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.judge import Judge, Question, are_stored, failed_score, keeps_order, require_unset
from rewardsmith.rewards.rules.truth import extra, references_of
from rewardsmith.text import answers
from rewardsmith.text.judge_prompts import language, question_of, ranking_values
from rewardsmith.text.rankings import letters_of
from rewardsmith.text.templates import Template
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

CandidateWay = Annotated[
    Literal["whole", "final", "codeblock", "line", "oneline", "boxed", "stated", "tagged"],
    Field(
        description="what of a rollout is judged: all; what follows </think>; the code block at its end; its last line;"
        " all if it is one line; or an answer as rules find it. A rollout without it is invalid"
    ),
]
MaxCandidateChars = Annotated[
    int, Field(ge=1, description="a longer answer is invalid, because it would crowd the others out")
]
Criteria = Annotated[str, Field(description="what matters most; added to the template")]
ReferencePlace = Annotated[
    str, Field(min_length=1, description='where the reference is: "answer", or a field of the prompt\'s info')
]

InvalidReward = Annotated[
    float | None, Field(description="without a valid answer; not set: half of the range below the worst")
]
SingleAnswerReward = Annotated[
    float | None, Field(description="of the only distinct valid answer; not set: that of an average one")
]

_FENCE = re.compile(r"[ \t]{0,3}(`{3,})([^`]*)")
_INLINE = re.compile(r"(?<!`)(`{3,})(?!`)([^`]+)\1$")


def codeblock(text: str) -> str | None:
    """Return the content of the fenced block that ends a text; None without a closed block at the end."""
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


WAYS: dict[str, Callable[[str], str | None]] = {
    **answers.WAYS,
    "whole": answers.whole,
    "codeblock": codeblock,
    "line": lambda text: text.rstrip().rpartition("\n")[2].strip() or None,
    "oneline": lambda text: None if "\n" in text.strip() else answers.whole(text),
}


@dataclass(frozen=True)
class Candidates:
    """The answers of a group.

    Attributes:
        texts: each distinct answer once, in an order drawn from the texts.
        of: for each rollout the index of its answer; None where it has no valid one.
    """

    texts: tuple[str, ...]
    of: tuple[int | None, ...]


@dataclass(frozen=True)
class Ballot:
    """The result of one call.

    Attributes:
        order: the candidates as they were shown.
        shares: of each, 0 for the worst possible and 1 for the best; empty if the call failed.
        feedback: what the judge wrote.
        error: why the call failed.
    """

    order: tuple[int, ...]
    shares: Mapping[int, float] = field(default_factory=dict)
    feedback: str = ""
    error: Exception | None = None


class GroupJudge(Judge):
    """A judge that compares the rollouts of a group; subclasses write `compare`, and `parse` to shares in order.

    Identical answers are shown once and share their score. What could not be judged is a failure, never a number.

    Attributes:
        whole: the scores of a group belong together: after an outage the whole group is judged again.
        parts: of every score; they are skipped where nothing was judged.
    """

    whole = True
    parts: tuple[str, ...] = ()
    _template: Template

    def __init__(
        self,
        model: str,
        request: RequestSettings,
        template: Template,
        *,
        criteria: str,
        reference: str,
        extract: str,
        max_chars: int,
        invalid_reward: float | None,
        single_answer_reward: float | None,
        scale: float = 1.0,
        by_reference: bool = False,
    ) -> None:
        super().__init__(model, request)
        self._template, self._by_reference = template, by_reference
        self._criteria, self._reference, self._way, self._max_chars = criteria, reference, extract, max_chars
        self._scale = scale
        self._invalid = -scale / 2 if invalid_reward is None else invalid_reward
        self._single = scale / 2 if single_answer_reward is None else single_answer_reward
        if self._invalid > 0 or self._invalid >= self._single:
            raise UserError(
                f"invalid_reward is {self._invalid:g} and single_answer_reward {self._single:g}: an invalid answer must"
                " be worth less than a single valid one, and at most 0, which is the worst valid one's"
            )
        lacks = f"{template.where}, which has no"
        if "criteria" not in template.places:
            require_unset(f"{lacks} {{{{criteria}}}}", criteria=criteria or None)
        if "reference" not in template.places and not by_reference:
            require_unset(f"{lacks} {{{{reference}}}}", reference=None if reference == "answer" else reference)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; an answer that has nothing to be compared with needs no call."""
        found = self.candidates(group)
        if found.texts and (self._by_reference or len(found.texts) > 1):
            scores = await self.compare(group.prompt, found)
        else:
            scores = [self._without_call(self._single, "there is no other answer to compare it with")]
        invalid = self._without_call(self._invalid, "there is no valid answer to judge")
        return tuple(invalid if i is None else scores[i] for i in found.of)

    async def compare(self, prompt: Prompt, found: Candidates) -> list[Score]:
        """Return the score of each candidate."""
        raise NotImplementedError

    def _without_call(self, value: float, why: str) -> Score:
        return Score(value, parts={name: Score(failure=Failure("skipped", why)) for name in self.parts})

    async def ballot(self, messages: Conversation, order: tuple[int, ...], about: object = None) -> Ballot:
        """Return the result of one call, which shows the candidates in this order."""
        (reply,) = await settle([self.request(Question(messages, about))])
        if isinstance(reply, Exception):
            return Ballot(order, feedback=getattr(reply, "replies", ""), error=reply)
        return Ballot(order, dict(zip(order, reply.value, strict=True)), reply.feedback)

    def with_feedback(self, result: Score | Exception, candidate: int, ballots: Sequence[Ballot]) -> Score:
        """Return a score, or a failure, with what the judge wrote about a candidate; failed calls come first."""
        score = failed_score(result, self.parts) if isinstance(result, Exception) else result
        notes = []
        for ballot in sorted(ballots, key=lambda ballot: ballot.error is None):
            if candidate in ballot.order and ballot.feedback and (score.failure or ballot.error is None):
                letter = letters_of(len(ballot.order))[ballot.order.index(candidate)]
                notes.append(f"[this answer is {letter} of {len(ballot.order)}]\n{ballot.feedback}")
        return replace(score, feedback=joined_replies(notes) or score.feedback)

    def candidates(self, group: RolloutGroup) -> Candidates:
        """Return the answers of a group; stored answers are taken as they are."""
        find = answers.whole if are_stored() else WAYS[self._way]
        found = [find(rollout.text) for rollout in group.rollouts]
        valid = [text if text and len(text) <= self._max_chars else None for text in found]
        distinct = list(dict.fromkeys(text for text in valid if text is not None))
        order = range(len(distinct)) if keeps_order() else drawn(group.prompt.id, distinct)
        places = {distinct[i]: place for place, i in enumerate(order)}
        return Candidates(tuple(places), tuple(None if text is None else places[text] for text in valid))

    def known(self, prompt: Prompt) -> dict[str, str]:
        """Return what the template shows of a prompt, quoted; `CannotScore` if the prompt lacks it."""
        places = self._template.places
        shown = ranking_values(
            question=question_of(prompt) if "question" in places else None,
            source_text=_source_text(prompt) if "source_text" in places else None,
            source_language=_language(prompt, "src_lang") if "source_language" in places else None,
            target_language=_language(prompt, "trg_lang") if "target_language" in places else None,
            references=references_of(prompt, self._reference) if "reference" in places else (),
            criteria=self._criteria,
        )
        return {name: text for name, text in shown.items() if name in places}

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks a reference to compare with, or something that the template shows."""
        self.known(prompt)
        if self._by_reference:
            references_of(prompt, self._reference)


def first_cause(candidate: int, errors: Sequence[tuple[Sequence[int], Exception]]) -> Exception:
    """Return why a candidate has no share: the first failed call about it, or else the first of all.

    A candidate whose calls all succeeded has none when failed calls about others left it unconnected.
    """
    own = [error for members, error in errors if candidate in members]
    return (own or [error for _, error in errors])[0]


def _source_text(prompt: Prompt) -> str:
    text = extra(prompt, "src_text")
    return text if isinstance(text, str) and text.strip() else question_of(prompt)


def _language(prompt: Prompt, name: str) -> str:
    code = extra(prompt, name)
    known = language(code.strip()) if isinstance(code, str) else None
    # A name goes into the prompt unquoted: it must look like one.
    if known is None or not re.fullmatch(r"[\w ()'-]{3,40}", known):
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has {code!r} in info.{name}: not a known language")
    return known


# ---- orders against position bias ----------------------------------------------------------------------------------


def drawn(key: str, texts: Sequence[str]) -> list[int]:
    """Return the candidates in an order drawn from their texts and a key; it ignores the order of the arguments."""

    def digest(i: int) -> bytes:
        return hashlib.sha256(f"{len(key)}:{key}{texts[i]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(range(len(texts)), key=digest)


def balanced(members: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return up to `count` orders of n candidates in which positions are spread evenly.

    They are rows of a Williams square (Williams 1949, Australian Journal of Scientific Research A 2), each followed by
    its mirror image: over an even number of orders every candidate has the same mean position, so that a linear
    position bias cancels. After n orders for an even n, and 2 n for an odd one, everyone has stood in every place, and
    right behind every other, equally often; there are no more than these.
    """
    n = len(members)
    rows: list[tuple[int, ...]] = []
    # The mirror image of a row is another row of the same square where n is even.
    for shift in range(n if n % 2 else n // 2):
        row = tuple(members[(place + shift) % n] for place in _zigzag(n))
        rows += [row, row[::-1]]
    return rows[:count]


def arranged(n: int) -> list[int]:
    """Return n candidates so that the first row which `balanced` makes of them is 0, 1, 2 and so on."""
    members = [0] * n
    for position, place in enumerate(_zigzag(n)):
        members[place % n] = position
    return members


def _zigzag(n: int) -> list[int]:
    return [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(n)]  # 0, 1, -1, 2, -2, …


def windows(members: Sequence[int], size: int, overlap: int) -> list[tuple[int, ...]]:
    """Return subgroups of `size` candidates that cover all; each shares at least `overlap` with the next, in a ring."""
    n = len(members)
    if n <= size:
        return [tuple(members)]
    count = -(-n // (size - overlap))
    starts = [i * n // count for i in range(count)]
    return [tuple(members[(start + place) % n] for place in range(size)) for start in starts]


def heats(members: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return the candidates dealt into the fewest groups of at most `size`, whose sizes differ by one at most."""
    count = -(-len(members) // size)
    return [tuple(members[i::count]) for i in range(count)]


def ring(members: Sequence[int], opponents: int) -> list[tuple[int, int]]:
    """Return pairs in which everyone meets the next `opponents / 2` in a ring, and so that many on each side."""
    n = len(members)
    steps = range(1, min(n, -(-opponents // 2) + 1))
    met = [(members[i], members[(i + step) % n]) for step in steps for i in range(n)]
    return sorted({(min(pair), max(pair)) for pair in met})
