"""Word problems: the check of every step, what a story says, the split, and solutions with known faults."""

import asyncio
import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, UserError
from rewardsmith.data import WordProblems
from rewardsmith.data.word_problems import (
    FLAWS,
    MIRACLES,
    chain_of,
    check_steps,
    conclusion,
    flaws,
    main_flaw,
    remarks,
    step_truth,
    true_grade,
)
from rewardsmith.data.word_problems.chains import parse_chain, results
from rewardsmith.data.word_problems.solutions import (
    carried_error,
    criteria,
    judged_steps,
    miracle,
    nearby,
    pad,
    points,
    write_solution,
)
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules import word_problem, word_problem_steps
from rewardsmith.rewards.step_rewards import STEP_TRUTHS
from tests.rewards.rules.rule_values import value

CHAIN = "12 +7 -5"
SOUND = "She buys 7: 12 + 7 = 19.\nShe gives away 5: 19 - 5 = 14.\nThe answer is 14."


def first(n: int, iterator: Iterator) -> list:
    return list(itertools.islice(iterator, n))


# ---- a second implementation -----------------------------------------------------------------------------------------


def computed(left: int, sign: str, number: int) -> Fraction:
    """Return the result of an operation, nothing rounded."""
    return {"+": Fraction(left + number), "-": Fraction(left - number), "*": Fraction(left * number)}.get(
        sign, Fraction(left, number or 1)
    )


def start_of(chain: str) -> int:
    return int(chain.partition(" ")[0])


def operations_of(chain: str) -> list[tuple[str, int]]:
    return [(sign, int(number)) for sign, number in re.findall(r" ([-+*/])(\d+)", chain)]


Claim = tuple[int, str, int, int]
"""`12 + 7 = 19`: what a solution claims in one equation."""


def truth_of(chain: str, claims: list[Claim], end: int | None) -> tuple[list[bool], list[bool]]:
    """Return whether each operation of a chain is done rightly, the end last; and whether each claim is right."""
    start, operations = start_of(chain), operations_of(chain)
    reached = [start, *(result for *_, result in claims)]
    right = []
    for before, (left, sign, number, result), (should, by) in zip(reached, claims, operations, strict=False):
        orders = {(left, number), (number, left)} if sign in "+*" else {(left, number)}
        right.append(sign == should and (before, by) in orders and computed(left, sign, number) == result)
    claimed = right + [False] * (len(claims) - len(right))
    done = right + [False] * (len(operations) - len(right))
    if len(claims) > len(operations):
        done[-1] = False
    return [*done, bool(claims) and end == reached[-1]], claimed


@st.composite
def chains(draw: st.DrawFn, least: int = 1) -> str:
    """Chains as they may be drawn: numbers above 0, exact divisions, operands from 2 on."""
    number = draw(st.integers(2, 150))
    parts = [str(number)]
    for _ in range(draw(st.integers(least, 5))):
        choices = [f"+{draw(st.integers(2, 90))}", f"*{draw(st.integers(2, 5))}"]
        choices += [f"-{draw(st.integers(2, number - 1))}"] if number > 2 else []
        choices += [f"/{by}" for by in range(2, 6) if number % by == 0 and number > by]
        parts.append(draw(st.sampled_from(choices)))
        number = int(computed(number, parts[-1][0], int(parts[-1][1:])))
    return " ".join(parts)


CLAIM_FORMS = [
    "She buys: {} {} {} = {}.\n", "{}{}{}={}\n", "- {} {} {} = {}\n", "So {} {} {} = {}, and ", "**{} {} {} = {}** ",
    "3 boxes are here. {} {} {} = {}; ", "Step 1: ({} {} {} = {})\n", "{} {} {} = {} apples\n",
]  # fmt: skip
SIGNS = {"+": ["+"], "-": ["-", "−"], "*": ["*", "x", "×"], "/": ["/", "÷"]}


