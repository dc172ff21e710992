"""The strings of the arithmetic world: problems, solutions with every step shown, and what is true of them.

    7+5-3   ->   7+5=12;12-3=9;#9

A problem is a digit and then signs and digits. A solution shows one step for each sign, and its conclusion after a `#`.
Each problem has a rubric: so many points for each step, and for the conclusion, ten in all. How the ten are divided
differs between problems, so that a judge has to read it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

TOTAL = 10
"""Points of a rubric."""

_STEP = re.compile(r"(-?[0-9]{1,3})([+-])([0-9]{1,3})=(-?[0-9]{1,3})")  # a slip may lead below 0
_BLANK = "; \t\r\n"  # what may stand behind the last step


def parse(problem: str) -> tuple[int, list[tuple[str, int]]]:
    """Return the first number of a problem, and its operations as (sign, number).

    Raises:
        ValueError: it is no problem of this world.
    """
    if not re.fullmatch(r"[0-9]([+-][0-9]){1,64}", problem):
        raise ValueError(f"{problem!r} is not a problem of this world: digits with + or - between them")
    return int(problem[0]), [(sign, int(digit)) for sign, digit in re.findall(r"([+-])([0-9])", problem)]


def apply(a: int, sign: str, b: int) -> int:
    """Return a + b or a - b."""
    return a + b if sign == "+" else a - b


def written(problem: str, step: Callable[[int, str, int], int] = apply) -> str:
    """Return a solution in which `step` says what comes out of each operation, and the next one goes on from there."""
    value, operations = parse(problem)
    lines = []
    for sign, operand in operations:
        result = step(value, sign, operand)
        lines.append(f"{value}{sign}{operand}={result}")
        value = result
    return ";".join([*lines, f"#{value}"])


def solution(problem: str) -> str:
    """Return the right solution of a problem: `7+5-3` gives `7+5=12;12-3=9;#9`."""
    return written(problem)


def answer(problem: str) -> int:
    """Return what comes out of a problem."""
    value, operations = parse(problem)
    for sign, operand in operations:
        value = apply(value, sign, operand)
    return value


def miracle(problem: str) -> str:
    """Return a solution whose first step is one too high, and whose last step lands on the right answer all the same.

    `8+5-4` gives `8+5=14;14-4=9;#9`.

    Raises:
        ValueError: the problem has one operation only, so that its first step is its last.
    """
    operations = len(parse(problem)[1])
    if operations < 2:
        raise ValueError(f"{problem!r} has one step: a miracle needs a wrong one before the last")
    right, done = answer(problem), 0

    def step(a: int, sign: str, b: int) -> int:
        nonlocal done
        done += 1
        return right if done == operations else apply(a, sign, b) + (done == 1)

    return written(problem, step)


def check_steps(problem: str, text: str) -> list[bool]:
    """Return for each step that `text` should show whether it is there, follows from the one before, and is right.

    Args:
        problem: such as `7+5-3`.
        text: a solution, of any form: it is untrusted.

    Returns:
        One bool per operation of the problem. A step that is missing is False, and so is the last one where more steps
        follow it than the problem has operations.
    """
    operations = parse(problem)[1]
    verdicts = _verdicts(problem, _shown(text, len(operations)))
    more = text.partition("#")[0].split(";", len(operations))[len(operations) :]
    if "".join(more).strip(_BLANK):
        verdicts[-1] = False
    return verdicts


def judged_steps(problem: str, text: str) -> list[tuple[int, int, bool]]:
    """Return what a solution shows, in order: where it begins and ends, and whether it is right.

    These are the steps with the `;` that ends each, and last the conclusion from the `#` on. Whatever stands behind as
    many steps as the problem has operations is one wrong step. A solution without a conclusion has instead, at the very
    end, an empty place that is wrong: it stops too early. Each is judged as `check_steps` and `concludes` do. So all
    are right, one for each operation and one more, exactly when these find nothing wrong.

    Args:
        problem: such as `7+5-3`.
        text: a solution, of any form: it is untrusted.
    """
    operations = len(parse(problem)[1])
    shown = text.partition("#")[0]
    *steps, more = [*shown.split(";", operations), ""][: operations + 1]
    found: list[tuple[int, int, bool]] = []
    written = start = 0
    for step, right in zip(steps, _verdicts(problem, _shown(text, operations)), strict=False):
        end = min(start + len(step) + 1, len(shown))
        found.append((start, end, right))
        start = end
        written = len(found) if step.strip() else written
    if more.strip(_BLANK):
        found.append((start, len(shown), False))
    else:
        del found[written:]  # nothing stands there
    end = len(text)
    return [*found, (len(shown), end, concludes(problem, text)) if len(shown) < end else (end, end, False)]


def concludes(problem: str, text: str) -> bool:
    """Return whether what stands after the only `#` is what the last step came to, right or not."""
    last = _STEP.fullmatch(_shown(text, len(parse(problem)[1]))[-1])
    return last is not None and conclusion(text) == last[4]


def conclusion(text: str) -> str:
    """Return what stands after the first `#` of a solution; "" where there is none."""
    return text.partition("#")[2].strip()


def shown_steps(problem: str, text: str) -> list[tuple[str, str]]:
    """Return each step that a solution shows, and what should have come out of it, given the step before.

    Returns:
        For each operation of the problem the text at its place, "" where there is none, and the number that the
        problem's operation makes of the last step's result, "" where that cannot be read.
    """
    value, operations = parse(problem)
    known: int | None = value
    found = []
    for (sign, operand), step in zip(operations, _shown(text, len(operations)), strict=True):
        found.append((step, "" if known is None else str(apply(known, sign, operand))))
        match = _STEP.fullmatch(step)
        known = int(match[4]) if match else None
    return found


def points(problem: str) -> tuple[float, ...]:
    """Return what each step of a problem is worth, and last its conclusion: `TOTAL` in all, divided by a hash."""
    operations = len(parse(problem)[1])
    unit = 1.0
    while operations >= TOTAL / unit:  # so many steps that whole points do not go round
        unit /= 2
    units = int(TOTAL / unit)
    digest = hashlib.blake2b(f"rubric {problem}".encode(), digest_size=8).digest()
    last = min(units - operations, 2 + digest[0] % 3)
    each, over = divmod(units - last, operations)
    first = digest[1] % operations  # the steps from this one on, in a circle, get what is left over
    steps = [each + ((i - first) % operations < over) for i in range(operations)]
    return tuple(unit * count for count in [*steps, last])


def criteria(problem: str) -> str:
    """Return the rubric of a problem as text, short because tiny models read characters: `steps 4, 3; end 3`."""
    *steps, last = (format(worth, "g") for worth in points(problem))
    return f"steps {', '.join(steps)}; end {last}"


def earned(problem: str, text: str) -> tuple[float, ...]:
    """Return the points that a solution truly earns, by criterion."""
    held = [*check_steps(problem, text), concludes(problem, text)]
    return tuple(worth if holds else 0.0 for worth, holds in zip(points(problem), held, strict=True))


def _verdicts(problem: str, shown: list[str]) -> list[bool]:
    """Return for each operation whether the step in its place is there, follows from the one before, and is right."""
    start, operations = parse(problem)
    verdicts: list[bool] = []
    value: int | None = start
    for (sign, operand), step in zip(operations, shown, strict=True):
        match = _STEP.fullmatch(step)
        follows = match is not None and value is not None and match[1] == str(value)
        expected = follows and match is not None and (match[2], match[3]) == (sign, str(operand))
        verdicts.append(bool(expected and match and int(match[4]) == apply(int(match[1]), sign, operand)))
        value = int(match[4]) if match else None
    return verdicts


def _shown(text: str, count: int) -> list[str]:
    """Return what a solution has in the places of its first steps, "" where there is nothing."""
    found = [step.strip() for step in text.partition("#")[0].split(";", count)[:count]]
    return found + [""] * (count - len(found))


__all__ = [
    "TOTAL",
    "answer",
    "apply",
    "check_steps",
    "concludes",
    "conclusion",
    "criteria",
    "earned",
    "judged_steps",
    "miracle",
    "parse",
    "points",
    "shown_steps",
    "solution",
    "written",
]
