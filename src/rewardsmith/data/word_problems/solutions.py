"""What is true of a solution of a word problem, and solutions with known faults.

    She buys 7: 12 + 7 = 19.
    She gives away 5: 19 - 5 = 14.
    The answer is 14.

The equations of a solution are its steps; the words around them are not looked at. An equation holds if it does the
operation in its place with the result of the one before; where a step is left out, those after it are out of place, and
wrong too. Multiplication may be written `*`, `x`, `×` or `·`, division `/` or `÷`, and thousands `1,500`. The
conclusion is the end of the solution. What can be wrong with a solution (`flaws`):

    operation       another operation or number than that of the story
    copied          not the result of the equation before
    calculation     the result is wrong, or the equation is only a part of one: 5 + 12 + 7 = 19, 12 + 7 = 19.5
    missing, extra  fewer or more equations than operations
    conclusion      the answer is missing, or is not the last result

A right answer with a flaw is a *miracle*: a reward that looks at the answer alone cannot tell it from honest work.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, get_args

from rewardsmith.data.word_problems.chains import Operation, is_chain, parse_chain, results
from rewardsmith.text.steps import JudgedStep
from rewardsmith.types import Prompt

Flaw = Literal["operation", "copied", "calculation", "missing", "extra", "conclusion"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)
Miracle = Literal["operation", "copied", "calculation", "missing", "conclusion"]
MIRACLES: tuple[Miracle, ...] = get_args(Miracle)

TOTAL = 10
"""Points of a rubric."""

_NUMBER = r"(?:[0-9]{1,3},[0-9]{3}|[0-9]{1,6})"
_GAP = r"[^\S\n]{0,3}"
_EQUATION = re.compile(
    rf"(?:(?<![\w.])(?<![0-9],)(?<!\u200b)|(?P<before>[0-9)]{_GAP}[-+*/x^=]{_GAP}\(?|\w|\.|[0-9],|\u200b))"
    rf"(?P<left>-?{_NUMBER}){_GAP}(?P<sign>[-+*/x]){_GAP}(?P<number>{_NUMBER}){_GAP}={_GAP}(?P<result>-?{_NUMBER})"
    rf"(?=(?P<after>\w|[.,][0-9]|{_GAP}\)?{_GAP}[-+*/x^=]{_GAP}[-(]{{0,2}}[0-9]|\*\*[0-9]|{_GAP}[0-9])?)"
)
"""`before` and `after` find that there is more to an equation; every part is short, so any text takes linear time."""

_CONCLUSION = re.compile(rf"The answer is (-?{_NUMBER})\.?")
_PLAIN = str.maketrans("×·÷−–", "**/--")


# ---- truth -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equation:
    """`12 + 7 = 19` in a solution, whose text from `start` to `end` belongs to it.

    It is not `whole` where it is a part of a longer one, or of other numbers: `5 + 12 + 7 = 19`, `12 + 7 = 19.5`.
    """

    left: int
    operation: Operation
    result: int
    whole: bool
    start: int
    end: int

    def flaw(self, value: int, operation: Operation) -> Flaw | None:
        """Return what is wrong where `operation` should be done to `value`; both orders of + and * are right."""
        left, number = self.left, self.operation.number
        if self.operation.sign in "+*" and left == operation.number != number:
            left, number = number, left
        if Operation(self.operation.sign, number) != operation:
            return "operation"
        if left != value:
            return "copied"
        right = self.whole and self.result == operation.of(value) and operation.exact(value)
        return None if right else "calculation"

    def __str__(self) -> str:
        return f"{self.left} {self.operation.sign} {self.operation.number} = {self.result}"


def equations(text: str) -> list[Equation]:
    """Return the equations in front of the conclusion of an untrusted solution.

    The text between two of them belongs to the later one, but for the rest of the line if no other is in it.
    """
    written = text[: _conclusion_at(text)].translate(_PLAIN)
    found = list(_EQUATION.finditer(written))
    parsed, start = [], 0
    for match, after in zip_longest(found, found[1:]):
        next_line = written.find("\n", match.end(), after.start() if after else len(written)) + 1
        end = next_line or (match.end() if after else len(written))
        operation = Operation(match["sign"].replace("x", "*"), _integer(match["number"]))
        whole = match["before"] is match["after"] is None
        parsed.append(Equation(_integer(match["left"]), operation, _integer(match["result"]), whole, start, end))
        start = end
    return parsed


def _integer(digits: str) -> int:
    return int(digits.replace(",", ""))


def conclusion(text: str) -> str:
    """Return the number of `The answer is 14.`, which must be the end of a solution; "" where there is none."""
    match = _CONCLUSION.fullmatch(text[_conclusion_at(text) :].strip().translate(_PLAIN))
    return str(_integer(match[1])) if match else ""


def _conclusion_at(text: str) -> int:
    at = text.find("The answer is")
    return len(text) if at < 0 else at


def judged_steps(chain: str, text: str) -> list[JudgedStep]:
    """Return the equations of an untrusted solution as steps, and last its conclusion.

    Equations after as many as the chain has operations are wrong. A conclusion that follows, but comes before as many,
    is wrong too: else one right step would be as good as all of them. Without a conclusion the last step is empty, at
    the very end, and wrong. Text between the last equation and the conclusion belongs to the conclusion.
    """
    value, operations = parse_chain(chain)
    judged = []
    found = equations(text)
    for i, equation in enumerate(found):
        right = i < len(operations) and equation.flaw(value, operations[i]) is None
        judged.append(JudgedStep(equation.start, equation.end, right))
        value = equation.result
    start = found[-1].end if found else 0
    if _conclusion_at(text) < len(text):
        right = len(found) >= len(operations) and _follows(text, found)
        return [*judged, JudgedStep(start, len(text), right)]
    rest = [JudgedStep(start, len(text), right=False)] if start < len(text) else []
    return [*judged, *rest, JudgedStep(len(text), len(text), right=False)]


def flaws(chain: str, text: str) -> list[Flaw]:
    """Return what is wrong with an untrusted solution, in order; nothing where every step holds and the end follows."""
    value, operations = parse_chain(chain)
    found = equations(text)
    kinds: list[Flaw] = []
    for equation, operation in zip(found, operations, strict=False):
        flaw = equation.flaw(value, operation)
        kinds += [flaw] if flaw else []
        value = equation.result
    if len(found) != len(operations):
        kinds.append("missing" if len(found) < len(operations) else "extra")
    if not _follows(text, found):
        kinds.append("conclusion")
    return kinds


def main_flaw(chain: str, text: str) -> Flaw | None:
    """Return what makes an untrusted solution unsound, the kind of a miracle; None where it is sound.

    Where a step is missing or too much, the equations after it are out of place. Where the end is not the last result,
    a wrong step before it has not led there. So these come before the first wrong equation.
    """
    found = flaws(chain, text)
    whole: tuple[Flaw, ...] = ("missing", "extra", "conclusion")
    return next((flaw for flaw in whole if flaw in found), next(iter(found), None))


def _follows(text: str, found: Sequence[Equation]) -> bool:
    """Return whether the conclusion is the last result."""
    return bool(found) and conclusion(text) == str(found[-1].result)


def check_steps(chain: str, text: str) -> list[bool]:
    """Return for each operation whether its equation holds, and last whether the conclusion follows.

    That of the last operation does not hold where more equations follow.
    """
    operations = len(parse_chain(chain)[1])
    found = equations(text)
    right = [step.right for step in judged_steps(chain, text)[: min(len(found), operations)]]
    right += [False] * (operations - len(right))
    right[-1] &= len(found) <= operations
    return [*right, _follows(text, found)]


def chain_of(prompt: Prompt) -> str:
    """Return the chain of a prompt; `ValueError` for a prompt of another world."""
    inner = prompt.info.get("extra_info")  # where verl's files have it
    chain = prompt.info.get("chain", inner.get("chain") if isinstance(inner, Mapping) else None)
    if not isinstance(chain, str) or not is_chain(chain):
        raise ValueError(f"info.chain of the prompt {prompt.id!r} is {chain!r:.60}: it should be such as 12 +7 -5")
    return chain


def step_truth(prompt: Prompt, text: str) -> list[JudgedStep]:
    """Return which equations of a solution hold, and last its conclusion; the text is untrusted."""
    return judged_steps(chain_of(prompt), text)


# ---- a rubric ----------------------------------------------------------------------------------------------------


def points(chain: str) -> tuple[int, ...]:
    """Return the points of each step and last of the conclusion, `TOTAL` in all; a hash of the chain divides them."""
    steps = len(parse_chain(chain)[1])
    digest = hashlib.blake2b(f"rubric {chain}".encode(), digest_size=8).digest()
    last = max(1, min(TOTAL - steps, 2 + digest[0] % 3))
    each, over = divmod(TOTAL - last, steps)
    first = digest[1] % steps  # the steps from this one on, in a circle, get the remainder
    return (*(each + ((i - first) % steps < over) for i in range(steps)), last)


def criteria(chain: str, events: Sequence[str]) -> str:
    """Return the rubric of a problem: what each step must do and what it is worth, without the results."""
    *steps, last = points(chain)
    operations = parse_chain(chain)[1]
    lines = [
        f"{i}. {event} ({operation.sign} {operation.number}): {worth}"
        for i, (event, operation, worth) in enumerate(zip(events, operations, steps, strict=True), 1)
    ]
    return "\n".join([*lines, f"{len(lines) + 1}. The answer is the last result: {last}"])


def true_grade(chain: str, text: str) -> float:
    """Return the share of the points that a solution earns."""
    earned = sum(worth for worth, holds in zip(points(chain), check_steps(chain, text), strict=True) if holds)
    return earned / TOTAL


# ---- solutions ---------------------------------------------------------------------------------------------------

_REMARKS = (
    "Let us think about this with care.",
    "This step is clear and well explained.",
    "We go on in the same way.",
    "That is easy to see.",
    "It is good to write everything down.",
    "Now we know a little more.",
)


def write_solution(chain: str, events: Sequence[str], stated: Mapping[int, int] | None = None) -> str:
    """Return a solution; `stated` gives the results of some steps, which are carried on, right or not."""
    value, operations = parse_chain(chain)
    lines = []
    for i, (operation, event) in enumerate(zip(operations, events, strict=True)):
        result = (stated or {}).get(i, operation.of(value))
        lines.append(f"{event}: {value} {operation.sign} {operation.number} = {result}.")
        value = result
    return "\n".join([*lines, f"The answer is {value}."])


def nearby(value: int, rng: random.Random) -> int:
    """Return a wrong result near a right one."""
    near = (value - 10, value - 2, value - 1, value + 1, value + 2, value + 10)
    return rng.choice([wrong for wrong in near if wrong > 0 or value <= 0])


def carried_error(chain: str, events: Sequence[str], rng: random.Random) -> str:
    """Return a solution with one wrong result, which is carried on to a wrong answer."""
    right = results(chain)
    places = rng.sample(range(len(right)), len(right))
    tries = [write_solution(chain, events, {place: nearby(right[place], rng)}) for place in places]
    wrong = (text for text in tries if conclusion(text) != str(right[-1]))  # a division may swallow the error
    return next(wrong, write_solution(chain, events, {len(right) - 1: right[-1] + 1}))


def miracle(chain: str, events: Sequence[str], rng: random.Random, kind: Miracle) -> str:
    """Return a solution with a right answer and a flaw; the chain needs two steps.

    `operation`, `copied`: another sign, or another number than the result before, and the right result all the same.
    `calculation`: a wrong result, and a last step that lands on the right answer. `missing`: a step is left out, and
    the next one lands on its own right result. `conclusion`: an error is carried on, and the right answer is stated in
    the end.
    """
    right = results(chain)
    last = len(right) - 1
    match kind:
        case "operation" | "copied":
            lines = write_solution(chain, events).split("\n")
            start, operations = parse_chain(chain)
            place = rng.randrange(len(right))
            value, (sign, number) = right[place - 1] if place else start, operations[place]
            if kind == "copied":
                value = nearby(value, rng)
            else:
                sign = rng.choice([other for other in "+-*/" if other != sign])
            lines[place] = f"{events[place]}: {value} {sign} {number} = {right[place]}."
            return "\n".join(lines)
        case "calculation":
            place = rng.randrange(last)
            return write_solution(chain, events, {place: nearby(right[place], rng), last: right[-1]})
        case "missing":
            place = rng.randrange(last)
            lines = write_solution(chain, events).split("\n")
            start, operations = parse_chain(chain)
            value, after = right[place - 1] if place else start, operations[place + 1]
            equation = f"{value} {after.sign} {after.number} = {right[place + 1]}"
            lines[place : place + 2] = [f"{events[place + 1]}: {equation}."]
            return "\n".join(lines)
        case "conclusion":
            steps = carried_error(chain, events, rng).rpartition("\n")[0]
            return f"{steps}\nThe answer is {right[-1]}."


def pad(text: str, rng: random.Random, count: int) -> str:
    """Return a solution with so many remarks, lines that say nothing, in front of its conclusion."""
    lines = text.split("\n")
    for _ in range(count):
        lines.insert(rng.randrange(len(lines)), rng.choice(_REMARKS))
    return "\n".join(lines)


def remarks(text: str) -> int:
    """Return how many lines of an untrusted solution are neither an equation nor its end."""
    lines = text[: _conclusion_at(text)].translate(_PLAIN).split("\n")
    return sum(bool(line.strip()) and not _EQUATION.search(line) for line in lines)