@st.composite
def solutions(draw: st.DrawFn, chain: str) -> tuple[str, list[Claim], int | None]:
    """Solutions of a chain with any number of faults: the text, its claims and its answer."""
    before, claims = start_of(chain), []
    operations = operations_of(chain) + draw(st.lists(st.sampled_from([("+", 3), ("/", 2)]), max_size=1))
    for sign, by in operations:
        fault = draw(st.sampled_from(["", "", "", "", "swap", "left", "number", "sign", "result", "drop"]))
        if fault == "drop":
            continue
        left, number = before + 2 * (fault == "left"), by + (fault == "number")
        done = draw(st.sampled_from("+-*/")) if fault == "sign" else sign
        result = int(computed(left, done, number) // 1) + (fault == "result") * draw(st.sampled_from([-10, 1, 2]))
        if fault == "swap" and left >= 0:
            left, number = number, left
        claims.append((left, done, number, result))
        before = result
    end = draw(st.sampled_from([before, before, before + 1, start_of(chain), None]))
    text = ""
    for left, sign, number, result in claims:
        text += draw(st.sampled_from(CLAIM_FORMS)).format(left, draw(st.sampled_from(SIGNS[sign])), number, result)
    return text + ("" if end is None else f"The answer is {end}{draw(st.sampled_from(['', '.', '.  ']))}"), claims, end


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_the_truth_is_that_of_a_second_implementation(data: st.DataObject) -> None:
    chain = data.draw(chains())
    text, claims, end = data.draw(solutions(chain))
    done, claimed = truth_of(chain, claims, end)
    assert check_steps(chain, text) == done
    *steps, last = judged_steps(chain, text)
    assert [step.right for step in steps[: len(claims)]] == claimed
    assert last.right == (done[-1] and len(claims) >= len(operations_of(chain)))
    assert true_grade(chain, text) == sum(worth for worth, holds in zip(points(chain), done, strict=True) if holds) / 10
    assert conclusion(text) == ("" if end is None else str(end))


# ---- truth -----------------------------------------------------------------------------------------------------------


def test_a_chain_is_done_from_left_to_right() -> None:
    assert parse_chain(CHAIN) == (12, [("+", 7), ("-", 5)])
    assert results(CHAIN) == [12 + 7, 12 + 7 - 5]
    assert results("20 /3 *2 -30") == [6, 12, -18]


@given(chains())
def test_results_are_exact_and_above_zero(chain: str) -> None:
    before = start_of(chain)
    for (sign, number), result in zip(operations_of(chain), results(chain), strict=True):
        assert computed(before, sign, number) == result > 0
        before = result


@pytest.mark.parametrize(
    "chain",
    ["", "12", "12 7", "12 +7 ", " 12 +7", "12+7", "12 /0", "12 /00", "12 +-7", "1234567 +1", "٣ +4", "1" + " +1" * 10],
)
def test_what_is_no_chain_is_refused(chain: str) -> None:
    with pytest.raises(ValueError, match="is no chain: it should be such as"):
        parse_chain(chain)


@pytest.mark.parametrize(
    ("text", "verdicts", "wrong"),
    [
        (SOUND, [True, True, True], []),
        ("12+7=19, 19-5=14. The answer is 14", [True, True, True], []),
        ("7 + 12 = 19\n19 - 5 = 14\nThe answer is 14.", [True, True, True], []),
        ("012 + 7 = 019; 19 − 5 = 14 The answer is 014.", [True, True, True], []),
        ("12 + 7 = 20. 20 - 5 = 15. The answer is 15.", [False, True, True], ["calculation"]),
        ("12 + 7 = 20. 20 - 5 = 14. The answer is 14.", [False, False, True], ["calculation", "calculation"]),
        ("12 + 7 = 19. 18 - 5 = 13. The answer is 13.", [True, False, True], ["copied"]),
        ("12 + 8 = 20. 20 - 5 = 15. The answer is 15.", [False, True, True], ["operation"]),
        ("12 - 7 = 5. 5 + 5 = 10. The answer is 10.", [False, False, True], ["operation", "operation"]),
        ("5 - 19 = 14. The answer is 14.", [False, False, True], ["operation", "missing"]),
        ("12 + 7 = 19. The answer is 19.", [True, False, True], ["missing"]),
        ("12 + 7 = 19. The answer is 14.", [True, False, False], ["missing", "conclusion"]),
        ("12 + 7 = 19. 19 - 5 = 14.", [True, True, False], ["conclusion"]),
        ("12 + 7 = 19. 19 - 5 = 14. 14 + 1 = 15. The answer is 15.", [True, False, True], ["extra"]),
        ("12 + 7 = 19. 19 - 5 = 14. 14 + 1 = 15. The answer is 14.", [True, False, False], ["extra", "conclusion"]),
        ("The answer is 14.", [False, False, False], ["missing", "conclusion"]),
        ("", [False, False, False], ["missing", "conclusion"]),
        ("12 + 7 - 5 = 14. The answer is 14.", [False, False, True], ["operation", "missing"]),
        ("12 + 7 = 19 - 5 = 14. The answer is 14.", [False, False, False], ["calculation", "missing", "conclusion"]),
    ],
)
def test_steps_are_checked_one_by_one(text: str, verdicts: list[bool], wrong: list[str]) -> None:
    assert check_steps(CHAIN, text) == verdicts
    assert flaws(CHAIN, text) == wrong
    assert set(wrong) <= set(FLAWS)


NO_FIRST_STEP = [
    "5 + 12 + 7 = 19", "12 + 7 = 19 + 3", "12 + 7 = 19 = 20", "12 + 7 = 19.5", "12 + 7 = 19,5", "12 + 7 = 19,000",
    "112 + 7 = 19", "1.12 + 7 = 19", ".12 + 7 = 19", "1,12 + 7 = 19", "2 x 12 + 7 = 19", "2*12+7=19", "-12 + 7 = 19",
    "3 - 12 + 7 = 19", "a12 + 7 = 19", "12 + 7 = 19k", "12 + 7 = 19²", "12 + 7 = 19^2", "12 + 7 = 19 / 2",
    "12 + 7 = 19 x (2)", "12 + 7 = 190", "12 + 7 = -19", "12 + 7 = 1234567", "(5) + 12 + 7 = 19", "8 = 12 + 7 = 19",
    "12 + -7 = 19", "12 + 7 == 19", "12 + 7 is 19", "12 + 7\n= 19", "١٢ + ٧ = ١٩", "12 + 7 = 19٣", "12 ＋ 7 = 19",
    "5 +  12 + 7 = 19", "5 +\u00a012 + 7 = 19", "5 – 12 + 7 = 19", "5 + (12 + 7 = 19", "12 + 7 = 19  + 3",
    "12 + 7 = 19**2", "12 + 7 = 19 + (-3)", "12 + 7 = 19 · 3", "(12 + 7 = 19) + 3", "12 + 7 = 19 000",
    "1\u200b12 + 7 = 19",
    "12 + 7 = " + "9" * 5_000, "9" * 5_000 + "12 + 7 = 19", "12 + 7 + 0 = 19", "12 + 7.0 = 19",
]  # fmt: skip


@pytest.mark.parametrize("equation", NO_FIRST_STEP)
def test_a_part_of_an_equation_or_of_a_number_is_no_right_step(equation: str) -> None:
    text = f"She buys: {equation}.\nShe gives away 5: 19 - 5 = 14.\nThe answer is 14."
    assert not check_steps(CHAIN, text)[0]
    assert flaws(CHAIN, text)
    assert word_problem_steps(problem(), text) == 0.0


@pytest.mark.parametrize("ending", ["", ",", " and so on", " apples", ")", " - good.", " => ", "!", " (+ none)", " x"])
@pytest.mark.parametrize("beginning", ["", "* ", "- ", "1. ", "She gets:", "Apples = ", "a box ", "(", "in 2 days "])
def test_words_around_an_equation_do_not_matter(beginning: str, ending: str) -> None:
    assert flaws(CHAIN, f"{beginning}12 + 7 = 19{ending}\n{beginning}19 - 5 = 14{ending}\nThe answer is 14.") == []


@pytest.mark.parametrize(
    "end",
    [
        "The answer is 14.5", "The answer is 14 or 15", "The answer is 14. Bye", "The answer is 14..", "It is 14.",
        "The answer is  14", "The answer is 14\nThe answer is 14", "The answer is 13. The answer is 14.",
        "The answer is ١٤.", "The answer is -14.", "The answer is 1,4.", "The answer is " + "9" * 5_000,
        "The answer is", "The answer is 15. 19 - 5 = 14", "The answer is 14,000.", "the answer is 14",
    ],
)  # fmt: skip
def test_other_ends_are_no_right_conclusion(end: str) -> None:
    text = SOUND.replace("The answer is 14.", end)
    assert flaws(CHAIN, text) == ["conclusion"]
    assert check_steps(CHAIN, text) == [True, True, False]
    assert word_problem(problem(), text) == 0.0


def test_thousands_may_be_separated() -> None:
    text = "1,200 x 5 = 6,000\n6000 - 1,500 = 4500\nThe answer is 4,500."
    assert flaws("1200 *5 -1500", text) == []
    assert conclusion(text) == "4500"
    assert flaws("200 *5 -1500", text) == ["copied"]


def test_a_division_must_be_exact() -> None:
    assert flaws("14 /2 -3", "14 ÷ 2 = 7. 7 - 3 = 4. The answer is 4.") == []
    assert flaws("14 /2 -3", "15 / 2 = 7. 7 - 3 = 4. The answer is 4.") == ["copied"]
    assert flaws("14 +1 /2", "14 + 1 = 15. 15 / 2 = 7. The answer is 7.") == ["calculation"]
    assert flaws("14 +2 /2", "14 + 2 = 15. 15 / 2 = 7.5. The answer is 7.5.") == ["calculation"] * 2 + ["conclusion"]
    assert flaws("14 /2", "14 / 0 = 7. The answer is 7.") == ["operation"]


PARTS = [
    "12 + 7 = 19", "19 - 5 = 14", "12 + 7 = 20", "20 - 5 = 15", "14 + 1 = 15", "7 + 12 = 19", "The answer is 14.", "x",
    "The answer is 19", "The answer is 15.", "\n", ". ", " ", " = 19", "5 + ", ".5", "So ", "-", "3",
]  # fmt: skip
TEXTS = (
    st.text("0123456789+-*/x=., \nThe answer is", max_size=60)
    | st.lists(st.sampled_from(PARTS), max_size=9).map("".join)
    | st.lists(st.sampled_from(PARTS[:9]), max_size=5).map("\n".join)
    | st.text(max_size=60)
)


@given(TEXTS)
@settings(max_examples=300)
def test_all_ways_to_look_at_a_solution_agree(text: str) -> None:
    judged, held, wrong = judged_steps(CHAIN, text), check_steps(CHAIN, text), flaws(CHAIN, text)
    sound = len(judged) == 3 and all(step.right for step in judged)
    assert sound == all(held) == (not wrong) == (true_grade(CHAIN, text) == 1.0)
    assert not sound or conclusion(text) == "14"
    assert not sound or remarks(text) <= text.count("\n") + 1
    ends = [0, *(step.end for step in judged)]
    assert [step.start for step in judged] == ends[:-1]  # side by side, and the whole text
    assert ends[-1] == len(text)
    assert ends == sorted(ends)


# ---- steps -----------------------------------------------------------------------------------------------------------


def problem(chain: str = CHAIN, **info: object) -> Prompt:
    return Prompt("p", [Message("user", "?")], answer=str(results(chain)[-1]), info={"chain": chain, **info})


def judged(text: str) -> list[tuple[str, bool]]:
    return [(text[step.start : step.end], step.right) for step in step_truth(problem(), text)]


MISSING = ("", False)
A, B, END = "She buys 7: 12 + 7 = 19.\n", "She gives away 5: 19 - 5 = 14.\n", "The answer is 14."


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (SOUND, [(A, True), (B, True), (END, True)]),
        (f"Well.\n{A}\nNow:\n{B}Good.\n{END} ", [
            (f"Well.\n{A}", True), (f"\nNow:\n{B}", True), (f"Good.\n{END} ", True)
        ]),
        ("12 + 7 = 19, 19 - 5 = 14, yes\nThe answer is 14.", [
            ("12 + 7 = 19", True), (", 19 - 5 = 14, yes\n", True), ("The answer is 14.", True)
        ]),
        ("12 + 7 = 20\n20 - 5 = 15\nThe answer is 15.", [  # an error counts once
            ("12 + 7 = 20\n", False), ("20 - 5 = 15\n", True), ("The answer is 15.", True)
        ]),
        (f"{A}The answer is 19.", [(A, True), ("The answer is 19.", False)]),  # a step is missing: it comes too early
        (f"{A}{B}14 + 1 = 15\nThe answer is 15.", [
            (A, True), (B, True), ("14 + 1 = 15\n", False), ("The answer is 15.", True)
        ]),
        (f"{A}{B}", [(A, True), (B, True), MISSING]),
        (f"{A}{B}I am done", [(A, True), (B, True), ("I am done", False), MISSING]),
        (END, [(END, False)]),
        ("no", [("no", False), MISSING]),
        ("", [MISSING]),
    ],
)  # fmt: skip
def test_each_shown_step_has_a_place_and_a_verdict(text: str, steps: list[tuple[str, bool]]) -> None:
    assert judged(text) == steps


