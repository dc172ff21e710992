"""Answers that are costly to compute with are wrong: an answer must not choose a failure in place of 0."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules import math
from rewardsmith.rewards.rules.math.evaluation import MAX_SIZE, NoValue, agree, real_value
from rewardsmith.rewards.rules.math.parser import parse

COSTLY = [
    "\\cos(\\log_{x}(\\infty))",
    "(\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7}+\\sqrt{11}+\\sqrt{13})^{40}",
    "(a+b+c+d)^{40}-(a+b+c-d)^{40}",
    "\\sin(\\sin(\\sin(\\sin(2^{1900}\\pi))))",
    "(\\sqrt{2})!\\cdot 2^{2700}",
    "(x!+y!)!(n!)!",
    "e^{e^{e^{e^{e}}}}",
    "9^{9^{9^{9}}}",
    "((9!)!)!",
    "\\binom{10^9}{5\\cdot 10^8}",
    "2^{-1000000007}",
    "(x+y+z)^{4999}",
    "\\frac{(x+1)^{2000}(x+2)^{2000}}{(x+3)^{2000}}",
    "x^{50}+x^{49}=x^{48}+y^{47}",
    "\\{" + ",".join(f"\\sqrt{{{i}}}!" for i in range(2, 8)) + "\\}",
    "\\lfloor 2^{4000}\\sqrt{2}\\rfloor",
    "\\gcd(2^{4000}-1,3^{2500})",
]


def scores(truth: str, texts: list[str]) -> tuple[Score, ...]:
    group = RolloutGroup(Prompt("p", [Message("user", "?")], answer=truth), [Rollout(text) for text in texts])
    return asyncio.run(make_reward({"type": "rule", "rule": "math"}).score(group))


@pytest.mark.parametrize("truth", ["5", "x^2+1", "(x+y+z)!", "\\{1,2\\}", "x^2+y^2=25", "2^{2024}+\\sqrt{2}"])
def test_a_costly_answer_is_0_and_no_failure(truth: str) -> None:
    found = scores(truth, [f"\\boxed{{{answer}}}" for answer in [*COSTLY, truth]])
    assert [(score.value, score.failure) for score in found] == [(0.0, None)] * len(COSTLY) + [(1.0, None)]


@pytest.mark.parametrize(
    "truth", ["10^{10^{10}}", "((9!)!)!", "2^{100000}", "\\{1, 10^{10^{10}}\\}", "x=(y+1)^{99999}"]
)
def test_a_costly_truth_is_a_failure_whatever_the_answer_is(truth: str) -> None:
    for answer in ("5", "(x+y+z)^{4999}"):
        with pytest.raises(CannotScore) as caught:
            math(Prompt("p", [Message("user", "?")], answer=truth), f"\\boxed{{{answer}}}")
        assert caught.value.kind == "invalid"


@pytest.mark.parametrize(
    "latex",
    [
        "10^{10^{10}}",
        "2^{100000}",
        "2^{-100000}",
        "9^{(9^9)}",
        "100000!",
        "((5!)!)!",
        "\\binom{1000000}{500000}",
        "e^{e^{30}}",
        "\\exp(10^9)",
        "\\sin(10^{1000})",
        "\\sqrt{2}^{10^9}",
        "(\\pi+5000)!",
        "(x+1)^{9999}",
        "x!\\cdot 10^{20000}",
    ],
)
def test_what_is_too_large_has_no_value(latex: str) -> None:
    node = parse(latex)
    assert real_value(node, frozenset("x"), 0) is None


def test_a_difference_that_needs_too_many_digits_is_not_decided() -> None:
    one, other = parse("2^{4000}+\\sqrt{2}"), parse("2^{4000}+\\sqrt{3}")
    with pytest.raises(NoValue):
        agree(one, other, frozenset(), 0)
    assert MAX_SIZE >= 4000


def test_threads_do_not_change_each_other_s_precision() -> None:
    prompts = [Prompt("p", [Message("user", "?")], answer=f"\\sqrt{{{n}}}+2^{{{9 * n}}}") for n in range(2, 60)]
    answers = [f"\\boxed{{2^{{{9 * n}}}+\\frac{{{n}}}{{\\sqrt{{{n}}}}}}}" for n in range(2, 60)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda pair: math(*pair), zip(prompts * 3, answers * 3, strict=True)))
    assert verdicts == [1.0] * len(verdicts)
