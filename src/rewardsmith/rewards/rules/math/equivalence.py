"""Whether two answers of mathematics are the same: values by points, sets by members, equations up to a factor."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from rewardsmith.rewards.rules.math.evaluation import POINTS, NoValue, Quantity, agree, as_fraction, real_value
from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Based,
    Chain,
    Infinity,
    MathGroup,
    Matrix,
    Node,
    NumberNode,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    ambiguous,
    names,
    parts,
    renamed,
    signed,
)
from rewardsmith.rewards.rules.math.real_sets import Span, real_set, same_sets
from rewardsmith.text.numbers import close

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class MathComparison:
    """Compares answers with a prompt's. What cannot be known to be equal is not."""

    def __init__(self, precision: int, strict: bool) -> None:
        self.precision = precision
        self.strict = strict

    def same(self, right: Node, answer: Node) -> bool:
        """Return whether an answer is the right one."""
        try:
            if _assignments(right) and _assignments(answer):
                return self._same_assignments(_assignments(right), _assignments(answer))
            right, answer = self._worth(right), self._worth(answer)
            if isinstance(right, Value) and isinstance(answer, Chain) and _is_sum_of_names(answer):
                answer = answer.members[1]
            right, answer = (_without_braces(right, answer), _without_braces(answer, right))
            return self._same(right, answer)
        except (NoValue, UnparsableMath):
            return False

    def same_relation(self, right: Node, answer: Node) -> bool:
        """Return whether two equations or inequalities are the same up to a factor."""
        try:
            return isinstance(right, Chain) and isinstance(answer, Chain) and self._same_chains(right, answer)
        except (NoValue, UnparsableMath):
            return False

    # What an answer is worth, once names and equals signs are taken away.

    def _worth(self, node: Node) -> Node:
        r"""Return the value that is given: 5 for `x = 5`, 2 and -2 for `\pm 2`, an interval for `x \in [0, 1]`."""
        if isinstance(node, Chain) and not set(node.relations) - {"=", "~"}:
            return self._end(node)
        if isinstance(node, Chain) and node.relations == ("in",) and isinstance(node.members[0], Symbol):
            return node.members[1]
        if isinstance(node, MathGroup) and node.opening in ("", "{"):
            members = [one for member in node.members for one in _both(member)]
            values = _values(members)
            # What a name is given several values of is a set, and no point.
            return MathGroup("{", values, "}") if values else MathGroup(node.opening, tuple(members), node.closing)
        return MathGroup("", tuple(_both(node)), "") if isinstance(node, Value) and ambiguous(node) else node

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
            if _near(left, right) if relation == "~" else self._same(left, right):
                continue
            if len(chain.members) == 2 and relation == "=" and any(names(member) for member in rest):
                return chain
            raise UnparsableMath("members of a chain that are not equal")
        return rest[0] if "~" in relations else rest[-1]

    # Comparing.

    def _same(self, right: Node, answer: Node) -> bool:
        if not self.strict and len(names(right)) == len(names(answer)) == 1:
            answer = renamed(answer, *names(answer), *names(right))
        if isinstance(right, Value) and isinstance(answer, Value):
            return self._same_values(right, answer)
        if right == answer:
            return True
        if any(isinstance(side, Infinity | Based | Matrix | Value) for side in (right, answer)):
            return self._same_tables(right, answer) or self._same_ratio(right, answer)
        if isinstance(right, MathGroup) and isinstance(answer, MathGroup):
            return self._same_groups(right, answer)
        if isinstance(right, Chain) and isinstance(answer, Chain) and self.same_relation(right, answer):
            return True
        return self._same_sets(right, answer)

    def _same_assignments(self, right: dict[str, Node], answer: dict[str, Node]) -> bool:
        """Compare `x = 1, y = 2`: the same names, and the same value for each."""
        return right.keys() == answer.keys() and all(self._same_parts(right[name], answer[name]) for name in right)

    def _same_values(self, right: Node, answer: Node) -> bool:
        """Compare at points; a number with a decimal point may be rounded."""
        if _in_degrees(right) or _in_degrees(answer):
            right, answer = _without_degrees(right), _without_degrees(answer)
        free = names(right) | names(answer)
        if not free and (_is_rounded(right) or _is_rounded(answer)):
            one, other = as_fraction(right), as_fraction(answer)
            return one is not None and other is not None and close(one, other, self.precision)
        return _same_everywhere(right, answer, free)

    def _same_ratio(self, right: Node, answer: Node) -> bool:
        """Compare a ratio with its value, unless that is a whole number."""
        for one, other in ((right, answer), (answer, right)):
            if isinstance(one, MathGroup) and one.opening == ":" and len(one.members) == 2 and isinstance(other, Value):
                return one.members[1] != _ONE and self._same_values(other, Apply("/", one.members))
        return False

    def _same_groups(self, right: MathGroup, answer: MathGroup) -> bool:
        """Compare members, in their order unless both are sets; a list without brackets may be a set or a point."""
        kinds = {right.opening + right.closing, answer.opening + answer.closing}
        if ":" in kinds:
            return kinds == {":"} and self._proportional(right.members, answer.members)
        if kinds <= {"", "{}"} or ("{}" in kinds and not self.strict):
            counted = kinds == {""} and len(right.members) != len(answer.members)
            return not counted and self._same_members(right.members, answer.members)
        members = [*right.members, *answer.members]
        if len(kinds) > 1 and (kinds != {"", "()"} or any(isinstance(member, Chain) for member in members)):
            return False
        return len(right.members) == len(answer.members) and all(
            self._same_parts(a, b) for a, b in zip(right.members, answer.members, strict=True)
        )

    def _same_parts(self, right: Node, answer: Node) -> bool:
        """Compare members: `1 + 1 = 2` is 2, but the name in `x = 2` counts."""
        try:
            pair = [side if isinstance(side, Chain) and names(side) else self._worth(side) for side in (right, answer)]
            return self._same(*pair)
        except (NoValue, UnparsableMath):
            return False

    def _same_members(self, right: Sequence[Node], answer: Sequence[Node]) -> bool:
        """Return whether each member is equal to one of the other side."""
        found = [[self._same_parts(a, b) for b in answer] for a in right]
        return all(any(row) for row in found) and all(any(column) for column in zip(*found, strict=True))

    def _proportional(self, right: Sequence[Node], answer: Sequence[Node]) -> bool:
        return len(right) == len(answer) and all(
            self._same_values(Apply("*", (a, answer[0])), Apply("*", (b, right[0])))
            for a, b in zip(right[1:], answer[1:], strict=True)
        )

    def _same_tables(self, right: Node, answer: Node) -> bool:
        if not (isinstance(right, Matrix) and isinstance(answer, Matrix)):
            return False
        return [len(row) for row in right.rows] == [len(row) for row in answer.rows] and all(
            self._same_values(a, b)
            for row, other in zip(right.rows, answer.rows, strict=True)
            for a, b in zip(row, other, strict=True)
        )

    def _same_sets(self, right: Node, answer: Node) -> bool:
        """Compare sets of real numbers, and conditions that describe them; `2x > 4` is `(2, oo)`."""
        if self.strict and len(_conditioned(right) | _conditioned(answer)) > 1:
            return False
        for one, other in ((right, answer), (answer, right)):
            if isinstance(one, Chain) and len(one.relations) == 1 and len(names(one)) == 1 and not _is_set(one):
                spans = real_set(other)
                return len(spans) == 1 and self.same_relation(one, _as_chain(spans[0], *names(one)))
        return same_sets(real_set(right), real_set(answer), self._same_ends)

    def _same_ends(self, right: Node, answer: Node) -> bool:
        if isinstance(right, Infinity) or isinstance(answer, Infinity):
            return right == answer
        return self._same_values(right, answer)

    def _same_chains(self, right: Chain, answer: Chain) -> bool:
        """Compare `f = g` by the difference of its sides, up to a factor; a negative one turns an inequality."""
        if len(right.relations) > 1 or len(answer.relations) > 1:
            turned = Chain(answer.members[::-1], tuple(_FLIPPED.get(one, one) for one in answer.relations[::-1]))
            return right in (answer, turned)
        one, other = right.relations[0], answer.relations[0]
        if other not in (one, _FLIPPED.get(one)):
            return right == answer
        left, found = (Apply("+", (c.members[0], Apply("neg", c.members[1:]))) for c in (right, answer))
        free = names(left)
        if not free or free != names(found):
            return False
        ratio = [real_value(side, free, 0) for side in (left, found)]
        if None in ratio or not all(ratio):
            return False
        if one not in ("=", "!=") and (_is_positive(ratio[0]) == _is_positive(ratio[1])) != (one == other):
            return False
        # f(x) g(y) = g(x) f(y) for all x and y: one is the other times a number.
        crossed = [Apply("*", (a, _elsewhere(b))) for a, b in ((left, found), (found, left))]
        return _same_everywhere(crossed[0], crossed[1], names(crossed[0]))


