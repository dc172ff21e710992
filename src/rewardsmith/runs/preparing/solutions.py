"""The solutions of files, again and again: those that can be graded, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rewardsmith.data.preparing import BadRows, Skipped
from rewardsmith.data.rows import ANSWER, RowError
from rewardsmith.data.rubrics.files import RowFiles
from rewardsmith.data.rubrics.problems import Solution, SolutionRows, no_such_column
from rewardsmith.errors import UserError
from rewardsmith.runs.preparing.asking import Job


@dataclass(frozen=True)
class Item:
    """A solution with a name of its own.

    Attributes:
        id: that of its problem, and which solution of it this is.
        where: file and row.
        solution: what is graded.
        held_out: whether its problem belongs to the held-out part.
    """

    id: str
    where: str
    solution: Solution
    held_out: bool


@dataclass
class Solutions:
    """Reads solutions.

    Attributes:
        files: the rows.
        rows: reads one.
        key: what the grades of a solution are known by.
        held_out: whether a problem is held out, by its question.
        blank: how many solutions are left out because they are.
        twice: how many because the same one stands before them.
    """

    files: RowFiles
    rows: SolutionRows
    key: Callable[[Solution], str]
    held_out: Callable[[str], bool]
    blank: int = field(default=0, init=False)
    twice: int = field(default=0, init=False)

    def check(self, bad: BadRows) -> Skipped:
        """Look at every row before anything is asked; return which are left out."""
        total = kept = answers = 0
        for where, found in self._read():
            total += 1
            if isinstance(found, RowError):
                bad.note(where, found)
            else:
                kept += len(found)
                answers += any(job.item.solution.prompt.answer is not None for job in found)
        skipped = bad.settle(total)
        if not kept:
            raise UserError(
                f"there is nothing to grade: {total:,} rows have {self.blank:,} blank solutions and no other"
            )
        answer = self.rows.layout.answer
        if answer != ANSWER and not answers:
            raise no_such_column("--answer-column", answer, self.files.columns, "the right answer")
        return skipped

    def jobs(self) -> Iterator[Job[Item]]:
        """Yield the solutions that can be graded, in the order of the rows."""
        return (job for row in self.by_row() for job in row)

    def by_row(self) -> Iterator[list[Job[Item]]]:
        """Yield the same, those of one row together."""
        return (found for _, found in self._read() if not isinstance(found, RowError))

    def _read(self) -> Iterator[tuple[str, list[Job[Item]] | RowError]]:
        self.blank = self.twice = 0
        seen: set[str] = set()
        numbers: Counter[str] = Counter()
        for where, file, number, row in self.files:
            try:
                if isinstance(row, RowError):
                    raise row
                jobs = self._jobs(self.rows.read(row, file, number), where, seen, numbers)
            except RowError as error:
                yield where, error
            else:
                yield where, jobs

    def _jobs(self, found: list[Solution], where: str, seen: set[str], numbers: Counter[str]) -> list[Job[Item]]:
        jobs: list[Job[Item]] = []
        blank = sum(not solution.response.strip() for solution in found)
        for solution in found:
            name = f"{solution.prompt.id}#{numbers[solution.prompt.id]}"
            numbers[solution.prompt.id] += 1
            key = self.key(solution)
            if solution.response.strip() and key not in seen:
                seen.add(key)
                item = Item(name, where, solution, self.held_out(solution.question))
                which = f", solution {solution.number + 1}" if len(found) > 1 else ""
                jobs.append(Job(key, f"{where}{which}", item))
        self.blank += blank
        self.twice += len(found) - blank - len(jobs)
        return jobs


__all__ = ["Item", "Solutions"]
