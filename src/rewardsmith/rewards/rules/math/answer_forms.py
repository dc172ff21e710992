r"""What an answer of mathematics looks like once spelling is taken away.

`\dfrac12`, `\left( … \right)`, `1{,}234`, `12\text{ cm}`, `90^\circ`, `\text{Area} = 12` and `x = 5` are so common that
they are read here: most answers are then equal as text or as numbers, and nothing is computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from rewardsmith.rewards.rules.math.units import CHANGES, LETTERS, Unit, read_unit
from rewardsmith.text.numbers import Number, number_in_words, read_number

_REPLACED = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", r"\simeq": r"\approx ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "²": "^2", "³": "^3", "√": r"\sqrt ", "½": r"\frac{1}{2}",
    "°": r"^\circ ", "**": "^", "\u00a0": " ", "\u202f": " ", "\u2009": " ", r"\%": "%", r"\$": r"\$", "$": "",
    "{,}": ",", "{.}": ".", "{:}": ":", "{-}": "-", r"\colon": ":", r"\!": "",
    r"\dots": r"\ldots ", r"\cdots": r"\ldots ", "...": r"\ldots ", "…": r"\ldots ",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\vert": "|", r"\degree": r"^\circ ",
}  # fmt: skip
_REPLACE = re.compile(
    "|".join(
        re.escape(sign) + r"(?![A-Za-z])" * sign[-1].isalpha() for sign in sorted(_REPLACED, key=len, reverse=True)
    )
)
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])|(?<!\\)\\[,;:! ]|~"
    r"|\\[\[\]()](?![0-9])|\bU\+00B0"
)
_THIN = re.compile(r"(?<=[0-9])\\[,;: !](?=[0-9]{3}(?![0-9]))")
_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:[ ,][0-9]{3})+(?![0-9]|,[0-9])")
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_BINOM = re.compile(r"\\[dt]binom(?![A-Za-z])")
_OPERATOR = re.compile(
    r"\\operatorname\*?\s?\{\s?(sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|max|min|gcd|lcm)\s?\}"
)
_ARRAY = re.compile(r"[\[(]\s*\\begin\s?\{array\}\s?\{[clr|\s]*\}(.*?)\\end\s?\{array\}\s*[\])]", re.DOTALL)
_COMMANDS = re.compile(
    r"(?<![A-Za-z\\])(?:pi|infinity|infty|sqrt|arcsin|arccos|arctan|sin|cos|tan|ln|log|exp|max|min|gcd|lcm|theta)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s?(?:\\text\s?\{\s?)?\b(?:percent|per cent|pct)\b(?:\s?\})?", re.IGNORECASE)
_STYLED = re.compile(r"\\(?:textbf|textit|textrm|textnormal|textsf|mbox|hbox|textup|emph)(?=\s?\{)")
_ROMAN = re.compile(r"\\(?:mathrm|rm|mathbf|mathit|mathsf|boldsymbol|bf)\s?\{([^{}]*)\}")
_TEXT = re.compile(r"\\text\s?\{([^{}]*)\}")
_JOINT = re.compile(r"\\text\s?\{\s*,?\s*(and|or)\s*\}|(?<![A-Za-z\\])(and|or)(?![A-Za-z])")
_ALL_TEXT = re.compile(r"\\text\s?\{([^{}]*)\}\.?|\\mathbf\s?\{([^{}]*)\}")
_LEAD = re.compile(
    r"(?P<text>\\text\s?\{\s*)?(?:(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:final\s+)?answer\s*(?:is|:|=)"
    r"\s*:?\s*|(?:exactly|only|approximately|about|roughly|around)\s+)(?(text)\})\s*",
    re.IGNORECASE,
)
_MINUS = re.compile(
    r"(?:\\text\s?\{\s*(?:minus|negative)\s*\}|(?<![A-Za-z\\])(?:minus|negative)\b)\s*(?=[0-9\\(])", re.IGNORECASE
)
_MONEY = re.compile(r"(?P<sign>[-+]?)\s?(?:US)?\s?(?P<mark>\\\$|€|£)\s?(?P<value>-?[0-9].*)")
_MONEY_AFTER = re.compile(r"(?P<value>.*[0-9])\s?(?P<mark>\\\$|€|£|¢|\\text\s?\{\s?¢\s?\})")
_CURRENCY = {"\\$": "dollar", "€": "euro", "£": "pound sterling"}

_LETTER_NAME = (
    r"[A-Za-z](?:_(?:\w|\{\w+\}))?'?(?:\([A-Za-z](?:,\s?[A-Za-z])*\))?"
    r"|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|varphi|omega|sigma|tau|rho)(?:_(?:\w|\{\w+\}))?"
)
_ASSIGNED = re.compile(rf"(?P<name>{_LETTER_NAME})\s?=(?P<value>[^=<>~]+)")
_LABELLED = re.compile(
    r"(?P<name>\\text\s?\{\s*[A-Za-z][A-Za-z '’-]*\s*(?P<colon>:)?\s*\}(?:\s?_\{?\w+\}?)?|[A-Za-z][A-Za-z '’-]{3,40}"
    r"|[PEVSAQ]\([^()=]{1,30}\)|[fgh]\([^()=]{1,20}\)|m?\s?\\(?:angle|overline|triangle)\s?\{?\s?[A-Z]{1,4}\s?\}?"
    r"|\|[A-Z]{2}\||[A-Z]{2,3}|[A-Za-z](?=\s?:))\s?(?(colon)(?:[=:]\s?)?|(?:[=:])\s?)(?P<value>[^\s=:<>].*)"
)
_POINT = re.compile(r"(?P<name>[A-Z])\s?(?P<value>\([^()]*,[^()]*\))")
_GENERIC = re.compile(r"(?:the )?(?:final )?(?:answer|result|solution|value)s?", re.IGNORECASE)
_UNIT_TEXT = re.compile(
    r"(?P<value>.*?[0-9A-Za-z)}%\]|])\s*?(?P<unit>(?:(?:\\cdot|\\times|/|\s)*"
    r"(?:\\text\s?\{[^{}0-9]*\}|\\mathrm\{[mgshlLNJWVAKCF]\})"
    r"(?:\s?\^\s?\{?\s?-?[1-9]\s?\}?)?)+)\.?"
)
_UNIT_WORDS = re.compile(
    r"(?P<value>.*?[0-9)}%])\s*(?P<unit>[A-Za-z][A-Za-z ./'’-]*(?:\^\s?\{?[23]\}?)?(?:/\s?[A-Za-z]+)?)\.?"
)
_DEGREES = re.compile(
    r"(?P<value>.*?)\s?\^\s?(?:\\circ|\{\s?\\circ\s?\})\s?(?:\\(?:text|mathrm)\s?\{\s?)?"
    r"(?P<scale>[CF]?)(?:\s?\})?"
)
_COMMANDS_OF_ANGLES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|circ)|\^$")
_TIME = re.compile(r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{2}))?\s?(?P<half>[ap])\.?\s?m\b\.?", re.IGNORECASE)
_RATIO = re.compile(r"(?P<left>[0-9]+)\s?(?:\\text\s?\{\s?to\s?\}|to)\s?(?P<right>[0-9]+)")
_BRACED = re.compile(r"\{([0-9A-Za-z])\}")
_ORDINAL = re.compile(r"(?P<number>[0-9]+)\s?(?:\^\s?\{?\s?)?(?:\\text\s?\{\s?)?-?(?P<end>st|nd|rd|th)\s?\}{0,2}")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'’-]+[^\W\d_]+)*")
_SYNONYMS = {
    "empty set": r"\emptyset", "the empty set": r"\emptyset", "all real numbers": r"\mathbb{R}",
    "all reals": r"\mathbb{R}", "the real numbers": r"\mathbb{R}", "the set of all real numbers": r"\mathbb{R}",
}  # fmt: skip


@dataclass(frozen=True)
class AnswerForm:
    r"""An answer, read.

    Attributes:
        latex: its value, which a parser gets.
        whole: the same with what the value is assigned to, as in "y = 2x".
        key: the value without white space and `\text`; two answers of one key are equal.
        number: the number that it is, where it is one.
        words: the words that it is, in lower case, where it is no mathematics.
        unit: what it is measured in; None without a unit.
        name: what the value is assigned to, as in "x = 5"; "" where it is not.
    """

    latex: str
    whole: str
    key: str
    number: Number | None
    words: str | None
    unit: Unit | None
    name: str


@lru_cache(maxsize=1024)
def read_form(text: str, *, counted: bool = False) -> AnswerForm:
    """Return an answer, read."""
    whole = latex = _RATIO.sub(r"\g<left>:\g<right>", _clean(text))
    name = ""
    assigned = _ASSIGNED.fullmatch(latex) or _POINT.fullmatch(latex) or _label(latex)
    if assigned:
        name, latex = _name(assigned["name"]), _unwrapped(assigned["value"].strip())
    latex = _SYNONYMS.get((_words(latex) or "").removesuffix("."), latex)
    words = _words(latex)
    spelled = number_in_words(words) if words else None
    value, unit = (latex, None) if words else _without_unit(latex, counted)
    value = _joined_digits(_ordinal(value))
    number = Number(spelled) if spelled is not None else read_number(value)
    if number and unit and unit.scale != 1:
        number = Number(number.value * unit.scale, number.percent, number.rounded)
        value = str(number.value)
    key = " ".join(_BRACED.sub(r" \1 ", _TEXT.sub(r"\1", value)).split())
    key = re.sub(r"(?<![0-9A-Za-z.]) | (?![0-9A-Za-z.])", "", key)
    return AnswerForm(value, whole, key, number, None if number else words, unit, name)


def _clean(text: str) -> str:
    text = _THIN.sub("", text)
    text = _REPLACE.sub(lambda sign: _REPLACED[sign[0]], text)
    text = _DROPPED.sub(" ", text)
    text = _ARRAY.sub(r"\\begin{pmatrix}\1\\end{pmatrix}", _OPERATOR.sub(r"\\\1 ", text))
    text = _BINOM.sub(r"\\binom", _FRAC.sub(r"\\frac", _STYLED.sub(r"\\text", text)))
    text = _ROMAN.sub(_roman, text)
    text = " ".join(_PERCENT.sub("%", text).split())
    text = _unwrapped(text)
    text = _JOINT.sub(lambda word: f" \\{word[1] or word[2]} ", text)
    text = _COMMANDS.sub(lambda word: f"\\{ {'infinity': 'infty'}.get(word[0].lower(), word[0].lower()) } ", text)
    text = _stripped(text)
    lead = _LEAD.match(text)
    return _stripped(_MINUS.sub("-", text[lead.end() :] if lead else text))


def _stripped(text: str) -> str:
    return " ".join(text.split()).rstrip(".,;:").strip()


def _unwrapped(text: str) -> str:
    r"""Return what is within a `\text{…}` around all of it."""
    found = _ALL_TEXT.fullmatch(text.strip())
    if not found:
        return text
    inner = (found[1] if found[1] is not None else found[2]).strip()
    return text if _WORDS.fullmatch(inner.strip("'\"“”‘’.() ")) else inner


def _roman(match: re.Match[str]) -> str:
    r"""Return `\mathrm{cm}` as text; a letter keeps its letters' shape, and what has no letters needs none."""
    inner = match[1]
    if re.fullmatch(r"\s?[A-Za-z]\s?", inner):
        return match[0]
    return f"\\text{{{inner}}}" if re.fullmatch(r"[A-Za-z ./]+", inner) else inner


