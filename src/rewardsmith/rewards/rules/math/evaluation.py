"""Values of expressions, at points, to as many digits as it takes to distinguish two of them.

Whole numbers and fractions are computed exactly, all else with mpmath. Nothing here takes long: what is too large to be
computed with has no value. Two expressions are the same when they are equal at several points that nobody can foresee;
then they are equal everywhere, as far as expressions of this length can be made to differ.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

from rewardsmith.rewards.rules.math.nodes import Apply, Node, NumberNode, Symbol, children, names

mp = MPContext()
"""Our own: its precision is nobody else's. It is for one thread at a time."""

SLOW_BITS = 800
"""Binary digits that a factorial of what is no whole number is computed to: more take seconds."""

MAX_SIZE = 60_000
"""Binary digits of the largest exact number, and the largest exponent of a rounded one."""

LOG = "log of an unknown base"
"""The name under which a point has the factor of logarithms that are written without a base."""

Real: TypeAlias = Any  # an mpf or mpc of mpmath, which has no types
Quantity: TypeAlias = Fraction | Real
Point: TypeAlias = Mapping[str, Fraction]


class NoValue(Exception):  # noqa: N818 it is no error of ours
    """The expression has no value there: a division by zero, or a number that is too large."""


class TooLarge(NoValue):
    """The number is too large to be computed with."""


