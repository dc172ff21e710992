r"""A strict parser of LaTeX: every sign of the text has a meaning, and the text has one meaning, or it is not read.

A parser that passes over what it does not know, reads `4\phantom{2}` as 42 and the start of `5 = 7` as 5, gives rewards
for wrong answers. So `1/2x`, `\sin x/2` and `1 2` are not read: people mean different things by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Based,
    Chain,
    Infinity,
    MathGroup,
    Matrix,
    NamedSet,
    Node,
    NumberNode,
    SetBuilder,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
    names,
    parts,
)

MAX_DEPTH = 40
"""Levels of a tree; the text is bounded by `math_rule.beyond` before."""

_TOKEN = re.compile(
    r"\s*(?P<token>(?P<repeating>[0-9]*\.[0-9]*\\(?:overline|bar|dot)\s?\{\s?[0-9]+\s?\})"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|\\begin\s?\{[a-zA-Z]+\*?\}|\\end\s?\{[a-zA-Z]+\*?\}"
    r"|\\(?:text|mathrm|mathbf|mathit|mathcal|mathsf|boldsymbol|mathbb|operatorname)\s?\{[^{}]*\}"
    r"|\\[A-Za-z]+|\\\\|\\[{}|]|<=|>=|[^\s])"
)
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=",
    "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=",
    "\\approx": "~", "\\in": "in", ":": ":",
}  # fmt: skip
FUNCTIONS = {
    name: name
    for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "exp")
} | {"ln": "ln", "log": "log", "lg": "lg", "asin": "arcsin", "acos": "arccos", "atan": "arctan"}
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
OF_LISTS = frozenset({"max", "min", "gcd", "lcm"})
GREEK = frozenset(
    {
        "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
        "lambda", "mu", "nu", "xi", "rho", "varrho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
        "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar",
    }
)  # fmt: skip
DECORATIONS = frozenset(
    {"vec", "hat", "bar", "tilde", "overline", "overrightarrow", "widehat", "angle", "triangle", "dot"}
)
FENCES = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceil"), "\\lvert": ("\\rvert", "abs")}
SETS = {"\\emptyset": "∅", "\\varnothing": "∅", "\\R": "R", "\\Z": "Z", "\\N": "N", "\\Q": "Q", "\\C": "C"}
JOINED = {"\\cup": "∪", "\\cap": "∩", "\\setminus": "∖", "\\backslash": "∖"}
TIMES = frozenset({"*", "\\cdot", "\\times", "\\ast"})
OVER = frozenset({"/", "\\div"})
SEPARATORS = frozenset({",", ";", "\\and", "\\or"})
WRAPPED = re.compile(r"\\(text|mathrm|mathbf|mathit|mathcal|mathsf|boldsymbol|mathbb|operatorname)\s?\{([^{}]*)\}")


def parse(latex: str) -> Node:
    """Return the tree of a text; `UnparsableMath` where it has no meaning, or more than one."""
    return _Parser(latex).whole()


class TokenReader:
    """Tokens of a text, taken one after the other."""

    def __init__(self, latex: str) -> None:
        self.tokens = [match["token"] for match in _TOKEN.finditer(latex)]
        self.at = 0
        self.depth = 0
        self.bars = 0

    @property
    def token(self) -> str:
        """The next token; "" at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """Return the next token, which must be one of those expected, and go on."""
        token = self.token
        if not token or (expected and token not in expected):
            raise UnparsableMath(f"{' or '.join(expected) or 'something'} is missing before {token!r}")
        self.at += 1
        return token

    def index(self) -> str:
        """Take what stands after `_`, and return it as part of a name."""
        self.take("_")
        start = self.at
        if self.take() == "{":
            while self.take() != "}":
                pass
        index = "".join(self.tokens[start : self.at]).strip("{}")
        if not re.fullmatch(r"[A-Za-z0-9+-]+", index):
            raise UnparsableMath("an index that is no name")
        return index

    def digit(self, max_length: int = 1000) -> bool:
        """Return whether the next token is a number, of at most so many characters."""
        return bool(re.fullmatch(r"[0-9.]+", self.token)) and len(self.token) <= max_length

    def begins_factor(self) -> bool:
        """Return whether the next token can be the start of a factor."""
        token = self.token
        if token == "|":
            return self.bars == 0
        if not token.startswith("\\"):
            return bool(re.match(r"[0-9.A-Za-z({\[]", token))
        name = token[1:]
        begins = name in FUNCTIONS or name in OF_LISTS or name in GREEK or name in DECORATIONS
        others = ("pi", "imath", "frac", "binom", "sqrt", "infty", "lfloor", "lceil", "lvert")
        return begins or name in others or bool(WRAPPED.fullmatch(token)) or token.startswith("\\begin")

    def degrees(self) -> bool:
        """Take the mark of degrees, where it is what is raised."""
        for shape in (["\\circ"], ["{", "\\circ", "}"]):
            if self.tokens[self.at : self.at + len(shape)] == shape:
                self.at += len(shape)
                return True
        return False

    def nested(self, read: Callable[[], Node]) -> Node:
        """Read what is one level deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnparsableMath("too many levels")
        node = read()
        self.depth -= 1
        return node


class _Parser(TokenReader):
    def whole(self) -> Node:
        node = self.listing(())
        if self.token:
            raise UnparsableMath(f"{self.token!r} has no place there")
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
            raise UnparsableMath(f"{self.token!r} has no place there")
        if len(items) == 1:
            return items[0]
        return conditions(items, separators) or MathGroup("", tuple(items), "")

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
                raise UnparsableMath("a ratio, or a time of day")
        if not relations:
            return members[0]
        if ":" not in relations:
            return Chain(tuple(members), tuple(relations))
        if set(relations) != {":"}:
            raise UnparsableMath("a colon within a relation")
        return MathGroup(":", tuple(as_value(member) for member in members), "")

    def joined(self) -> Node:
        """Read a value, or sets joined by ∪, ∩ and ∖: from the left, and without brackets only by one of them."""
        node, used = self.sum(), ""
        while self.token in JOINED or (self.token == "-" and not isinstance(node, Value)):
            how = JOINED.get(self.take(), "∖")
            if used not in ("", how) or how == used == "∖":
                raise UnparsableMath("sets that are joined in two ways")
            used, node = how, SetOperation(how, node, self.sum())
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
        if isinstance(node, MathGroup) and not node.opening:
            if not several:
                raise UnparsableMath("several things where one is expected")
            return MathGroup("{", node.members, "}")
        return node

    def of_list(self, name: str) -> Node:
        self.take("(") if self.token == "(" else self.take("\\{")
        closing = ")" if self.tokens[self.at - 1] == "(" else "\\}"
        found = self.nested(lambda: self.listing((closing,)))
        self.take(closing)
        members = found.members if isinstance(found, MathGroup) and not found.opening else (found,)
        if names(found):
            raise UnparsableMath(f"{name} of what is not known: it may be one or the other")
        return Apply(name, tuple(as_value(member) for member in members))

    def table(self, token: str) -> Node:
        kind = token[token.index("{") + 1 : -1]
        if kind not in ("pmatrix", "bmatrix", "matrix", "array", "smallmatrix"):
            raise UnparsableMath(f"{token} has no meaning here")
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
                raise UnparsableMath("a matrix without an end")
            if len({len(row) for row in rows}) != 1:
                raise UnparsableMath("a matrix with rows of several lengths")
            return Matrix(tuple(rows))

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
        if isinstance(found, MathGroup) and not found.opening:
            return MathGroup(opening, found.members, closing)
        if {"(": ")", "[": "]"}[opening] != closing:
            raise UnparsableMath("brackets that do not match")
        return found

    def braces(self) -> Node:
        if self.token == "\\}":
            self.take()
            return NamedSet("∅")
        start = self.at
        if re.fullmatch(r"[A-Za-z]", self.token):
            variable = self.take()
            if self.token == "\\in":
                self.take()
                if self.joined() != NamedSet("R"):
                    self.at = start
            if self.token in ("\\mid", "|", ":") and self.at > start:
                self.take()
                conditions = self.nested(lambda: self.listing(("\\}",)))
                self.take("\\}")
                return SetBuilder(variable, conditions.members if isinstance(conditions, MathGroup) else (conditions,))
            self.at = start
        found = self.nested(lambda: self.listing(("\\}",)))
        self.take("\\}")
        members = found.members if isinstance(found, MathGroup) and not found.opening else (found,)
        return MathGroup("{", members, "}")

    # ---- values: sums, products, powers, functions, numbers and names -----------------------------------------------

    def sum(self) -> Node:
        """Read terms with signs between them, or one set."""
        node = self.signed(self.term)
        while self.token in ("+", "-", "\\pm", "\\mp") and isinstance(node, Value):
            sign = self.take()
            right = as_value(self.term())
            if sign in ("\\pm", "\\mp"):
                node = Apply(sign[1:], (node, right))
            else:
                node = Apply("+", (node, right if sign == "+" else Apply("neg", (right,))))
        return node

    def signed(self, read: Callable[[], Node]) -> Node:
        """Read something with its signs."""
        if self.token not in ("+", "-", "\\pm", "\\mp"):
            return read()
        sign = self.take()
        node = self.nested(lambda: self.signed(read))
        if isinstance(node, Infinity) and sign in ("+", "-"):
            return replace(node, negative=node.negative != (sign == "-"))
        names = {"-": "neg", "\\pm": "pm", "\\mp": "mp"}
        return as_value(node) if sign == "+" else Apply(names[sign], (as_value(node),))

    def term(self) -> Node:
        """Read factors, with signs between them or without, and mixed numbers."""
        node = self.power()
        last, sliced = node, False
        while True:
            if self.token in TIMES:
                self.take()
                last = as_value(self.signed(self.power))
                node, sliced = Apply("*", (as_value(node), last)), False
            elif self.token in OVER:
                if sliced:
                    raise UnparsableMath("a fraction of a fraction, without brackets")
                self.take()
                last = as_value(self.signed(self.power))
                node, sliced = Apply("/", (as_value(node), last)), True
            elif self.token and self.begins_factor():
                if sliced or self.digit():
                    raise UnparsableMath("a product without a sign, after a fraction or before a number")
                braced = self.token == "{"
                start, last = last, as_value(self.power())
                if braced and isinstance(last, NumberNode):
                    raise UnparsableMath("a number after a factor")
                if is_integer(start) and is_proper(last):
                    if node is not start:
                        raise UnparsableMath("a mixed number within a product")
                    node = last = Apply("+", (start, last))
                elif is_fraction(last) and any(is_integer(part) for part in parts(start)):
                    raise UnparsableMath("a mixed number, or a product")
                else:
                    node = Apply("*", (as_value(node), last))
            else:
                return node

    def power(self) -> Node:
        """Read one factor: a base with what is raised, and with the marks of degrees, factorial and percent."""
        node = self.nested(self.atom)
        while self.token in ("^", "!", "%", "'"):
            mark = self.take()
            if mark == "!":
                if self.token == "!":
                    raise UnparsableMath("a double factorial")
                node = Apply("!", (as_value(node),))
            elif mark == "%":
                node = Apply("/", (as_value(node), NumberNode(Fraction(100))))
            elif mark == "'":
                node = Symbol(as_name(node) + "'")
            elif self.degrees():
                node = Apply("deg", (as_value(node),))
            else:
                node = Apply("^", (as_value(node), self.raised()))
                if self.token in ("^", "_"):
                    raise UnparsableMath("what is raised twice")
        return node

    def raised(self) -> Node:
        """Read an exponent: a group, or one number, letter or command, with a sign."""
        if self.token in ("-", "+"):
            sign = self.take()
            node = self.raised()
            return Apply("neg", (node,)) if sign == "-" else node
        if self.token == "*":
            raise UnparsableMath("a star that is raised")
        return as_value(self.nested(self.atom))

    def atom(self) -> Node:  # noqa: PLR0911 one for each kind
        """Read a number, a name, a group or what a command begins."""
        token = self.token
        if re.fullmatch(r"[0-9.]+", token):
            return self._number()
        if "overline" in token or token.startswith((".", "0", *"123456789")):
            return repeating(self.take())
        if re.fullmatch(r"[A-Za-z]", token):
            return self._symbol(self.take())
        if token in ("(", "["):
            return self.brackets(self.take())
        if token == "\\{":
            self.take()
            return self.braces()
        if token == "{":
            return self.group(several=True)
        if token == "|" or token in FENCES:
            return self.fenced(self.take())
        if token.startswith("\\"):
            return self._command(self.take())
        raise UnparsableMath(f"{token!r} has no meaning there")

    def argument(self) -> Node:
        """Read what a command takes: a group, or one digit, letter or command."""
        if self.token == "{":
            return as_value(self.group())
        if re.fullmatch(r"[0-9]|[A-Za-z]|\\pi", self.token):
            return self._number() if self.digit() else self._symbol(self.take(), alone=True)
        raise UnparsableMath("braces are missing")

    def _command(self, token: str) -> Node:  # noqa: PLR0911, PLR0912 one for each kind
        name = token[1:]
        wrapped = WRAPPED.fullmatch(token)
        if wrapped:
            return self._wrapped(wrapped[1], wrapped[2].strip())
        if token in SETS:
            return NamedSet(SETS[token])
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name in OF_LISTS:
            return self.of_list(name)
        if name == "infty":
            return Infinity()
        if name in GREEK and self.token == "(":
            raise UnparsableMath("a function or a product")
        if name in GREEK or name in ("pi", "imath"):
            return self._symbol(token)
        if name == "frac":
            if re.fullmatch(r"[0-9]{2}", self.token):  # \frac12
                digits = self.take()
                return Apply("/", (NumberNode(Fraction(digits[0])), NumberNode(Fraction(digits[1]))))
            return Apply("/", (self.argument(), self.argument()))
        if name == "binom":
            return Apply("binom", (self.argument(), self.argument()))
        if name == "sqrt":
            return self._root()
        if name in DECORATIONS:
            return self._decorated(name)
        if token.startswith("\\begin"):
            return self.table(token)
        raise UnparsableMath(f"{token} has no meaning here")

    def _wrapped(self, command: str, inner: str) -> Node:
        r"""Read `\mathrm{e}`, `\mathbb{R}`, `\operatorname{lcm}`: one letter, one name, or what needs no letters."""
        if command == "mathbb" and inner in ("R", "Z", "N", "Q", "C"):
            return NamedSet(inner)
        if command in ("mathbb", "text") and len(inner) > 1:
            raise UnparsableMath("words within a formula")
        if inner in FUNCTIONS:
            return self._function(FUNCTIONS[inner])
        if inner in OF_LISTS:
            return self.of_list(inner)
        if re.fullmatch(r"[A-Za-z]", inner):
            upright = command in ("mathrm", "text", "mathit") or inner not in "ei"
            return self._symbol(inner if upright else f"{command} {inner}")
        if re.search(r"[A-Za-z]{2}", inner):
            raise UnparsableMath("words within a formula")
        return type(self)(inner).whole()

    def _function(self, name: str) -> Node:
        r"""Read `\sin x`, `\sin^2(x)`, `\log_2 8`; `\sin^{-1}` is the inverse."""
        base: Node | None = None
        exponent: Node | None = None
        while self.token in ("^", "_"):
            mark = self.take()
            if (mark == "_" and (name != "log" or base)) or (mark == "^" and exponent):
                raise UnparsableMath(f"an index of {name}")
            if mark == "_":
                base = self.argument() if self.token == "{" or self.digit(1) else self._symbol(self.take(), alone=True)
            else:
                exponent = self.raised()
        if name == "lg":
            name, base = "log", NumberNode(Fraction(10))
        inverse = exponent == Apply("neg", (NumberNode(Fraction(1)),))
        if inverse and name not in INVERSES:
            raise UnparsableMath(f"an inverse of {name}")
        argument = self.nested(self._operand)
        node = Apply(INVERSES[name] if inverse else name, (argument, *([base] if base else [])))
        return node if inverse or exponent is None else Apply("^", (node, exponent))

    def _operand(self) -> Node:
        """Read what a function is of: a group, or a product without signs and brackets."""
        if self.token in ("(", "[", "{"):
            grouped = as_value(self.atom())
            if self.token == "^":
                raise UnparsableMath("a power of a function, or of what it is of")
            return grouped
        node: Node | None = None
        while self.begins_factor():
            if self.token in ("(", "[", "\\{") or self.token[1:] in FUNCTIONS:
                break
            if node is not None and self.digit():
                raise UnparsableMath("a number after a factor")
            factor = as_value(self.power())
            node = Apply("*", (node, factor)) if node else factor
        if node is None and self.token == "-":
            self.take()
            return Apply("neg", (self._operand(),))
        if node is None and self.token[1:] in FUNCTIONS:
            return as_value(self.atom())
        if node is None or self.token in ("(", "[", "/"):
            raise UnparsableMath("a function without brackets that ends nowhere")
        return node

    def _root(self) -> Node:
        degree: Node = NumberNode(Fraction(2))
        if self.token == "[":
            self.take()
            degree = as_value(self.nested(self.sum))
            self.take("]")
        of = as_value(self.brackets(self.take())) if self.token == "(" else self.nested(self.argument)
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
            raise UnparsableMath(f"\\{name} of what is no name")
        return Symbol(f"{name} {letters}")

    def _number(self) -> Node:
        text = self.take()
        if not re.fullmatch(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+", text):
            raise UnparsableMath("a number with two points")
        if re.match("0[0-9]", text) and len(self.tokens) > 1:
            raise UnparsableMath("a number with a leading zero: part of a date")
        if self.token != "_":
            return NumberNode(Fraction(text), "." in text)
        self.take()
        base = self.argument() if self.token == "{" else self._number()
        is_base = isinstance(base, NumberNode) and base.value.denominator == 1 and 2 <= base.value <= 36
        if not isinstance(base, NumberNode) or not is_base or not text.isdigit():
            raise UnparsableMath("an index of a number that is no base")
        return Based(text.lstrip("0") or "0", int(base.value))

    def _symbol(self, token: str, *, alone: bool = False) -> Node:
        """Read a letter with its index, or a function of which nothing is known; `alone`, only the letter."""
        name = {"\\pi": "pi", "\\imath": "i"}.get(token, token.lstrip("\\"))
        if not re.fullmatch(r"[A-Za-z ]+", name):
            raise UnparsableMath(f"{token!r} is no name")
        if self.token == "_" and not alone:
            name += f"_{self.index()}"
        if name in ("f", "g", "h") and self.token == "(" and not alone:
            inner = self.brackets(self.take())
            members = inner.members if isinstance(inner, MathGroup) else (inner,)
            return Apply(f"{name}()", tuple(as_value(member) for member in members))
        return Symbol(name)


def conditions(items: list[Node], separators: list[str]) -> Node | None:
    """Return conditions joined by the words between them, "or" after "and"; None where they are no conditions."""
    if not all(isinstance(item, Chain) and set(item.relations) - {"=", "~"} for item in items):
        return None
    either: list[Node] = [items[0]]
    for separator, item in zip(separators, items[1:], strict=True):
        if separator == "\\or":
            either.append(item)
        else:
            either[-1] = SetOperation("∩", either[-1], item)
    node = either[0]
    for other in either[1:]:
        node = SetOperation("∪", node, other)
    return node


def as_value(node: Node) -> Node:
    """Return a node that is a value."""
    if not isinstance(node, Value):
        raise UnparsableMath("a set, an infinity or a relation that is computed with")
    return node


def as_name(node: Node) -> str:
    """Return the name of a variable."""
    if not isinstance(node, Symbol) or node.name in ("pi", "e", "i"):
        raise UnparsableMath("a prime after what is no name")
    return node.name


def is_integer(node: Node) -> bool:
    """Return whether a node is a number without a decimal point."""
    return isinstance(node, NumberNode) and not node.rounded


def is_fraction(node: Node) -> bool:
    """Return whether a factor is a fraction of two written numbers."""
    return isinstance(node, Apply) and node.name == "/" and all(is_integer(child) for child in node.arguments)


def is_proper(node: Node) -> bool:
    """Return whether a factor is a fraction of written numbers, between 0 and 1."""
    if not (isinstance(node, Apply) and is_fraction(node)):
        return False
    top, bottom = node.arguments
    return isinstance(top, NumberNode) and isinstance(bottom, NumberNode) and 0 < top.value < bottom.value


def repeating(text: str) -> NumberNode:
    r"""Return the fraction that 0.1\overline{6} is."""
    match = re.fullmatch(r"([0-9]*)\.([0-9]*)\\\w+\s?\{\s?([0-9]+)\s?\}", text)
    if match is None:
        raise UnparsableMath(f"{text!r} has no meaning here")
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or "0"), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return NumberNode(value)