def _label(latex: str) -> re.Match[str] | None:
    """Return the parts of `Area = 12`, `P(A): 1/2` and the like; None where the words are more than a name."""
    found = _LABELLED.fullmatch(latex)
    if found is None:
        return None
    words = re.findall(r"[A-Za-z]+", _TEXT.sub(r"\1", found["name"]))
    return None if any(CHANGES.fullmatch(word) for word in words if len(word) > 1) else found


def _name(text: str) -> str:
    text = _TEXT.sub(r"\1", text).strip(" :")
    return "" if _GENERIC.fullmatch(text) else re.sub(r"\s+", "", text)


def _words(latex: str) -> str | None:
    r"""Return the words of an answer that is text: in `\text{…}`, or bare, where they are no product of letters."""
    plain = _TEXT.sub(r"\1", latex).strip("'\"“”‘’. ")
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    if not _WORDS.fullmatch(plain):
        return None
    lower = " ".join(plain.casefold().split())
    longest = max(re.split(r"[\s'’-]+", lower), key=len)
    if plain.isupper() and len(plain) > 1:
        return lower  # the name of an angle or a side, in which the order counts
    product = len(longest) < 3 or (
        len(longest) == 3 and (not re.search("[aeiou]", longest) or set(longest) <= set("abc"))
    )
    return None if plain == latex and product and lower not in ("no", "up", "on") else lower


