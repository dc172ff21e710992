"""Whether two answers of mathematics are the same: values by points, sets by members, equations up to a factor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rewardsmith.rewards.rules.math.evaluation import POINTS, NoValue, agree, as_fraction, real_value
from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Chain,
    Infinity,
    MathGroup,
    Node,
    NumberNode,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    ambiguous,
    is_applied,
    minus,
    names,
    number,
    parts,
    renamed,
    require,
    signed,
)
from rewardsmith.rewards.rules.math.real_sets import MIRRORED, real_set, same_sets
from rewardsmith.text.numbers import close


class MathComparison:
    """Compares answers with a prompt's. What cannot be known to be equal is not."""

    def __init__(self, precision: int, strict: bool) -> None:
        self.precision = precision
        self.strict = strict

    def same(self, right: Node, answer: Node) -> bool:
        """Return whether an answer is the right one."""
        try:
            one, other = _assignments(right), _assignments(answer)
            if one and other:  # the same names, and the same value for each
                return one.keys() == other.keys() and all(self._same_parts(one[name], other[name]) for name in one)
            right, answer = self._worth(right), self._worth(answer)
            if isinstance(right, Value) and isinstance(answer, Chain) and _is_sum_of_names(answer):
                answer = answer.members[1]
            return self._same(_without_braces(right, answer), _without_braces(answer, right))
        except (NoValue, UnparsableMath):
            return False

    def same_relation(self, right: Node, answer: Node) -> bool:
        """Return whether two equations or inequalities are the same up to a factor."""
        try:
            return isinstance(right, Chain) and isinstance(answer, Chain) and self._same_chains(right, answer)
        except (NoValue, UnparsableMath):
            return False

    # ---- what an answer is worth, once names and equals signs are taken away -----------------------------------------

    def _worth(self, node: Node) -> Node:
        r"""Return the value that is given: 5 for `x = 5`, 2 and -2 for `\pm 2`, an interval for `x \in [0, 1]`."""
        match node:
            case Chain(_, relations) if not set(relations) - {"=", "~"}:
                return self._end(node)
            case Chain((Symbol(), given), ("in",)):
                return given
            case MathGroup("" | "{", members, closing):
                members = tuple(one for member in members for one in _both(member))
                values = _values(members)
                # What a name is given several values of is a set, and no point.
                return MathGroup("{", values, "}") if values else MathGroup(node.opening, members, closing)
        return MathGroup("", _both(node)) if isinstance(node, Value) and ambiguous(node) else node

    def _end(self, chain: Chain) -> Node:
        """Return the end of `x = 6 - 1 = 5`; the equation itself where there is something to solve."""
        rest = list(chain.members)
        if len(rest) == 2 and _is_name(rest[1]) and not _is_name(rest[0]):
            rest.reverse()
        while len(rest) > 1 and _is_name(rest[0]):
            rest.pop(0)
        if len(rest) == 1:
            return self._worth(rest[0])
        relations = chain.relations[len(chain.members) - len(rest) :]
        for (left, right), relation in zip(pairwise(rest), relations, strict=True):
            if not (_near(left, right) if relation == "~" else self._same(left, right)):
                to_solve = len(chain.members) == 2 and relation == "=" and any(map(names, rest))
                require(to_solve, "members of a chain that are not equal")
                return chain
        return rest[0] if "~" in relations else rest[-1]

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _same(self, right: Node, answer: Node) -> bool:
        if not self.strict and len(names(right)) == len(names(answer)) == 1:
            answer = renamed(answer, *names(answer), *names(right))
        if isinstance(right, Value) and isinstance(answer, Value):
            return self._same_values(right, answer)
        if right == answer:
            return True
        if isinstance(right, Infinity | Value) or isinstance(answer, Infinity | Value):
            return self._same_ratio(right, answer) or self._same_ratio(answer, right)
        if isinstance(right, MathGroup) and isinstance(answer, MathGroup):
            return self._same_groups(right, answer)
        return self.same_relation(right, answer) or self._same_sets(right, answer)

    def _same_values(self, right: Node, answer: Node) -> bool:
        """Compare at points; a number with a decimal point may be rounded."""
        if is_applied(right, "deg") or is_applied(answer, "deg"):
            right, answer = _without_degrees(right), _without_degrees(answer)
        free = names(right) | names(answer)
        if not free and (_is_rounded(right) or _is_rounded(answer)):
            one, other = as_fraction(right), as_fraction(answer)
            return one is not None and other is not None and close(one, other, self.precision)
        return _same_everywhere(right, answer, free)

    def _same_ratio(self, ratio: Node, value: Node) -> bool:
        """Compare a ratio with its value, unless that is a whole number."""
        match ratio:
            case MathGroup(":", (_, bottom) as pair) if isinstance(value, Value):
                return bottom != number(1) and self._same_values(value, Apply("/", pair))
        return False

    def _same_groups(self, right: MathGroup, answer: MathGroup) -> bool:
        """Compare members, in their order unless both are sets; a list without brackets may be a set or a point."""
        kinds = {right.opening + right.closing, answer.opening + answer.closing}
        is_as_long = len(right.members) == len(answer.members)
        pairs = list(zip(right.members, answer.members, strict=False))
        if kinds == {":"}:  # a : b is c : d where a d = b c
            (a, b), *rest = pairs
            return is_as_long and all(self._same_values(Apply("*", (c, b)), Apply("*", (d, a))) for c, d in rest)
        if kinds <= {"", "{}"} or ("{}" in kinds and not self.strict):
            return (is_as_long or kinds != {""}) and self._same_members(right.members, answer.members)
        as_point = kinds == {"", "()"} and not any(isinstance(one, Chain) for pair in pairs for one in pair)
        return is_as_long and (len(kinds) == 1 or as_point) and all(self._same_parts(a, b) for a, b in pairs)

    def _same_parts(self, right: Node, answer: Node) -> bool:
        """Compare members: `1 + 1 = 2` is 2, but the name in `x = 2` counts."""
        try:
            pair = [side if isinstance(side, Chain) and names(side) else self._worth(side) for side in (right, answer)]
            return self._same(*pair)
        except (NoValue, UnparsableMath):
            return False

    def _same_members(self, right: Sequence[Node], answer: Sequence[Node]) -> bool:
        """Return whether each member is equal to one of the other side."""
        equal = [[self._same_parts(a, b) for b in answer] for a in right]
        return all(map(any, equal)) and all(map(any, zip(*equal, strict=True)))

    def _same_sets(self, right: Node, answer: Node) -> bool:
        """Compare sets of real numbers, and conditions that describe them; `x > 2` is `(2, oo)`."""
        if self.strict and len(_conditioned(right) | _conditioned(answer)) > 1:
            return False
        return same_sets(real_set(right), real_set(answer), self._same_ends)

    def _same_ends(self, right: Node, answer: Node) -> bool:
        if isinstance(right, Infinity) or isinstance(answer, Infinity):
            return right == answer
        return self._same_values(right, answer)

    def _same_chains(self, right: Chain, answer: Chain) -> bool:
        """Compare `f = g` by the difference of its sides, up to a factor; a negative one turns an inequality."""
        if len(right.relations) > 1 or len(answer.relations) > 1:
            return right == answer
        one, other = right.relations[0], answer.relations[0]
        if other not in (one, MIRRORED.get(one)):
            return right == answer
        left, found = (minus(*chain.members) for chain in (right, answer))
        free = names(left)
        a, b = (real_value(side, free | names(found), 0) for side in (left, found))
        if not free or free != names(found) or not a or not b:
            return False
        if one not in ("=", "!=") and ((a > 0) == (b > 0)) != (one == other):
            return False
        # f(x) g(y) = g(x) f(y) for all x and y: one is the other times a number.
        crossed = [Apply("*", (f, _elsewhere(g))) for f, g in ((left, found), (found, left))]
        return _same_everywhere(crossed[0], crossed[1], names(crossed[0]))