@pytest.mark.parametrize(
    "text",
    ["1+1=2 " * 50_000, "1+" * 200_000, "9" * 400_000, "1,234" * 80_000, " = " * 150_000, "The answer is " * 30_000,
     "12 + 7 = " * 50_000, "\n" * 400_000, "x1" * 200_000, "1.1" * 150_000],
)  # fmt: skip
def test_hostile_texts_take_linear_time(text: str) -> None:
    """Each takes well under a second."""
    assert flaws(CHAIN, text)
    assert not all(step.right for step in judged_steps(CHAIN, text))
    assert remarks(text) <= 1


def test_the_reward_for_steps_pays_the_whole_way_best() -> None:
    reward = make_reward({"type": "steps", "truth": "word-problems"})
    assert STEP_TRUTHS["word-problems"] is step_truth
    shares = {
        SOUND: 1.0,
        f"{A}The answer is 19.": 1 / 2,  # the first step alone, and out
        f"{A}{B}": 2 / 3,
        "The answer is 14.": 0.0,
        f"{A}{B}{B}{END}": 3 / 4,
    }
    scores = asyncio.run(reward.score(RolloutGroup(problem(), [Rollout(text) for text in shares])))
    assert [score.value for score in scores] == pytest.approx(list(shares.values()))


def test_a_chain_is_found_where_verl_has_it_and_other_prompts_are_refused() -> None:
    inside = Prompt("p", [Message("user", "?")], info={"extra_info": {"chain": CHAIN}})
    assert chain_of(inside) == chain_of(problem()) == CHAIN
    for info in ({}, {"chain": 7}, {"chain": "7+5-3"}, {"problem": "7+5-3"}, {"chain": "9" * 1_000}, {"extra_info": 1}):
        with pytest.raises(
            ValueError, match=r"info\.chain of the prompt 'p' is .{1,70}: it should be such as 12 \+7 -5"
        ):
            step_truth(Prompt("p", [Message("user", "?")], info=info), SOUND)


