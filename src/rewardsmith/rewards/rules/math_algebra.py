"""math-verify, asked what it can answer in time. Imported by the first answer that needs it: it loads sympy."""

from __future__ import annotations

import logging
from typing import Any

from latex2sympy2_extended import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]
from sympy import Basic, Expr, Float, MatrixBase, Set, nan, oo, zoo  # type: ignore[import-untyped]
from sympy.logic.boolalg import Boolean  # type: ignore[import-untyped]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits are off

_TARGETS = [
    LatexExtractionConfig(
        boxed_match_priority=-1,
        # Units are taken off before: its list of them holds single letters, so that 3t would be 3.
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
        ),
    )
]


def parsed(latex: str) -> list[Any]:
    """Return what math-verify reads; nothing when it reads nothing.

    Its time limits are off: they use signals, which work in a main thread alone. Whoever calls a rule limits its time.
    """
    found: list[Any] = parse(
        f"${latex}$", _TARGETS, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    return found


def same(gold: Any, answer: Any, precision: int, strict: bool) -> bool:
    """Say whether two expressions are equal; what math-verify raises on the way means that they are not."""
    if isinstance(gold, Expr) and gold.is_infinite:
        return bool(answer == gold)  # math-verify takes ∞ - {1/2} for 0
    if _infinite(answer) and not (_infinite(gold) or (isinstance(gold, Boolean) and isinstance(answer, Set))):
        return False  # sympy takes 42 - Max(1, oo) for 0
    if _differ(gold, answer, precision, strict):
        return False
    equal: bool = verify(
        gold,
        answer,
        float_rounding=precision,
        # With several variables it would pair them in the order of a hash, which differs from run to run.
        strict=strict or max(len(gold.free_symbols), len(answer.free_symbols)) > 1,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )
    return equal


def _infinite(expression: Any) -> bool:
    """Say whether an expression has an infinite or undefined part, as it stands or once evaluated."""
    if not isinstance(expression, Basic | MatrixBase):
        return False
    if expression.has(oo, -oo, zoo, nan):
        return True
    try:
        return bool(expression.doit().has(oo, -oo, zoo, nan) or expression.evalf(15).has(oo, -oo, zoo, nan))
    except Exception:  # noqa: BLE001 it cannot be evaluated; sympy raises many things
        return True


def _differ(gold: Any, answer: Any, precision: int, strict: bool) -> bool:
    """Say whether two expressions have different values at one point: a cheap proof that they are not equal.

    Simplifying their difference, as math-verify does, takes seconds for (x+1)^100, and hours for (a+b+c+d)^40.
    """
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or (not strict and gold.free_symbols):
        return False
    names = sorted(gold.free_symbols | answer.free_symbols, key=str)
    point = {name: Float(f"1.{7 * i + 3}31717", 30) for i, name in enumerate(names)}
    try:
        one, other = gold.evalf(30, subs=point), answer.evalf(30, subs=point)
        apart, size = abs(one - other).evalf(15), max(abs(one), abs(other))
        # Outside the real domain of a variable, expressions that are equal within it may differ.
        sure = not names or (one.is_extended_real and other.is_extended_real)
        return bool(sure and apart > 10.0**-precision and apart > 1e-9 * size)
    except Exception:  # noqa: BLE001 it has no value at this point; sympy raises many things
        return False
