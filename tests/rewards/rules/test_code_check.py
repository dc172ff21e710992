"""Tests in the shape of HumanEval: nothing but the function that is tested comes from the program."""

import sys
from typing import Any

import pytest

from rewardsmith import Message, Prompt
from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.code_rule import code
from tests.rewards.rules.humaneval import ROWS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")

CHEATS = {f"{name}-{kind}": (row.tests, cheat) for name, row in ROWS.items() for kind, cheat in row.cheats.items()}


def score(tests: Any, program: str, **settings: Any) -> float:
    return code(Prompt("p", [Message("user", "?")], answer=tests), f"```python\n{program}\n```", **settings)


def check(test: str, prompt: str = "", entry: str = "f") -> dict[str, str]:
    body = "".join(f"    {line}\n" for line in test.split("\n"))
    return {"prompt": prompt, "test": f"def check(candidate):\n{body}", "entry_point": entry}


@pytest.mark.parametrize("name", ROWS)
def test_the_right_program_passes(name: str) -> None:
    row = ROWS[name]
    assert score(row.tests, row.right) == 1.0
    assert score(row.tests, f"{row.tests['prompt']}    pass\n\n{row.right}") == 1.0


@pytest.mark.parametrize(("tests", "cheat"), CHEATS.values(), ids=CHEATS.keys())
def test_only_the_entry_point_is_taken_from_the_program(tests: Any, cheat: str) -> None:
    assert score(tests, cheat) == 0.0
    assert score(tests, f"{tests['prompt']}    pass\n\n{cheat}") == 0.0


ENDINGS = ["StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "AssertionError"]
ENDINGS += ["RecursionError", "type('StopIteration', (StopIteration,), {})", "StopIteration(True)"]
CONSUMERS = [
    "assert all(map(candidate, [1, 2]))", "assert not any(map(candidate, [1, 2]))",
    "assert sum(map(candidate, [1, 2])) == 0", "assert list(map(candidate, [1, 2])) == []",
    "assert all(map(lambda x: candidate(x)[0] == 1, [1, 2]))", "assert all(candidate(x) == 1 for x in [1, 2])",
    "for x in iter(lambda: candidate(1), 3): assert x == 1", "assert {**dict(zip(map(candidate, [1]), [1]))} == {}",
]  # fmt: skip


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_an_exception_of_the_program_ends_no_iteration_of_the_tests(consumer: str) -> None:
    for ending in ENDINGS:
        assert score(check(consumer), f"def f(x): raise {ending}") == 0.0


@pytest.mark.parametrize(
    ("test", "right"),
    [
        ("assert list(candidate(3)) == [0, 1, 2]", "def f(n): yield from range(n)"),
        ("assert sorted(candidate([2, 1])) == [1, 2]", "def f(x): return map(int, x)"),
        ("g = candidate(1)\nassert next(g) == 0 and next(g, None) is None", "def f(n): yield from range(n)"),
        ("x = [2, 1]\ncandidate(x)\nassert x == [1, 2]", "def f(x): x.sort()"),
        ("assert candidate(2)(3) == 6", "def f(a): return lambda b: a * b"),
        ("assert candidate([3, 4]) == f([3, 4]) == 7", "def f(x): return sum(x)"),
        ("assert candidate(1) == 1", "print('x' * 10**6)\ndef f(x):\n    print(x)\n    return x"),
        ("assert candidate(1) == 1", "import sys\nsys.stdout.close()\ndef f(x): return x"),
        ("assert 3 in candidate(5)", "def f(n): return (i for i in range(n))"),
        ("try: candidate(-1)\nexcept ValueError: return\nassert False", "def f(n): raise ValueError"),
    ],
)
def test_a_right_program_may_be_used_in_many_ways(test: str, right: str) -> None:
    assert score(check(test), right) == 1.0


def test_modules_that_nobody_imports_are_the_tests_own() -> None:
    test = check("assert math.fabs(candidate(2) - math.sqrt(2)) < 1e-9 and random.randint(3, 3) == 3")
    assert score(test, "def f(x): return x ** 0.5") == 1.0
    assert score(test, "class math:\n    fabs = sqrt = lambda x: 0\ndef f(x): return 1") == 0.0


def test_a_name_that_only_a_program_could_define_makes_the_tests_invalid() -> None:
    for program in ("def f(x): return x", "def helper(x): return x\ndef f(x): return x", "", "1 / 0"):
        with pytest.raises(CannotScore, match=r"'helper'.*\"prompt\"") as caught:
            score(check("assert helper(candidate(1)) == 1"), program)
        assert caught.value.kind == "invalid"
    star = check("assert sqrt(candidate(1)) == 1", "from math import *\ndef f(x): ''\n")
    assert score(star, "def f(x): return x") == 1.0


@pytest.mark.parametrize(
    "prompt", ["import numpy\n", "1 / 0\n", "raise SystemExit\n", "helper(1)\n", "from math import no\n"]
)
def test_a_prompt_that_cannot_be_run_is_invalid_whatever_the_program(prompt: str) -> None:
    for program in ("def f(x): return x", "def f(x): return 0", "1 / 0", "def f(:"):
        with pytest.raises(CannotScore) as caught:
            score(check("assert candidate(1) == 1", prompt), program)
        assert caught.value.kind == "invalid"