def _same_everywhere(right: Node, answer: Node, free: frozenset[str]) -> bool:
    """Compare at the points where the right answer is real; at all of them where it is complex, or real nowhere."""
    if not free:
        return agree(right, answer, free, 0)
    real = [point for point in range(POINTS) if real_value(right, free, point) is not None]
    if len(real) < 2 or Symbol("i") in parts(right):
        real = list(range(POINTS))
    return all(agree(right, answer, free, point) for point in real)


def _is_positive(number: Quantity | None) -> bool:
    return number is not None and number > 0


def _elsewhere(node: Node) -> Node:
    """Return an expression with other variables."""
    for name in names(node):
        node = renamed(node, name, f"{name} elsewhere")
    return node


def _both(node: Node) -> list[Node]:
    """Return both values of a ±, or the only one without it."""
    if not ambiguous(node):
        return [node]
    if isinstance(node, Chain):
        *rest, last = node.members
        return [Chain((*rest, signed(last, plus)), node.relations) for plus in (True, False)]
    return [signed(node, plus) for plus in (True, False)]


def _values(members: list[Node]) -> tuple[Node, ...]:
    """Return the values of `x = 1, x = 2`, of `x = 1, 2` and of `x_1 = 1, x_2 = 2`; none of other members."""
    named = [one for one in members if isinstance(one, Chain) and one.relations == ("=",) and _is_name(one.members[0])]
    of = {one.members[0].name.partition("_")[0] for one in named if isinstance(one.members[0], Symbol)}
    if len(of) != 1 or not (len(named) == len(members) or named == members[:1]):
        return ()
    return tuple(one.members[1] if isinstance(one, Chain) and one in named else one for one in members)


