"""Rules that compare an answer with the ground truth: text, options and numbers, and the built-in tiny worlds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.data.arithmetic import check_steps
from rewardsmith.data.translation import SOURCE_WORDS, quality
from rewardsmith.data.word_problems import chain_of, conclusion
from rewardsmith.data.word_problems import check_steps as check_equations
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.math.units import PARTS, SCALES
from rewardsmith.rewards.rules.rule_settings import Extract, Final, answer_part, extracted
from rewardsmith.rewards.rules.truth import extra, truth, truths
from rewardsmith.text.answers import boxed, hashed, stated
from rewardsmith.text.choices import choice as chosen
from rewardsmith.text.choices import wording
from rewardsmith.text.claims import claimed
from rewardsmith.text.numbers import Number, after_first_number, first_number, read_number
from rewardsmith.types import Prompt


def exact(prompt: Prompt, text: str) -> float:
    """1 when the text, without surrounding white space, is the answer or one of the answers, else 0."""
    return float(text.strip() in truths(prompt))


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(
    prompt: Prompt,
    text: str,
    *,
    articles: Annotated[bool, Field(description="pass over a, an and the")] = True,
    punctuation: Annotated[bool, Field(description="pass over punctuation")] = True,
    extract: Extract = ("text",),
    final: Final = "auto",
) -> float:
    """1 when the text is an answer but for case, Unicode forms, white space, punctuation and articles, else 0."""
    golds = [normal(answer, articles=articles, punctuation=punctuation) for answer in truths(prompt)]
    if not all(golds):
        raise CannotScore("invalid", f"an answer of the prompt {prompt.id!r} is empty")
    found = extracted(text, extract, final)
    # Unicode forms of a hostile text take quadratic time; what is much longer than the answers is none of them.
    if found is None or len(found) > 1_000 + 4 * max(len(answer) for answer in truths(prompt)):
        return 0.0
    return float(normal(found, articles=articles, punctuation=punctuation) in golds)


def normal(text: str, *, articles: bool = True, punctuation: bool = True) -> str:
    """Return a text as it is compared; what would leave nothing ("?", "The") is left out, step by step."""
    plain = " ".join(unicodedata.normalize("NFKC", text.replace("−", "-")).casefold().split())
    bare = " ".join(_without_punctuation(plain).split()) if punctuation else plain
    shorn = " ".join(_ARTICLES.sub(" ", bare).split()) if articles else bare
    return shorn or bare or plain


def _without_punctuation(text: str) -> str:
    """Return a text without punctuation, but for signs that change what is meant: 3.5, -5, 50%, C#."""
    kept = []
    for at, mark in enumerate(text):
        before, after = text[at - 1 : at], text[at + 1 : at + 2]
        sign = mark == "-" and not before.isalnum() and (after.isdigit() or after == "\\")  # -5, -\frac{1}{2}
        number = sign or (mark == "." and after.isdigit())
        if number or mark in "%#" or not unicodedata.category(mark).startswith("P"):
            kept.append(mark)
        elif mark not in "'’." and not (mark == "," and before.isdigit() and after.isdigit()):
            kept.append(" ")
    return "".join(kept)


def choice(
    prompt: Prompt,
    text: str,
    *,
    letters: Annotated[str, Field(pattern=r"^[A-Z]{2,26}$", description="letters of the options, in order")] = "ABCDE",
    final: Final = "auto",
) -> float:
    """1 when the text chooses the right option, else 0; no choice, several choices, denials and lists are wrong.

    The answer is a letter, the index of the option from 0, or the text of the option as `info["choices"]` or
    `info["options"]` has it (a list; a table of letters; or a table of the lists `label` and `text`). Where these are
    known, a text that states the words of an option, with its letter or without, is understood too.
    """
    options = _options(prompt, letters)
    gold = _right_letter(prompt, options, letters)
    answer = answer_part(text, final) or ""
    inner = claimed(answer, "tagged")
    answer = answer if inner is None else inner
    letter = chosen(answer, letters)
    if letter is None and options:
        words = wording(answer, letters) or ""
        letter = _lookup(words, options) if 0 < len(words) < 1_000 else None
    return float(letter == gold)


