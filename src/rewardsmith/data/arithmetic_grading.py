"""A tiny world for a judge: solutions of the arithmetic world, to be graded by the rubric of their problem.

The prompt is what the `rubric` reward asks with the same template, so that a judge that was trained here can be asked
there. The judge is shown a problem, its rubric and a solution. It goes through the steps: it does each itself, copies
what the solution says, marks whether the two agree, and gives the points; then it adds up.

    8+5-4?                  8+5=13|14x0
    steps 3, 3; end 4  ->   14-4=10|9x0
    8+5=14;14-4=9;#9        #9|9v4
                            Total Score: 4/10

The truth is known: a step earns its points if it is there, follows and is right, and the conclusion if it says what the
last step came to. The demonstrations are by a lenient teacher, who takes many wrong subtractions as they stand, and
miscalculates now and then; the points follow from what he wrote. So imitation alone leaves a judge that overlooks wrong
subtractions, and reinforcement learning against the true grade has something to mend.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.errors import UserError
from rewardsmith.text.arithmetic import (
    TOTAL,
    answer,
    apply,
    check_steps,
    concludes,
    conclusion,
    earned,
    miracle,
    parse,
    points,
    shown_steps,
    solution,
    written,
)
from rewardsmith.text.grading import Quoting, grading_prompt, load_grading_template, plain
from rewardsmith.text.questions import question_of
from rewardsmith.types import Demonstration, Graded, Prompt

SOURCE = "grade"

LONGEST_COPY = 12
"""Characters of a step that the teacher copies; an honest step has eight at most."""

_ERRORS = (-10, -3, -2, -1, 1, 1, 2, 3, 10)
_TORN = ("", ";", "#", ";;#", "=")


class ArithmeticGrading:
    """Solutions of arithmetic problems to be graded by a rubric."""

    def __init__(
        self,
        *,
        operations: Annotated[int, Field(ge=2, le=16, description="steps in a problem")] = 2,
        split: Annotated[
            Literal["train", "held-out"], Field(description="a problem is in one of the two, by a hash of its text")
        ] = "train",
        held_out: Annotated[float, Field(ge=0, le=0.99, description="share of the problems that is held out")] = 0.1,
        overlooks: Annotated[
            float,
            Field(ge=0, le=1, description="demonstrations: chance that a wrong subtraction passes for right"),
        ] = 0.6,
        miscalculates: Annotated[
            float, Field(ge=0, le=1, description="demonstrations: chance that the teacher's own result is one off")
        ] = 0.05,
        template: Annotated[
            str, Field(min_length=1, description="the judge's prompt, as in the rubric reward")
        ] = "rubric_short",
        quoting: Annotated[Quoting, Field(description="foreign text stands in a fence, or bare")] = "fence",
    ) -> None:
        self._world = Arithmetic(operations=operations, split=split, held_out=held_out, forgets_carry=0.5, slips=0.3)
        self._leniency = {"overlooks": overlooks, "miscalculates": miscalculates}
        self._template, self._quoting = load_grading_template(template), quoting
        if "reference" in self._template.places:
            raise UserError(f"{self._template.where} shows {{{{reference}}}}: this world grades by the criteria alone")

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts for the judge without end; the answer is the true grade, as a share of the points."""
        for prompt, kind, text in self._solved(seed):
            yield self._prompt(prompt, kind, text)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield prompts for the judge with what the lenient teacher writes, without end."""
        rng = random.Random(f"teacher {seed}")
        for prompt, kind, text in self._solved(seed):
            response = lenient(prompt.info["problem"], text, rng, **self._leniency)
            yield Demonstration(self._prompt(prompt, kind, text), response)

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield solutions with their true grades without end."""
        for prompt, _, text in self._solved(seed):
            problem = prompt.info["problem"]
            right = conclusion(text) == prompt.answer
            yield Graded(prompt, text, _share(problem, text), right=right, sound=all(check_steps(problem, text)))

    def facts(self) -> dict[str, str]:
        """Return what the prompts depend on beside the settings, for the record of a run."""
        return self._template.facts()

    def _solved(self, seed: int) -> Iterator[tuple[Prompt, str, str]]:
        """Yield prompts of the arithmetic world, each with the kind of a solution and the solution."""
        rng = random.Random(f"solutions {seed}")
        for prompt in self._world.prompts(seed):
            (kind,) = rng.choices(list(_KINDS), _SHARES)
            _, solve = _KINDS[kind]
            yield prompt, kind, solve(self._world, prompt.info["problem"], rng)

    def _prompt(self, prompt: Prompt, kind: str, text: str) -> Prompt:
        problem = prompt.info["problem"]
        messages = grading_prompt(
            self._template,
            question=question_of(prompt),
            criteria=prompt.info["criteria"],
            total=TOTAL,
            response=text,
            quoting=self._quoting,
        )
        info = {**prompt.info, "response": text, "kind": kind}
        return Prompt(f"{SOURCE}-{problem}-{text}", messages, source=SOURCE, answer=_share(problem, text), info=info)


