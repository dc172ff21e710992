r"""A strict parser of LaTeX: every sign of the text has a meaning, and the text has one meaning, or it is not read.

A parser that passes over what it does not know, reads `4\phantom{2}` as 42 and the start of `5 = 7` as 5, gives rewards
for wrong answers. So `1/2x`, `\sin x/2` and `1 2` are not read: people mean different things by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import TypeGuard

from rewardsmith.rewards.rules.math.nodes import (
    CONSTANTS,
    Apply,
    Chain,
    Infinity,
    MathGroup,
    NamedSet,
    Node,
    NumberNode,
    SetBuilder,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    is_applied,
    negative,
    number,
    parts,
    require,
)

MAX_DEPTH = 40
"""Levels of a tree; the text is bounded by `math_rule.beyond` before."""

_WRAPPERS = r"\\(text|mathrm|mathbf|mathit|mathcal|mathsf|boldsymbol|mathbb|operatorname)\s?\{([^{}]*)\}"
_WRAPPED = re.compile(_WRAPPERS)
_TOKEN = re.compile(
    r"\s*(?P<token>[0-9]*\.[0-9]*\\(?:overline|bar|dot)\s?\{\s?[0-9]+\s?\}|[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
    rf"|\\(?:begin|end)\s?\{{[a-zA-Z]+\*?\}}|{_WRAPPERS}|\\[A-Za-z]+|\\\\|\\[{{}}|]|<=|>=|[^\s])"
)
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\\w+\s?\{\s?([0-9]+)\s?\}")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_LETTER = re.compile(r"[A-Za-z]")

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=",
    "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=",
    "\\approx": "~", "\\in": "in", ":": ":",
}  # fmt: skip
_FUNCTIONS = {
    name: name
    for name in (
        "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "exp", "ln",
        "log", "lg",
    )
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}  # fmt: skip
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "varrho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar",
}  # fmt: skip
_DECORATIONS = {"vec", "hat", "bar", "tilde", "overrightarrow", "widehat", "angle", "triangle", "dot"}
_FENCES = {
    "|": ("|", "abs"), "\\lvert": ("\\rvert", "abs"), "\\lfloor": ("\\rfloor", "floor"),
    "\\lceil": ("\\rceil", "ceil"),
}  # fmt: skip
_BRACKETS = {"(": ")", "[": "]", "\\{": "\\}"}
_SETS = {"\\emptyset": "∅", "\\varnothing": "∅", "\\R": "R", "\\Z": "Z", "\\N": "N", "\\Q": "Q", "\\C": "C"}
_JOINED = {"\\cup": "∪", "\\cap": "∩", "\\setminus": "∖", "\\backslash": "∖"}
_SIGNS = {"+": "", "-": "neg", "\\pm": "pm", "\\mp": "mp"}
_TIMES, _OVER = {"*", "\\cdot", "\\times", "\\ast"}, {"/", "\\div"}
_INFIX = {"\\over": "/", "\\choose": "binom"}
_SEPARATORS = {",", ";", "\\and", "\\or"}
_MATRICES = {"pmatrix", "bmatrix", "matrix", "array", "smallmatrix"}
_FACTORS = {
    *_FUNCTIONS, *_GREEK, *_DECORATIONS, "pi", "imath", "frac", "binom", "sqrt", "infty", "lfloor",
    "lceil", "lvert",
}  # fmt: skip
"""Commands that can begin a factor."""


def parse(latex: str) -> Node:
    """Return the tree of a text; `UnparsableMath` where it has no meaning, or more than one."""
    return _Parser(latex).listing()


class _Parser:
    def __init__(self, latex: str) -> None:
        self.tokens = [match["token"] for match in _TOKEN.finditer(latex)]
        self.at = self.depth = self.bars = 0

    @property
    def token(self) -> str:
        """The next token; "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """Return the next token, which must be one of those expected, and go on."""
        token = self.token
        require(token and (not expected or token in expected), f"{expected or 'something'} is missing before {token!r}")
        self.at += 1
        return token

    def skip(self, *tokens: str) -> bool:
        """Take these tokens, where they are the next ones."""
        found = tuple(self.tokens[self.at : self.at + len(tokens)]) == tokens
        self.at += len(tokens) * found
        return found

    def is_digits(self) -> bool:
        return bool(re.fullmatch(r"[0-9.]+", self.token))

    def begins_factor(self) -> bool:
        token = self.token
        if token == "|":
            return self.bars == 0
        if not token.startswith("\\"):
            return bool(re.match(r"[0-9.A-Za-z({\[]", token))
        return token[1:] in _FACTORS or token.startswith("\\begin") or bool(_WRAPPED.fullmatch(token))

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        require(self.depth <= MAX_DEPTH, "too many levels")
        yield
        self.depth -= 1

    # ---- lists, relations and sets -----------------------------------------------------------------------------------

    def listing(self, *stops: str) -> Node:
        """Read things with separators between them, up to a stop; a list has no brackets of its own."""
        items, separators = [self.item()], []
        while self.token in _SEPARATORS:
            separator = self.take()
            if separator in (",", ";") and self.token in ("\\and", "\\or"):
                separator = self.take()  # "1, 2, and 3"
            separators.append(separator)
            items.append(self.item())
        require(self.token in (*stops, ""), f"{self.token!r} has no place there")
        if len(items) == 1:
            return items[0]
        return _conditions(items, separators) or MathGroup("", tuple(items))

    def item(self) -> Node:
        """Read a value, a set, or a chain of relations."""
        if self.at == 0 and self.token in ("=", "\\approx"):
            self.take()  # "= 5"
        members, relations = [self.joined()], []
        while self.token in _RELATIONS:
            relations.append(_RELATIONS[self.take()])
            start = self.at
            members.append(self.joined())
            two_digits = re.fullmatch(r"[0-9]{2}", "".join(self.tokens[start : self.at]))
            require(relations[-1] != ":" or not two_digits, "a ratio, or a time of day")
        if not relations:
            return members[0]
        if ":" not in relations:
            return Chain(tuple(members), tuple(relations))
        require(set(relations) == {":"}, "a colon within a relation")
        return MathGroup(":", tuple(map(_value, members)))

    def joined(self) -> Node:
        """Read a value, or sets joined by ∪, ∩ and ∖: from the left, and without brackets only by one of them."""
        node, used = self.sum(), ""
        while self.token in _JOINED or (self.token == "-" and not isinstance(node, Value)):
            how = _JOINED.get(self.take(), "∖")
            require(not used or used == how != "∖", "sets that are joined in two ways")
            used, node = how, SetOperation(how, (node, self.sum()))
        return node

    def enclosed(self, closing: str) -> tuple[Node, ...]:
        """Read a list up to its closing bracket."""
        found = self.listing(closing)
        self.take(closing)
        return found.members if _is_list(found) else (found,)

    def group(self, *, several: bool = False) -> Node:
        r"""Read `{…}`, with `\over` and `\choose` in it; with `several`, `{1,2}` is a set."""
        self.take("{")
        node = self.listing("}", *_INFIX)
        how = self.take()
        if how in _INFIX:
            node = Apply(_INFIX[how], (_value(node), _value(self.listing("}"))))
            self.take("}")
        require(several or not _is_list(node), "several things where one is expected")
        return MathGroup("{", node.members, "}") if _is_list(node) else node

    def matrix(self, token: str) -> Node:
        kind = token.removeprefix("\\begin").strip(" {}")
        require(kind in _MATRICES, f"{token} has no meaning here")
        rows: list[list[Node]] = [[]]
        while True:
            rows[-1].append(_value(self.sum()))
            mark = self.take()
            if mark == "\\\\" and self.token.startswith("\\end"):
                mark = self.take()
            if mark == "\\\\":
                rows.append([])
            elif mark != "&":
                break
        require(mark.removeprefix("\\end").strip(" {}") == kind, "a matrix without an end")
        require(len(set(map(len, rows))) == 1, "a matrix with rows of several lengths")
        return MathGroup("matrix", tuple(MathGroup("row", tuple(row)) for row in rows))

    def fenced(self, opening: str) -> Node:
        r"""Read `|x|`, `\lfloor x \rfloor` and the like. A bar closes where one is open, and opens elsewhere."""
        closing, name = _FENCES[opening]
        before, self.bars = self.bars, self.bars + 1 if closing == "|" else 0
        node = _value(self.sum())
        self.take(closing)
        self.bars = before
        return Apply(name, (node,))

    def brackets(self, opening: str) -> Node:
        found = self.listing(")", "]")
        closing = self.take(")", "]")
        if _is_list(found):
            return MathGroup(opening, found.members, closing)
        require(_BRACKETS[opening] == closing, "brackets that do not match")
        return found

    def braces(self) -> Node:
        if self.skip("\\}"):
            return NamedSet("∅")
        start = self.at
        if _LETTER.fullmatch(self.token):
            variable = self.take()
            real = not self.skip("\\in") or self.joined() == NamedSet("R")
            if real and self.token in ("\\mid", "|", ":"):
                self.take()
                conditions = self.listing("\\}")
                self.take("\\}")
                return SetBuilder(variable, conditions.members if isinstance(conditions, MathGroup) else (conditions,))
            self.at = start
        return MathGroup("{", self.enclosed("\\}"), "}")

    # ---- values: sums, products, powers, functions, numbers and names ------------------------------------------------

    def sum(self) -> Node:
        """Read terms with signs between them, or one set."""
        node = self.signed(self.term)
        while self.token in _SIGNS and isinstance(node, Value):
            sign = _SIGNS[self.take()]
            right = _value(self.term())
            node = Apply(sign, (node, right)) if sign in ("pm", "mp") else Apply("+", (node, _with(sign, right)))
        return node

    def signed(self, read: Callable[[], Node]) -> Node:
        """Read something with its signs."""
        if self.token not in _SIGNS:
            return read()
        sign = _SIGNS[self.take()]
        with self.deeper():
            node = self.signed(read)
        if isinstance(node, Infinity) and sign in ("", "neg"):
            return replace(node, negative=node.negative != (sign == "neg"))
        return _with(sign, _value(node))

    def term(self) -> Node:
        """Read factors, with signs between them or without, and mixed numbers."""
        node = last = self.power()
        sliced = False
        while True:
            if self.token in _TIMES | _OVER:
                name = "*" if self.take() in _TIMES else "/"
                require(not sliced or name == "*", "a fraction of a fraction, without brackets")
                last = _value(self.signed(self.power))
                node, sliced = Apply(name, (_value(node), last)), name == "/"
            elif self.begins_factor():
                require(not sliced and not self.is_digits(), "a product without a sign, after a fraction or a number")
                braced, start, last = self.token == "{", last, _value(self.power())
                require(not (braced and isinstance(last, NumberNode)), "a number after a factor")
                if _is_integer(start) and _is_proper(last):
                    require(node is start, "a mixed number within a product")
                    node = last = Apply("+", (start, last))
                else:
                    mixed = _is_fraction(last) and any(map(_is_integer, parts(start)))
                    require(not mixed, "a mixed number, or a product")
                    node = Apply("*", (_value(node), last))
            else:
                return node

    def power(self) -> Node:
        """Read one factor: a base with what is raised, and with the marks of degrees, factorial and percent."""
        node = self.atom()
        while self.token in ("^", "!", "%", "'"):
            mark = self.take()
            if mark == "!":
                require(self.token != "!", "a double factorial")
                node = Apply("!", (_value(node),))
            elif mark == "%":
                node = Apply("/", (_value(node), number(100)))
            elif mark == "'":
                require(isinstance(node, Symbol) and node.name not in CONSTANTS, "a prime after what is no name")
                node = Symbol(f"{node.name}'") if isinstance(node, Symbol) else node
            elif self.skip("\\circ") or self.skip("{", "\\circ", "}"):
                node = Apply("deg", (_value(node),))
            else:
                node = Apply("^", (_value(node), self.raised()))
                require(self.token not in ("^", "_"), "what is raised twice")
        return node

    def raised(self) -> Node:
        """Read an exponent: a group, or one number, letter or command, with a sign."""
        if self.token in ("-", "+"):
            return _with(_SIGNS[self.take()], self.raised())
        return _value(self.atom())

    def atom(self) -> Node:  # noqa: PLR0911 one for each kind
        """Read a number, a name, a group or what a command begins."""
        with self.deeper():
            if self.token == "{":
                return self.group(several=True)
            if self.is_digits():
                return self.number()
            token = self.take()
            if repeating := _REPEATING.fullmatch(token):
                return _repeating(*repeating.groups())
            if _LETTER.fullmatch(token):
                return self.symbol(token)
            if token in ("(", "["):
                return self.brackets(token)
            if token == "\\{":
                return self.braces()
            return self.fenced(token) if token in _FENCES else self.command(token)

    def argument(self) -> Node:
        """Read what a command takes: a group, or one digit, letter or command."""
        if self.token == "{":
            return _value(self.group())
        require(re.fullmatch(r"[0-9]|[A-Za-z]|\\pi", self.token), "braces are missing")
        return self.number() if self.is_digits() else self.symbol(self.take(), alone=True)

    def command(self, token: str) -> Node:
        name = token.removeprefix("\\")
        if wrapped := _WRAPPED.fullmatch(token):
            return self.wrapped(wrapped[1], wrapped[2].strip())
        if token in _SETS:
            return NamedSet(_SETS[token])
        if name in _GREEK or name in ("pi", "imath"):
            require(name not in _GREEK or self.token != "(", "a function or a product")
            return self.symbol(token)
        if token.startswith("\\begin"):
            return self.matrix(token)
        require(token.startswith("\\") and name in _FACTORS, f"{token!r} has no meaning there")
        return self.named(name)

    def named(self, name: str) -> Node:
        """Read what a function, a fraction, a root or a decoration is of."""
        if name in _FUNCTIONS:
            return self.function(_FUNCTIONS[name])
        if name == "infty":
            return Infinity()
        if name == "frac" and re.fullmatch(r"[0-9]{2}", self.token):  # \frac12
            return Apply("/", tuple(map(number, self.take())))
        if name in ("frac", "binom"):
            return Apply("/" if name == "frac" else name, (self.argument(), self.argument()))
        return self.root() if name == "sqrt" else self.decorated(name)

    def wrapped(self, command: str, inner: str) -> Node:
        r"""Read `\mathrm{e}`, `\mathbb{R}`, `\operatorname{arctan}`: one letter, one name, or what needs no letters."""
        if command == "mathbb" and inner in ("R", "Z", "N", "Q", "C"):
            return NamedSet(inner)
        require(command not in ("mathbb", "text") or len(inner) == 1, "words within a formula")
        if inner in _FUNCTIONS:
            return self.function(_FUNCTIONS[inner])
        if _LETTER.fullmatch(inner):
            upright = command in ("mathrm", "text", "mathit") or inner not in "ei"
            return self.symbol(inner if upright else f"{command} {inner}")
        require(not re.search(r"[A-Za-z]{2}", inner), "words within a formula")
        return parse(inner)

    def function(self, name: str) -> Node:
        r"""Read `\sin x`, `\sin^2(x)`, `\log_2 8`; `\sin^{-1}` is the inverse."""
        base: Node | None = number(10) if name == "lg" else None
        exponent: Node | None = None
        while self.token in ("^", "_"):
            if self.take() == "^":
                require(exponent is None, "two exponents")
                exponent = self.raised()
            else:
                require(name == "log" and base is None, f"an index of {name}")
                single = self.is_digits() and len(self.token) == 1
                base = self.argument() if single or self.token == "{" else self.symbol(self.take(), alone=True)
        name = "log" if name == "lg" else name
        if exponent == negative(number(1)):
            require(name in _INVERSES, f"an inverse of {name}")
            name, exponent = _INVERSES[name], None
        node = Apply(name, (self.operand(), *([base] if base else [])))
        return node if exponent is None else Apply("^", (node, exponent))

    def operand(self) -> Node:
        """Read what a function is of: a group, or a product without signs and brackets."""
        if self.token in ("(", "[", "{"):
            grouped = _value(self.atom())
            require(self.token != "^", "a power of a function, or of what it is of")
            return grouped
        node: Node | None = None
        while self.begins_factor() and self.token not in ("(", "[") and self.token[1:] not in _FUNCTIONS:
            require(node is None or not self.is_digits(), "a number after a factor")
            factor = _value(self.power())
            node = Apply("*", (node, factor)) if node else factor
        if node is None and self.skip("-"):
            return negative(self.operand())
        if node is None and self.token[1:] in _FUNCTIONS:
            return _value(self.atom())
        require(node and self.token not in ("(", "[", "/"), "a function without brackets that ends nowhere")
        return _value(node)

    def root(self) -> Node:
        degree: Node = number(2)
        if self.skip("["):
            degree = _value(self.sum())
            self.take("]")
        return Apply("root", (_value(self.brackets(self.take())) if self.token == "(" else self.argument(), degree))

    def decorated(self, name: str) -> Node:
        r"""Read `\vec v`, `\hat{AB}`, `\angle ABC` as names."""
        letters = ""
        if self.skip("{"):
            while self.token != "}":
                letters += self.take()
            self.take()
        else:
            while _LETTER.fullmatch(self.token) and (not letters or name in ("angle", "triangle")):
                letters += self.take()
        require(re.fullmatch(r"[A-Za-z]+", letters), f"\\{name} of what is no name")
        return Symbol(f"{name} {letters}")

    def number(self) -> Node:
        text = self.take()
        require(_NUMBER.fullmatch(text), "a number with two points")
        require(not re.match("0[0-9]", text) or len(self.tokens) == 1, "a number with a leading zero: part of a date")
        return NumberNode(Fraction(text), "." in text)

    def symbol(self, token: str, *, alone: bool = False) -> Node:
        """Read a letter with its index, or a function of which nothing is known; `alone`, only the letter."""
        name = {"\\pi": "pi", "\\imath": "i"}.get(token, token.lstrip("\\"))
        require(re.fullmatch(r"[A-Za-z ]+", name), f"{token!r} is no name")
        if not alone and self.skip("_"):
            name += f"_{self.index()}"
        if name in ("f", "g", "h") and self.token == "(" and not alone:
            inner = self.brackets(self.take())
            return Apply(f"{name}()", tuple(map(_value, inner.members if isinstance(inner, MathGroup) else (inner,))))
        return Symbol(name)

    def index(self) -> str:
        """Read what stands after `_`, as part of a name."""
        start = self.at
        if self.take() == "{":
            while self.take() != "}":
                pass
        index = "".join(self.tokens[start : self.at]).strip("{}")
        require(re.fullmatch(r"[A-Za-z0-9+-]+", index), "an index that is no name")
        return index


def _conditions(items: list[Node], separators: list[str]) -> Node | None:
    """Return conditions joined by the words between them, "or" after "and"; None where they are no conditions."""
    if not all(isinstance(item, Chain) and set(item.relations) - {"=", "~"} for item in items):
        return None
    either: list[Node] = [items[0]]
    for separator, item in zip(separators, items[1:], strict=True):
        if separator == "\\or":
            either.append(item)
        else:
            either[-1] = SetOperation("∩", (either[-1], item))
    node = either[0]
    for other in either[1:]:
        node = SetOperation("∪", (node, other))
    return node


def _value(node: Node | None) -> Value:
    if not isinstance(node, Value):
        raise UnparsableMath("a set, an infinity or a relation that is computed with")
    return node


def _with(sign: str, node: Node) -> Node:
    return Apply(sign, (node,)) if sign else node


def _is_list(node: Node) -> TypeGuard[MathGroup]:
    return isinstance(node, MathGroup) and not node.opening


def _is_integer(node: Node) -> bool:
    return isinstance(node, NumberNode) and not node.rounded


def _is_fraction(node: Node) -> bool:
    """Return whether a factor is a fraction of two written numbers."""
    return is_applied(node, "/") and all(map(_is_integer, node.members))


def _is_proper(node: Node) -> bool:
    """Return whether a factor is a fraction of written numbers, between 0 and 1."""
    match node:
        case Apply("/", (NumberNode(top, False), NumberNode(bottom, False))):
            return 0 < top < bottom
    return False


def _repeating(whole: str, fixed: str, period: str) -> NumberNode:
    r"""Return the fraction that 0.1\overline{6} is."""
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or "0"), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return NumberNode(value)
