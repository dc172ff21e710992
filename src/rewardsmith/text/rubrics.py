"""A rubric that a model wrote for one problem: what it must have, and how it is read.

    {"criteria": [
        {"name": "cases", "part": "synthesis", "checks": ["over-generalisation"], "points": 2, "text": "…"}, …],
     "not_applicable": {"coincidence": "every number is given in the problem"}}

A solution may reach the right answer by an unsound way. A rubric that finds this out has checks for each way to fail
(`FAILURES`), follows the skeleton of any proof (`PARTS`), and is fair to every correct approach: it names neither the
answer nor the words of a reference. What a program can check of that is checked here. The text is untrusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any

from rewardsmith.errors import listing, nearest
from rewardsmith.text.grading import plain
from rewardsmith.text.objects import last_object
from rewardsmith.text.reading import Absent, Unreadable
from rewardsmith.text.references import Tied

PARSER = "written-rubric-2"
"""Which rules a rubric was read by; another number when one of them changes."""

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "strategy": "a method is named that can solve the problem, with what makes it applicable",
        "computation": "the steps are carried out, and each follows from what stands before it",
        "synthesis": "the pieces are put together: cases complete, claims proved, nothing left open",
        "conclusion": "the answer follows from what was shown, in the form that was asked for",
    }
)
"""The skeleton of any proof, in its order."""

FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "miracle-steps": "a right result appears, and no valid derivation stands before it",
        "over-generalisation": "a few cases are tried, and the claim is made for all",
        "irrelevant-errors": "a step is wrong, although the final answer happens not to suffer from it",
        "neglected-premises": "an operation is done without its conditions, such as dividing by what may be 0",
        "unverified-assumptions": "something is taken for granted that is neither given nor shown",
        "coincidence": "numbers agree by chance: the method is invalid, and would give a wrong answer elsewhere",
    }
)
"""The ways in which a right answer can be reached unsoundly."""

ALWAYS = frozenset({"miracle-steps", "irrelevant-errors"})
"""These can happen in every solution of every problem: no rubric may call them not applicable."""

LEAST_ITEMS, MOST_ITEMS = 4, 20
LEAST_TEXT, MOST_TEXT = 20, 1_000
"""Characters of what one item says."""
MOST_CHECKS = 3
"""Ways to fail that one item may look for: one that looks for all of them looks for none."""
MOST_REASON = 400
"""Characters of why a way to fail does not apply."""
MOST_TOLD = 6
"""Faults of a rubric that are told at once."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_OTHER_NAMES = {
    "inductive-over-generalisation": "over-generalisation",
    "outcome-irrelevant-errors": "irrelevant-errors",
    "neglected-operation-premises": "neglected-premises",
    "numerical-coincidence": "coincidence",
    "strategy-identification": "strategy",
    "computation-check": "computation",
    "logical-synthesis": "synthesis",
}


@dataclass(frozen=True)
class Item:
    """One criterion of a rubric.

    Attributes:
        name: different for each.
        points: above 0.
        text: what earns them, on one line.
        part: one of `PARTS`.
        checks: those of `FAILURES` that it looks for.
    """

    name: str
    points: float
    text: str
    part: str
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WrittenRubric:
    """A rubric that has all that it must have.

    Attributes:
        items: in the order in which they were written.
        not_applicable: why some of `FAILURES` cannot occur in this problem.
    """

    items: tuple[Item, ...]
    not_applicable: Mapping[str, str]

    def criteria(self) -> list[dict[str, Any]]:
        """Return it as the `rubric` reward reads it: a list of tables with name, points and text."""
        return [{"name": item.name, "points": item.points, "text": item.text} for item in self.items]


Fault = tuple[str, str]
"""A reason in a few words that are the same for all rubrics, and the detail."""


def read_rubric(text: str, total: int = 10, tied: Tied | None = None) -> WrittenRubric:
    """Return the rubric that an answer ends with.

    Args:
        text: what the model wrote, without its thoughts.
        total: points in all.
        tied: finds an item that leans on the reference; None where there is no reference.

    Raises:
        Unreadable: there is none, or it lacks something. The message names all faults that were found, up to a few, so
            that who wrote it can mend it; the reason is that of the first.
    """
    found = last_object(text)
    if found is None:
        raise Absent("no object", "the answer does not end with a JSON object")
    entries = found.get("criteria")
    if not isinstance(entries, list) or not LEAST_ITEMS <= len(entries) <= MOST_ITEMS:
        count = f"a list of {len(entries)}" if isinstance(entries, list) else "missing"
        raise Unreadable(
            "number of items", f"criteria is {count}: a list of {LEAST_ITEMS} to {MOST_ITEMS}", invalid=True
        )
    faults: list[Fault] = []
    items = [item for i, entry in enumerate(entries, 1) if (item := _item(entry, i, faults)) is not None]
    reasons = _not_applicable(found.get("not_applicable"), faults)
    if len(items) == len(entries):  # else what is missing may be in those that could not be read
        faults += [*_sums(items, total), *_names(items), *_skeleton(items), *_coverage(items, reasons)]
        faults += [] if tied is None else _ties(items, tied)
    if faults:
        told = "; ".join(detail for _, detail in faults[:MOST_TOLD])
        more = f"; and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
        raise Unreadable(faults[0][0], told + more, invalid=True)
    return WrittenRubric(tuple(items), MappingProxyType(reasons))


