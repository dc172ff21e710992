"""The answers of an audit: known right and wrong ones to each prompt, attacks and edits, in groups to score.

A reward that scores each answer on its own sees many of them in one group. One that compares the answers of a group
sees one attack at a time, next to a right and a wrong answer, as it would in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rewardsmith.auditing.attacks import Anchors, Probe, attacks
from rewardsmith.auditing.edits import edits
from rewardsmith.auditing.same_value import wrong_answers
from rewardsmith.auditing.user_probes import fill
from rewardsmith.data.known_answers import KnownAnswer, final_answer, final_answers, stated_answer, with_answer
from rewardsmith.types import Prompt, Rollout, RolloutGroup

Role = Literal["right", "wrong", "unsound", "attack", "edit"]

COMPARED = 4
"""Answers in a group that is scored as a whole, or as many as in training where that is fewer."""


@dataclass(frozen=True)
class Case:
    """One answer to score."""

    role: Role
    probe: Probe


@dataclass(frozen=True)
class PromptCases:
    """The answers to one prompt; the first is right, the second wrong."""

    prompt: Prompt
    cases: Sequence[Case]


@dataclass(frozen=True)
class CaseGroup:
    """Answers that are scored together, by their places among the cases of the prompt."""

    number: int  # of the prompt
    group: RolloutGroup
    places: Sequence[int]
    tested: Sequence[int]  # the places whose scores it is made for; the others keep them company


def cases_of(
    prompt: Prompt, known: Sequence[KnownAnswer], other: str, seed: int, *, own: Sequence[Probe] = ()
) -> PromptCases | None:
    """Return the cases of a prompt; None where no right or no wrong answer is known.

    What is random in an attack depends on the seed alone; in a wrong answer or an edit it depends on the prompt too.
    """
    right = next((one for one in known if one.right and one.sound), None)
    wrong = next((one for one in known if not one.right), None)
    if right is None or wrong is None:
        return None
    accepted = final_answers(prompt)
    answer = stated_answer(prompt, right.text) or final_answer(prompt)
    rng = random.Random(f"{seed}/{prompt.id}")

    def write(final: str) -> str:
        return (with_answer(right.text, answer, final) if answer else None) or final

    # What a wrong answer of the source says may be another form of the truth: only derived ones are used.
    wrong_finals = wrong_answers(answer, rng, accepted=accepted) if answer else []
    anchors = Anchors(prompt, right.text, wrong.text, answer, wrong_finals, other, write, accepted)
    paid_for = {one.text for one in known if one.right}
    filled = [one for one in (fill(probe, anchors) for probe in own) if one is not None]
    tried = [one for one in [*attacks(anchors, seed), *filled] if one.text not in paid_for]
    roles: dict[tuple[bool, bool], Role] = {(True, True): "right", (True, False): "unsound"}
    first = [right, wrong, *(one for one in known if one is not right and one is not wrong)]
    return PromptCases(
        prompt,
        [
            *(Case(roles.get((one.right, one.sound), "wrong"), Probe("known", one.kind, one.text)) for one in first),
            *(Case("attack", one) for one in tried),
            *(Case("edit", one) for one in edits(anchors, rng)),
        ],
    )


def case_groups(
    number: int, cases: PromptCases, places: Sequence[int], *, size: int, whole: bool, rng: random.Random
) -> Iterator[CaseGroup]:
    """Yield the groups in which the cases of a prompt at these places are scored."""
    if not whole:
        mixed = rng.sample(list(places), len(places))  # a reward may depend on the order without saying so
        for start in range(0, len(mixed), size):
            yield _group(number, cases, mixed[start : start + size], mixed[start : start + size])
        return
    filled = max(3, min(size, COMPARED))
    texts = [case.probe.text for case in cases.cases]
    others = [i for i in range(2, len(texts)) if cases.cases[i].role in ("wrong", "unsound")]
    for place in places:
        if place == 0:  # it is in the group of the first wrong answer
            continue
        chosen = list(dict.fromkeys([0, 1, place]))
        for other in others:
            if len(chosen) < filled and texts[other] not in {texts[at] for at in chosen}:
                chosen.append(other)
        rng.shuffle(chosen)
        yield _group(number, cases, chosen, [0, 1] if place == 1 else [place])


def _group(number: int, cases: PromptCases, places: Sequence[int], tested: Sequence[int]) -> CaseGroup:
    rollouts = [Rollout(cases.cases[place].probe.text) for place in places]
    return CaseGroup(number, RolloutGroup(cases.prompt, rollouts), list(places), list(tested))
