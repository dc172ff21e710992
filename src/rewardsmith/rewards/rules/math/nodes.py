r"""What an answer of mathematics is, as a tree.

`\frac{1}{2}x` is `Apply("*", (Apply("/", (NumberNode 1, NumberNode 2)), Symbol x))`. Sets, points, intervals and
equations hold such values, and other sets. What a node is made of is its `members`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, TypeGuard


class UnparsableMath(Exception):  # noqa: N818 it is no error: the text is compared as text
    """The text is not mathematics that has one meaning; the reason is for people."""


@dataclass(frozen=True)
class NumberNode:
    """A number; `rounded` where it has a decimal point, so that it may stand for another."""

    value: Fraction
    rounded: bool = False


@dataclass(frozen=True)
class Symbol:
    r"""A variable, with its index: `x`, `a_{12}`, `\alpha`, `\vec v`. The constants are pi, e and i."""

    name: str


@dataclass(frozen=True)
class Apply:
    r"""An operation or a function: `+ * / ^ neg ! pm mp abs floor ceil root log binom deg sin …`.

    A name that ends in `()` is a function of which nothing is known, as in `f(x)`.
    """

    name: str
    members: tuple[Node, ...]


@dataclass(frozen=True)
class Infinity:
    """Positive or negative infinity. It is an answer, an end of an interval or a member, and never computed with."""

    negative: bool = False


@dataclass(frozen=True)
class MathGroup:
    r"""Several things: `\{1,2\}`, `(1,2)`, `[0,1)`, or `1,2` without brackets, for which both of these are empty.

    The opening of a ratio is `:`, that of a matrix `matrix`, and that of its rows `row`.
    """

    opening: str
    members: tuple[Node, ...]
    closing: str = ""


@dataclass(frozen=True)
class Chain:
    r"""Things in relation: `a < x \le b` has three members and the relations `<` and `<=`."""

    members: tuple[Node, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True)
class NamedSet:
    """A set that has a name: R, Z, Q, N, C, or the empty set, ∅."""

    name: str


@dataclass(frozen=True)
class SetOperation:
    """Two sets, joined by `∪`, `∩` or `∖`; conditions are joined by the first two, for "or" and "and"."""

    how: str
    members: tuple[Node, Node]


@dataclass(frozen=True)
class SetBuilder:
    r"""All values of a variable under conditions: `\{x \mid x > 2\}`."""

    variable: str
    members: tuple[Node, ...]


Value: TypeAlias = NumberNode | Symbol | Apply
"""The kinds of nodes that have a numerical value once all symbols have one."""

Node: TypeAlias = Value | Infinity | MathGroup | Chain | NamedSet | SetOperation | SetBuilder

CONSTANTS = frozenset({"pi", "e", "i"})


def require(holds: object, why: str) -> None:
    """Raise `UnparsableMath` unless something holds."""
    if not holds:
        raise UnparsableMath(why)


def number(value: int | str) -> NumberNode:
    """Return an exact number."""
    return NumberNode(Fraction(value))


def negative(node: Node) -> Apply:
    """Return a value with a minus sign."""
    return Apply("neg", (node,))


def minus(left: Node, right: Node) -> Apply:
    """Return a difference."""
    return Apply("+", (left, negative(right)))


def children(node: Node) -> tuple[Node, ...]:
    """Return what a node is made of."""
    return getattr(node, "members", ())


def parts(node: Node) -> Iterator[Node]:
    """Yield a node and everything within it."""
    yield node
    for child in children(node):
        yield from parts(child)


def names(node: Node) -> frozenset[str]:
    """Return the names of the variables within."""
    return frozenset(part.name for part in parts(node) if isinstance(part, Symbol)) - CONSTANTS


def is_applied(node: Node, *functions: str) -> TypeGuard[Apply]:
    """Return whether a node is one of these operations."""
    return isinstance(node, Apply) and node.name in functions


def _changed(node: Any, change: Callable[[Node], Node]) -> Any:
    return replace(node, members=tuple(map(change, node.members))) if children(node) else node


def renamed(node: Node, old: str, new: str) -> Node:
    """Return a node in which one variable has another name; that of a set-builder does not matter."""
    if isinstance(node, Symbol):
        return Symbol(new) if node.name == old else node
    return node if isinstance(node, SetBuilder) else _changed(node, lambda child: renamed(child, old, new))


def signed(node: Node, plus: bool) -> Node:
    r"""Return a value in which every `\pm` is a plus or a minus, and every `\mp` the other."""
    node = _changed(node, lambda child: signed(child, plus))
    if not is_applied(node, "pm", "mp"):
        return node
    *left, last = node.members
    last = last if plus == (node.name == "pm") else negative(last)
    return Apply("+", (left[0], last)) if left else last


def ambiguous(node: Node) -> bool:
    r"""Return whether a value has a `\pm`: it is then two values."""
    return any(is_applied(part, "pm", "mp") for part in parts(node))
