r"""Sets of real numbers: intervals, and the inequalities, unions and set-builders that describe the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import pairwise

from rewardsmith.rewards.rules.math.evaluation import as_fraction
from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Chain,
    Infinity,
    MathGroup,
    NamedSet,
    Node,
    SetBuilder,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    is_applied,
    names,
    negative,
    number,
    require,
)

MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True)
class Span:
    """An interval; an end that is infinite is open."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool


RealSet = tuple[Span, ...]
"""Intervals that do not meet, from the left to the right."""

Same = Callable[[Node, Node], bool]
LINE = Span(Infinity(negative=True), False, Infinity(), False)


def real_set(node: Node, variable: str | None = None) -> RealSet:  # noqa: PLR0911 one for each kind
    """Return the real numbers that a set, or a condition on one variable, describes; else `UnparsableMath`."""
    match node:
        case NamedSet("R"):
            return (LINE,)
        case NamedSet("∅"):
            return ()
        case MathGroup("{", members):
            return _union([Span(member, True, member, True) for member in members])
        case MathGroup("(" | "[", (low, high)):
            return _union([_interval(node, low, high)])
        case SetOperation(how, (left, right)):
            one, other = real_set(left, variable), real_set(right, variable)
            if how == "∪":
                return _union([*one, *other])
            return _intersection(one, other if how == "∩" else _complement(other))
        case SetBuilder(own, conditions):
            return reduce(_intersection, (real_set(condition, own) for condition in conditions), (LINE,))
        case Chain():
            return _of_chain(node, variable)
    raise UnparsableMath("no set of real numbers")


def same_sets(one: RealSet, other: RealSet, same: Same) -> bool:
    """Return whether two sets have the same intervals."""
    return len(one) == len(other) and all(
        (a.low_closed, a.high_closed) == (b.low_closed, b.high_closed) and same(a.low, b.low) and same(a.high, b.high)
        for a, b in zip(one, other, strict=True)
    )


def _interval(node: MathGroup, low: Node, high: Node) -> Span:
    span = Span(low, node.opening == "[", high, node.closing == "]")
    for end, closed in ((low, span.low_closed), (high, span.high_closed)):
        require(not (isinstance(end, Infinity) and closed), "an interval that holds infinity")
    require(_order(low) < _order(high), "an interval without length: it may be a point")
    return span


def _of_chain(node: Chain, variable: str | None) -> RealSet:
    """Return the values of the variable under `a < x <= b`, `x != 1` or `x in [0, 1]`."""
    if node.relations == ("in",):
        require(isinstance(node.members[0], Symbol), "a condition on what is no variable")
        return real_set(node.members[1])
    require(len(names(node)) == 1 and variable in (None, *names(node)), "a condition on several variables")
    found: RealSet = (LINE,)
    for (left, right), relation in zip(pairwise(node.members), node.relations, strict=True):
        one = _distance(left, right, relation)
        if one is None:
            subject, bound, how = (left, right, relation)
            if not isinstance(left, Symbol):
                subject, bound, how = right, left, MIRRORED.get(relation, "")
            solved = isinstance(subject, Symbol) and not names(bound) and how in MIRRORED
            require(solved, "a condition that must be solved")
            one = _half(bound, how)
        found = _intersection(found, one)
    return found


def _distance(left: Node, right: Node, relation: str) -> RealSet | None:
    """Return the values of x under |x - 2| < 3; None where the condition is another."""
    if not is_applied(left, "abs") or names(right) or relation not in ("<", "<=", ">", ">="):
        return None
    (inner,) = left.members
    shift: Node = number(0)
    if is_applied(inner, "+"):
        first, second = inner.members
        inner, shift = first, negative(second)
    if not isinstance(inner, Symbol) or names(shift) or not isinstance(right, Value) or _order(right) <= 0:
        return None
    closed = relation in ("<=", ">")
    within = (Span(Apply("+", (shift, negative(right))), closed, Apply("+", (shift, right)), closed),)
    return within if relation in ("<", "<=") else _complement(within)


def _half(bound: Node, how: str) -> RealSet:
    if isinstance(bound, Infinity):
        require(how in ("<", ">") and (how == "<") != bound.negative, "a bound at infinity")
        return (LINE,)
    if how in ("=", "!="):
        point = (Span(bound, True, bound, True),)
        return point if how == "=" else _complement(point)
    if how in ("<", "<="):
        return (Span(LINE.low, False, bound, how == "<="),)
    return (Span(bound, how == ">=", LINE.high, False),)


def _order(end: Node) -> Fraction | float:
    if isinstance(end, Infinity):
        return float("-inf") if end.negative else float("inf")
    found = as_fraction(end) if isinstance(end, Value) else None
    if found is None:
        raise UnparsableMath("an end that is no real number")
    return found


def _union(spans: list[Span]) -> RealSet:
    """Return spans in order, those that meet joined."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: (_order(span.low), not span.low_closed)):
        last = joined[-1] if joined else span
        end, start = (_order(last.high), last.high_closed), (_order(span.low), span.low_closed)
        if not joined or start[0] > end[0] or (start[0] == end[0] and not (end[1] or start[1])):
            joined.append(span)
        elif (_order(span.high), span.high_closed) > end:
            joined[-1] = replace(last, high=span.high, high_closed=span.high_closed)
    return tuple(joined)


def _complement(spans: RealSet) -> RealSet:
    found: list[Span] = []
    low, closed = LINE.low, False
    for span in spans:
        if _order(low) < _order(span.low) or (_order(low) == _order(span.low) and closed and not span.low_closed):
            found.append(Span(low, closed, span.low, not span.low_closed))
        low, closed = span.high, not span.high_closed
    if not isinstance(low, Infinity) or low.negative:
        found.append(Span(low, closed, LINE.high, False))
    return tuple(found)


def _intersection(one: RealSet, other: RealSet) -> RealSet:
    return _complement(_union([*_complement(one), *_complement(other)]))
