r"""Sets of real numbers: intervals, and the inequalities, unions and set-builders that describe the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from rewardsmith.rewards.rules.math.evaluation import as_fraction
from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Chain,
    Infinity,
    MathGroup,
    NamedSet,
    Node,
    NumberNode,
    SetBuilder,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    names,
)

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


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
    if isinstance(node, NamedSet) and node.name in ("R", "∅"):
        return (LINE,) if node.name == "R" else ()
    if isinstance(node, MathGroup) and node.opening == "{":
        return _union([Span(member, True, member, True) for member in node.members])
    if isinstance(node, MathGroup) and node.opening in ("(", "[") and len(node.members) == 2:
        return _union([_interval(node)])
    if isinstance(node, SetOperation):
        left, right = real_set(node.left, variable), real_set(node.right, variable)
        if node.how == "∪":
            return _union([*left, *right])
        return _intersection(left, right if node.how == "∩" else _complement(right))
    if isinstance(node, SetBuilder):
        found: RealSet = (LINE,)
        for condition in node.conditions:
            found = _intersection(found, real_set(condition, node.variable))
        return found
    if isinstance(node, Chain):
        return _of_chain(node, variable)
    raise UnparsableMath("no set of real numbers")


def same_sets(one: RealSet, other: RealSet, same: Same) -> bool:
    """Return whether two sets have the same intervals."""
    return len(one) == len(other) and all(
        (a.low_closed, a.high_closed) == (b.low_closed, b.high_closed) and same(a.low, b.low) and same(a.high, b.high)
        for a, b in zip(one, other, strict=True)
    )


def _interval(node: MathGroup) -> Span:
    low, high = node.members
    span = Span(low, node.opening == "[", high, node.closing == "]")
    for end, closed in ((low, span.low_closed), (high, span.high_closed)):
        if isinstance(end, Infinity) and closed:
            raise UnparsableMath("an interval that holds infinity")
    if _order(low) >= _order(high):
        raise UnparsableMath("an interval without length: it may be a point")
    return span


def _of_chain(node: Chain, variable: str | None) -> RealSet:
    """Return the values of the variable under `a < x <= b`, `x != 1` or `x in [0, 1]`."""
    if node.relations == ("in",):
        if not isinstance(node.members[0], Symbol):
            raise UnparsableMath("a condition on what is no variable")
        return real_set(node.members[1])
    free = {name for member in node.members for name in names(member)}
    if len(free) != 1 or (variable and free != {variable}):
        raise UnparsableMath("a condition on several variables")
    found: RealSet = (LINE,)
    for (left, right), relation in zip(pairwise(node.members), node.relations, strict=True):
        distance = _distance(left, right, relation)
        if distance is not None:
            found = _intersection(found, distance)
            continue
        bound, how = (right, relation) if isinstance(left, Symbol) else (left, _MIRRORED.get(relation, ""))
        if not isinstance(left if bound is right else right, Symbol) or names(bound) or how not in _MIRRORED:
            raise UnparsableMath("a condition that must be solved")
        found = _intersection(found, _half(bound, how))
    return found


def _distance(left: Node, right: Node, relation: str) -> RealSet | None:
    """Return the values of x under |x - 2| < 3; None where the condition is another."""
    if not (isinstance(left, Apply) and left.name == "abs") or names(right) or relation not in ("<", "<=", ">", ">="):
        return None
    inner = left.arguments[0]
    shift: Node = NumberNode(Fraction(0))
    if isinstance(inner, Apply) and inner.name == "+":
        shift, inner = Apply("neg", inner.arguments[1:]), inner.arguments[0]
    if not isinstance(inner, Symbol) or names(shift) or not isinstance(right, Value) or _order(right) <= 0:
        return None
    ends = Apply("+", (shift, Apply("neg", (right,)))), Apply("+", (shift, right))
    within = (Span(ends[0], relation in ("<=", ">"), ends[1], relation in ("<=", ">")),)
    return within if relation in ("<", "<=") else _complement(within)


def _half(bound: Node, how: str) -> RealSet:
    point = Span(bound, True, bound, True)
    if isinstance(bound, Infinity):
        if (how == "<") == bound.negative or how not in ("<", ">"):
            raise UnparsableMath("a bound at infinity")
        return (LINE,)
    if how in ("=", "!="):
        return (point,) if how == "=" else _complement((point,))
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
        last = joined[-1] if joined else None
        if last is None or not _meet(last, span):
            joined.append(span)
        elif _ends_later(span, last):
            joined[-1] = Span(last.low, last.low_closed, span.high, span.high_closed)
    return tuple(joined)


def _meet(left: Span, right: Span) -> bool:
    end, start = _order(left.high), _order(right.low)
    return bool(start < end or (start == end and (left.high_closed or right.low_closed)))


def _ends_later(one: Span, other: Span) -> bool:
    return bool((_order(one.high), one.high_closed) > (_order(other.high), other.high_closed))


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
