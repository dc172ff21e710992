"""A tiny world with programmatic truth: chains of additions and subtractions with every step shown.

    7+5-3?   ->   7+5=12;12-3=9;#9

Operands are 1 to 9 and every partial result lies in 0 to 20. Each problem has a rubric of ten points for its steps and
its conclusion; how they are divided differs between problems, so that a judge has to read it.

The demonstrations of `Arithmetic` are sloppy on purpose: a step that carries or borrows forgets it now and then,
another step comes out one too high, and the error is carried on to the answer. A model that imitates them learns the
right way and the slipping way; reinforcement learning against the truth then *selects* the right one. A share of the
demonstrations may be miracles: right answers that are reached through a wrong step, such as `8+5=14;14-4=9;#9`, which
a reward that looks at the answer alone cannot tell from honest work.

`ArithmeticGrading` is the same world for a judge, who is shown a problem, its rubric and a solution:

    8+5-4?                  8+5=13|14x0
    steps 3, 3; end 4  ->   14-4=10|9x0
    8+5=14;14-4=9;#9        #9|9v4
                            Total Score: 4/10
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from rewardsmith.data.distractors import distractors
from rewardsmith.data.grading_world import GradingTemplate, GradingWorld, QuotingSetting
from rewardsmith.data.habits import HABITS, Habits, arithmetic_habit
from rewardsmith.data.known_answers import KnownAnswer
from rewardsmith.data.source import HeldOut, Split, draw_from_split, require_share
from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import format_number
from rewardsmith.text.steps import JudgedStep
from rewardsmith.types import Demonstration, Graded, Message, Prompt

MAX_VALUE = 20
SOURCE = "arithmetic"
GRADING_SOURCE = "grade"
TOTAL = 10
"""Points of a rubric."""

_STEP = re.compile(r"(-?[0-9]{1,3})([+-])([0-9]{1,3})=(-?[0-9]{1,3})")  # a slip may lead below 0
_BLANK = "; \t\r\n"  # what may stand behind the last step

Chance = Annotated[float, Field(ge=0, le=1)]


# ---- problems and solutions --------------------------------------------------------------------------------------


def parse(problem: str) -> tuple[int, list[tuple[str, int]]]:
    """Return the first number of a problem, and its operations as (sign, number)."""
    if not re.fullmatch(r"[0-9]([+-][0-9]){1,64}", problem):
        raise ValueError(f"{problem!r} is not a problem of this world: digits with + or - between them")
    return int(problem[0]), [(sign, int(digit)) for sign, digit in re.findall(r"([+-])([0-9])", problem)]


def apply(a: int, sign: str, b: int) -> int:
    """Return a + b or a - b."""
    return a + b if sign == "+" else a - b


def solution(problem: str, step: Callable[[int, int, str, int], int] | None = None) -> str:
    """Return a solution, `7+5-3` gives `7+5=12;12-3=9;#9`; `step(i, a, sign, b)` may give other results."""
    value, operations = parse(problem)
    lines = []
    for i, (sign, operand) in enumerate(operations):
        result = step(i, value, sign, operand) if step else apply(value, sign, operand)
        lines.append(f"{value}{sign}{operand}={result}")
        value = result
    return ";".join([*lines, f"#{value}"])


def answer(problem: str) -> int:
    """Return the value of a problem."""
    return int(conclusion(solution(problem)))


def miracle(problem: str) -> str:
    """Return a solution whose first step is one too high, and whose last step lands on the right answer all the same.

    `8+5-4` gives `8+5=14;14-4=9;#9`. The problem needs two operations.
    """
    last, right = len(parse(problem)[1]) - 1, answer(problem)
    return solution(problem, lambda i, a, sign, b: right if i == last else apply(a, sign, b) + (i == 0))


def _draw(rng: random.Random, operations: int) -> str:
    """Draw evenly from all problems: draw any chain, and again if a partial result leaves the range."""
    while True:
        value = rng.randint(1, 9)
        text = str(value)
        for _ in range(operations):
            sign, operand = rng.choice("+-"), rng.randint(1, 9)
            value = apply(value, sign, operand)
            if not 0 <= value <= MAX_VALUE:
                break
            text += f"{sign}{operand}"
        else:
            return text


# ---- truth -------------------------------------------------------------------------------------------------------


def check_steps(problem: str, text: str) -> list[bool]:
    """Return for each operation whether the step in its place is there, follows from the one before, and is right.

    The last one is False too where more steps follow it than the problem has operations. The text is untrusted.
    """
    operations = len(parse(problem)[1])
    *judged, _ = judged_steps(problem, text)
    right = [step.right for step in judged[:operations]] + [False] * (operations - len(judged))
    right[-1] &= len(judged) <= operations
    return right


def judged_steps(problem: str, text: str) -> list[JudgedStep]:
    """Return the steps of a solution, of any form, with the `;` that ends each, and last the conclusion from `#` on.

    Whatever stands behind as many steps as the problem has operations is one wrong step. A solution without a
    conclusion has instead, at the very end, an empty step that is wrong.
    """
    value: int | None
    value, operations = parse(problem)
    written = text.partition("#")[0]
    steps = written.split(";", len(operations))
    judged: list[JudgedStep] = []
    filled = start = 0
    for (sign, operand), step in zip(operations, steps, strict=False):
        match, end = _STEP.fullmatch(step.strip()), min(start + len(step) + 1, len(written))
        right = (
            match is not None
            and value is not None
            and match.group(1, 2, 3) == (str(value), sign, str(operand))
            and int(match[4]) == apply(value, sign, operand)
        )
        judged.append(JudgedStep(start, end, right))
        value, start = int(match[4]) if match else None, end
        filled = len(judged) if step.strip() else filled
    if "".join(steps[len(operations) :]).strip(_BLANK):
        judged.append(JudgedStep(start, len(written), right=False))
    else:
        del judged[filled:]
    ended = len(written) < len(text)
    return [*judged, JudgedStep(len(written), len(text), right=ended and concludes(problem, text))]


def concludes(problem: str, text: str) -> bool:
    """Return whether the text after the only `#` is the result of the last step, right or not."""
    last = _STEP.fullmatch(_steps(text, len(parse(problem)[1]))[-1])
    return last is not None and conclusion(text) == last[4]


def conclusion(text: str) -> str:
    """Return the text after the first `#` of a solution; "" where there is none."""
    return text.partition("#")[2].strip()


def points(problem: str) -> tuple[float, ...]:
    """Return the points of each step of a problem, and last of its conclusion: `TOTAL` in all, divided by a hash."""
    operations = len(parse(problem)[1])
    unit = 1.0
    while operations >= TOTAL / unit:  # so many steps that whole points do not go round
        unit /= 2
    units = int(TOTAL / unit)
    digest = hashlib.blake2b(f"rubric {problem}".encode(), digest_size=8).digest()
    last = min(units - operations, 2 + digest[0] % 3)
    each, over = divmod(units - last, operations)
    first = digest[1] % operations  # the steps from this one on, in a circle, get the remainder
    steps = [each + ((i - first) % operations < over) for i in range(operations)]
    return tuple(unit * count for count in [*steps, last])


def criteria(problem: str) -> str:
    """Return the rubric of a problem as text, short because tiny models read characters: `steps 4, 3; end 3`."""
    *steps, last = (format(worth, "g") for worth in points(problem))
    return f"steps {', '.join(steps)}; end {last}"


def true_grade(problem: str, text: str) -> float:
    """Return the share of the points that a solution truly earns."""
    right = [*check_steps(problem, text), concludes(problem, text)]
    return round(sum(worth for worth, holds in zip(points(problem), right, strict=True) if holds) / TOTAL, 6)


def _steps(text: str, count: int) -> list[str]:
    """Return what a solution has in the places of its first steps, "" where there is nothing."""
    steps = [step.strip() for step in text.partition("#")[0].split(";", count)[:count]]
    return steps + [""] * (count - len(steps))


def step_truth(prompt: Prompt, text: str) -> list[JudgedStep]:
    """Return which steps of a chain of sums are right, and last its conclusion; the text is untrusted."""
    inner = prompt.info.get("extra_info")  # where verl's files have it
    problem = prompt.info.get("problem", inner.get("problem") if isinstance(inner, Mapping) else None)
    if not isinstance(problem, str):
        raise ValueError(f"info.problem of the prompt {prompt.id!r} is {problem!r:.60}: it should be such as 7+5-3")
    return judged_steps(problem, text)


# ---- data for a policy -------------------------------------------------------------------------------------------


class Arithmetic:
    """Chains of + and - with shown steps."""

    def __init__(
        self,
        *,
        operations: Annotated[int, Field(ge=1, le=16, description="steps in a problem")] = 3,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        forgets_carry: Annotated[
            Chance, Field(description="demonstrations: chance that a carry or borrow is forgotten")
        ] = 0.6,
        slips: Annotated[
            Chance, Field(description="demonstrations: chance that another step comes out one too high")
        ] = 0.3,
        miracles: Annotated[
            Chance, Field(description="demonstrations: share of right answers reached through a wrong step")
        ] = 0.0,
        habits: Habits = 0.0,
    ) -> None:
        require_share(split, held_out)
        if miracles and operations < 2:
            raise UserError(f"miracles is {miracles}: a miracle needs a wrong step before the last, so operations >= 2")
        self.operations, self.split, self.held_out = operations, split, held_out
        self.forgets_carry, self.slips, self.miracles = forgets_carry, slips, miracles
        self._habits = habits

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts of this split without end, drawn evenly from all problems."""
        rng, what = random.Random(seed), f"problem with {self.operations} operations"
        while True:
            yield self.prompt(draw_from_split(lambda: _draw(rng, self.operations), self.split, self.held_out, what))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield prompts of this split, each with a sloppy solution or a miracle, without end."""
        rng, habits = random.Random(f"slips {seed}"), random.Random(f"habits {seed}")
        for prompt in self.prompts(seed):
            problem = prompt.info["problem"]
            is_miracle = self.miracles > 0 and rng.random() < self.miracles
            text = miracle(problem) if is_miracle else self.sloppy(problem, rng)
            if habits.random() < self._habits:
                text = arithmetic_habit(habits.choice(HABITS), text, habits)
            yield Demonstration(prompt, text)

    def known_answers(self, prompt: Prompt, rng: random.Random) -> Iterator[KnownAnswer]:
        """Yield solutions of a problem, right and wrong, of which it is known by construction what they are worth."""
        problem = prompt.info["problem"]
        reference, operations = solution(problem), len(parse(problem)[1])
        steps, _, right = reference.rpartition("#")
        wrong, place, error = distractors(right, rng, 1)[0], rng.randrange(operations), rng.choice((-2, -1, 1, 2))
        carried = solution(problem, lambda i, a, sign, b: apply(a, sign, b) + error * (i == place))
        yield KnownAnswer("reference", reference, right=True, sound=True)
        yield KnownAnswer("wrong-answer", f"{steps}#{wrong}", right=False, sound=False)
        yield KnownAnswer("carried-error", carried, right=False, sound=False)
        yield KnownAnswer("corrupted-step", f"{carried.rpartition('#')[0]}#{right}", right=True, sound=False)
        if operations > 1:
            yield KnownAnswer("miracle", miracle(problem), right=True, sound=False)
        yield KnownAnswer("answer-only", f"#{right}", right=True, sound=False)
        yield KnownAnswer("no-conclusion", steps.rstrip(";"), right=False, sound=False)

    def prompt(self, problem: str) -> Prompt:
        """Return the prompt for a problem such as `7+5-3`."""
        info = {"problem": problem, "criteria": criteria(problem)}
        messages = [Message("user", f"{problem}?")]
        return Prompt(f"{SOURCE}-{problem}", messages, source=SOURCE, answer=str(answer(problem)), info=info)

    def sloppy(self, problem: str, rng: random.Random) -> str:
        """Return a solution with the slips of this world."""

        def step(i: int, a: int, sign: str, b: int) -> int:
            result = apply(a, sign, b)
            over = a % 10 + b >= 10 if sign == "+" else a % 10 < b
            if over and rng.random() < self.forgets_carry:
                return result - 10 if sign == "+" else result + 10
            return result + 1 if not over and rng.random() < self.slips else result

        return solution(problem, step)


# ---- data for a judge --------------------------------------------------------------------------------------------

MAX_COPY = 12
"""Characters of a step that the teacher copies; an honest step has eight at most."""

_ERRORS = (-10, -3, -2, -1, 1, 1, 2, 3, 10)
_TORN = ("", ";", "#", ";;#", "=")


class ArithmeticGrading(GradingWorld):
    """Solutions of arithmetic problems to be graded by a rubric.

    The prompt is the one of the `rubric` reward with the same template, so that a judge that was trained here can be
    called there. The demonstrations are by a lenient teacher, who takes many wrong subtractions as they stand, and
    miscalculates now and then; reinforcement learning against the true grade has something to correct.
    """

    source: ClassVar[str] = GRADING_SOURCE
    total: ClassVar[int] = TOTAL

    def __init__(
        self,
        *,
        operations: Annotated[int, Field(ge=2, le=16, description="steps in a problem")] = 2,
        split: Split = "train",
        held_out: HeldOut = 0.1,
        overlooks: Annotated[
            Chance, Field(description="demonstrations: chance that a wrong subtraction passes for right")
        ] = 0.6,
        miscalculates: Annotated[
            Chance, Field(description="demonstrations: chance that the teacher's own result is one off")
        ] = 0.05,
        template: GradingTemplate = "rubric_short",
        quoting: QuotingSetting = "fence",
    ) -> None:
        super().__init__(template, quoting)
        self._world = Arithmetic(operations=operations, split=split, held_out=held_out, forgets_carry=0.5, slips=0.3)
        self._leniency = {"overlooks": overlooks, "miscalculates": miscalculates}

    def solved(self, seed: int) -> Iterator[tuple[Prompt, str, str]]:
        """Yield prompts of the arithmetic world, each with the kind of a solution and the solution."""
        rng = random.Random(f"solutions {seed}")
        for prompt in self._world.prompts(seed):
            (kind,) = rng.choices(list(_KINDS), [share for share, _ in _KINDS.values()])
            yield prompt, kind, _KINDS[kind][1](self._world, prompt.info["problem"], rng)

    def judge(self, prompt: Prompt, text: str) -> Graded:
        """Return a solution with its true grade."""
        problem, right = prompt.info["problem"], conclusion(text) == prompt.answer
        return Graded(prompt, text, true_grade(problem, text), right, sound=all(check_steps(problem, text)))

    def teach(self, prompt: Prompt, text: str, rng: random.Random) -> str:
        """Return what the lenient teacher writes about a solution."""
        return lenient(prompt.info["problem"], text, rng, **self._leniency)


def lenient(problem: str, text: str, rng: random.Random, *, overlooks: float, miscalculates: float) -> str:
    """Return what a teacher writes about a solution: a line for each step and for the conclusion, and the total.

    It does each step itself, copies the solution's result, marks whether the two agree, and gives the points. `rng`
    decides which wrong subtractions it overlooks, and where its own result is one off.
    """
    previous: int | None
    previous, operations = parse(problem)
    rows: list[tuple[str, str, bool]] = []  # the teacher's own result, the solution's, and whether it is accepted
    last = ""
    steps, verdicts = _steps(text, len(operations)), check_steps(problem, text)
    for (sign, operand), step, right in zip(operations, steps, verdicts, strict=True):
        truth = "" if previous is None else str(apply(previous, sign, operand))
        operation, _, last = step.rpartition("=")
        own, accepts = truth, right
        if step and not right and sign == "-" and rng.random() < overlooks:
            own, accepts = last, True
        elif truth and rng.random() < miscalculates:
            own = str(int(truth) + rng.choice((-1, 1)))
            accepts = own == last
        rows.append((f"{_copied(operation)}={_copied(own)}", last, accepts))
        match = _STEP.fullmatch(step)
        previous = int(match[4]) if match else None
    rows.append((f"#{_copied(last)}", conclusion(text), concludes(problem, text)))
    given = [worth if accepts else 0.0 for worth, (_, _, accepts) in zip(points(problem), rows, strict=True)]
    lines = [
        f"{own}|{_copied(stated)}{'v' if accepts else 'x'}{format_number(worth)}"
        for (own, stated, accepts), worth in zip(rows, given, strict=True)
    ]
    return "\n".join([*lines, f"Total Score: {format_number(sum(given))}/{TOTAL}"])


def _copied(text: str) -> str:
    return text[:MAX_COPY] or "-"


def _careless(world: Arithmetic, problem: str, rng: random.Random) -> str:
    """Return a solution with one wrong result: of a step, which the last may repair by a miracle, or of the end."""
    operations, right = len(parse(problem)[1]), answer(problem)
    wrong, error, lands = rng.randrange(operations + 1), rng.choice(_ERRORS), rng.random() < 0.3

    def step(i: int, a: int, sign: str, b: int) -> int:
        return right if lands and i == operations - 1 else max(0, apply(a, sign, b) + error * (i == wrong))

    text = solution(problem, step)
    return text if wrong < operations else f"{text.partition('#')[0]}#{max(0, right + error)}"


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
    "right": (0.2, lambda world, problem, rng: solution(problem)),
    "sloppy": (0.25, lambda world, problem, rng: world.sloppy(problem, rng)),
    "miracle": (0.25, lambda world, problem, rng: miracle(problem)),
    "careless": (0.25, _careless),
    "malformed": (0.05, _malformed),
}
"""Shares of the solutions, and how they are made: about what a policy writes that learned from sloppy work."""