def _same_everywhere(right: Node, answer: Node, free: frozenset[str]) -> bool:
    """Compare at the points where the right answer is real; at all of them where it is complex, or real nowhere."""
    if not free:
        return agree(right, answer, free, 0)
    real = [point for point in range(POINTS) if real_value(right, free, point) is not None]
    if len(real) < 2 or Symbol("i") in parts(right):
        real = list(range(POINTS))
    return all(agree(right, answer, free, point) for point in real)


def _elsewhere(node: Node) -> Node:
    """Return an expression with other variables."""
    for name in names(node):
        node = renamed(node, name, f"{name} elsewhere")
    return node


def _both(node: Node) -> tuple[Node, ...]:
    """Return both values of a ±, or the only one without it."""
    if not ambiguous(node):
        return (node,)
    if isinstance(node, Chain):
        *rest, last = node.members
        return tuple(Chain((*rest, one), node.relations) for one in _both(last))
    return signed(node, True), signed(node, False)


def _values(members: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the values of `x = 1, x = 2`, of `x = 1, 2` and of `x_1 = 1, x_2 = 2`; none of other members."""
    named = [one for one in members if isinstance(one, Chain) and one.relations == ("=",) and _is_name(one.members[0])]
    bases = {one.members[0].name.partition("_")[0] for one in named if isinstance(one.members[0], Symbol)}
    if len(bases) != 1 or (len(named) < len(members) and tuple(named) != members[:1]):
        return ()
    return tuple(one.members[1] if isinstance(one, Chain) and one in named else one for one in members)


def _without_braces(node: Node, other: Node) -> Node:
    """Return the member of a set of one, where the other side is a value."""
    match node:
        case MathGroup("{", (member,)) if isinstance(other, Value):
            return member
    return node


def _assignments(node: Node) -> dict[str, Node]:
    """Return the values of several names in `x = 1, y = 2`; none of anything else."""
    found: dict[str, Node] = {}
    for member in node.members if isinstance(node, MathGroup) and node.opening in ("", "{") else ():
        match member:
            case Chain((Symbol(name), value), ("=",)) if name not in found:
                found[name] = value
            case _:
                return {}
    return found


def _conditioned(node: Node) -> frozenset[str]:
    """Return the variables of conditions, without that of a set-builder, which may have any name."""
    if isinstance(node, SetOperation):
        return _conditioned(node.members[0]) | _conditioned(node.members[1])
    return names(node) if isinstance(node, Chain) and node.relations != ("in",) else frozenset()


def _is_name(node: Node) -> bool:
    """Return whether something only names what follows: x, f(x), (x, y)."""
    match node:
        case MathGroup("(", members):
            return all(isinstance(member, Symbol) for member in members)
        case Symbol(name):
            return name != "pi"
        case Apply(name):
            return name.endswith("()")
    return False


def _is_sum_of_names(chain: Chain) -> bool:
    """Return whether an equation gives what names are together: a + b = 24."""
    left, right = chain.members[:2]
    written = any(isinstance(part, NumberNode) or is_applied(part, "neg") for part in parts(left))
    return chain.relations == ("=",) and isinstance(left, Value) and not written and not names(right)


def _is_rounded(node: Node) -> bool:
    """Return whether a value is a number with a decimal point, with a sign or as percent."""
    match node:
        case Apply("neg", (inner,)):
            return _is_rounded(inner)
        case Apply("/", (inner, below)) if below == number(100):
            return _is_rounded(inner)
    return isinstance(node, NumberNode) and node.rounded


def _without_degrees(node: Node) -> Node:
    return node.members[0] if is_applied(node, "deg") else node


def _near(exact: Node, rounded: Node) -> bool:
    """Return whether a rounded number stands for another: it is right to its last place."""
    one, other = as_fraction(exact), as_fraction(rounded)
    if one is None or other is None:
        return False
    places = next((k for k in range(16) if (other * 10**k).denominator == 1), None)
    return places is not None and abs(one - other) * 10**places * (1 if places else 2) < 1
