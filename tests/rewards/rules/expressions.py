"""Truths that differ from each other, for the search in `fuzz`: the rule may take no answer for two of them.

No two are equal by one of the conventions of the rule either: none is another with a unit, a name or a percent sign.
"""

from rewardsmith.auditing.universal_answers import INTEGERS


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