def lenient(problem: str, text: str, rng: random.Random, *, overlooks: float, miscalculates: float) -> str:
    """Return what a teacher writes about a solution: a line for each step and for the conclusion, and the total.

    Args:
        problem: such as `8+5-4`.
        text: the solution, of any form.
        rng: decides what is overlooked.
        overlooks: chance that a wrong subtraction is taken as it stands.
        miscalculates: chance that the teacher's own result of a step is one off.
    """
    worth, held, signs = points(problem), check_steps(problem, text), [sign for sign, _ in parse(problem)[1]]
    rows, total, last = [], 0.0, ""
    for i, (shown, truth) in enumerate(shown_steps(problem, text)):
        operation, _, last = shown.rpartition("=")
        found, accepts = truth, held[i]
        if shown and not held[i] and signs[i] == "-" and rng.random() < overlooks:
            found, accepts = last, True
        elif truth and rng.random() < miscalculates:
            found = str(int(truth) + rng.choice((-1, 1)))
            accepts = found == last
        rows.append(_row(f"{_copied(operation)}={_copied(found)}", last, worth[i], accepts))
        total += worth[i] * accepts
    rows.append(_row(f"#{_copied(last)}", conclusion(text), worth[-1], concludes(problem, text)))
    total += worth[-1] * concludes(problem, text)
    return "\n".join([*rows, f"Total Score: {plain(total)}/{TOTAL}"])


def _row(expected: str, stated: str, worth: float, holds: bool) -> str:
    """Return a line: what should stand there, what does, a mark, and the points."""
    return f"{expected}|{_copied(stated)}{'v' if holds else 'x'}{plain(worth if holds else 0)}"


def _copied(text: str) -> str:
    return text[:LONGEST_COPY] or "-"


def _share(problem: str, text: str) -> float:
    return round(sum(earned(problem, text)) / TOTAL, 6)


# ---- solutions as policies write them ------------------------------------------------------------------------------


def _right(world: Arithmetic, problem: str, rng: random.Random) -> str:
    return solution(problem)


def _sloppy(world: Arithmetic, problem: str, rng: random.Random) -> str:
    return world.sloppy(problem, rng)


def _miracle(world: Arithmetic, problem: str, rng: random.Random) -> str:
    return miracle(problem)


def _careless(world: Arithmetic, problem: str, rng: random.Random) -> str:
    """Return a solution with one wrong result: of a step, which the last may mend by a miracle, or of the end."""
    operations = len(parse(problem)[1])
    wrong, done, right = rng.randrange(operations + 1), -1, answer(problem)
    error, lands = rng.choice(_ERRORS), rng.random() < 0.3

    def step(a: int, sign: str, b: int) -> int:
        nonlocal done
        done += 1
        return right if lands and done == operations - 1 else max(0, apply(a, sign, b) + error * (done == wrong))

    text = written(problem, step)
    if wrong < operations:
        return text
    return f"{text.partition('#')[0]}#{max(0, right + error)}"


def _malformed(world: Arithmetic, problem: str, rng: random.Random) -> str:
    """Return a solution with a part missing, a character changed or missing, or the end torn off."""
    text = solution(problem) if rng.random() < 0.5 else world.sloppy(problem, rng)
    place = rng.randrange(len(text))
    match rng.randrange(4):
        case 0:
            parts = text.split(";")
            del parts[rng.randrange(len(parts))]
            return ";".join(parts) or "#"
        case 1:
            return text[:place] + rng.choice("0123456789+-") + text[place + 1 :]
        case 2:
            return text[:place] + rng.choice(_TORN) if place else "#"
        case _:
            return text[:place] + text[place + 1 :]


_KINDS: dict[str, tuple[float, Callable[[Arithmetic, str, random.Random], str]]] = {
    "right": (0.2, _right),
    "sloppy": (0.25, _sloppy),
    "miracle": (0.25, _miracle),
    "careless": (0.25, _careless),
    "malformed": (0.05, _malformed),
}
"""Shares of the solutions, and how they are made: about what a policy writes that learned from sloppy work."""

_SHARES = [share for share, _ in _KINDS.values()]