def _options(prompt: Prompt, letters: str) -> dict[str, str]:
    """Return the texts of the options by letter; empty when the prompt does not give them."""
    pairs: Iterable[tuple[Any, Any]] = ()
    match extra(prompt, "choices", extra(prompt, "options")):
        case {"label": [*labels], "text": [*texts]} if len(labels) == len(texts):
            numbered = any(str(label) not in letters for label in labels)  # then what counts is the place
            pairs = zip(letters if numbered else labels, texts, strict=False)
        case Mapping() as table:
            pairs = ((str(letter).upper(), text) for letter, text in table.items())
        case list() | tuple() as texts:
            pairs = zip(letters, texts, strict=False)
    return {str(letter): str(text) for letter, text in pairs if str(letter) in letters}


def _right_letter(prompt: Prompt, options: Mapping[str, str], letters: str) -> str:
    answer = prompt.answer
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(letters):
        return letters[answer]
    if isinstance(answer, str):
        bare = answer.strip().strip("()[].:").upper()
        letter = bare if len(bare) == 1 and bare in letters else _lookup(answer, options)
        if letter:
            return letter
    known = "; the prompt gives no options" if not options else ""
    raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is none of the options {letters}{known}")


def _lookup(words: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the only option with these words; its label may stand before them."""
    given = normal(words)
    found = [
        letter
        for letter, option in options.items()
        if given in {normal(label + option) for label in ("", f"({letter}) ", f"{letter}) ", f"{letter}. ")}
    ]
    return found[0] if len(found) == 1 else None


_NEXT_WORD = re.compile(r"[\s-]*(?:\\text\s?\{\s*)?([A-Za-z]+)")
_OTHER = re.compile(
    r"[\s~]*(?:[,;|∨∪]|\\(?:lor|vee|land|wedge|cup)(?![a-z])|\\?(?:text\s?\{\s*)?\b(?:or|and|to|through)\b\s*\}?)?"
    r"\s*\\?[$€£]?\s*[-−]?[0-9]",
    re.IGNORECASE,
)
"""A number after another, with nothing between them but a word that makes it another answer."""


def gsm8k(
    prompt: Prompt, text: str, *, extract: Extract = ("hash", "boxed", "stated", "number"), final: Final = "auto"
) -> float:
    """1 when the number that the text gives is the answer, else 0; `extract = ["hash"]` insists on `#### 18`.

    The answer is a number, or a whole solution that ends in `#### 18`. Numbers are compared exactly; units, currency
    and percent signs are passed over.
    """
    golds = [_right_number(prompt, answer) for answer in truths(prompt)]
    number = find_number(answer_part(text, final) or "", extract)
    return float(number is not None and number.value in golds)


def find_number(text: str, ways: Extract) -> Number | None:
    """Return the number in what the first of the ways finds; None where that is no number, or is taken back.

    What has no digits is passed over. In a phrase ("3 + 4 = 7 apples") it is the first number after the last "=".
    """
    for way in ways:
        found = claimed(text, way)
        if found == "" or (found and re.search("[0-9]", found)):
            return number_in(found)
    return None


def number_in(phrase: str) -> Number | None:
    """Return the number that a phrase is, or else the first number after its last equals sign.

    None where the phrase gives several ("5 or 6"), equates two numbers that differ, or counts parts of
    one in words ("7 hundredths") that are not understood.
    """
    number = read_number(phrase)
    if number is not None:
        return number
    before, _, last = phrase.rpartition("=")
    first = first_number(last)
    number = read_number(first) if first else None
    same = read_number(before.rpartition("=")[2])
    if number is None or (same is not None and same.share != number.share):
        return None
    rest = after_first_number(last)
    word = _NEXT_WORD.match(rest)
    if _OTHER.match(rest) or (word and word[1].casefold() not in SCALES and PARTS.fullmatch(word[1])):
        return None
    scale = SCALES.get(word[1].casefold(), 1) if word else 1
    return Number(number.value * scale, number.percent, number.rounded)


_MATHEMATICS = re.compile(
    r"\\(?:sqrt|pi|infty|pm|ln|log|sin|cos|tan|binom|cup|cap|begin)(?![a-z])|[√π±∞]|[a-z]\s?\^\s?\{?\w+\}?\s?[-+]"
)
"""In a truth, what makes it an expression of which a number is only a part: 2\\sqrt{3}, x^2+1."""


def _true_number(answer: str) -> Number | None:
    """Return the number that a truth is; None where it is an expression."""
    return None if _MATHEMATICS.search(answer) else number_in(answer)


def _right_number(prompt: Prompt, answer: str) -> object:
    number = _true_number(hashed(answer) or boxed(answer) or stated(answer) or answer)
    if number is None:
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no number: {answer[:100]!r}")
    return number.value


def numeric(
    prompt: Prompt,
    text: str,
    *,
    absolute: Annotated[float, Field(ge=0, description="maximum difference")] = 0.0,
    relative: Annotated[float, Field(ge=0, description="maximum difference, as a share of the answer")] = 1e-6,
    percent: Annotated[
        Literal["share", "drop", "refuse"],
        Field(description="what 50% is: share reads 0.5, drop reads 50, refuse takes it for no number"),
    ] = "share",
    extract: Extract = ("boxed", "stated", "number"),
    final: Final = "auto",
) -> float:
    """1 when the number that the text gives is as close to the answer as either tolerance allows, else 0."""
    golds = [value for answer in truths(prompt) for value in _comparable(_true_number(answer), percent)]
    if len(golds) < len(truths(prompt)):
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no number that can be compared")
    values = _comparable(find_number(answer_part(text, final) or "", extract), percent)
    # Exact arithmetic: 0.1 is read as one tenth, so a tolerance of 0 means equal, not equal after rounding.
    tolerances = [max(Fraction(absolute), Fraction(relative) * abs(gold)) for gold in golds]
    return float(any(abs(value - gold) <= by for value in values for gold, by in zip(golds, tolerances, strict=True)))


def _comparable(number: Number | None, percent: str) -> list[Fraction]:
    """Return the value that is compared; none where there is no number, or one that is refused."""
    if number is None or (number.percent and percent == "refuse"):
        return []
    return [number.share if percent == "share" else number.value]


def arithmetic(prompt: Prompt, text: str) -> float:
    """1 when the text after the only `#` is the answer, else 0."""
    _, mark, after = text.partition("#")
    return float(after.strip() == truth(prompt) and bool(mark))


def arithmetic_steps(
    prompt: Prompt,
    text: str,
    *,
    share: Annotated[bool, Field(description="the share of the steps that hold, not whether all of them do")] = False,
) -> float:
    """1 when every step is there, follows from the one before and is right, else 0; the answer is not looked at."""
    problem = extra(prompt, "problem")
    try:
        held = check_steps(problem if isinstance(problem, str) else "", text)
    except ValueError as error:
        raise CannotScore(
            "invalid", f"info.problem of the prompt {prompt.id!r} is {problem!r:.60}, but should be such as 7+5-3"
        ) from error
    return sum(held) / len(held) if share else float(all(held))


def word_problem(prompt: Prompt, text: str) -> float:
    """1 when the text ends with `The answer is N.` and N is the answer, else 0."""
    found = conclusion(text)
    return float(found == truth(prompt) and bool(found))


def word_problem_steps(
    prompt: Prompt,
    text: str,
    *,
    share: Annotated[bool, Field(description="the share of the steps that hold, not whether all of them do")] = False,
) -> float:
    """1 when every equation is there, follows and is right, and the conclusion follows from them, else 0."""
    try:
        held = check_equations(chain_of(prompt), text)
    except ValueError as error:
        raise CannotScore("invalid", str(error)) from error
    return sum(held) / len(held) if share else float(all(held))


def translation_words(prompt: Prompt, text: str) -> float:
    """1 less the share of words that are wrong, missing or too many, at least 0; the source is `info.src_text`."""
    sentence = extra(prompt, "src_text")
    if not isinstance(sentence, str) or not sentence or not set(sentence) <= set(SOURCE_WORDS):
        raise CannotScore(
            "invalid", f"the prompt {prompt.id!r} has no sentence of letters from a to l in info.src_text"
        )
    return quality(sentence, text.strip())
