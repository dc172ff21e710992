"""Errors for users: the setting, its value, and the remedy.

Every mistake of a user ends in a `UserError`: the command line prints it without a traceback and exits with status 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from traceback import walk_tb


class UserError(ValueError):
    """Something that the user gave cannot be used; the message has what, and the remedy."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a recipe, at a path such as `stages.1.loss.high`; `value` is TOML, "" when there is none."""

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
    """Return ` Did you mean "x"?` for the known name that `name` is most like, or "" when it is like none."""
    names = {other.lower(): other for other in sorted(known, reverse=True)}
    word = name[:200].lower()
    slips = [other for other in names if _is_slip(word, other)]
    begun = sorted((other for other in names if len(word) > 3 and other.startswith(word)), key=len)
    found = [*slips, *difflib.get_close_matches(word, names, n=1, cutoff=0.76), *begun]
    return f' Did you mean "{names[found[0]]}"?' if found else ""


def _is_slip(word: str, other: str) -> bool:
    """Whether two letters are swapped, or one is wrong that is not the first: in short names these are not close."""
    if len(word) != len(other) or len(word) < 3:
        return False
    wrong = [i for i in range(len(word)) if word[i] != other[i]]
    return wrong[:1] != [0] if len(wrong) < 2 else len(wrong) == 2 and sorted(word) == sorted(other)


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