def constant(name: str) -> Quantity:
    """Return the value of pi, e or i."""
    constants = {"pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1)}
    if name not in constants:
        raise NoValue(f"{name} has no value")
    return constants[name]()


def exact(*numbers: Quantity) -> bool:
    """Return whether all are exact."""
    return all(isinstance(number, Fraction) for number in numbers)


def rounded(number: Quantity) -> Real:
    """Return a number to the digits that are computed with."""
    return mp.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def apply(name: str, arguments: list[Quantity], point: Point) -> Quantity:
    """Return the value of an operation or a function; `NoValue` where there is none."""
    if name.endswith("()"):
        return _unknown(name, arguments)
    if name in ("log", "ln"):
        return _logarithm(name, arguments, point)
    try:
        return _OPERATIONS[name](*arguments)
    except (ZeroDivisionError, ValueError, TypeError, OverflowError, KeyError, mp.NoConvergence) as error:
        raise NoValue(f"{name}: {error}") from error


def _add(a: Quantity, b: Quantity) -> Quantity:
    return a + b if exact(a, b) else rounded(a) + rounded(b)


def _times(a: Quantity, b: Quantity) -> Quantity:
    return a * b if exact(a, b) else rounded(a) * rounded(b)


def _over(a: Quantity, b: Quantity) -> Quantity:
    if not b:
        raise NoValue("a division by zero")
    if not isinstance(b, Fraction) and mp.mag(b) < -mp.prec // 2:
        raise NoValue("a division by what may be zero")
    return a / b if exact(a, b) else rounded(a) / rounded(b)


def _power(base: Quantity, exponent: Quantity) -> Quantity:
    if isinstance(exponent, Fraction) and isinstance(base, Fraction):
        if exponent.denominator == 1:
            return _whole_power(base, exponent.numerator)
        if base >= 0 and exponent.denominator <= 64:
            root = _exact_root(base, exponent.denominator)
            if root is not None:
                return _whole_power(root, exponent.numerator)
    if not base:
        if mp.re(rounded(exponent)) > 0:
            return Fraction(0)
        raise NoValue("a power of zero")
    size = abs(rounded(exponent)) * (abs(int(mp.mag(rounded(base)))) + 1)
    if size > MAX_SIZE:
        raise TooLarge("too large")
    return mp.power(rounded(base), rounded(exponent))


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    if exponent < 0 and not base:
        raise NoValue("a division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent) > 2 * MAX_SIZE:
        raise TooLarge("too large")
    return base ** (exponent % 2 + 2 if abs(base) == 1 else exponent)


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    top, bottom = _whole_root(base.numerator, degree), _whole_root(base.denominator, degree)
    return Fraction(top, bottom) if top is not None and bottom is not None else None


def _whole_root(number: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(number)
    elif number.bit_length() > 2_000:
        return None
    else:
        with mp.workprec(number.bit_length() + 40):
            root = int(mp.nint(mp.root(number, degree)))
    return root if root**degree == number else None


def _root(base: Quantity, degree: Quantity) -> Quantity:
    """Return the real root of an odd degree, also of a negative number, and else the principal one."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 1 <= degree <= 64:
        raise NoValue("a root of that degree")
    if degree % 2 and _real(base) and rounded(base) < 0:
        return -_root(-base, degree)
    return _power(base, Fraction(1, int(degree)))


def _factorial(number: Quantity) -> Quantity:
    if isinstance(number, Fraction) and number.denominator == 1:
        if number < 0:
            raise NoValue("a factorial of a negative number")
        if number > 5_000:
            raise TooLarge("too large")
        return Fraction(math.factorial(int(number)))
    if abs(rounded(number)) > 5_000 or mp.prec > SLOW_BITS:
        raise TooLarge("too large")
    return mp.gamma(rounded(number) + 1)


def _binomial(top: Quantity, bottom: Quantity) -> Quantity:
    if isinstance(bottom, Fraction) and bottom.denominator == 1:
        if bottom < 0:
            return Fraction(0)
        if isinstance(top, Fraction) and top.denominator == 1 and 0 <= top <= 5_000:
            return Fraction(math.comb(int(top), int(bottom)))
        if bottom <= 100:
            found: Quantity = Fraction(1)
            for k in range(int(bottom)):
                found = _times(found, _over(_add(top, Fraction(-k)), Fraction(k + 1)))
            return found
    if abs(rounded(top)) > 5_000 or abs(rounded(bottom)) > 5_000 or mp.prec > SLOW_BITS:
        raise TooLarge("too large")
    return mp.binomial(rounded(top), rounded(bottom))


def _logarithm(name: str, arguments: list[Quantity], point: Point) -> Quantity:
    r"""Return a logarithm; that of `\log` without a base is the natural one times a number that nobody knows."""
    if not all(arguments):
        raise NoValue("a logarithm of zero")
    if len(arguments) == 2:
        below = mp.log(rounded(arguments[1]))
        if not below:
            raise NoValue("a logarithm to the base 1")
        if exact(*arguments) and arguments[0] > 0 and arguments[1] > 1:
            power = _exact_logarithm(arguments[0], arguments[1])
            if power is not None:
                return Fraction(power)
        return mp.log(rounded(arguments[0])) / below
    if arguments[0] == 1:
        return Fraction(0)
    natural = mp.log(rounded(arguments[0]))
    return natural if name == "ln" else natural * rounded(point[LOG])


def _exact_logarithm(number: Fraction, base: Fraction) -> int | None:
    power = int(mp.nint(mp.log(rounded(number)) / mp.log(rounded(base))))
    return power if abs(power) <= 10_000 and _whole_power(base, power) == number else None


def _trigonometric(name: str) -> Callable[[Quantity], Quantity]:
    def compute(angle: Quantity) -> Quantity:
        if mp.mag(rounded(angle)) > 2_000:
            raise TooLarge("too large")
        below = {"tan": "cos", "sec": "cos", "cot": "sin", "csc": "sin"}.get(name)
        if below and mp.mag(getattr(mp, below)(rounded(angle))) < -mp.prec // 2:
            raise NoValue("a pole")
        return getattr(mp, name)(rounded(angle))

    return compute


def _inverse(name: str) -> Callable[[Quantity], Quantity]:
    compute = {"arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan}[name]
    return lambda number: compute(rounded(number))


def _exponential(name: str) -> Callable[[Quantity], Quantity]:
    def compute(exponent: Quantity) -> Quantity:
        if abs(rounded(exponent)) > MAX_SIZE // 2:
            raise TooLarge("too large")
        return getattr(mp, name)(rounded(exponent))

    return compute


def _step(down: bool) -> Callable[[Quantity], Quantity]:
    def compute(number: Quantity) -> Quantity:
        if isinstance(number, Fraction):
            return Fraction(math.floor(number) if down else math.ceil(number))
        if not _real(number) or abs(number - mp.nint(number)) < mp.ldexp(1, int(mp.mag(number)) - mp.prec // 2):
            raise NoValue("a step, but for rounding")
        return Fraction(int(mp.floor(mp.re(number)) if down else mp.ceil(mp.re(number))))

    return compute


def _extreme(is_max: bool) -> Callable[..., Quantity]:
    def compute(*numbers: Quantity) -> Quantity:
        if not all(_real(number) for number in numbers):
            raise NoValue("an order of complex numbers")
        return (max if is_max else min)(numbers, key=lambda number: mp.re(rounded(number)))

    return compute


def _of_integers(compute: Callable[..., int]) -> Callable[..., Quantity]:
    def checked(*numbers: Quantity) -> Quantity:
        if not all(isinstance(number, Fraction) and number.denominator == 1 for number in numbers):
            raise NoValue("not of whole numbers")
        return Fraction(compute(*(int(number) for number in numbers)))

    return checked


def _unknown(name: str, arguments: list[Quantity]) -> Quantity:
    """Return the value of a function of which nothing is known: some function, the same for the same name."""
    drawn = random.Random(name)
    angle = mp.mpf(drawn.randint(1, 999)) / 1000
    for argument in arguments:
        if mp.mag(rounded(argument)) > 100:
            raise TooLarge("too large")
        angle += rounded(argument) * drawn.randint(1001, 2999) / 1000
    return 2 + mp.sin(angle) + angle / 7


def _real(number: Quantity) -> bool:
    return isinstance(number, Fraction) or bool(mp.im(number) == 0)


_OPERATIONS: dict[str, Callable[..., Quantity]] = {
    "+": _add,
    "*": _times,
    "/": _over,
    "^": _power,
    "neg": lambda number: -number,
    "!": _factorial,
    "abs": abs,
    "floor": _step(True),
    "ceil": _step(False),
    "root": _root,
    "binom": _binomial,
    "deg": lambda angle: rounded(angle) * mp.pi / 180,
    "max": _extreme(True),
    "min": _extreme(False),
    "gcd": _of_integers(math.gcd),
    "lcm": _of_integers(math.lcm),
    **{name: _trigonometric(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{name: _exponential(name) for name in ("exp", "sinh", "cosh", "tanh")},
    **{name: _inverse(name) for name in ("arcsin", "arccos", "arctan")},
}


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
    """Computes at one precision, and remembers the sizes that it met."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.low, self.high = 0, 0

    def value(self, node: Node, point: Point) -> Quantity:
        """Return the value of an expression at a point; `NoValue` where it has none."""
        if isinstance(node, NumberNode):
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
            if found.numerator.bit_length() > MAX_SIZE or found.denominator.bit_length() > MAX_SIZE:
                raise TooLarge("too large")
            size = found.numerator.bit_length() - found.denominator.bit_length()
        elif not mp.isfinite(found):
            raise NoValue("not finite")
        else:
            size = int(mp.mag(found)) if found else 0
            if abs(size) > MAX_SIZE:
                raise TooLarge("too large")
        if found:
            self.low, self.high = min(self.low, size), max(self.high, size)


@dataclass(frozen=True)
class _Look:
    value: Quantity
    low: int
    high: int


def agree(one: Node, other: Node, free: frozenset[str], point: int) -> bool:
    """Return whether two expressions have the same value at one of the points of these variables.

    Rounded numbers that are equal differ by what rounding does, and that shrinks as digits are added. A difference as
    small as the first look can show is looked at again, with digits enough for the largest and smallest numbers met.
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
    """Return whether a value within is too large to be computed with."""
    if not isinstance(node, NumberNode | Symbol | Apply):
        return any(too_large(child) for child in children(node))
    return isinstance(_looked(node, names(node), 0), TooLarge)


def as_fraction(node: Node) -> Fraction | None:
    """Return the value of an expression without variables, to `BITS` where it is not exact; None without a real one."""
    found = None if names(node) else real_value(node, frozenset(), 0)
    if found is None or isinstance(found, Fraction):
        return found
    sign, mantissa, exponent, _ = found._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)
