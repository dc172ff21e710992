"""A search for answers that are taken for two truths: such an answer earns a reward that it does not deserve."""

import os
from itertools import combinations

import pytest

from rewardsmith import Message, Prompt
from rewardsmith.rewards.rules import math
from tests.rewards.rules.expressions import answers, truths

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


@pytest.mark.slow
def test_no_answer_equals_two_truths_that_differ() -> None:
    found = {}
    for text in answers(SEED, COUNT):
        equal = [prompt.answer for prompt in PROMPTS if math(prompt, text)]
        if len(equal) > 1:
            found[text] = equal
    assert found == {}
