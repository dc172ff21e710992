"""Rubrics: criteria with points that come with a prompt, and rubrics that a model wrote for one problem.

    {"criteria": [
        {"name": "cases", "part": "synthesis", "checks": ["over-generalisation"], "points": 2, "text": "…"}, …],
     "not_applicable": {"coincidence": "every number is given in the problem"}}

A written rubric has checks for each way to reach a right answer unsoundly (`FAILURES`), follows the skeleton of any
proof (`PARTS`), and names neither the answer nor the words of a reference. The text is untrusted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from rewardsmith.errors import listing
from rewardsmith.text.judge_prompts import format_number
from rewardsmith.text.judge_replies import NoVerdict, Unparsable, last_object

# ---- criteria with points ----------------------------------------------------------------------------------------

MAX_CRITERIA = 200
"""Of one prompt; in the mode of one call each they are so many calls for every rollout."""

MAX_POINTS = 10_000
"""In all, and for one: a judge writes the number out."""

MAX_REPLY_CHARS = 20_000
"""At the end of a reply, in which the kind of fault is looked for."""

DECIMALS = 6
"""Of points: those that a judge is shown are those that are counted."""


@dataclass(frozen=True)
class Criterion:
    """What an answer should do, its points (negative for a fault), and the name of its part in a score.

    `fault` is the kind of fault of an answer that loses the points, "" where it has no name.
    """

    text: str
    points: float
    name: str
    fault: str = ""


class InvalidCriteria(ValueError):  # noqa: N818
    """A value is no rubric; the message is a sentence that names it."""


def parse_criteria(value: object, field: str, owner: str) -> str | tuple[Criterion, ...]:
    """Return criteria that came with a prompt, as text or as a list, or raise `InvalidCriteria`.

    An entry of a list is text, worth one point, or a table with `text` (or `criterion`) and `points` (or `weight`).
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    what = f"{field!r} of {owner}"
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CRITERIA:
        raise InvalidCriteria(f"{owner} has no {field!r} that is text, or a list of 1 to {MAX_CRITERIA} criteria")
    criteria = tuple(_criterion(entry, number, what) for number, entry in enumerate(value, 1))
    points = [criterion.points for criterion in criteria]
    if 0 in points or max(points) < 0 or sum(map(abs, points)) > MAX_POINTS:
        raise InvalidCriteria(f"{what} has an entry of 0 points, none above 0, or more than {MAX_POINTS:,} in all")
    return criteria


def _criterion(entry: object, number: int, what: str) -> Criterion:
    table = entry if isinstance(entry, Mapping) else {"text": entry}
    text = table.get("text", table.get("criterion"))
    points = table.get("points", table.get("weight", 1.0))
    if not isinstance(text, str) or not text.strip():
        raise InvalidCriteria(f"entry {number} of {what} has no text")
    if isinstance(points, bool) or not isinstance(points, int | float) or not abs(points) <= MAX_POINTS:
        raise InvalidCriteria(f"entry {number} of {what} has no number of points up to {MAX_POINTS:,}")
    return Criterion(text.strip(), round(float(points), DECIMALS), f"c{number}")


def total_points(criteria: Sequence[Criterion]) -> float:
    """Return the points that can be earned."""
    return round(sum(criterion.points for criterion in criteria if criterion.points > 0), DECIMALS)


def list_criteria(criteria: Sequence[Criterion]) -> str:
    """Return the criteria as a judge reads them: a numbered list with points."""
    return "\n".join(f"{i}. (points: {format_number(c.points)}) {c.text}" for i, c in enumerate(criteria, 1))


# ---- rubrics that a model wrote ----------------------------------------------------------------------------------

PARSER = "written-rubric-2"
"""The version of this parser, for the record: it goes up whenever a reply would be parsed otherwise."""

PARTS = {
    "strategy": "a method is named that can solve the problem, with what makes it applicable",
    "computation": "the steps are carried out, and each follows from what stands before it",
    "synthesis": "the pieces are put together: cases complete, claims proved, nothing left open",
    "conclusion": "the answer follows from what was shown, in the form that was asked for",
}
"""The skeleton of any proof, in its order."""

