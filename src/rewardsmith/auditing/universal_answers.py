r"""A seeded stream of answers that nobody would write, for the search of one that is right for every problem.

A reward that compares answers with the truth may take no answer for two truths that differ. What breaks that rule is
rarely a sentence: it is an infinity, an equation of two numbers, a stray bracket. So the texts are made by recombining
values, structures and tokens of mathematics, and by joining two answers. The same seed gives the same texts.

    \boxed{\frac{12}{0}}        \boxed{x = 7 = 42}        The answer is $\max(3, \infty)$.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

INTEGERS = (0, 1, 2, 3, 7, 12, 42, -1, -5, -17, 97, 120, 365, 1001, 2024, 65537, 123456)

TYPICAL = (
    *map(str, INTEGERS), "\\frac{1}{2}", "-\\frac{4}{3}", "2\\sqrt{3}", "3\\pi", "0.07", "14.19", "x^2+2x+1", "y=2x+3",
    "(4,9)",
    "[0,2)", "\\{-8,4\\}", "\\infty", "\\text{blue}", "\\text{yes}", "no", "A", "C", "50\\%", "e^{-x}", "x>6",
)  # fmt: skip
"""Answers of the usual kinds; some texts join two of them."""

MAX_CHARS = 2_000
"""Of a text; the rare longer one is cut."""

_TOKENS = [
    *"0123456789xynie", *"+-*/^_=<>!|,;:()[]{}'%&", "\\frac", "\\sqrt", "\\infty", "\\pi", "\\cdot", "\\pm",
    "\\text{ or }", "\\text{not }", "\\text{ cm}", "\\phantom", "\\{", "\\}", "\\le", "\\ne", "\\cup", "\\in",
    "\\ldots", "\\sin", "\\ln", "\\log_", "\\max", "^\\circ", "\\approx", "\\binom", "\\mathbb{R}", "\\left",
    "\\right", "\\ ", " ", "\\\\", "\\over", "\\mid", "\\overline", "\\mathrm{e}", "\\%", "\\$", "$", "th", "and",
    "\\lfloor", "\\rfloor", "\\emptyset",
]  # fmt: skip


def search_answers(seed: int, count: int, known: Sequence[str] = TYPICAL) -> Iterator[str]:
    """Yield final answers, of which many are none and some are right for one problem; some join two `known` ones."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice([_value, _value, _value, _structure, _soup, _both])(rng, known)[:MAX_CHARS]


def search_texts(seed: int, count: int, known: Sequence[str] = TYPICAL) -> Iterator[str]:
    """Yield the same answers, each in a box or in a sentence."""
    rng = random.Random(f"forms {seed}")
    for answer in search_answers(seed, count, known):
        yield rng.choice(["\\boxed{%s}", "\\boxed{%s}", "The answer is $%s$.", "The answer is %s."]) % answer


def _value(rng: random.Random, known: Sequence[str], depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.15:
        return _leaf(rng)
    inner: Callable[[], str] = lambda: _value(rng, known, depth - 1)  # noqa: E731
    a, b = inner(), inner()
    return rng.choice(
        [
            f"{a}+{b}", f"{a}-{b}", f"{a}\\cdot {b}", f"({a})({b})", f"\\frac{{{a}}}{{{b}}}", f"({a})/({b})",
            f"({a})^{{{b}}}", f"\\sqrt{{{a}}}", f"\\sqrt[3]{{{a}}}", f"({a})!", f"|{a}|", f"||{a}||", f"-{a}",
            f"\\ln({a})", f"\\log({a})", f"\\log_{{{a}}}({b})", f"\\exp({a})", f"\\sin({a})", f"\\cos {a}",
            f"\\tan({a})", f"\\arctan({a})", f"\\max({a},{b})", f"\\min({a},{b})", f"\\gcd({a},{b})",
            f"\\lfloor {a}\\rfloor", f"\\binom{{{a}}}{{{b}}}", f"e^{{{a}}}", f"({a})\\%", f"({a})^\\circ",
            f"\\overline{{{a}}}", f"{a}{b}", f"f({a})", f"0\\cdot({a})+{b}", f"({a})^0\\cdot {b}",
            f"{{{a} \\over {b}}}", f"\\sinh({a})", f"\\arcsin({a})",
        ]
    )  # fmt: skip


def _leaf(rng: random.Random) -> str:
    return rng.choice(
        [
            str(rng.choice(INTEGERS)), str(rng.randint(-9, 9)), f"{rng.randint(0, 20)}.{rng.randint(0, 99)}", "x", "y",
            "n", "i", "e", "\\pi", "\\infty", "-\\infty", "0", "1", "\\frac{1}{0}", "\\frac{0}{0}", "0.\\overline{3}",
            "10^{40}", "10^{-40}", "2^{2024}", "2004!", "1,234", "\\alpha", "x_1", "\\emptyset", "\\mathbb{R}",
        ]
    )  # fmt: skip


def _structure(rng: random.Random, known: Sequence[str]) -> str:
    a, b, c = (_value(rng, known, 1) for _ in range(3))
    relation = rng.choice(["=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx", "\\in", ":"])
    return rng.choice(
        [
            f"\\{{{a},{b}\\}}", f"({a},{b})", f"[{a},{b})", f"({a},{b},{c})", f"{a},{b}", f"{a} \\text{{ or }} {b}",
            f"{a} {relation} {b}", f"x {relation} {a}", f"{a} {relation} x {relation} {b}", f"{a} = {b} = {c}",
            f"\\{{x \\mid x {relation} {a}\\}}", f"(-\\infty,{a})\\cup({b},\\infty)",
            f"\\mathbb{{R}}\\setminus\\{{{a}\\}}", f"x {relation} {a} \\text{{ and }} x {relation} {b}", f"\\pm {a}",
            f"{a} \\pm {b}", f"y = {a}x + {b}", f"{a}x + {b}y + {c} = 0",
            f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}", f"{a}\\text{{ cm}}", f"\\text{{Area}} = {a}",
            f"{a}^{{th}}", f"{a} \\cup {b}", f"[{a},{b}]\\cap[{b},{c}]", f"{a}:{b}:{c}", f"|x-{a}| {relation} {b}",
        ]
    )  # fmt: skip


def _soup(rng: random.Random, _: Sequence[str]) -> str:
    return "".join(rng.choice(_TOKENS) for _ in range(rng.randint(1, 14)))


def _both(rng: random.Random, known: Sequence[str]) -> str:
    a, b = rng.sample(list(known), 2)
    return rng.choice(
        [
            f"{a} = {b}", f"{a}, {b}", f"{a} \\text{{ or }} {b}", f"{a} \\approx {b}", f"{a} {b}",
            f"{a}\\phantom{{{b}}}", f"\\max({a}, {b})", f"{a} + 0\\cdot({b})", f"\\text{{not }} {a}, {b}",
            f"x = {a} = {b}", f"{{{a}}}^{{0}} \\cdot {b}", f"{a}}} \\text{{ or }} \\boxed{{{b}",
            f"{a}\\text{{ and }}{b}", f"\\{{{a}, {b}\\}}", f"{a}\\pm({b})", f"{a} \\cup {b}",
            f"{a} \\text{{ (not }} {b})", f"{a} \\ne {b}", f"{a}/{b}", f"\\frac{{{a}}}{{{b}}}\\cdot {b}", f"{a};{b}",
            f"|{a}|{b}|",
        ]
    )  # fmt: skip