def _without_braces(node: Node, other: Node) -> Node:
    """Return the member of a set of one, where the other side is a value."""
    single = isinstance(node, MathGroup) and node.opening == "{" and len(node.members) == 1 and isinstance(other, Value)
    return node.members[0] if single and isinstance(node, MathGroup) else node


def _assignments(node: Node) -> dict[str, Node]:
    """Return the values of several names in `x = 1, y = 2`; none of anything else."""
    found: dict[str, Node] = {}
    for member in node.members if isinstance(node, MathGroup) and node.opening in ("", "{") else ():
        name = member.members[0] if isinstance(member, Chain) and member.relations == ("=",) else None
        if not isinstance(member, Chain) or not isinstance(name, Symbol) or name.name in found:
            return {}
        found[name.name] = member.members[1]
    return found


def _conditioned(node: Node) -> frozenset[str]:
    """Return the variables of conditions, without that of a set-builder, which may have any name."""
    if isinstance(node, SetOperation):
        return _conditioned(node.left) | _conditioned(node.right)
    return names(node) if isinstance(node, Chain) and node.relations != ("in",) else frozenset()


def _is_name(node: Node) -> bool:
    """Return whether something only names what follows: x, f(x), (x, y)."""
    if isinstance(node, MathGroup):
        return node.opening == "(" and all(isinstance(member, Symbol) for member in node.members)
    return (isinstance(node, Symbol) and node.name != "pi") or (isinstance(node, Apply) and node.name.endswith("()"))


def _is_sum_of_names(chain: Chain) -> bool:
    """Return whether an equation gives what names are together: a + b = 24."""
    left, *rest = chain.members
    written = any(
        isinstance(part, NumberNode) or (isinstance(part, Apply) and part.name == "neg") for part in parts(left)
    )
    return chain.relations == ("=",) and isinstance(left, Value) and not written and not names(rest[0])


def _is_rounded(node: Node) -> bool:
    """Return whether a value is a number with a decimal point, with a sign or as percent."""
    if isinstance(node, Apply) and (node.name == "neg" or (node.name == "/" and node.arguments[1] == _HUNDRED)):
        return _is_rounded(node.arguments[0])
    return isinstance(node, NumberNode) and node.rounded


_ONE = NumberNode(Fraction(1))
_HUNDRED = NumberNode(Fraction(100))


def _in_degrees(node: Node) -> bool:
    return isinstance(node, Apply) and node.name == "deg"


def _without_degrees(node: Node) -> Node:
    return node.arguments[0] if isinstance(node, Apply) and node.name == "deg" else node


def _near(exact: Node, rounded: Node) -> bool:
    """Return whether a rounded number stands for another: it is right to its last place."""
    one, other = as_fraction(exact), as_fraction(rounded)
    if one is None or other is None:
        return False
    places = next((k for k in range(16) if (other * 10**k).denominator == 1), None)
    return places is not None and abs(one - other) * 10**places * (1 if places else 2) < 1


def _is_set(node: Node) -> bool:
    try:
        real_set(node)
    except UnparsableMath:
        return False
    return True


def _as_chain(span: Span, variable: str) -> Chain:
    """Return the inequality that an interval with one end is."""
    if isinstance(span.low, Infinity) == isinstance(span.high, Infinity):
        raise UnparsableMath("an interval with two ends")
    end, how, closed = (
        (span.high, "<", span.high_closed) if isinstance(span.low, Infinity) else (span.low, ">", span.low_closed)
    )
    return Chain((Symbol(variable), end), (how + "=" * closed,))