# ---- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer", "whole", "share"),
    [
        (SOUND, 1.0, 1.0, 1.0),
        ("12 + 7 = 20. 20 - 5 = 15. The answer is 15.", 0.0, 0.0, 2 / 3),
        ("12 + 7 = 20. 20 - 5 = 14. The answer is 14.", 1.0, 0.0, 1 / 3),
        ("The answer is 14.", 1.0, 0.0, 0.0),
        ("12 + 7 = 19. 19 - 5 = 14.", 0.0, 0.0, 2 / 3),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_rules(text: str, answer: float, whole: float, share: float) -> None:
    for info in ({"chain": CHAIN}, {"extra_info": {"chain": CHAIN}}):
        assert value("word_problem", text, "14", info) == answer
        assert value("word_problem", text, 14, info) == answer
        assert value("word_problem_steps", text, info=info) == whole
        assert value("word_problem_steps", text, info=info, share=True) == pytest.approx(share)


def test_a_rule_fails_for_a_prompt_of_another_world() -> None:
    for info in ({}, {"chain": None}, {"problem": "7+5-3"}, {"chain": "12 %7"}):
        with pytest.raises(CannotScore, match=r"info\.chain of the prompt 'p'") as caught:
            value("word_problem_steps", SOUND, "14", info)
        assert caught.value.kind == "invalid"
    for answer in (None, ["14", "15"], {"a": 14}):
        with pytest.raises(CannotScore):
            value("word_problem", SOUND, answer)
    assert value("word_problem", "No conclusion.", "") == 0.0


# ---- stories ---------------------------------------------------------------------------------------------------------

WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12,
}  # fmt: skip
N = rf"(\d+|{'|'.join(WORDS)})"
SAYS = {
    "+": [
        rf"S (?:buys|finds) {N} more T(?: at home)?",
        rf"F gives M {N} T",
        rf"Then S gets {N} T from F",
        rf"In the evening {N} T come by mail",
        rf"S wins {N} T in a game",
    ],
    "-": [
        rf"S (?:gives|loses) {N} T (?:to F|on the way)",
        rf"Then S sells {N} of the T",
        rf"(?:F takes|A dog runs off with|The school gets) {N} of the T",
    ],
    "*": [
        rf"After a good week S has {N} times as many T as before",
        rf"A machine turns each of the T into {N}",
        rf"Then S swaps each of the T for {N} new ones",
        rf"F makes the heap of T {N} times as large",
    ],
    "/": [
        rf"S puts the T into {N} equal boxes and keeps one box",
        rf"S shares the T equally among {N} people and keeps one share",
        rf"Only one in {N} of the T is good, and S keeps these",
        rf"S makes {N} equal heaps of the T and keeps one heap",
    ],
}
"""What each operation is in a story about M, who has T and a friend F; S is she or he."""

