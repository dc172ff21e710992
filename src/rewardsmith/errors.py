"""What a user is told when something is wrong: the setting, its value, and the remedy.

Every mistake that a user can make ends in a `UserError`. The command line prints it without a traceback and exits
with status 2; a program that uses rewardsmith as a library can catch it as a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from traceback import walk_tb


class UserError(ValueError):
    """Something that the user gave cannot be used; the message says what, and how to mend it."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a recipe.

    Attributes:
        path: where, as the user would write it in an override: `stages.1.loss.high`.
        message: what is wrong and how to mend it, in one or two sentences.
        value: the offending value as TOML would show it, or "" when there is none (a missing table).
    """

    path: str
    message: str
    value: str = ""

    def __str__(self) -> str:
        """Return the two lines that a user reads."""
        where = f"{self.path} = {self.value}" if self.value else self.path
        return f"  {where}\n    {self.message}"


class RecipeError(UserError):
    """A recipe that cannot be run, with every problem that was found in it."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = f"{source}: {count} problem{'' if count == 1 else 's'}"
        super().__init__("\n".join([heading, *map(str, self.problems)]))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` for the known name that `name` is a slip of, or "" when there is none.

    A slip is a letter too many, too few, wrong or swapped with its neighbour: one in a short name, up to three in a
    long one. So is a name without its end, or with more behind it. Names that merely share letters are not suggested.
    """
    word = name.lower()
    near = [(slips, other) for other in sorted(known) if (slips := _slips(word, other.lower())) is not None]
    return f' Did you mean "{min(near)[1]}"?' if near else ""


def _slips(name: str, meant: str) -> int | None:
    """Return how many slips make `name` of `meant`; None where they are too many to be slips."""
    # A short name begins as it should. Texts of some length are not names, and comparing them takes long.
    if not 2 <= len(name) <= 200 or (len(name) <= 5 and name[0] != meant[:1]):
        return None
    allowed = 1 if len(name) <= 4 else 2 if len(name) <= 9 else 3
    if abs(len(name) - len(meant)) > allowed:
        short, long = sorted((name, meant), key=len)
        return allowed if len(short) > 3 and long.startswith(short) and len(long) <= 2 * len(short) else None
    swapped, before = [0] * (len(meant) + 1), list(range(len(meant) + 1))
    for i, letter in enumerate(name, start=1):
        row = [i]
        for j, other in enumerate(meant, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == meant[j - 2] and name[i - 2] == other:
                cost = min(cost, swapped[j - 2] + 1)
            row.append(cost)
        swapped, before = before, row
    return before[-1] if before[-1] <= allowed else None


def a(noun: str) -> str:
    """Return a noun with its article: `an advantage`."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def listing(known: Iterable[str]) -> str:
    """Return the known names in a stable order, for the end of an error message."""
    return ", ".join(sorted(known)) or "none"


def where_raised(error: BaseException) -> str:
    """Return ` (file.py:12)`, the last place that raised outside of this package and of installed ones; "" for none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    others = ("/site-packages/", f"{PurePath(__file__).parent}/", "/lib/python")
    own = [(file, line) for file, line in frames if not any(part in file for part in others)]
    return f" ({PurePath(own[-1][0]).name}:{own[-1][1]})" if own else ""