def _item(entry: object, number: int, faults: list[Fault]) -> Item | None:
    """Return an entry of the list; what is wrong with it is added to the faults."""
    before = len(faults)
    table: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    if not table:
        faults.append(("not an item", f"item {number} is no object with name, part, checks, points and text"))
        return None
    name = "-".join(str(table.get("name", "")).split())
    if not _NAME.fullmatch(name):
        faults.append(("name", f"item {number} has no name of at most 60 letters, digits and dashes"))
    text = _line(table.get("text"))
    if not LEAST_TEXT <= len(text) <= MOST_TEXT:
        faults.append(("text", f"item {number} has a text of {len(text)} characters: {LEAST_TEXT} to {MOST_TEXT}"))
    points = table.get("points")
    if not _is_points(points):
        faults.append(("points", f"item {number} has no number of points above 0, with at most two decimals"))
    part = _known(table.get("part"), PARTS)
    if part is None:
        faults.append(("part", f"item {number} has an unknown part{_hint(table.get('part'), PARTS)}"))
    checks = _checks(table.get("checks"), number, faults)
    if len(faults) > before or part is None or points is None:
        return None
    return Item(name, float(points), text, part, checks)


def _is_points(points: object) -> bool:
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points <= 1_000:
        return False
    return _exact(points) == round(_exact(points), 2)


def _exact(points: float) -> Decimal:
    return Decimal(repr(points))


def _line(value: object) -> str:
    """Return a text on one line: more would look like further items where the list is shown."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "".join(c for c in text if c.isprintable())  # neither halves of letters nor what steers a terminal


def _checks(value: object, number: int, faults: list[Fault]) -> tuple[str, ...]:
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > MOST_CHECKS:
        faults.append(("checks", f"item {number} has checks that are no list of at most {MOST_CHECKS}"))
        return ()
    known = [_known(entry, FAILURES) for entry in given]
    for entry, name in zip(given, known, strict=True):
        if name is None:
            faults.append(("checks", f"item {number} checks something unknown{_hint(entry, FAILURES)}"))
    return tuple(dict.fromkeys(name for name in known if name is not None))


def _not_applicable(value: object, faults: list[Fault]) -> dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        faults.append(("not applicable", "not_applicable is no object of ways to fail with the reason of each"))
        return {}
    reasons = {}
    for entry, why in (value or {}).items():
        name, reason = _known(entry, FAILURES), _line(why)[:MOST_REASON]
        if name is None:
            faults.append(("not applicable", f"not_applicable has something unknown{_hint(entry, FAILURES)}"))
        elif name in ALWAYS:
            faults.append(("not applicable", f"not_applicable has {name}, which can happen in every solution"))
        elif not reason:
            faults.append(("not applicable", f"not_applicable gives no reason for {name}"))
        else:
            reasons[name] = reason
    return reasons


def _sums(items: Sequence[Item], total: int) -> Iterator[Fault]:
    points = sum((_exact(item.points) for item in items), Decimal(0))
    if points != total:
        yield "total", f"the points are {plain(float(points))} in all: they must be {total}"


def _names(items: Sequence[Item]) -> Iterator[Fault]:
    seen: set[str] = set()
    for name in (item.name.casefold() for item in items):
        if name in seen:
            yield "same name", f"two items are called {name}"
        seen.add(name)


def _skeleton(items: Sequence[Item]) -> Iterator[Fault]:
    for part in PARTS:
        if not any(item.part == part for item in items):
            yield "missing part", f"no item belongs to the part {part}"


def _coverage(items: Sequence[Item], reasons: Mapping[str, str]) -> Iterator[Fault]:
    checked = {name for item in items for name in item.checks}
    for failure in FAILURES:
        if failure in checked and failure in reasons:
            yield "not applicable", f"{failure} is checked, and also said not to apply"
        elif failure not in checked and failure not in reasons:
            remedy = "" if failure in ALWAYS else ", and it is not said why that does not apply"
            yield "missing check", f"no item checks for {failure}{remedy}"


def _ties(items: Sequence[Item], tied: Tied) -> Iterator[Fault]:
    for number, item in enumerate(items, 1):
        why = tied.why(item.text) or tied.why(item.name.replace("-", " "))
        if why:
            yield "tied to the reference", f"item {number} {why}: it must be fair to any correct approach"


def _known(value: object, names: Mapping[str, str]) -> str | None:
    """Return which of the names is meant; spelling with spaces, underscores, z or without s is overlooked."""
    return _spelled(tuple(names)).get(_folded(value)) if isinstance(value, str) else None


@cache
def _spelled(names: tuple[str, ...]) -> dict[str, str]:
    others = {other: name for other, name in _OTHER_NAMES.items() if name in names}
    return {_folded(other): name for other, name in {**others, **{name: name for name in names}}.items()}


def _folded(name: str) -> str:
    return re.sub(r"[^a-z]", "", name[:100].lower()).replace("z", "s").removesuffix("s")


def _hint(value: object, names: Mapping[str, str]) -> str:
    shown = f" {value[:40]!r}" if isinstance(value, str) else ""
    return f"{shown}.{nearest(value, names) if isinstance(value, str) else ''} Known: {listing(names)}"


def rubric_places(total: int) -> dict[str, str]:
    """Return what the prompt of who writes a rubric says of its form: the parts, the ways to fail, and the sizes."""
    return {
        "parts": "\n".join(f"- {name}: {what}" for name, what in PARTS.items()),
        "failures": "\n".join(f"- {name}: {what}" for name, what in FAILURES.items()),
        "always": " and ".join(name for name in FAILURES if name in ALWAYS),
        "items": f"{LEAST_ITEMS} to {MOST_ITEMS}",
        "total": str(total),
    }


__all__ = [
    "ALWAYS",
    "FAILURES",
    "PARSER",
    "PARTS",
    "Item",
    "WrittenRubric",
    "read_rubric",
    "rubric_places",
]