FAILURES = {
    "miracle-steps": "a right result appears, and no valid derivation stands before it",
    "over-generalisation": "a few cases are tried, and the claim is made for all",
    "irrelevant-errors": "a step is wrong, although the final answer happens not to suffer from it",
    "neglected-premises": "an operation is done without its conditions, such as dividing by what may be 0",
    "unverified-assumptions": "something is taken for granted that is neither given nor shown",
    "coincidence": "numbers agree by chance: the method is invalid, and would give a wrong answer elsewhere",
}
"""The ways in which a right answer can be reached unsoundly."""

ALWAYS = frozenset({"miracle-steps", "irrelevant-errors"})
"""These can happen in every solution of every problem: no rubric may call them not applicable."""

MIN_ITEMS, MAX_ITEMS = 4, 20
MAX_CHECKS = 3
"""Ways to fail that one item may look for: one that looks for all of them looks for none."""
MAX_FAULTS_SHOWN = 6

_SYNONYMS = {
    "inductive-over-generalisation": "over-generalisation",
    "outcome-irrelevant-errors": "irrelevant-errors",
    "neglected-operation-premises": "neglected-premises",
    "numerical-coincidence": "coincidence",
    "strategy-identification": "strategy",
    "computation-check": "computation",
    "logical-synthesis": "synthesis",
}


def _folded(name: str) -> str:
    """Return a name without what is overlooked: case, spaces, dashes, z for s, and a last s."""
    return re.sub(r"[^a-z]", "", name[:100].lower()).replace("z", "s").removesuffix("s")


def _one_of(names: Mapping[str, str]) -> BeforeValidator:
    """Accept one of these names, however it is spelled."""
    spellings = {_folded(other): name for other, name in _SYNONYMS.items() if name in names}
    spellings |= {_folded(name): name for name in names}

    def name(value: object) -> str:
        if not isinstance(value, str) or _folded(value) not in spellings:
            raise ValueError(f"must be one of {listing(names)}")
        return spellings[_folded(value)]

    return BeforeValidator(name)


OTHER_FAULT = "other"

_FAULT_LINE = re.compile(r"^[\W_]*fault[\W_]*[:：]([^\n]{1,80})$", re.IGNORECASE | re.MULTILINE)


def parse_fault(reply: str) -> str:
    """Return the kind of fault that the last line `Fault: NAME` of a reply names, one of `FAILURES` or `other`.

    It is "" without such a line, and for any other word, such as none.
    """
    named = _FAULT_LINE.findall(reply[-MAX_REPLY_CHARS:])
    folded = _folded(named[-1]) if named else ""
    spellings = {_folded(other): name for other, name in _SYNONYMS.items()} | {_folded(name): name for name in FAILURES}
    return OTHER_FAULT if folded == OTHER_FAULT else spellings.get(folded, "") if folded else ""


def fault_kinds(made_by: object, count: int) -> tuple[str, ...]:
    """Return the kind of fault that each of `count` criteria looks for, by `criteria_made_by` of a row; "" for none."""
    checks = made_by.get("checks") if isinstance(made_by, Mapping) else None
    if not isinstance(checks, list | tuple) or len(checks) != count:
        return ("",) * count
    first = [one[0] if isinstance(one, list | tuple) and one else "" for one in checks]
    return tuple(kind if isinstance(kind, str) and kind in FAILURES else "" for kind in first)


def _one_line(value: object) -> str:
    """Return a text on one line, without unprintable characters: more would look like further items of the list."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "".join(c for c in text if c.isprintable())


def _two_decimals(points: float) -> float:
    if round(points, 2) != points:
        raise ValueError("at most two decimals")
    return points


FailureName = Annotated[str, _one_of(FAILURES)]
Reason = Annotated[str, Field(min_length=1), BeforeValidator(lambda why: _one_line(why)[:400])]


class RubricItem(BaseModel):
    """One criterion of a written rubric: `part` is one of `PARTS`, `checks` are some of `FAILURES`."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"),
        BeforeValidator(lambda name: "-".join(str(name).split())),
    ]
    part: Annotated[str, _one_of(PARTS)]
    checks: Annotated[
        list[FailureName],
        Field(max_length=MAX_CHECKS),
        BeforeValidator(lambda checks: [] if checks is None else [checks] if isinstance(checks, str) else checks),
    ] = []
    points: Annotated[float, Field(gt=0, le=1_000, strict=True), AfterValidator(_two_decimals)]
    text: Annotated[str, Field(min_length=20, max_length=1_000), BeforeValidator(_one_line)]