def _without_unit(latex: str, counted: bool) -> tuple[str, Unit | None]:
    """Return an answer without what it is measured in, and that unit."""
    money = _MONEY.fullmatch(latex) or _MONEY_AFTER.fullmatch(latex)
    if money:
        value, unit = _without_unit(f"{money.groupdict().get('sign') or ''}{money['value']}", counted)
        mark = ((_CURRENCY.get(money["mark"], "cent"), 1),)
        return value, unit if unit and unit.known else Unit(mark, scale=unit.scale if unit else Fraction(1))
    latex = latex.replace("\\$", "")
    time = _TIME.fullmatch(_TEXT.sub(r"\1", latex))
    if time:
        minute = "" if time["minute"] in (None, "00") else f":{time['minute']}"
        return f"{time['hour']}{minute}", Unit(((f"{time['half'].lower()}m", 1),))
    degrees = _DEGREES.fullmatch(latex)
    if degrees and not _COMMANDS_OF_ANGLES.search(degrees["value"]):
        return degrees["value"], Unit(((f"°{degrees['scale']}", 1),))
    match = _UNIT_TEXT.fullmatch(latex)
    found = read_unit(match["unit"]) if match else None
    if match and found and (found.scale == 1 or read_number(match["value"])):
        return match["value"].strip(), found
    return _without_bare_unit(latex, counted)


