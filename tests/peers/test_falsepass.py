"""Our answer rules under the probes of falsepass, which score known-good and known-bad completions from outside."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from falsepass import probes
from falsepass.adapter import Adapter
from falsepass.model import Example, Policy, ProbeResult, Score

from rewardsmith import Message, Prompt
from rewardsmith.data.known_answers import FORMS, distractors
from tests.rewards.rules.rule_values import chosen

CASES: list[tuple[str, str, list[str]]] = [
    (
        "math",
        "boxed",
        ["9", "-3", "0", "1/2", "\\frac{3}{4}", "50\\%", "1,000", "3.14", "2\\sqrt{3}", "x^2+1", "(1,2)"],
    ),
    ("math", "stated", ["9", "-3", "1/2", "2\\sqrt{3}", "x=3"]),
    ("math", "boxed", ["\\text{blue}", "Paris", "5 cm", "(1,2)", "\\{1,2,3\\}", "[0,2)", "2^{10}"]),
    ("gsm8k", "hash-line", ["9", "-3", "0", "42", "1,000", "3.14"]),
    ("numeric", "boxed", ["9", "-3", "0", "1/2", "3.14", "1,000"]),
    ("choice", "boxed", ["C", "(B)", "D"]),
    ("choice", "tagged", ["C", "D"]),
    ("normalised", "bare", ["Paris", "blue"]),
    ("exact", "bare", ["9", "Paris"]),
    ("arithmetic", "hash", ["9", "0", "14"]),
]
STRICT = {"exact", "arithmetic", "normalised"}
"""Rules that accept the bare answer and nothing around it; what falsepass calls harmless may change that."""

BY_DESIGN = {("\\text{blue}", "false_equation"), ("Paris", "false_equation")}
"""`City = Paris` names an answer, and no rule knows that a word is no name."""


class Rules:
    """Scores completions with one of our rules."""

    def __init__(self, rule: str) -> None:
        self._rule = chosen(rule)

    async def score(self, example: Example, completion: Any) -> Score:
        if isinstance(completion, list):
            completion = "\n".join(str(m.get("content") or "") for m in completion if m.get("role") == "assistant")
        if isinstance(completion, Policy):
            return Score(None)
        return Score(float(self._rule.target(example.raw, completion, **self._rule.arguments())))

    async def close(self) -> None:
        pass


class RuleAdapter(Adapter):  # type: ignore[misc]
    name = "rules"
    has_judge = True

    def __init__(self, form: str) -> None:
        self._form = FORMS[form]

    def render(self, answer: str, example: Example) -> str:
        return self._form(answer)

    def wrong_answer(self, example: Example) -> str:
        return distractors(example.answer, random.Random(example.answer))[0]

    def shotgun_answers(self, example: Example) -> list[str]:
        first, *rest = distractors(example.answer, random.Random(example.answer))
        return [first, example.answer, *rest]


def results_of(rule: str, form: str, answer: str) -> list[ProbeResult]:
    prompt = Prompt("p", [Message("user", "What is asked for here?")], answer=answer)
    example = Example("p", "What is asked for here?", answer, prompt)
    adapter, scorer = RuleAdapter(form), Rules(rule)

    async def run() -> list[ProbeResult]:
        found = [await probe(adapter, scorer, example) for probe in (*probes.PER_EXAMPLE, *probes.FEW_EXAMPLES)]
        return [result for results in found for result in results]

    results = asyncio.run(run())
    probes.mark_same_as_good(results)
    return results


@pytest.mark.parametrize(("rule", "form", "answers"), CASES)
def test_no_probe_is_a_false_pass(rule: str, form: str, answers: list[str]) -> None:
    failed = [
        (answer, result.probe, result.variant, result.score, result.completion)
        for answer in answers
        for result in results_of(rule, form, answer)
        if not result.passed and not (rule in STRICT and result.expected.value == "full")
        if (answer, result.variant) not in BY_DESIGN
    ]
    assert failed == []


def test_every_probe_for_texts_was_run() -> None:
    ran = {result.probe for result in results_of("math", "boxed", "9")}
    ran |= {result.probe for result in results_of("exact", "bare", '{"city": "Paris", "note": "a capital"}')}
    assert {f"P{number}" for number in range(1, 18)} - ran == {"P12"}  # it looks at the data and scores nothing