class WrittenRubric(BaseModel):
    """A rubric that has all that it must have; `not_applicable` says why some of `FAILURES` cannot occur."""

    criteria: list[RubricItem] = Field(min_length=MIN_ITEMS, max_length=MAX_ITEMS)
    not_applicable: dict[
        FailureName, Annotated[str, BeforeValidator(_one_line), Field(min_length=1, max_length=400)]
    ] = {}


Fault = tuple[str, str]
"""A reason in a few words that are the same for all rubrics, and the detail."""


def parse_rubric(reply: str, total: int = 10, leaks: LeakDetector | None = None) -> WrittenRubric:
    """Return the rubric that a reply ends with; `leaks` finds items that name the reference answer or copy its words.

    `Unparsable` has the reason of the first fault, and lists the others, so that the writer can fix them.
    """
    found = last_object(reply)
    if found is None:
        raise NoVerdict("no object", "the reply does not end with a JSON object")
    try:
        rubric = WrittenRubric.model_validate(found)
        faults = list(_rubric_faults(rubric, total, leaks))
    except ValidationError as error:
        faults = [_fault(one) for one in error.errors(include_url=False, include_context=False)]
    if faults:
        shown = "; ".join(detail for _, detail in faults[:MAX_FAULTS_SHOWN])
        more = f"; and {len(faults) - MAX_FAULTS_SHOWN} more" if len(faults) > MAX_FAULTS_SHOWN else ""
        raise Unparsable(faults[0][0], shown + more, invalid=True)
    return rubric


def _fault(error: Mapping[str, Any]) -> Fault:
    """Return a mistake in the form: its field, and where it is, with items counted from 1."""
    field, *rest = error["loc"]
    where = [f"item {rest[0] + 1}", *map(str, rest[1:])] if field == "criteria" and rest else [field, *map(str, rest)]
    return str(rest[1] if field == "criteria" and rest[1:] else field), f"{' '.join(where)[:200]}: {error['msg']}"


def _rubric_faults(rubric: WrittenRubric, total: int, leaks: LeakDetector | None) -> Iterator[Fault]:
    items, reasons = rubric.criteria, rubric.not_applicable
    points = round(math.fsum(item.points for item in items), 2)
    if points != total:
        yield "total", f"the points are {format_number(points)} in all: they must be {total}"
    for name, count in Counter(item.name.casefold() for item in items).items():
        if count > 1:
            yield "same name", f"two items are called {name}"
    for part in PARTS:
        if not any(item.part == part for item in items):
            yield "missing part", f"no item belongs to the part {part}"
    checked = {name for item in items for name in item.checks}
    for failure in FAILURES:
        if failure in reasons and (failure in checked or failure in ALWAYS):
            why = "checked as well" if failure in checked else "possible in every solution"
            yield "not applicable", f"{failure} is called not applicable, and is {why}"
        elif failure not in checked and failure not in reasons:
            remedy = "" if failure in ALWAYS else ", and not_applicable gives no reason for it"
            yield "missing check", f"no item checks for {failure}{remedy}"
    for number, item in enumerate(items, 1) if leaks else ():
        leak = leaks and (leaks.find(item.text) or leaks.find(item.name.replace("-", " ")))
        if leak:
            yield "tied to the reference", f"item {number} {leak}: it must be fair to any correct approach"


def rubric_places(total: int) -> dict[str, str]:
    """Return what the prompt for writing a rubric says of its form: the parts, the ways to fail, and the sizes."""
    return {
        "parts": "\n".join(f"- {name}: {what}" for name, what in PARTS.items()),
        "failures": "\n".join(f"- {name}: {what}" for name, what in FAILURES.items()),
        "always": " and ".join(name for name in FAILURES if name in ALWAYS),
        "items": f"{MIN_ITEMS} to {MAX_ITEMS}",
        "total": str(total),
    }


# ---- whether a text names or copies a reference ------------------------------------------------------------------

COPIED_WORDS = 12
"""Words in a row that two texts do not share by chance."""

MAX_WORDS = 20_000
"""Words of a reference that are compared."""

MAX_ANSWER = 200
"""Characters of an answer that is searched for; a longer one is found by its words."""

