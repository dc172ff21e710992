"""Values of expressions, at points, to as many digits as it takes to distinguish two of them.

Whole numbers and fractions are computed exactly, all else with mpmath. Nothing here takes long: what is too large to be
computed with has no value. Two expressions are the same when they are equal at several points that nobody can foresee;
then they are equal everywhere, as far as expressions of this length can be made to differ.
"""

from __future__ import annotations

import math
import operator
import random
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeAlias

from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

from rewardsmith.rewards.rules.math.nodes import Apply, Node, NumberNode, Symbol, Value, children, names

mp = MPContext()
"""Our own: its precision is nobody else's. It is for one thread at a time."""

BITS, MAX_BITS = 200, 6_000
"""Binary digits of the first look, and of the last."""

SLOW_BITS = 800
"""Binary digits that a factorial of what is no whole number is computed to: more take seconds."""

MAX_SIZE = 60_000
"""Binary digits of the largest exact number, and the largest exponent of a rounded one."""

MAX_FACTORIAL = 5_000

LOG = "log of an unknown base"
"""The name under which a point has the factor of logarithms that are written without a base."""

_RANGES = [(1100, 4000), (100, 900), (-4000, -1100), (-900, -100), (1100, 9000), (-4000, 4000)]
"""Where the variables of each point lie, in thousandths."""

POINTS = len(_RANGES)

_LOCK = threading.Lock()
"""Precision is a state of mpmath: a rule that is called from several threads computes in one of them."""

Real: TypeAlias = Any  # an mpf or mpc of mpmath, which has no types
Quantity: TypeAlias = Fraction | Real
Point: TypeAlias = Mapping[str, Fraction]


class NoValue(Exception):  # noqa: N818 it is no error of ours
    """The expression has no value there: a division by zero, or a number that is too large."""


class TooLarge(NoValue):
    """The number is too large to be computed with."""


def _bound(size: Any, limit: int) -> None:
    if size > limit:
        raise TooLarge("too large")


def _is_whole(number: Quantity) -> bool:
    return isinstance(number, Fraction) and number.denominator == 1


def _is_real(number: Quantity) -> bool:
    return bool(mp.im(number) == 0)


# ---- operations ------------------------------------------------------------------------------------------------------


def _over(a: Quantity, b: Quantity) -> Quantity:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    if not isinstance(b, Fraction) and mp.mag(b) < -mp.prec // 2:
        raise NoValue("a division by what may be zero")
    return mp.fdiv(a, b)


def _power(base: Quantity, exponent: Quantity) -> Quantity:
    if isinstance(exponent, Fraction) and isinstance(base, Fraction) and exponent.denominator == 1:
        return _whole_power(base, exponent.numerator)
    if not base:
        if mp.re(exponent) > 0:
            return Fraction(0)
        raise NoValue("a power of zero")
    _bound(abs(exponent) * (abs(int(mp.mag(base))) + 1), MAX_SIZE)
    return mp.power(base, exponent)


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1:
        _bound(bits * abs(exponent), 2 * MAX_SIZE)
    return base ** (exponent % 2 + 2 if abs(base) == 1 else exponent)


def _root(base: Quantity, degree: Quantity) -> Quantity:
    """Return the real root of an odd degree, also of a negative number, and else the principal one."""
    if not _is_whole(degree) or not 1 <= degree <= 64:
        raise NoValue("a root of that degree")
    if degree % 2 and _is_real(base) and mp.re(base) < 0:
        return -_root(-base, degree)
    return _power(base, Fraction(1, int(degree)))


def _factorial(number: Quantity) -> Quantity:
    _bound(abs(number), MAX_FACTORIAL)
    if _is_whole(number):
        return Fraction(math.factorial(int(number)))
    _bound(mp.prec, SLOW_BITS)
    return mp.gamma(number + 1)


def _binomial(top: Quantity, bottom: Quantity) -> Quantity:
    if _is_whole(bottom):
        if bottom < 0:
            return Fraction(0)
        if _is_whole(top) and 0 <= top <= MAX_FACTORIAL:
            return Fraction(math.comb(int(top), int(bottom)))
    for number in (top, bottom):
        _bound(abs(number), MAX_FACTORIAL)
    _bound(mp.prec, SLOW_BITS)
    return mp.binomial(top, bottom)


def _natural_logarithm(number: Quantity) -> Quantity:
    return Fraction(0) if number == 1 else mp.log(number)


_POLES = {"tan": "cos", "sec": "cos", "cot": "sin", "csc": "sin"}


def _function(name: str, max_exponent: int, number: Quantity) -> Quantity:
    """Return a function of mpmath, of a number below 2 to some exponent."""
    _bound(mp.mag(number), max_exponent)
    if name in _POLES and mp.mag(getattr(mp, _POLES[name])(number)) < -mp.prec // 2:
        raise NoValue("a pole")
    return getattr(mp, name)(number)