def _without_bare_unit(latex: str, counted: bool) -> tuple[str, Unit | None]:
    """Return an answer without words after it, where they can only be a unit or what was counted."""
    match = _UNIT_WORDS.fullmatch(latex)
    found = read_unit(match["unit"]) if match else None
    if not match or not found or _ORDINAL.fullmatch(latex):
        return latex, None
    spaced = latex[len(match["value"]) :].startswith(" ")
    single = len(match["unit"]) == 1 or (len(match["unit"].split()[0]) == 1 and "/" not in match["unit"])
    number = read_number(match["value"]) is not None
    if found.scale != 1:
        is_unit = number and spaced
    elif found.known and not single:
        is_unit = True
    else:  # "5 m" counts metres where a number is expected, and is a product elsewhere
        is_unit = counted and number and spaced and len(match["unit"].split()) <= 6
        is_unit = is_unit and (not single or match["unit"][0] in LETTERS)
    return (match["value"].strip(), found) if is_unit else (latex, None)


def _ordinal(value: str) -> str:
    """Return 5 for 5th."""
    found = _ORDINAL.fullmatch(value)
    if found is None:
        return value
    teens = found["number"][-2:] in ("11", "12", "13")
    ends = "th" if teens else {"1": "st", "2": "nd", "3": "rd"}.get(found["number"][-1], "th")
    return found["number"] if found["end"] == ends else value


def _joined_digits(value: str) -> str:
    """Return 1234 for 1,234 and 1 234, where no comma can be one between members."""
    found = _GROUPED.findall(value)
    if not found or re.search(r"[\[(]|\\\{", value) or value.count(",") != sum(one.count(",") for one in found):
        return value
    return _GROUPED.sub(lambda number: re.sub("[ ,]", "", number[0]), value)
