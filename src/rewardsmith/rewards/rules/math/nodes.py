r"""What an answer of mathematics is, as a tree.

`\frac{1}{2}x` is `Apply("*", (Apply("/", (NumberNode 1, NumberNode 2)), Symbol x))`. Sets, points, intervals and
equations hold such values, and other sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


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
    r"""An operation or a function: `+ * / ^ neg ! pm mp abs floor ceil root log binom deg sin max …`.

    A name that ends in `()` is a function of which nothing is known, as in `f(x)`.
    """

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Infinity:
    """Positive or negative infinity. It is an answer, an end of an interval or a member, and never computed with."""

    negative: bool = False


@dataclass(frozen=True)
class MathGroup:
    r"""Several things: `\{1,2\}`, `(1,2)`, `[0,1)`, or `1,2` without brackets, for which both of these are empty."""

    opening: str
    members: tuple[Node, ...]
    closing: str


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
    left: Node
    right: Node


@dataclass(frozen=True)
class SetBuilder:
    r"""All values of a variable under conditions: `\{x \mid x > 2\}`."""

    variable: str
    conditions: tuple[Node, ...]


@dataclass(frozen=True)
class Matrix:
    """A matrix, by rows."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Based:
    """Digits to a base that is written: `101_2`."""

    digits: str
    base: int


Value: TypeAlias = NumberNode | Symbol | Apply
"""The kinds of nodes that have a numerical value once all symbols have one."""

Node: TypeAlias = Value | Infinity | MathGroup | Chain | NamedSet | SetOperation | SetBuilder | Matrix | Based

CONSTANTS = frozenset({"pi", "e", "i"})


def parts(node: Node) -> Iterator[Node]:
    """Yield a node and everything within it."""
    yield node
    for child in children(node):
        yield from parts(child)


def children(node: Node) -> tuple[Node, ...]:
    """Return what a node is made of."""
    if isinstance(node, Apply):
        return node.arguments
    if isinstance(node, MathGroup | Chain):
        return node.members
    if isinstance(node, SetOperation):
        return node.left, node.right
    if isinstance(node, SetBuilder):
        return node.conditions
    if isinstance(node, Matrix):
        return tuple(cell for row in node.rows for cell in row)
    return ()


def names(node: Node) -> frozenset[str]:
    """Return the names of the variables within."""
    return frozenset(part.name for part in parts(node) if isinstance(part, Symbol)) - CONSTANTS


def renamed(node: Node, old: str, new: str) -> Node:
    """Return a value in which one variable has another name."""
    if isinstance(node, Symbol):
        return Symbol(new) if node.name == old else node
    if isinstance(node, Apply):
        return Apply(node.name, tuple(renamed(child, old, new) for child in node.arguments))
    if isinstance(node, MathGroup):
        return MathGroup(node.opening, tuple(renamed(child, old, new) for child in node.members), node.closing)
    if isinstance(node, Chain):
        return Chain(tuple(renamed(child, old, new) for child in node.members), node.relations)
    if isinstance(node, SetOperation):
        return SetOperation(node.how, renamed(node.left, old, new), renamed(node.right, old, new))
    return node


def signed(node: Node, plus: bool) -> Node:
    r"""Return a value in which every `\pm` is a plus or a minus, and every `\mp` the other."""
    if not isinstance(node, Apply):
        return node
    arguments = tuple(signed(child, plus) for child in node.arguments)
    if node.name not in ("pm", "mp"):
        return Apply(node.name, arguments)
    last = arguments[-1] if plus == (node.name == "pm") else Apply("neg", arguments[-1:])
    return Apply("+", (arguments[0], last)) if len(arguments) == 2 else last


def ambiguous(node: Node) -> bool:
    r"""Return whether a value has a `\pm`: it is then two values."""
    return any(isinstance(part, Apply) and part.name in ("pm", "mp") for part in parts(node))
