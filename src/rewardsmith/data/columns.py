"""Which columns hold pairs, groups and grades: the usual names, and the names that a user gives them.

    columns = Columns({"chosen": "good", "rejected": "bad"})
    columns.find(row, "chosen")            # ("good", what lies there)

These are few words for many columns: a file of pairs needs none of those for grades. `docs/data.md` lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rewardsmith.data.fields import ABSENT, Row, RowError, find, has, no_column
from rewardsmith.errors import UserError, listing, nearest

USUAL: Mapping[str, tuple[str, ...]] = {
    # pairs
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "margin": ("margin",),
    "tied": ("tied",),
    "chosen_score": (),
    "rejected_score": (),
    "subset": ("subset",),
    # groups
    "candidates": ("candidates", "mt_texts", "responses"),
    "scores": ("scores",),
    "ranking": ("ranking",),
    "analysis": ("analysis",),
    "source_text": ("src_text",),
    # grades
    "grade": ("grade",),
    "points": ("points",),
    "out_of": ("out_of",),
    "right": ("right",),
    "sound": ("sound",),
}
"""From what is meant to the columns in which it is looked for, the first of them first."""


class Columns:
    """The columns of a file.

    Args:
        named: from what is meant, a key of `USUAL`, to the column that holds it: a name, or a dotted path into tables.
    """

    def __init__(self, named: Mapping[str, str] | None = None) -> None:
        self.named = dict(named or {})
        for key, name in self.named.items():
            if key not in USUAL:
                raise UserError(
                    f"columns.{key} is not known: columns says which column holds what.{nearest(key, USUAL)}"
                    f" Known: {listing(USUAL)}"
                )
            if not name:
                raise UserError(f"columns.{key} is empty: name a column, or leave it out")
        one, other = ("chosen_score" in self.named, "rejected_score" in self.named)
        if one != other:
            raise UserError("columns has one of chosen_score and rejected_score: a margin is the difference of the two")

    def names(self, key: str) -> tuple[str, ...]:
        """Return the columns in which something is looked for; a name that was given is the only one."""
        return (self.named[key],) if key in self.named else USUAL[key]

    def find(self, row: Row, key: str) -> tuple[str, Any]:
        """Return the column that holds something and what lies there; `ABSENT` where the row has no such column."""
        names = self.names(key)
        for name in names:
            value = find(row, name)
            if value is not ABSENT:
                return name, value
        return (names[0] if names else key), ABSENT

    def has(self, columns: Collection[str], key: str) -> bool:
        """Whether a table with these columns may have it."""
        return any(has(columns, name) for name in self.names(key))

    def missing(self, columns: Collection[str], key: str, what: str, *others: str) -> RowError:
        """Return the error for a row, or a table with these columns, that lacks it, or any of the others instead."""
        first, *rest = (name for each in (key, *others) for name in self.names(each))
        also = "".join(f" and no {name}" for name in rest)
        return no_column(first, columns, f"columns.{key} says where a row has {what}", also=also)