STARTS = rf"(?:(?:On Monday )?M (?:has|owns|keeps|starts the day with) {N} T(?: in a box)?|There are {N} T in M's bag)"
ASKS = r"How many T (?:has M now|does M have in the end|are left with M)\?|What is the number of T that M has at last\?"
WOMEN = "Mia|Anna|Lucy|Olga|Nora|Emma|Zoe|Ruth|Clara|Ivy|Rosa|Helen"
MEN = "Ben|Tom|Jack|Omar|Paul|Leo|Max|Sam|Hugo|Ivan|Karl|Dan"


def read_story(text: str) -> tuple[str, list[str]]:
    """Return the chain that a story says, and the sentences that say nothing about it."""
    text = text.removesuffix(" Solve it step by step.")
    main = re.search(r"\b(?:has|does|with|that) ([A-Z][a-z]+)[^.]*\?$", text)[1]
    things = re.search(r"(?:How many|number of) ([a-z]+) ", text)[1]
    pronoun, friends = ("[Ss]he", MEN) if re.fullmatch(WOMEN, main) else ("[Hh]e", WOMEN)
    assert len(set(re.findall(rf"\b(?:{friends})\b", text))) <= 1
    names = {rf"\b{main}\b": "M", rf"\b(?:{friends})\b": "F", rf"\b{things}\b": "T", rf"\b{pronoun}\b": "S"}
    for name, letter in names.items():
        text = re.sub(name, letter, text)
    *sentences, question = re.split(r"(?<=\.) ", text)
    assert re.fullmatch(ASKS, question)

    def number(match: re.Match[str]) -> int:
        (found,) = filter(None, match.groups())
        return WORDS.get(found) or int(found)

    chain, others = [str(number(re.fullmatch(rf"{STARTS}\.", sentences[0])))], []
    for sentence in sentences[1:]:
        found = [
            f"{sign}{number(match)}"
            for sign, forms in SAYS.items()
            for form in forms
            if (match := re.fullmatch(rf"{form}\.", sentence))
        ]
        assert len(found) <= 1
        chain += found
        others += [] if found else [sentence]
    return " ".join(chain), others