_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_SIGNS = re.compile(r"[$\\](?=[$()\[\]!,;: ]|\Z)|\$")
_NOUNS = (
    r"(?:(?:answer|result|conclusion|solution|value)\W{0,4}"
    r"(?:(?:is|being|of|as|to|be|equals?|reads?|should|must)\W{1,4}){0,3}|boxed\W{0,4})"
)
_VERBS = (
    r"(?:(?:obtains?|obtaining|concludes?|arriv(?:es?|ing)\W{1,4}at|reach(?:es|ing)?|gets?)\W{1,4}"
    r"(?:(?:with|that|at|is)\W{1,4}){0,2})"
)
_VARIABLE = r"(?:[a-z]\w{0,9}\s?=\s?)?"  # the answer is x = 5
_CHOICE = re.compile(r"\(?([A-Za-z])\)?\.?")
_BLANKS = re.compile(r"(?<=[(\[{=]) | (?=[)\]}=])")
_POINT_ZERO = re.compile(r"(?<=[0-9])\.0+(?![0-9])")


class LeakDetector:
    r"""Finds out whether a text names the answer of a problem, or copies its reference solution.

    An answer counts wherever it stands by itself. Where that says nothing, because it is a single digit, a word, or
    part of the problem, it counts where it is given as the answer: "the answer is 2", "obtains 2", `\boxed{2}`. A
    letter counts, in its own case, as "(A)", "option A" or "the answer is A".
    """

    def __init__(self, question: str, answers: Sequence[str] = (), solution: str = "") -> None:
        problem = _normalised(question)
        known = [answer for answer in map(_normalised, answers) if 0 < len(answer) <= MAX_ANSWER]
        self._answers = [(answer, _answer_pattern(answer, problem)) for answer in dict.fromkeys(known)]
        own = set(_word_runs(solution))
        self._copied = own - set(_word_runs(question)) if own else own

    def find(self, text: str) -> str:
        """Return what a text does, such as `names the answer 42`; "" if it does not lean on the reference."""
        normalised = _normalised(text)
        for answer, pattern in self._answers:
            if pattern.search(normalised):
                return f"names the answer {answer[:60]!r}"
        copied = next((run for run in _word_runs(text) if run in self._copied), None)
        return "" if copied is None else f"copies the reference solution ({' '.join(copied)[:80]!r})"


def _answer_pattern(answer: str, question: str) -> re.Pattern[str]:
    choice = _CHOICE.fullmatch(answer)
    if choice:
        return _choice_pattern(choice[1])
    # Neither a part of a longer number or word, nor of an expression such as x^2.
    alone = rf"(?<![\w^.,/]){re.escape(answer)}(?!\w|[.,/][0-9]|\^|\s?(?:points?|marks?)(?!\w))"
    if answer.isalpha():
        return re.compile(_NOUNS + alone, re.IGNORECASE)
    as_answer = rf"(?:{_NOUNS}|{_VERBS}){_VARIABLE}{alone}"
    not_worth = rf"{alone}(?!\s?%)"  # 10% of the points
    ordinary = len(answer) < 2 or re.search(not_worth, question, re.IGNORECASE) is not None
    return re.compile(as_answer if ordinary else f"{not_worth}|{as_answer}", re.IGNORECASE)


def _choice_pattern(letter: str) -> re.Pattern[str]:
    """Return how one of several options is named; a letter alone is an article, or a variable."""
    several = r"(?!\W{0,3}(?:,|to|through|and|or|[-–])\W{0,3}\(?[A-Za-z]\b)"  # options (A) to (E)
    named = r"(?i:option|choice|answer)s?\W{1,4}(?:(?i:is|being|as|must|should|be|option|choice)\W{1,4}){0,3}"
    boxed = r"boxed\W{1,4}(?:(?:text|textbf|mathrm|mathbf)\W{1,4})?"
    return re.compile(rf"(?:(?<!\w)\({letter}\)|(?:{named}|{boxed}){letter}(?!\w)){several}")


def _normalised(text: str) -> str:
    """Return a text without what changes nothing: dollar signs, thousands separators, zeros after a point, blanks."""
    text = " ".join(_SIGNS.sub("", _THOUSANDS.sub("", text)).split())
    return re.sub(r",(?=\S)", ", ", _BLANKS.sub("", _POINT_ZERO.sub("", text)))


def _word_runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())[:MAX_WORDS]
    return (tuple(words[i : i + COPIED_WORDS]) for i in range(len(words) - COPIED_WORDS + 1))
