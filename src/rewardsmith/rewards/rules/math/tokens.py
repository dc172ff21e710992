r"""What the parser of LaTeX reads with: tokens, the words that it knows, and what it may combine."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from rewardsmith.rewards.rules.math.nodes import (
    Apply,
    Chain,
    Node,
    NumberNode,
    SetOperation,
    Symbol,
    UnparsableMath,
    Value,
)

MAX_DEPTH = 40
"""Levels of a tree; the text is bounded by `math_bounds.beyond` before."""

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


class TokenReader:
    """Tokens of a text, taken one after the other.

    Attributes:
        tokens: all of them.
        at: the number of the next.
        bars: how many bars of absolute values are open.
    """

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