@pytest.mark.parametrize("operations", ["+-*/", "+", "-", "*/"])
def test_a_story_says_its_chain_and_nothing_else(operations: str) -> None:
    world = WordProblems(steps=2, largest=300, operations=operations, facts=0.5, number_words=0.5)
    for prompt in first(200, world.prompts(0)):
        (message,) = prompt.messages
        chain, others = read_story(message.content)
        assert chain == prompt.info["chain"]
        assert {sign for sign, _ in operations_of(chain)} <= set(operations)
        assert not any(re.search(r"\bT\b(?! too)|\b[MS]\b|\b(?:She|He|she|he)\b", other) for other in others)
        assert prompt.answer == str(results(chain)[-1])


def test_no_fact_occurs_twice_however_long_the_story() -> None:
    for prompt in first(100, WordProblems(steps=9, largest=300, facts=1.0).prompts(0)):
        _, others = read_story(prompt.messages[0].content)
        assert len(others) == 9
        assert len({re.sub(N, "N", other) for other in others}) == 9


@pytest.mark.parametrize(
    ("steps", "largest", "operations"), [(4, 60, "+-*/"), (9, 10, "+-"), (1, 10_000, "/"), (3, 40, "*-")]
)
def test_problems_are_as_hard_as_the_settings(steps: int, largest: int, operations: str) -> None:
    for prompt in first(100, WordProblems(steps=steps, largest=largest, operations=operations).prompts(0)):
        before = int(prompt.info["chain"].split()[0])
        assert 2 <= before <= largest // 2
        assert len(operations_of(prompt.info["chain"])) == len(prompt.info["events"]) == steps
        for sign, number in operations_of(prompt.info["chain"]):
            assert sign in operations
            assert number >= 2
            before = computed(before, sign, number)
            assert 1 <= before <= largest
            assert before.denominator == 1


def test_a_sign_that_is_given_twice_occurs_more_often() -> None:
    def share(operations: str) -> float:
        prompts = first(500, WordProblems(steps=1, largest=300, operations=operations).prompts(0))
        return float(np.mean(["+" in prompt.info["chain"] for prompt in prompts]))

    assert share("+-") == pytest.approx(1 / 2, abs=0.07)
    assert share("+++-") == pytest.approx(3 / 4, abs=0.07)


def test_texts_are_of_many_forms_and_hardly_ever_repeat() -> None:
    prompts = first(2_000, WordProblems(steps=4, largest=300).prompts(0))
    texts = [prompt.messages[0].content for prompt in prompts]
    assert len(set(texts)) == 2_000
    assert len({prompt.id for prompt in prompts}) == 2_000
    forms = {re.sub(N, "N", sentence) for text in texts for sentence in re.split(r"(?<=[.?]) ", text)}
    plain = {re.sub(rf"\b(?:{WOMEN}|{MEN})\b", "A", form) for form in forms}
    assert len(forms) > 3_000
    assert len(plain) > 500


def test_numbers_up_to_twelve_are_words_as_often_as_they_should() -> None:
    words = [
        bool(re.search(rf"\b(?:{'|'.join(WORDS)})\b", prompt.messages[0].content))
        for prompt in first(
            1_000, WordProblems(steps=1, largest=20, operations="-", facts=0, number_words=0.3).prompts(0)
        )
        if int(prompt.info["chain"].split()[0]) <= 12  # and the other number is smaller
    ]
    assert np.mean(words) == pytest.approx(1 - 0.7**2, abs=0.05)


# ---- splits and seeds ------------------------------------------------------------------------------------------------


def chains_of(n: int, seed: int, **options: Any) -> set[str]:
    return {prompt.info["chain"] for prompt in first(n, WordProblems(steps=1, largest=40, **options).prompts(seed))}


