"""Truths that differ from each other, and a seeded stream of answers that nobody would write: for the search in `fuzz`.

The rule may take none of the answers for two of the truths. No two truths are equal by one of the conventions of the
rule either: none is another one with a unit, a name or a percent sign.
"""

import random
from collections.abc import Callable, Iterator

INTEGERS = [0, 1, 2, 3, 7, 12, 42, -1, -5, -17, 97, 120, 365, 1001, 2024, 65537, 123456]


def truths() -> list[str]:
    """Return several hundred truths, no two of them equal."""
    primes = [2, 3, 5, 7, 11, 13, 17, 19]
    made = [str(number) for number in [*INTEGERS, *range(200, 360, 5), *range(-86, -20, 5)]]
    made += [f"\\frac{{{top}}}{{{bottom}}}" for bottom in primes[:5] for top in (1, 3, -4, 8) if top % bottom]
    made += [f"{count}\\sqrt{{{prime}}}" for count in (1, 2, 5, -3) for prime in primes]
    made += [f"{count}\\pi" for count in (1, 3, 5, 36, -7)] + [f"2^{{{power}}}" for power in (98, 99, 100, 2023, 2024)]
    made += [f"\\frac{{1}}{{2^{{{power}}}}}" for power in (98, 99, 100)]
    made += [f"x^2+{a}x+{b}" for a in (1, 2, 3) for b in (1, 2, 5)] + [f"y={a}x+{b}" for a in (2, 3) for b in (1, 2, 3)]
    made += [f"\\{{{a},{b}\\}}" for a in (-8, -6) for b in (4, 6, 8)]
    made += [f"({a},{b})" for a in (-4, 4, 6) for b in (9, 14)]
    made += [f"[{a},{b}{end}" for a in (0, 1) for b in (2, 3) for end in ("]", ")")]
    made += [f"({a},\\infty)" for a in (0, 1, -1)] + [f"(-\\infty,{b}]" for b in (0, 1, 5)]
    made += [f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}" for a in (1, 2) for b in (3, 4)]
    made += [f"{whole}.{part}" for whole in (0, 3, 14) for part in ("07", "19", "83")]
    made += [f"x^{power}+y^{other}" for power in (2, 3, 4) for other in (3, 5)]
    made += [f"{count}n+{count + 1}" for count in range(1, 9)]
    made += [f"x>{bound}" for bound in (6, 8, 10)] + [f"x\\le {bound}" for bound in (-6, -8, 10)]
    made += [f"\\sqrt{{{a}}}+\\sqrt{{{b}}}" for a, b in ((2, 3), (2, 5), (3, 5), (5, 7))]
    made += [f"\\frac{{{a}+\\sqrt{{{b}}}}}{{2}}" for a in (1, 3) for b in (5, 13)]
    return made + _SINGLE.split(" ; ")


_SINGLE = (
    r"\frac{\pi}{3} ; \frac{\pi}{4} ; \pi^2 ; e ; e^2 ; 2^{2024}+1 ; 2^{2024}-1 ; \frac{1}{2004!}"
    r" ; \frac{1}{2006!} ; 100! ; \binom{100}{50} ; \ln 2 ; \ln 3 ; \log_2 3 ; \sin 1 ; \cos 1 ; \tan 2 ; 2+3i"
    r" ; 2-3i ; i ; x ; y ; n ; 2x ; x+y ; x-y ; xy ; x^3-1 ; \sin x ; \cos x ; \sin 2x ; e^x ; e^{-x} ; \ln x"
    r" ; \sqrt{x} ; |x| ; n! ; (n+1)! ; \frac{1}{x} ; \{1,2,3\} ; \{-3,3\} ; \emptyset ; (9,4) ; (0,0) ; (1,2,3)"
    r" ; (3,2,1) ; (0,2] ; (-2,2) ; \mathbb{R} ; \infty ; -\infty ; (-\infty,-1)\cup(1,\infty) ; (0,1)\cup(2,3)"
    r" ; \mathbb{R}\setminus\{3\} ; x^2+y^2=25 ; x^2=2 ; xy=6 ; 3x-y+13=0 ; 3x+4y+14=0 ; x^2+y^2=16 ; x^2-y^2=1"
    r" ; \text{blue} ; \text{red} ; \text{no solution} ; \text{yes} ; \text{even} ; 101_2 ; 101_3 ; 3:4 ; 4:3"
    r" ; 1,2,\ldots,n ; 1,3,5,\ldots,2n-1 ; \frac{5}{16} ; \frac{7}{32} ; \frac{9}{64} ; \frac{21}{23}"
    r" ; \frac{50}{101} ; \frac{1}{1009} ; 2<x<9 ; x\ne 7 ; \sqrt[3]{2} ; \sqrt[3]{-2} ; \frac{1}{\sqrt{2}}"
    r" ; \arctan 2 ; f(x)+1 ; f(2) ; a+b ; a-b ; ab ; \alpha ; \beta ; x_1 ; x_2 ; \mathbb{Z} ; \mathbb{Q} ; 1:2:3"
    r" ; 90^\circ"
)


_TOKENS = [
    *"0123456789xynie", *"+-*/^_=<>!|,;:()[]{}'%&", "\\frac", "\\sqrt", "\\infty", "\\pi", "\\cdot", "\\pm",
    "\\text{ or }", "\\text{not }", "\\text{ cm}", "\\phantom", "\\{", "\\}", "\\le", "\\ne", "\\cup", "\\in",
    "\\ldots", "\\sin", "\\ln", "\\log_", "\\max", "^\\circ", "\\approx", "\\binom", "\\mathbb{R}", "\\left",
    "\\right", "\\ ", " ", "\\\\", "\\over", "\\mid", "\\overline", "\\mathrm{e}", "\\%", "\\$", "$", "th", "and",
    "\\lfloor", "\\rfloor", "\\emptyset",
]  # fmt: skip


def answers(seed: int, count: int) -> Iterator[str]:
    """Yield texts of which many are no answers, and some are answers to one of the truths."""
    rng = random.Random(seed)
    known = truths()
    for _ in range(count):
        made = rng.choice([_value, _value, _value, _structure, _soup, _both])(rng, known)
        yield rng.choice(["\\boxed{%s}", "\\boxed{%s}", "The answer is $%s$.", "The answer is %s."]) % made


def _value(rng: random.Random, known: list[str], depth: int = 3) -> str:
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


def _structure(rng: random.Random, known: list[str]) -> str:
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


def _soup(rng: random.Random, _: list[str]) -> str:
    return "".join(rng.choice(_TOKENS) for _ in range(rng.randint(1, 14)))


def _both(rng: random.Random, known: list[str]) -> str:
    a, b = rng.sample(known, 2)
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