def _step(whole: Callable[[Fraction], int], number: Quantity) -> Quantity:
    if not isinstance(number, Fraction):
        if not _is_real(number) or abs(number - mp.nint(number)) < mp.ldexp(1, int(mp.mag(number)) - mp.prec // 2):
            raise NoValue("a step, but for rounding")
        number = _exact(mp.re(number))
    return Fraction(whole(number))


def _unknown(name: str, arguments: list[Quantity]) -> Quantity:
    """Return the value of a function of which nothing is known: some function, the same for the same name."""
    drawn = random.Random(name)
    angle = mp.mpf(drawn.randint(1, 999)) / 1000
    for argument in arguments:
        _bound(mp.mag(argument), 100)
        angle += argument * drawn.randint(1001, 2999) / 1000
    return 2 + mp.sin(angle) + angle / 7


_OPERATIONS: dict[str, Callable[..., Quantity]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": _over,
    "^": _power,
    "neg": operator.neg,
    "!": _factorial,
    "abs": abs,
    "floor": partial(_step, math.floor),
    "ceil": partial(_step, math.ceil),
    "root": _root,
    "binom": _binomial,
    "ln": _natural_logarithm,
    "deg": lambda angle: angle * mp.pi / 180,
    **{name: partial(_function, name, 2_000) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{name: partial(_function, name, 15) for name in ("exp", "sinh", "cosh", "tanh")},
    **{f"arc{name}": partial(_function, f"a{name}", MAX_SIZE) for name in ("sin", "cos", "tan")},
}
_CONSTANTS: dict[str, Callable[[], Real]] = {"pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1)}


def _apply(name: str, arguments: list[Quantity], point: Point) -> Quantity:
    if name.endswith("()"):
        return _unknown(name, arguments)
    if name in ("log", "ln") and not all(arguments):
        raise NoValue("a logarithm of zero")
    if name == "log":  # without a base, it is the natural one times a number that nobody knows
        number, *base = map(_natural_logarithm, arguments)
        return _over(number, *base) if base else number * point[LOG]
    return _OPERATIONS[name](*arguments)


# ---- values ----------------------------------------------------------------------------------------------------------


class _Evaluation:
    """The value of an expression at a point, with the binary exponents of the smallest and largest numbers met."""

    def __init__(self, node: Node, point: Point) -> None:
        self.low = self.high = 0
        self.value = self._compute(node, point)

    def _compute(self, node: Node, point: Point) -> Quantity:
        if isinstance(node, NumberNode):
            found: Quantity = node.value
        elif isinstance(node, Symbol):
            found = point[node.name] if node.name in point else _CONSTANTS[node.name]()
        elif isinstance(node, Apply):
            arguments = [self._compute(member, point) for member in node.members]
            try:
                found = _apply(node.name, arguments, point)
            except (ArithmeticError, ValueError, TypeError, KeyError, mp.NoConvergence) as error:
                raise NoValue(f"{node.name}: {error}") from error
        else:
            raise NoValue("a set or a relation")
        if isinstance(found, Fraction):
            _bound(max(found.numerator.bit_length(), found.denominator.bit_length()), MAX_SIZE)
            size = found.numerator.bit_length() - found.denominator.bit_length()
        elif not mp.isfinite(found):
            raise NoValue("not finite")
        else:
            size = int(mp.mag(found)) if found else 0
            _bound(abs(size), MAX_SIZE)
        if found:
            self.low, self.high = min(self.low, size), max(self.high, size)
        return found


@lru_cache(maxsize=16_384)
def _evaluation(node: Node, free: frozenset[str], point: int) -> _Evaluation | NoValue:
    """Return the value at a point, or why there is none: what raises is not remembered."""
    try:
        with _LOCK, mp.workprec(BITS):
            return _Evaluation(node, points(free)[point])
    except NoValue as error:
        return error.with_traceback(None)


def _first_look(node: Node, free: frozenset[str], point: int) -> _Evaluation:
    found = _evaluation(node, free, point)
    if isinstance(found, NoValue):
        raise type(found)(str(found))
    return found


def agree(one: Node, other: Node, free: frozenset[str], point: int) -> bool:
    """Return whether two expressions have the same value at one of the points of these variables.

    Rounded numbers that are equal differ by what rounding does, and that shrinks as digits are added. A difference as
    small as the first look can show is looked at again, with digits enough for the largest and smallest numbers met.
    """
    looks = _first_look(one, free, point), _first_look(other, free, point)
    high, low = max(look.high for look in looks), min(look.low for look in looks)
    with _LOCK, mp.workprec(BITS):
        apart = abs(looks[0].value + -looks[1].value)
    if isinstance(apart, Fraction) or apart > mp.ldexp(1, high - BITS // 2):
        return bool(apart == 0)
    bits = BITS + high - low
    _bound(2 * bits, MAX_BITS)
    with _LOCK, mp.workprec(2 * bits):
        values = [_Evaluation(node, points(free)[point]).value for node in (one, other)]
        return bool(abs(values[0] + -values[1]) <= mp.ldexp(1, high - bits - bits // 2))


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


def too_large(node: Node) -> bool:
    """Return whether a value within is too large to be computed with."""
    if not isinstance(node, Value):
        return any(map(too_large, children(node)))
    return isinstance(_evaluation(node, names(node), 0), TooLarge)


def as_fraction(node: Node) -> Fraction | None:
    """Return the value of an expression without variables, to `BITS` where it is not exact; None without a real one."""
    found = None if names(node) else real_value(node, frozenset(), 0)
    return found if found is None or isinstance(found, Fraction) else _exact(found)


def _exact(number: Real) -> Fraction:
    sign, mantissa, exponent, _ = number._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)
