"""The search for an answer that the math rule takes for two truths that differ; `make fuzz` searches longer."""

import os
import random
from itertools import combinations

import pytest

from rewardsmith import Message, Prompt
from rewardsmith.auditing.universal_answers import search_texts
from rewardsmith.rewards.rules.math import math
from tests.rewards.rules.expressions import truths

COUNT = int(os.environ.get("REWARDSMITH_FUZZ_ANSWERS", "100"))
SEED = int(os.environ.get("REWARDSMITH_FUZZ_SEED", "0"))
PROMPTS = [Prompt(f"p{i}", [Message("user", "?")], answer=truth) for i, truth in enumerate(truths())]


def test_there_are_several_hundred_truths_and_each_is_its_own_answer() -> None:
    assert len(set(truths())) == len(PROMPTS) > 300
    assert [p.answer for p in PROMPTS if math(p, f"\\boxed{{{p.answer}}}") != 1.0] == []


@pytest.mark.slow
def test_no_two_truths_are_equal() -> None:
    pairs = combinations(PROMPTS, 2)
    assert [(one.answer, other.answer) for one, other in pairs if math(one, f"\\boxed{{{other.answer}}}")] == []


def taken_for_two(count: int, prompts: list[Prompt]) -> dict[str, list[str]]:
    found = {}
    for text in search_texts(SEED, count, truths()):
        equal = [prompt.answer for prompt in prompts if math(prompt, text)]
        if len(equal) > 1:
            found[text] = equal
    return found


def test_no_answer_equals_two_of_some_truths() -> None:
    some = random.Random(SEED).sample(PROMPTS, 60)
    assert taken_for_two(80, some) == {}


@pytest.mark.slow
def test_no_answer_equals_two_truths_that_differ() -> None:
    assert taken_for_two(COUNT, PROMPTS) == {}


def test_the_search_is_repeatable_and_varied() -> None:
    texts = list(search_texts(3, 300, truths()))
    assert texts == list(search_texts(3, 300, truths()))
    assert len(set(texts)) > 280
    assert texts != list(search_texts(4, 300, truths()))
    assert max(map(len, texts)) < 2_100