def test_held_out_chains_are_never_in_training_whatever_the_story() -> None:
    train = (
        chains_of(3_000, 0) | chains_of(1_000, 1, facts=1.0, number_words=0.0) | chains_of(1_000, 2, operations="+-")
    )
    held_out = chains_of(2_000, 0, split="held-out") | chains_of(500, 3, split="held-out", number_words=1.0)
    assert not train & held_out
    assert 0.06 < len(held_out) / len(train | held_out) < 0.14
    assert held_out == {chain for chain in train | held_out if held(chain, 0.1)}


def held(chain: str, share: float) -> bool:
    return int.from_bytes(hashlib.blake2b(chain.encode(), digest_size=8).digest(), "big") < share * 2**64


def test_the_seed_decides() -> None:
    world = WordProblems(slips=0.3, miracles=0.3, padding=0.3)
    for read in (world.prompts, world.demonstrations):
        assert first(40, read(3)) == first(40, read(3))
        assert first(40, read(3)) != first(40, read(4))
    assert [shown.prompt for shown in first(40, world.demonstrations(3))] == first(40, world.prompts(3))


def test_another_process_draws_the_same() -> None:
    code = (
        "from itertools import islice; from rewardsmith.data import WordProblems as W;"
        "print([(d.prompt.id, d.response) for d in islice(W(slips=0.3, miracles=0.3).demonstrations(5), 30)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = first(30, WordProblems(slips=0.3, miracles=0.3).demonstrations(5))
    assert there.stdout.strip() == str([(shown.prompt.id, shown.response) for shown in here])


SUBSETS = ["".join(some) for count in range(1, 5) for some in itertools.combinations("+-*/", count)]


@pytest.mark.parametrize("operations", SUBSETS)
def test_any_legal_settings_give_problems_or_an_error_at_once(operations: str) -> None:
    refused = set()
    for steps, largest in itertools.product((1, 9), (10, 10_000)):
        try:
            world = WordProblems(steps=steps, largest=largest, operations=operations)
        except UserError:
            refused.add((steps, largest))
        else:
            (prompt,) = first(1, world.prompts(0))
            assert len(prompt.info["events"]) == steps
    small, large = (9, 10), (9, 10_000)
    expected = {"+": {small}, "-": {small}, "*": {small, large}, "/": {small, large}, "+*": {small}, "-/": {small}}
    assert refused == expected.get(operations, set())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"operations": "*", "largest": 10, "steps": 9}, r"operations is '\*'.*steps = 9.*largest = 10.*lower steps"),
        ({"operations": "-", "largest": 10, "steps": 9}, r"operations is '-'.*lower steps, raise largest, or take"),
        ({"operations": "/"}, "operations is '/'"),
        ({"operations": "*", "largest": 16}, r"operations is '\*'.*steps = 4"),
        ({"steps": 2, "largest": 10, "operations": "*", "held_out": 0.9}, "no word problem with steps = 2"),
        ({"split": "held-out", "held_out": 0.0}, r"held_out is 0\.0"),
        ({"steps": 1, "miracles": 0.1}, r"miracles is 0\.1: .*steps >= 2"),
    ],
)  # fmt: skip
def test_settings_without_problems_are_errors_when_they_are_read(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        WordProblems(**options)


# ---- solutions with known faults -------------------------------------------------------------------------------------


def events_of(chain: str) -> list[str]:
    return [f"Event {i}" for i, _ in enumerate(operations_of(chain), 1)]


def is_right(chain: str, text: str) -> bool:
    """Return whether the last line has the right answer, by the second implementation."""
    number = Fraction(start_of(chain))
    for sign, by in operations_of(chain):
        number = {"+": number + by, "-": number - by, "*": number * by, "/": number / by}[sign]
    return text.rpartition("\n")[2] == f"The answer is {number}."


def is_sound(chain: str, text: str) -> bool:
    """Return whether a solution of the usual form is sound, by the second implementation."""
    form = r"[^:\n]*: (-?\d+) ([-+*/]) (\d+) = (-?\d+)\."
    *lines, last = text.split("\n")
    matches = [re.fullmatch(form, line) for line in lines]
    end = re.fullmatch(r"The answer is (-?\d+)\.", last)
    if end is None or not all(matches) or len(matches) != len(operations_of(chain)):
        return False
    claims = [(int(match[1]), match[2], int(match[3]), int(match[4])) for match in matches]
    return all(truth_of(chain, claims, int(end[1]))[0])


@given(chains())
def test_the_written_solution_is_right_and_sound(chain: str) -> None:
    text = write_solution(chain, events_of(chain))
    assert is_right(chain, text)
    assert is_sound(chain, text)
    assert flaws(chain, text) == []


@given(chains(least=2), st.integers(0, 10**6), st.sampled_from(MIRACLES))
@settings(max_examples=200)
def test_a_miracle_is_right_and_has_its_flaw(chain: str, seed: int, kind: Any) -> None:
    text = miracle(chain, events_of(chain), random.Random(seed), kind)
    assert is_right(chain, text)
    assert not is_sound(chain, text)
    assert word_problem(problem(chain), text) == 1.0
    found = flaws(chain, text)
    assert kind in found
    assert main_flaw(chain, text) == kind
    assert (
        set(found)
        <= {
            "operation": {"operation"},
            "copied": {"copied"},
            "calculation": {"calculation"},
            "missing": {"missing", "operation", "copied", "calculation"},
            "conclusion": {"calculation", "conclusion"},
        }[kind]
    )
    assert true_grade(chain, text) < 1


@given(chains(), st.integers(0, 10**6))
@settings(max_examples=200)
def test_a_carried_error_leads_to_a_wrong_answer(chain: str, seed: int) -> None:
    text = carried_error(chain, events_of(chain), random.Random(seed))
    assert not is_right(chain, text)
    assert not is_sound(chain, text)
    assert set(flaws(chain, text)) == {"calculation"}  # the first is wrong; a division may not come out even after it


@given(st.integers(-50, 10_000), st.integers(0, 1_000))
def test_a_wrong_result_is_near_and_above_zero_like_the_right_one(right: int, seed: int) -> None:
    wrong = nearby(right, random.Random(seed))
    assert 1 <= abs(wrong - right) <= 10
    assert wrong > 0 or right <= 0


@given(chains(), st.integers(0, 10**6))
@settings(max_examples=100)
def test_known_answers_are_what_their_labels_say(chain: str, seed: int) -> None:
    prompt = problem(chain, events=events_of(chain))
    made = list(WordProblems().known_answers(prompt, random.Random(seed)))
    longer = len(operations_of(chain)) > 1
    assert [one.kind for one in made] == [
        "reference", "wrong-answer", "carried-error", *[f"miracle-{kind}" for kind in MIRACLES if longer],
        "answer-only", "no-conclusion",
    ]  # fmt: skip
    for one in made:
        assert one.right == is_right(chain, one.text) == (word_problem(prompt, one.text) == 1.0)
        assert one.sound == is_sound(chain, one.text) == (word_problem_steps(prompt, one.text) == 1.0)


def test_demonstrations_slip_and_wonder_as_often_as_they_should() -> None:
    world = WordProblems(steps=3, slips=0.25, miracles=0.0)
    slips = [check_steps(d.prompt.info["chain"], d.response)[0] for d in first(1_500, world.demonstrations(0))]
    assert np.mean(slips) == pytest.approx(0.75, abs=0.04)
    shown = first(1_500, WordProblems(steps=3, slips=0.0, miracles=0.3).demonstrations(0))
    assert all(is_right(d.prompt.info["chain"], d.response) for d in shown)
    sound = [is_sound(d.prompt.info["chain"], d.response) for d in shown]
    assert np.mean(sound) == pytest.approx(0.7, abs=0.04)
    assert all(is_sound(d.prompt.info["chain"], d.response) for d in first(100, WordProblems().demonstrations(0)))


@given(chains(), st.integers(0, 9), st.integers(0, 1_000))
def test_padding_changes_nothing_but_the_remarks(chain: str, count: int, seed: int) -> None:
    text = write_solution(chain, events_of(chain))
    padded = pad(text, random.Random(seed), count)
    assert flaws(chain, padded) == []
    assert (remarks(text), remarks(padded)) == (0, count)
    assert padded.rpartition("\n")[2] == text.rpartition("\n")[2]


def test_demonstrations_are_padded_as_often_as_they_should() -> None:
    shown = first(600, WordProblems(steps=4, padding=0.4).demonstrations(0))
    assert np.mean([remarks(d.response) for d in shown]) == pytest.approx(4 * 0.4, abs=0.15)


# ---- a rubric --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(1, 10))
def test_a_rubric_has_ten_points_and_something_for_each_step(steps: int) -> None:
    seen = set()
    for prompt in first(30, WordProblems(steps=steps).prompts(0)):
        chain, lines = prompt.info["chain"], prompt.info["criteria"].split("\n")
        worth = points(chain)
        assert (len(worth), sum(worth)) == (steps + 1, 10)
        assert min(worth) >= 1
        assert max(worth[:-1]) - min(worth[:-1]) <= 1
        assert lines == [
            *(
                f"{i}. {event} ({sign} {number}): {each}"
                for i, (event, (sign, number), each) in enumerate(
                    zip(prompt.info["events"], operations_of(chain), worth, strict=False), 1
                )
            ),
            f"{steps + 1}. The answer is the last result: {worth[-1]}",
        ]
        assert prompt.info["criteria"] == criteria(chain, prompt.info["events"])
        seen.add(worth)
    assert len(seen) > 1 or steps > 7  # a judge has to read it
