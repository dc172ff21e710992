"""Programs, scored by their tests."""

from __future__ import annotations

import textwrap
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.sandbox import BrokenTestsError, Isolation, ProgramLimits, SandboxError, SandboxGoneError, probe
from rewardsmith.sandbox.cases import OutputComparison, read_tests
from rewardsmith.types import Prompt

MAX_PROGRAM = 1 << 20
"""Characters of a program; a longer one is wrong."""

MARGIN = 5.0
"""Seconds that starting and ending a sandbox may take, beyond the time of its tests."""

_MARKS = {"python", "python3", "py"}


def code(
    prompt: Prompt,
    text: str,
    *,
    reward: Annotated[
        Literal["ratio", "all"], Field(description="the share of tests that pass, or 1 only when all of them do")
    ] = "ratio",
    seconds: Annotated[
        float, Field(gt=0, description="processor time of one test; on the clock it may take three times as long")
    ] = 4.0,
    total: Annotated[
        float, Field(gt=0, description="seconds on the clock for all tests; tests not reached by then have failed")
    ] = 30.0,
    memory: Annotated[int, Field(ge=64, description="MiB of address space of a program")] = 512,
    output: Annotated[int, Field(ge=1, le=1024, description="MiB that a test may print or return")] = 4,
    max_tests: Annotated[
        int | None, Field(ge=1, description="run at most so many tests, spread evenly over all; not set: all")
    ] = None,
    whitespace: Annotated[
        Literal["tokens", "lines"],
        Field(description="compare printed words wherever lines break, or line by line without white space at the end"),
    ] = "tokens",
    tolerance: Annotated[
        float, Field(ge=0, description="how far a number may be off, relative to the right one or to 1")
    ] = 0.0,
    unfenced: Annotated[
        bool, Field(description="take the whole text as the program when it has no fenced block")
    ] = True,
    isolation: Annotated[
        Isolation,
        Field(
            description='"full" is refused where it is not available; "syscalls" lets programs read your files;'
            ' "limits" only limits what they use'
        ),
    ] = "full",
) -> float:
    """The share of tests that the program in the answer passes, run in a sandbox.

    Tests are `prompt.info["tests"]`, or else the prompt's answer; docs/code.md has their shapes.
    """
    try:
        tests = read_tests(extra(prompt, "tests", prompt.answer))
        program = extract(text, unfenced=unfenced)
        if not program.strip() or len(program) > MAX_PROGRAM:
            return 0.0
        limits = ProgramLimits(seconds, total, memory, output, isolation)
        probe(limits)
        chosen, comparison = choose(len(tests), max_tests), OutputComparison(whitespace, tolerance)
        passed = 0
        with tests.open(program, limits, comparison) as sandbox:
            for index in chosen:
                is_right = tests.passes(sandbox, index, comparison)
                passed += is_right
                if not is_right and reward == "all":
                    break
    except BrokenTestsError as error:
        raise CannotScore("invalid", f"the tests of the prompt {prompt.id!r} cannot be run: {error}") from error
    except SandboxGoneError as error:
        raise CannotScore("crashed", f"the sandbox broke: {error}") from error
    except SandboxError as error:
        raise CannotScore("refused", f"no program is run without a sandbox: {error}") from error
    return passed / len(chosen) if reward == "ratio" else float(passed == len(chosen))


def sandbox_ready(
    *, deadline: float, total: float, seconds: float, memory: int, isolation: Isolation, **_: object
) -> None:
    """Raise a `UserError` unless programs can be run here, and in the time that there is."""
    if total + MARGIN > deadline:  # else a slow program would be a timeout of the rule, and not wrong
        raise UserError(
            f"total = {total:g} s for the tests, but the rule's deadline is {deadline:g} s: set deadline ="
            f" {total + MARGIN:g} or more, or a shorter total"
        )
    try:
        probe(ProgramLimits(seconds, total, memory, isolation=isolation))
    except SandboxError as error:
        raise UserError(
            f'no sandbox with isolation = "{isolation}" on this machine: {error}. docs/code.md has the levels'
        ) from error


def choose(count: int, limit: int | None) -> list[int]:
    """Return the numbers of the tests that are run: all, or `limit` of them, spread evenly."""
    if limit is None or count <= limit:
        return list(range(count))
    return [i * (count - 1) // max(limit - 1, 1) for i in range(limit)]


def extract(text: str, *, unfenced: bool = True) -> str:
    """Return the program in an answer, "" where there is none.

    It is the last fenced block that is marked as Python, else the last one without a mark, else the whole text. A block
    that is never closed counts when there is no other.
    """
    blocks: list[tuple[str, str, bool]] = []
    mark, lines, inside = "", list[str](), False
    for line in text.split("\n"):
        label = _fence(line)
        if label is None and not inside:
            label = _fence_behind(line)
        if label is None or (inside and label not in ("", *_MARKS)):
            lines.append(line)
        elif inside and not label:
            blocks.append((mark, "\n".join(lines), True))
            inside = False
        else:  # no line of a program looks like a fence with a mark: what was open has been forgotten
            blocks += [(mark, "\n".join(lines), False)] if inside else []
            mark, lines, inside = label, [], True
    if inside:
        blocks.append((mark, "\n".join(lines), False))
    closed = [block for block in blocks if block[2]] or blocks
    for wanted in (_MARKS, {""}):
        for label, body, _ in reversed(closed):
            if label in wanted:
                return textwrap.dedent(body) if len(body) <= MAX_PROGRAM else body
    return text if unfenced and not blocks else ""


def _fence_behind(line: str) -> str | None:
    """Return the mark of a fence that opens at the end of a line, as in "Sure: ```python"; None for any other line."""
    _, fence, mark = line.rpartition("```")
    mark = mark.strip().lower()
    return mark if fence and mark in _MARKS else None


def _fence(line: str) -> str | None:
    """Return the mark of a line that is a fence, such as `python`, and None for any other line."""
    stripped = line.strip()
    if not stripped.startswith("```") or "`" in stripped[3:]:
        return None
    return (stripped[3:].split() or [""])[0].lower()
