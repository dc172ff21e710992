"""Criteria of prompts, rubrics that models write, and whether these lean on a reference."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rubrics import (
    ALWAYS,
    COPIED_WORDS,
    FAILURES,
    Criterion,
    InvalidCriteria,
    LeakDetector,
    parse_criteria,
    parse_rubric,
    total_points,
)

PARTS_OF_A_RUBRIC = {
    "method": ("strategy", ["unverified-assumptions"], 2, "Names a method that can work, and says why it applies."),
    "steps": ("computation", ["irrelevant-errors"], 3, "Every step follows from what stands before; each slip costs."),
    "whole": ("synthesis", ["miracle-steps", "over-generalisation"], 3, "No result appears without a derivation."),
    "end": ("conclusion", [], 2, "The final statement answers what was asked, in the form that was asked for."),
}


def rubric(**changes: Any) -> dict[str, Any]:
    """Return a rubric that has all that it must have."""
    items = [
        {"name": name, "part": part, "checks": checks, "points": points, "text": text}
        for name, (part, checks, points, text) in PARTS_OF_A_RUBRIC.items()
    ]
    why = {"neglected-premises": "only whole numbers are added", "coincidence": "the numbers are all given"}
    return {"criteria": items, "not_applicable": why} | changes


def written(value: object) -> str:
    return f"I think first, {{maybe}}.\n```json\n{json.dumps(value)}\n```"


def item(number: int, **changes: Any) -> dict[str, Any]:
    """Return the good rubric with one of its items changed; None removes a key."""
    made = rubric()
    changed = {**made["criteria"][number], **changes}
    made["criteria"][number] = {key: value for key, value in changed.items() if value is not None}
    return made


REFUSED: list[tuple[object, str, str]] = [
    ("none at all", "no object", "does not end with a JSON object"),
    ({"criteria": "be right"}, "criteria", "valid list"),
    (rubric(criteria=rubric()["criteria"] * 6), "criteria", "at most 20 items"),
    (rubric(criteria=[*rubric()["criteria"][:3], "end"]), "criteria", "item 4"),
    (item(0, name="../../etc"), "name", "item 1 name"),
    (item(0, name="Steps"), "same name", "two items are called steps"),
    (item(0, text=None), "text", "item 1 text"),
    (item(0, text="too short"), "text", "at least 20 characters"),
    (item(0, points=None), "points", "item 1 points"),
    (item(0, points=True), "points", "valid number"),
    (item(0, points=2.001), "points", "at most two decimals"),
    (item(0, points=float("nan")), "points", ""),
    (item(0, points=10**400), "points", ""),
    (item(0, points=3), "total", "the points are 11 in all: they must be 10"),
    (item(0, part="stratgy"), "part", "must be one of computation, conclusion, strategy"),
    (item(0, part="computation"), "missing part", "no item belongs to the part strategy"),
    (item(0, checks=["luck"]), "checks", "must be one of coincidence"),
    (item(0, checks=list(FAILURES)), "checks", "at most 3 items"),
    (item(0, checks=[]), "missing check", "no item checks for unverified-assumptions, and not_applicable gives no"),
    (rubric(not_applicable={}), "missing check", "no item checks for neglected-premises"),
    (rubric(not_applicable=["coincidence"]), "not_applicable", "valid dictionary"),
    (rubric(not_applicable={**rubric()["not_applicable"], "coincidence": " "}), "not_applicable", "at least 1"),
    (
        rubric(not_applicable={**rubric()["not_applicable"], "unverified-assumptions": "none"}),
        "not applicable",
        "as well",
    ),
    *(
        (rubric(not_applicable={**rubric()["not_applicable"], always: "never"}), "not applicable", always)
        for always in sorted(ALWAYS)
    ),
]


def test_what_is_refused() -> None:
    for value, reason, message in REFUSED:
        with pytest.raises(Unparsable) as caught:
            parse_rubric(written(value) if not isinstance(value, str) else value)
        assert (value, caught.value.reason) == (value, reason)
        assert message in str(caught.value)


def test_one_that_leans_on_the_reference_is_refused() -> None:
    leaks = LeakDetector("How many clips?", ["72"])
    parse_rubric(written(rubric()), leaks=leaks)
    with pytest.raises(Unparsable) as caught:
        parse_rubric(written(item(3, text="The solution must end with the number 72.")), leaks=leaks)
    assert caught.value.reason == "tied to the reference"
    assert "item 4 names the answer '72'" in str(caught.value)
    with pytest.raises(Unparsable, match="item 4 names the answer"):
        parse_rubric(written(item(3, name="reaches-72")), leaks=leaks)


def test_the_last_object_counts() -> None:
    two = f"A draft: {json.dumps(item(0, points=9))}\n\nNow the rubric:\n{json.dumps(rubric())}"
    assert parse_rubric(two).criteria[0].points == 2
    with pytest.raises(Unparsable):
        parse_rubric(f"{json.dumps(rubric())}\n\nNo, rather:\n{json.dumps(item(0, points=9))}")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=10,
)
KEYS = st.sampled_from(["name", "part", "checks", "points", "text"])


@given(st.lists(st.dictionaries(KEYS, JSON) | JSON, min_size=3, max_size=6), JSON, st.text())
def test_whatever_is_written_is_a_rubric_or_unparsable(criteria: list[Any], absent: Any, around: str) -> None:
    text = json.dumps({"criteria": criteria, "not_applicable": absent})
    with pytest.raises(Unparsable):
        parse_rubric(around + text + around)


@given(st.lists(st.integers(1, 999), min_size=4, max_size=20))
def test_only_ten_points_exactly_are_taken(cents: list[int]) -> None:
    base = rubric()["criteria"]
    items = [{**base[i % 4], "name": f"n{i}", "points": c / 100} for i, c in enumerate(cents)]
    text = written(rubric(criteria=items))
    if sum(cents) == 1000:
        parse_rubric(text)
    else:
        with pytest.raises(Unparsable, match="in all"):
            parse_rubric(text)
    rest = 1000 - sum(cents[:-1])
    if 0 < rest <= 1000:
        items[-1]["points"] = rest / 100
        assert len(parse_rubric(written(rubric(criteria=items))).criteria) == len(cents)


def test_huge_answers_are_refused_quickly() -> None:
    for text in ("{" * 2_000_000, '{"criteria": [' * 300_000, '"' * 3_000_000, f'{{"criteria": "{"x" * 3_000_000}"}}'):
        with pytest.raises(Unparsable):
            parse_rubric(text)


# ---- criteria of prompts

GOOD = [
    ("  be right ", "be right"),
    (["be right", "be short"], (Criterion("be right", 1.0, "c1"), Criterion("be short", 1.0, "c2"))),
    ([{"text": " a ", "points": 2}], (Criterion("a", 2.0, "c1"),)),
    ([{"criterion": "a", "weight": -0.5}, "b"], (Criterion("a", -0.5, "c1"), Criterion("b", 1.0, "c2"))),
    ([{"text": "a", "points": 0.1234567, "name": "x"}], (Criterion("a", 0.123457, "c1"),)),
]


def test_criteria() -> None:
    for value, expected in GOOD:
        assert parse_criteria(value, "criteria", "the row") == expected


BAD = [
    *((None, "has no 'criteria'"), (" ", "text, or a list"), (["a"] * 201, "list of 1 to 200")),
    (["a", ""], "entry 2 of 'criteria' of the row has no text"),
    ([{"text": "a", "points": float("nan")}], "no number of points"),
    ([{"text": "a", "points": 10**400}], "no number of points up to 10,000"),
    ([{"text": "a", "points": 0}], "an entry of 0 points"),
    ([{"text": "a", "points": -1}], "none above 0"),
    ([{"text": "b", "points": 6000}] * 2, "more than 10,000 in all"),
]


def test_what_is_no_criteria() -> None:
    for value, message in BAD:
        with pytest.raises(InvalidCriteria, match=message):
            parse_criteria(value, "criteria", "the row")


@given(st.recursive(st.none() | st.floats() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_anything_is_criteria_or_refused(value: object) -> None:
    try:
        found = parse_criteria(value, "criteria", "the row")
    except InvalidCriteria:
        return
    assert found == value.strip() if isinstance(value, str) else total_points(found) > 0


# ---- leaks of a reference

NAMED = [
    *(("How many?", "72", "The total is 72 clips."), ("How many?", "72", "It says $72$.")),
    *(("How many?", "72", "It ends with 72."), ("How many?", "1,234", "The count of 1234 is shown.")),
    ("How many?", "1234", r"The count of 1{,}234 is shown."),
    *(("Find it.", r"\frac{3}{7}", r"Shows that it is $\frac{3}{7}$."), ("Find it.", "-3", "Arrives at -3.")),
    *(("Find it.", "3/7", "The ratio 3/7 is derived."), ("Find x.", "2", "The answer is 2.")),
    *(("Find x.", "2", "The final answer must be 2."), ("Find x.", "2", "Obtains 2.")),
    *(("Find x.", "2", r"Writes \boxed{2}."), ("Is it even?", "yes", "The conclusion: yes.")),
    *(("Is it even?", "Yes", "The answer is yes, with a proof."), ("Which town?", "Paris", "The result is Paris.")),
    *(("Work modulo 1000.", "1000", "The result equals 1000."), ("Which share?", "72", "Obtains 72%.")),
    *(("Which share?", "72%", "Obtains 72%."), ("How many?", "72", "It comes to 72.0 in the end.")),
    ("How many?", "72.0", "It comes to 72."),
    ("Find (x, y).", "(1,2)", "Shows that the pair (1, 2) is the only one."),
    ("Find (x, y).", "(1, 2)", "Shows that the pair (1,2) is the only one."),
    *(("Find x.", "5", "The final answer is x = 5."), ("Find x.", "x = 5", "Finds that x=5 holds.")),
    *(("Which one?", "A", "Chooses (A) with a reason."), ("Which one?", "A", "Picks option A.")),
    *(("Which one?", "(A)", "The answer is A."), ("Which one?", "A", "Says that the answer must be (A).")),
    *(("Which one?", "C", r"Writes \boxed{C}."), ("Which one?", "C", r"Writes \boxed{\text{C}}.")),
]
NOT_NAMED = [
    *(("How many?", "72", "The total is 172, or 720, or 7.2, or 72.5."), ("How many?", "72", "Uses x^72 and 72/5.")),
    *(("Find it.", r"\frac{3}{7}", r"Uses \frac{13}{7} and \frac{3}{70}."), ("Find it.", "-3", "Solves x-3 = 0.")),
    ("Find x.", "2", "Uses x^2, both of the 2 cases, and step 2."),
    ("Is it even?", "yes", "The conclusion leaves yes and no open."),
    ("Is it even?", "no", "The conclusion has no gap."),
    ("Work modulo 1000.", "1000", "Reduces modulo 1000 at each step."),
    ("How many?", "10", "Worth 2 of the 10 points; 10% of them for the form."),
    ("Find x.", "", "Anything at all."),
    ("Which one?", "A", "Reaches a conclusion that follows. A proof is needed; a result of a sum is not."),
    ("Which one?", "A", "The answer a reader wants is given, and option a reader may doubt is ruled out."),
    ("Which one?", "A", "Rules out options (A) to (E) one by one, except one."),
    *(("Which one?", "A", "Part (a) is done."), ("Is it even?", "no", "Reaches no conclusion without a proof.")),
    *(("How many?", "72", "It is 72.05, or 72.01."), ("Find it.", "3.5", "See step 3. 5 cases follow.")),
    *(("Find it.", "-3", "Subtracts: x - 3 = 0."), ("Find x.", "5", "Tries n = 5 first.")),
    ("Find x.", "$", "Costs $5."),
]


def test_an_answer_that_is_named_and_what_only_looks_so() -> None:
    for question, answer, text in NAMED:
        assert LeakDetector(question, [answer]).find(text).startswith("names the answer"), text
    for question, answer, text in NOT_NAMED:
        assert LeakDetector(question, [answer]).find(text) == "", text


WORDS = [
    *("we", "first", "count", "the", "red", "ones", "then", "the", "blue", "ones"),
    *("and", "finally", "take", "the", "difference", "of", "both"),
]


def test_words_of_the_solution() -> None:
    leaks = LeakDetector("Count them.", (), " ".join(WORDS))
    assert leaks.find(f"The grader checks: {' '.join(WORDS[2 : 2 + COPIED_WORDS]).upper()}!").startswith(
        "copies the reference"
    )
    assert leaks.find(" ".join(WORDS[2 : 1 + COPIED_WORDS])) == ""
    assert LeakDetector(" ".join(WORDS), (), " ".join(WORDS)).find(" ".join(WORDS)) == ""  # the problem says so itself


@given(st.text(), st.lists(st.text(), max_size=3), st.text(), st.text())
def test_it_never_raises(question: str, answers: list[str], solution: str, text: str) -> None:
    assert isinstance(LeakDetector(question, answers, solution).find(text), str)


def test_megabytes() -> None:
    leaks = LeakDetector("x" * 2_000_000, ["9" * 2_000_000, "17"], "word " * 400_000)
    assert leaks.find("result is " * 100_000) == ""
