r"""A strict parser of LaTeX: every sign of the text has a meaning, and the text has one meaning, or it is not read.

A parser that passes over what it does not know, reads `4\phantom{2}` as 42 and the start of `5 = 7` as 5, gives rewards
for wrong answers. So `1/2x`, `\sin x/2` and `1 2` are not read: people mean different things by them.
"""

from __future__ import annotations

import re

from rewardsmith.rewards.rules.math_terms import Terms
from rewardsmith.rewards.rules.math_tokens import FENCES, JOINED, RELATIONS, SEPARATORS, as_value, conditions
from rewardsmith.rewards.rules.math_tree import (
    Apply,
    Builder,
    Chain,
    Combined,
    Group,
    Named,
    Node,
    Table,
    Unreadable,
    Value,
    names,
)


def parse(latex: str) -> Node:
    """Return what a text says.

    Raises:
        Unreadable: where it says nothing, or more than one thing.
    """
    return _Parser(latex).whole()


class _Parser(Terms):
    def whole(self) -> Node:
        node = self.listing(())
        if self.token:
            raise Unreadable(f"{self.token!r} has no place there")
        return node

    def listing(self, stops: tuple[str, ...]) -> Node:
        """Read things with separators between them; a list has no brackets of its own."""
        items, separators = [self.item()], []
        while self.token in SEPARATORS:
            separator = self.take()
            if separator in (",", ";") and self.token in ("\\and", "\\or"):
                separator = self.take()  # "1, 2, and 3"
            separators.append(separator)
            items.append(self.item())
        if self.token not in stops and self.token:
            raise Unreadable(f"{self.token!r} has no place there")
        if len(items) == 1:
            return items[0]
        return conditions(items, separators) or Group("", tuple(items), "")

    def item(self) -> Node:
        """Read a value, a set, or a chain of relations."""
        if self.token in ("=", "\\approx") and self.at == 0:
            self.take()  # "= 5"
        members, relations = [self.joined()], []
        while self.token in RELATIONS:
            relations.append(RELATIONS[self.take()])
            start = self.at
            members.append(self.joined())
            if relations[-1] == ":" and re.fullmatch(r"[0-9]{2}", "".join(self.tokens[start : self.at])):
                raise Unreadable("a ratio, or a time of day")
        if not relations:
            return members[0]
        if ":" not in relations:
            return Chain(tuple(members), tuple(relations))
        if set(relations) != {":"}:
            raise Unreadable("a colon within a relation")
        return Group(":", tuple(as_value(member) for member in members), "")

    def joined(self) -> Node:
        """Read a value, or sets joined by ∪, ∩ and ∖: from the left, and without brackets only by one of them."""
        node, used = self.sum(), ""
        while self.token in JOINED or (self.token == "-" and not isinstance(node, Value)):
            how = JOINED.get(self.take(), "∖")
            if used not in ("", how) or how == used == "∖":
                raise Unreadable("sets that are joined in two ways")
            used, node = how, Combined(how, node, self.sum())
        return node

    def group(self, *, several: bool = False) -> Node:
        r"""Read `{…}`, with `\over` and `\choose` in it; with `several`, `{1,2}` is a set."""
        self.take("{")
        node = self.nested(lambda: self.listing(("}", "\\over", "\\choose")))
        how = self.take()
        if how in ("\\over", "\\choose"):
            below = self.nested(lambda: self.listing(("}",)))
            node = Apply("/" if how == "\\over" else "binom", (as_value(node), as_value(below)))
            self.take("}")
        if isinstance(node, Group) and not node.opening:
            if not several:
                raise Unreadable("several things where one is expected")
            return Group("{", node.members, "}")
        return node

    def of_list(self, name: str) -> Node:
        self.take("(") if self.token == "(" else self.take("\\{")
        closing = ")" if self.tokens[self.at - 1] == "(" else "\\}"
        found = self.nested(lambda: self.listing((closing,)))
        self.take(closing)
        members = found.members if isinstance(found, Group) and not found.opening else (found,)
        if names(found):
            raise Unreadable(f"{name} of what is not known: it may be one or the other")
        return Apply(name, tuple(as_value(member) for member in members))

    def table(self, token: str) -> Node:
        kind = token[token.index("{") + 1 : -1]
        if kind not in ("pmatrix", "bmatrix", "matrix", "array", "smallmatrix"):
            raise Unreadable(f"{token} has no meaning here")
        rows: list[tuple[Node, ...]] = []
        cells: list[Node] = []
        while True:
            cells.append(as_value(self.nested(self.sum)))
            mark = self.take()
            if mark == "&":
                continue
            rows.append(tuple(cells))
            cells = []
            if mark == "\\\\" and not self.token.startswith("\\end"):
                continue
            if mark == "\\\\":
                mark = self.take()
            if not mark.startswith("\\end") or mark[mark.index("{") + 1 : -1] != kind:
                raise Unreadable("a matrix without an end")
            if len({len(row) for row in rows}) != 1:
                raise Unreadable("a matrix with rows of several lengths")
            return Table(tuple(rows))

    def fenced(self, opening: str) -> Node:
        r"""Read `|x|`, `\lfloor x \rfloor` and the like. A bar closes where one is open, and opens elsewhere."""
        closing, name = FENCES.get(opening, ("|", "abs"))
        before, self.bars = self.bars, self.bars + 1 if closing == "|" else 0
        node = as_value(self.nested(self.sum))
        self.take(closing)
        self.bars = before
        return Apply(name, (node,))

    def brackets(self, opening: str) -> Node:
        found = self.nested(lambda: self.listing((")", "]")))
        closing = self.take(")", "]")
        if isinstance(found, Group) and not found.opening:
            return Group(opening, found.members, closing)
        if {"(": ")", "[": "]"}[opening] != closing:
            raise Unreadable("brackets that do not match")
        return found

    def braces(self) -> Node:
        if self.token == "\\}":
            self.take()
            return Named("∅")
        start = self.at
        if re.fullmatch(r"[A-Za-z]", self.token):
            variable = self.take()
            if self.token == "\\in":
                self.take()
                if self.joined() != Named("R"):
                    self.at = start
            if self.token in ("\\mid", "|", ":") and self.at > start:
                self.take()
                conditions = self.nested(lambda: self.listing(("\\}",)))
                self.take("\\}")
                return Builder(variable, conditions.members if isinstance(conditions, Group) else (conditions,))
            self.at = start
        found = self.nested(lambda: self.listing(("\\}",)))
        self.take("\\}")
        members = found.members if isinstance(found, Group) and not found.opening else (found,)
        return Group("{", members, "}")
