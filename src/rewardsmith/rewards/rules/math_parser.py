r"""A strict parser of LaTeX: every sign of the text has a meaning, and the text has one meaning, or it is not read.

A parser that passes over what it does not know, reads `4\phantom{2}` as 42 and the start of `5 = 7` as 5, gives rewards
for wrong answers. So `1/2x`, `\sin x/2` and `1 2` are not read: people mean different things by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from rewardsmith.rewards.rules.math_tree import (
    Apply,
    Based,
    Builder,
    Chain,
    Combined,
    Group,
    Infinity,
    Named,
    Node,
    Number,
    Symbol,
    Table,
    Unreadable,
    Value,
    parts,
)

DEEPEST = 40
"""Levels of a tree; the text is bounded by `math_bounds.beyond` before."""

_TOKEN = re.compile(
    r"\s*(?P<token>(?P<repeating>[0-9]*\.[0-9]*\\(?:overline|bar|dot)\s?\{\s?[0-9]+\s?\})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|\\begin\s?\{[a-zA-Z]+\*?\}|\\end\s?\{[a-zA-Z]+\*?\}"
    r"|\\(?:text|mathrm|mathbf|mathit|mathcal|mathsf|boldsymbol|mathbb|operatorname)\s?\{[^{}]*\}"
    r"|\\[A-Za-z]+|\\\\|\\[{}|]|<=|>=|[^\s])"
)
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=",
    "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=",
    "\\approx": "~", "\\in": "in", ":": ":",
}  # fmt: skip
_FUNCTIONS = {
    name: name
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "exp")
} | {"ln": "ln", "log": "log", "lg": "lg", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_OF_LISTS = frozenset({"max", "min", "gcd", "lcm"})
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau"
    " upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar".split()
)
_DECORATIONS = frozenset("vec hat bar tilde overline overrightarrow widehat angle triangle dot".split())
_FENCES = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceil"), "\\lvert": ("\\rvert", "abs")}
_SETS = {"\\emptyset": "∅", "\\varnothing": "∅", "\\R": "R", "\\Z": "Z", "\\N": "N", "\\Q": "Q", "\\C": "C"}
_JOINED = {"\\cup": "∪", "\\cap": "∩", "\\setminus": "∖", "\\backslash": "∖"}
_TIMES = frozenset({"*", "\\cdot", "\\times", "\\ast"})
_OVER = frozenset({"/", "\\div"})
_SEPARATORS = frozenset({",", ";", "\\and", "\\or"})
_WRAPPED = re.compile(r"\\(text|mathrm|mathbf|mathit|mathcal|mathsf|boldsymbol|mathbb|operatorname)\s?\{([^{}]*)\}")


def parse(latex: str) -> Node:
    """Return what a text says.

    Raises:
        Unreadable: where it says nothing, or more than one thing.
    """
    parser = _Parser(latex)
    node = parser.listing(())
    if parser.token:
        raise Unreadable(f"{parser.token!r} has no place there")
    return node


class _Parser:
    def __init__(self, latex: str) -> None:
        self.tokens = [match["token"] for match in _TOKEN.finditer(latex)]
        self.at = 0
        self.depth = 0
        self.bars = 0

    @property
    def token(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        token = self.token
        if not token or (expected and token not in expected):
            raise Unreadable(f"{' or '.join(expected) or 'something'} is missing before {token!r}")
        self.at += 1
        return token

    # Lists, conditions and sets.

    def listing(self, stops: tuple[str, ...]) -> Node:
        """Read things with separators between them; a list has no brackets of its own."""
        items, separators = [self.item()], []
        while self.token in _SEPARATORS:
            separator = self.take()
            if separator in (",", ";") and self.token in ("\\and", "\\or"):
                separator = self.take()  # "1, 2, and 3"
            separators.append(separator)
            items.append(self.item())
        if self.token not in stops and self.token:
            raise Unreadable(f"{self.token!r} has no place there")
        if len(items) == 1:
            return items[0]
        return _conditions(items, separators) or Group("", tuple(items), "")

    def item(self) -> Node:
        """Read a value, a set, or a chain of relations."""
        if self.token in ("=", "\\approx") and self.at == 0:
            self.take()  # "= 5"
        members, relations = [self.joined()], []
        while self.token in _RELATIONS:
            relations.append(_RELATIONS[self.take()])
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
        return Group(":", tuple(_value(member) for member in members), "")

    def joined(self) -> Node:
        """Read a value, or sets joined by ∪, ∩ and ∖: from the left, and without brackets only by one of them."""
        node, used = self.sum(), ""
        while self.token in _JOINED or (self.token == "-" and not isinstance(node, Value)):
            how = _JOINED.get(self.take(), "∖")
            if used not in ("", how) or how == used == "∖":
                raise Unreadable("sets that are joined in two ways")
            used, node = how, Combined(how, node, self.sum())
        return node

    # Values.

    def sum(self) -> Node:
        node = self.signed(self.term)
        while self.token in ("+", "-", "\\pm", "\\mp") and isinstance(node, Value):
            sign = self.take()
            right = _value(self.term())
            if sign in ("\\pm", "\\mp"):
                node = Apply(sign[1:], (node, right))
            else:
                node = Apply("+", (node, right if sign == "+" else Apply("neg", (right,))))
        return node

    def signed(self, read: Callable[[], Node]) -> Node:
        if self.token not in ("+", "-", "\\pm", "\\mp"):
            return read()
        sign = self.take()
        node = self._nested(lambda: self.signed(read))
        if isinstance(node, Infinity) and sign in ("+", "-"):
            return replace(node, negative=node.negative != (sign == "-"))
        names = {"-": "neg", "\\pm": "pm", "\\mp": "mp"}
        return _value(node) if sign == "+" else Apply(names[sign], (_value(node),))

    def term(self) -> Node:
        node = self.power()
        last, sliced = node, False
        while True:
            if self.token in _TIMES:
                self.take()
                last = _value(self.signed(self.power))
                node, sliced = Apply("*", (_value(node), last)), False
            elif self.token in _OVER:
                self.take()
                last = _value(self.signed(self.power))
                node, sliced = Apply("/", (_value(node), last)), True
            elif self.token and self._begins_factor():
                if sliced or self._digit():
                    raise Unreadable("a product without a sign, after a fraction or before a number")
                start, last = last, _value(self.power())
                if _integer(start) and _proper(last):
                    if node is not start:
                        raise Unreadable("a mixed number within a product")
                    node = last = Apply("+", (start, last))
                elif _fraction(last) and any(_integer(part) for part in parts(start)):
                    raise Unreadable("a mixed number, or a product")
                else:
                    node = Apply("*", (_value(node), last))
            else:
                return node

    def power(self) -> Node:
        """Read one factor: a base with what is raised, and with the marks of degrees, factorial and percent."""
        node = self._nested(self.atom)
        while self.token in ("^", "!", "%", "'"):
            mark = self.take()
            if mark == "!":
                if self.token == "!":
                    raise Unreadable("a double factorial")
                node = Apply("!", (_value(node),))
            elif mark == "%":
                node = Apply("/", (_value(node), Number(Fraction(100))))
            elif mark == "'":
                node = Symbol(_name(node) + "'")
            elif self._degrees():
                node = Apply("deg", (_value(node),))
            else:
                node = Apply("^", (_value(node), self.raised()))
                if self.token in ("^", "_"):
                    raise Unreadable("what is raised twice")
        return node

    def raised(self) -> Node:
        """Read an exponent: a group, or one number, letter or command, with a sign."""
        if self.token in ("-", "+"):
            sign = self.take()
            node = self.raised()
            return Apply("neg", (node,)) if sign == "-" else node
        if self.token == "*":
            raise Unreadable("a star that is raised")
        return _value(self._nested(self.atom))

    def atom(self) -> Node:
        token = self.token
        if re.fullmatch(r"[0-9.]+", token):
            return self._number()
        if "overline" in token or token.startswith((".", "0", *"123456789")):
            return _repeating(self.take())
        if re.fullmatch(r"[A-Za-z]", token):
            return self._symbol(self.take())
        if token in ("(", "["):
            return self._brackets(self.take())
        if token == "\\{":
            return self._braces(self.take())
        if token == "{":
            return self.group(several=True)
        if token == "|" or token in _FENCES:
            return self._fenced(self.take())
        if token.startswith("\\"):
            return self._command(self.take())
        raise Unreadable(f"{token!r} has no meaning there")

    def group(self, *, several: bool = False) -> Node:
        r"""Read `{…}`, with `\over` and `\choose` in it; with `several`, `{1,2}` is a set."""
        self.take("{")
        node = self._nested(lambda: self.listing(("}", "\\over", "\\choose")))
        how = self.take()
        if how in ("\\over", "\\choose"):
            below = self._nested(lambda: self.listing(("}",)))
            node = Apply("/" if how == "\\over" else "binom", (_value(node), _value(below)))
            self.take("}")
        if isinstance(node, Group) and not node.opening:
            if not several:
                raise Unreadable("several things where one is expected")
            return Group("{", node.members, "}")
        return node

    def argument(self) -> Node:
        """Read what a command takes: a group, or one digit, letter or command."""
        if self.token == "{":
            return _value(self.group())
        if re.fullmatch(r"[0-9]|[A-Za-z]|\\pi", self.token):
            return self._number() if self._digit() else self._symbol(self.take(), alone=True)
        raise Unreadable("braces are missing")

    # What commands mean.

    def _command(self, token: str) -> Node:  # noqa: PLR0911 one line per kind
        name = token[1:]
        wrapped = _WRAPPED.fullmatch(token)
        if wrapped:
            return self._wrapped(wrapped[1], wrapped[2].strip())
        if token in _SETS:
            return Named(_SETS[token])
        if name in _FUNCTIONS:
            return self._function(_FUNCTIONS[name])
        if name in _OF_LISTS:
            return self._of_list(name)
        if name == "infty":
            return Infinity()
        if name in _GREEK or name in ("pi", "imath"):
            return self._symbol(token)
        if name == "frac":
            if re.fullmatch(r"[0-9]{2}", self.token):  # \frac12
                top, bottom = self.take()
                return Apply("/", (Number(Fraction(int(top))), Number(Fraction(int(bottom)))))
            return Apply("/", (self.argument(), self.argument()))
        if name == "binom":
            return Apply("binom", (self.argument(), self.argument()))
        if name == "sqrt":
            return self._root()
        if name in _DECORATIONS:
            return self._decorated(name)
        if token.startswith("\\begin"):
            return self._table(token)
        raise Unreadable(f"{token} has no meaning here")

    def _wrapped(self, command: str, inner: str) -> Node:
        r"""Read `\mathrm{e}`, `\mathbb{R}`, `\operatorname{lcm}`: one letter, one name, or what needs no letters."""
        if command == "mathbb" and inner in ("R", "Z", "N", "Q", "C"):
            return Named(inner)
        if command in ("mathbb", "text") and len(inner) > 1:
            raise Unreadable("words within a formula")
        if inner in _FUNCTIONS:
            return self._function(_FUNCTIONS[inner])
        if inner in _OF_LISTS:
            return self._of_list(inner)
        if re.fullmatch(r"[A-Za-z]", inner):
            plain = command in ("mathrm", "text", "mathit") or inner not in "ei"
            return self._symbol(inner if plain else f"{command} {inner}")
        if re.search(r"[A-Za-z]{2}", inner):
            raise Unreadable("words within a formula")
        return parse(inner)

    def _function(self, name: str) -> Node:
        r"""Read `\sin x`, `\sin^2(x)`, `\log_2 8`; `\sin^{-1}` is the inverse."""
        base: Node | None = None
        exponent: Node | None = None
        while self.token in ("^", "_"):
            mark = self.take()
            if (mark == "_" and (name != "log" or base)) or (mark == "^" and exponent):
                raise Unreadable(f"an index of {name}")
            if mark == "_":
                base = self.argument() if self.token == "{" or self._digit(1) else self._symbol(self.take(), alone=True)
            else:
                exponent = self.raised()
        if name == "lg":
            name, base = "log", Number(Fraction(10))
        inverse = exponent == Apply("neg", (Number(Fraction(1)),))
        if inverse and name not in _INVERSES:
            raise Unreadable(f"an inverse of {name}")
        argument = self._nested(self._operand)
        node = Apply(_INVERSES[name] if inverse else name, (argument, *([base] if base else [])))
        return node if inverse or exponent is None else Apply("^", (node, exponent))

    def _operand(self) -> Node:
        """Read what a function is of: a group, or a product without signs and brackets."""
        if self.token in ("(", "[", "{"):
            grouped = _value(self.atom())
            if self.token == "^":
                raise Unreadable("a power of a function, or of what it is of")
            return grouped
        node: Node | None = None
        while self._begins_factor():
            if self.token in ("(", "[", "\\{") or self.token[1:] in _FUNCTIONS:
                break
            if node is not None and self._digit():
                raise Unreadable("a number after a factor")
            factor = _value(self.power())
            node = Apply("*", (node, factor)) if node else factor
        if node is None and self.token == "-":
            self.take()
            return Apply("neg", (self._operand(),))
        if node is None and self.token[1:] in _FUNCTIONS:
            return _value(self.atom())
        if node is None or self.token in ("(", "[", "/"):
            raise Unreadable("a function without brackets that ends nowhere")
        return node

    def _of_list(self, name: str) -> Node:
        self.take("(") if self.token == "(" else self.take("\\{")
        closing = ")" if self.tokens[self.at - 1] == "(" else "\\}"
        found = self._nested(lambda: self.listing((closing,)))
        self.take(closing)
        members = found.members if isinstance(found, Group) and not found.opening else (found,)
        return Apply(name, tuple(_value(member) for member in members))

    def _root(self) -> Node:
        degree: Node = Number(Fraction(2))
        if self.token == "[":
            self.take()
            degree = _value(self._nested(self.sum))
            self.take("]")
        of = _value(self._brackets(self.take())) if self.token == "(" else self._nested(self.argument)
        return Apply("root", (of, degree))

    def _decorated(self, name: str) -> Node:
        r"""Read `\vec v`, `\overline{AB}`, `\angle ABC` as names."""
        letters = ""
        if self.token == "{":
            self.take()
            while self.token != "}":
                letters += self.take()
            self.take()
        else:
            while re.fullmatch(r"[A-Za-z]", self.token) and (not letters or name in ("angle", "triangle")):
                letters += self.take()
        if not re.fullmatch(r"[A-Za-z]+", letters):
            raise Unreadable(f"\\{name} of what is no name")
        return Symbol(f"{name} {letters}")

    def _table(self, token: str) -> Node:
        kind = token[token.index("{") + 1 : -1]
        if kind not in ("pmatrix", "bmatrix", "matrix", "array", "smallmatrix"):
            raise Unreadable(f"{token} has no meaning here")
        rows: list[tuple[Node, ...]] = []
        cells: list[Node] = []
        while True:
            cells.append(_value(self._nested(self.sum)))
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

    # Brackets, numbers and names.

    def _fenced(self, opening: str) -> Node:
        r"""Read `|x|`, `\lfloor x \rfloor` and the like. A bar closes where one is open, and opens elsewhere."""
        closing, name = _FENCES.get(opening, ("|", "abs"))
        before, self.bars = self.bars, self.bars + 1 if closing == "|" else 0
        node = _value(self._nested(self.sum))
        self.take(closing)
        self.bars = before
        return Apply(name, (node,))

    def _brackets(self, opening: str) -> Node:
        found = self._nested(lambda: self.listing((")", "]")))
        closing = self.take(")", "]")
        if isinstance(found, Group) and not found.opening:
            return Group(opening, found.members, closing)
        if {"(": ")", "[": "]"}[opening] != closing:
            raise Unreadable("brackets that do not match")
        return found

    def _braces(self, _: str) -> Node:
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
                conditions = self._nested(lambda: self.listing(("\\}",)))
                self.take("\\}")
                return Builder(variable, conditions.members if isinstance(conditions, Group) else (conditions,))
            self.at = start
        found = self._nested(lambda: self.listing(("\\}",)))
        self.take("\\}")
        members = found.members if isinstance(found, Group) and not found.opening else (found,)
        return Group("{", members, "}")

    def _number(self) -> Node:
        text = self.take()
        if not re.fullmatch(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+", text):
            raise Unreadable("a number with two points")
        if self.token != "_":
            return Number(Fraction(text), "." in text)
        self.take()
        base = self.argument() if self.token == "{" else self._number()
        if not (isinstance(base, Number) and base.value.denominator == 1 and 2 <= base.value <= 36 and text.isdigit()):
            raise Unreadable("an index of a number that is no base")
        return Based(text.lstrip("0") or "0", int(base.value))

    def _symbol(self, token: str, *, alone: bool = False) -> Node:
        """Read a letter with its index, or a function of which nothing is known; `alone`, only the letter."""
        name = {"\\pi": "pi", "\\imath": "i"}.get(token, token.lstrip("\\"))
        if not re.fullmatch(r"[A-Za-z ]+", name):
            raise Unreadable(f"{token!r} is no name")
        if self.token == "_" and not alone:
            self.take()
            if self.token != "{":
                index = self.take()
            else:
                start = self.at
                while self.take() != "}":
                    pass
                index = "".join(self.tokens[start + 1 : self.at - 1])
            if not re.fullmatch(r"[A-Za-z0-9+-]+", index):
                raise Unreadable("an index that is no name")
            name += f"_{index}"
        if name in ("f", "g", "h") and self.token == "(" and not alone:
            inner = self._brackets(self.take())
            members = inner.members if isinstance(inner, Group) else (inner,)
            return Apply(f"{name}()", tuple(_value(member) for member in members))
        return Symbol(name)

    def _digit(self, most: int = 1000) -> bool:
        return bool(re.fullmatch(r"[0-9.]+", self.token)) and len(self.token) <= most

    def _begins_factor(self) -> bool:
        token = self.token
        if token == "|":
            return self.bars == 0
        if not token.startswith("\\"):
            return bool(re.match(r"[0-9.A-Za-z({\[]", token))
        name = token[1:]
        begins = name in _FUNCTIONS or name in _OF_LISTS or name in _GREEK or name in _DECORATIONS
        others = ("pi", "imath", "frac", "binom", "sqrt", "infty", "lfloor", "lceil", "lvert")
        return begins or name in others or bool(_WRAPPED.fullmatch(token)) or token.startswith("\\begin")

    def _degrees(self) -> bool:
        """Take the mark of degrees, where it is what is raised."""
        for shape in (["\\circ"], ["{", "\\circ", "}"]):
            if self.tokens[self.at : self.at + len(shape)] == shape:
                self.at += len(shape)
                return True
        return False

    def _nested(self, read: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("too many levels")
        node = read()
        self.depth -= 1
        return node


def _conditions(items: list[Node], separators: list[str]) -> Node | None:
    """Return conditions joined as the words between them say, "or" after "and"; None where they are no conditions."""
    if not all(isinstance(item, Chain) and set(item.relations) - {"=", "~"} for item in items):
        return None
    either: list[Node] = [items[0]]
    for separator, item in zip(separators, items[1:], strict=True):
        if separator == "\\or":
            either.append(item)
        else:
            either[-1] = Combined("∩", either[-1], item)
    node = either[0]
    for other in either[1:]:
        node = Combined("∪", node, other)
    return node


def _value(node: Node) -> Node:
    if not isinstance(node, Value):
        raise Unreadable("a set, an infinity or a relation that is computed with")
    return node


def _name(node: Node) -> str:
    if not isinstance(node, Symbol) or node.name in ("pi", "e", "i"):
        raise Unreadable("a prime after what is no name")
    return node.name


def _integer(node: Node) -> bool:
    return isinstance(node, Number) and not node.rounded


def _fraction(node: Node) -> bool:
    """Say whether a factor is a fraction of two written numbers."""
    return isinstance(node, Apply) and node.name == "/" and all(_integer(child) for child in node.arguments)


def _proper(node: Node) -> bool:
    if not (isinstance(node, Apply) and _fraction(node)):
        return False
    top, bottom = node.arguments
    return isinstance(top, Number) and isinstance(bottom, Number) and 0 < top.value < bottom.value


def _repeating(text: str) -> Number:
    r"""Return the fraction that 0.1\overline{6} is."""
    match = re.fullmatch(r"([0-9]*)\.([0-9]*)\\\w+\s?\{\s?([0-9]+)\s?\}", text)
    if match is None:
        raise Unreadable(f"{text!r} has no meaning here")
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or "0"), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return Number(value)
