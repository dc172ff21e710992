"""Values of expressions, at points, to as many digits as it takes to tell two of them apart.

Whole numbers and fractions are computed exactly, all else with mpmath. Nothing here takes long: what is too large to be
computed with has no value. Two expressions are the same when they are equal at several points that nobody can foresee;
then they are equal everywhere, as far as expressions of this length can be made to differ.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rewardsmith.rewards.rules.math_operations import (
    LARGEST,
    LOG,
    NoValue,
    Point,
    Quantity,
    TooLarge,
    apply,
    constant,
    exact,
    mp,
    rounded,
)
from rewardsmith.rewards.rules.math_tree import Apply, Node, Number, Symbol, children, names

BITS = 200
"""Binary digits of the first look."""

MAX_BITS = 6_000
"""Binary digits of the last look."""

_RANGES = [(1100, 4000), (100, 900), (-4000, -1100), (-900, -100), (1100, 9000), (-4000, 4000)]
"""Where the variables of each point lie, in thousandths."""

POINTS = len(_RANGES)

_LOCK = threading.Lock()
"""Precision is a state of mpmath: a rule that is called from several threads computes in one of them."""


class Calculator:
    """Computes at one precision, and remembers the sizes that it met.

    Attributes:
        low: exponent of the smallest number on the way that was not zero.
        high: exponent of the largest.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.low, self.high = 0, 0

    def value(self, node: Node, point: Point) -> Quantity:
        """Return the value of an expression at a point; `NoValue` where it has none."""
        if isinstance(node, Number):
            found: Quantity = node.value
        elif isinstance(node, Symbol):
            found = constant(node.name) if node.name not in point else point[node.name]
        elif isinstance(node, Apply):
            arguments = [self.value(argument, point) for argument in node.arguments]
            found = apply(node.name, arguments, point)
        else:
            raise NoValue("a set or a relation")
        self._notice(found)
        return found

    def _notice(self, found: Quantity) -> None:
        if isinstance(found, Fraction):
            if found.numerator.bit_length() > LARGEST or found.denominator.bit_length() > LARGEST:
                raise TooLarge("too large")
            size = found.numerator.bit_length() - found.denominator.bit_length()
        elif not mp.isfinite(found):
            raise NoValue("not finite")
        else:
            size = int(mp.mag(found)) if found else 0
            if abs(size) > LARGEST:
                raise TooLarge("too large")
        if found:
            self.low, self.high = min(self.low, size), max(self.high, size)


@dataclass(frozen=True)
class _Look:
    value: Quantity
    low: int
    high: int


def agree(one: Node, other: Node, free: frozenset[str], point: int) -> bool:
    """Say whether two expressions have the same value at one of the points of these variables.

    Rounded numbers that are equal differ by what rounding does, and that shrinks as digits are added. A difference as
    small as the first look can show is looked at again, with digits enough for the largest and smallest numbers met.

    Raises:
        NoValue: one of them has no value there, or `MAX_BITS` binary digits are too few.
    """
    looks = _first_look(one, free, point), _first_look(other, free, point)
    high, low = max(look.high for look in looks), min(look.low for look in looks)
    with _LOCK, mp.workprec(BITS):
        apart = _apart(looks[0].value, looks[1].value)
    if isinstance(apart, Fraction) or apart > mp.ldexp(1, high - BITS // 2):
        return bool(apart == 0)
    bits = BITS + high - low
    if 2 * bits > MAX_BITS:
        raise TooLarge("too many digits")
    with _LOCK, mp.workprec(2 * bits):
        values = [Calculator(2 * bits).value(node, points(free)[point]) for node in (one, other)]
        return bool(_apart(*values) <= mp.ldexp(1, high - bits - bits // 2))


def _apart(one: Quantity, other: Quantity) -> Quantity:
    return abs(one - other) if exact(one, other) else abs(rounded(one) - rounded(other))


@lru_cache(maxsize=2048)
def points(variables: frozenset[str]) -> tuple[Point, ...]:
    """Return points at which expressions in these variables are compared: large and small, of both signs."""
    drawn = random.Random("".join(sorted(variables)))
    return tuple(
        {name: Fraction(drawn.randint(low * 1000, high * 1000), 1_000_000) for name in [*sorted(variables), LOG]}
        for low, high in _RANGES
    )


def real_value(node: Node, free: frozenset[str], point: int) -> Quantity | None:
    """Return the value of an expression at one of the points of these variables; None without a real one."""
    try:
        found = _first_look(node, free, point).value
    except NoValue:
        return None
    if isinstance(found, Fraction):
        return found
    return mp.re(found) if abs(mp.im(found)) <= mp.ldexp(1, -BITS // 2) else None


def _first_look(node: Node, free: frozenset[str], point: int) -> _Look:
    found = _looked(node, free, point)
    if isinstance(found, NoValue):
        raise type(found)(str(found))
    return found


@lru_cache(maxsize=16_384)
def _looked(node: Node, free: frozenset[str], point: int) -> _Look | NoValue:
    """Return the value at a point, or why there is none: what raises is not remembered."""
    calculator = Calculator(BITS)
    try:
        with _LOCK, mp.workprec(BITS):
            value = calculator.value(node, points(free)[point])
    except NoValue as error:
        return error.with_traceback(None)
    return _Look(value, calculator.low, calculator.high)


def too_large(node: Node) -> bool:
    """Say whether a value within is too large to be computed with."""
    if not isinstance(node, Number | Symbol | Apply):
        return any(too_large(child) for child in children(node))
    return isinstance(_looked(node, names(node), 0), TooLarge)


def as_fraction(node: Node) -> Fraction | None:
    """Return the value of an expression without variables, to `BITS` where it is not exact; None without a real one."""
    found = None if names(node) else real_value(node, frozenset(), 0)
    if found is None or isinstance(found, Fraction):
        return found
    sign, mantissa, exponent, _ = found._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)
