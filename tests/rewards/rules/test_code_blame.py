"""What a program can do to its tests: nothing that is paid when it is wrong, and nothing that ends in a failure."""

import asyncio
import sys
from typing import Any

import pytest

from rewardsmith import Message, Prompt, UserError
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules.code_rule import code
from rewardsmith.rewards.tree import check
from rewardsmith.sandbox.cases import OutputComparison
from rewardsmith.sandbox.values import same
from tests.rewards.rules.humaneval import ROWS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")


def score(tests: Any, program: str, **settings: Any) -> float:
    return code(Prompt("p", [Message("user", "?")], answer=tests), f"```python\n{program}\n```", **settings)


# Assert statements, and a wrong program that was paid.
PAID = {
    "a module that the tests do not import": (
        "assert math.isclose(f(2), math.sqrt(2))",
        "class math:\n    isclose = lambda a, b: True\n    sqrt = abs\ndef f(x): return 0",
    ),
    "everything is in it": (
        "assert 3 in f(5)",
        "class All:\n    __contains__ = lambda *_: True\n    __iter__ = lambda self: iter(())\ndef f(n): return All()",
    ),
    "a built-in function that is not redefined": ("assert sum([1, 2]) == 3", "def total(xs): return 0"),
}


@pytest.mark.parametrize(("test", "program"), PAID.values(), ids=PAID.keys())
def test_a_wrong_program_is_not_paid(test: str, program: str) -> None:
    assert score([test], program) == 0.0


_WRITE = (
    "import os\ndef f(x):\n    for n in range(3, 64):\n        try: os.write(n, {sent})\n        except OSError: pass"
)
_DEEP = "v = 1\nfor _ in range(200): v = [v]\n"

# Tests that are in order, and what a program may do about them. All of it is wrong; none of it is a failure.
WRONG = {
    "memory": ("f(1) == 1", "def f(x): return bytearray(1 << 40)"),
    "memory of the tests": ("len(list(f(1))) == 1", "def f(x): return range(10**12)"),
    "time of the tests": ("f(1) ** f(1) == 1", "def f(x): return 10**9"),
    "numbers of the tests": (
        "f(1) == 1",
        "from decimal import *\nclass F:\n    __module__ = 'fractions'\n"
        "    __str__ = lambda s: '1e99999999'\nF.__name__ = 'Fraction'\ndef f(x): return F()",
    ),
    "forks": ("f(1) == 1", "import os\ndef f(x):\n    while True: os.fork()"),
    "ends its parent": ("f(1) == 1", "import os\ndef f(x): os.kill(os.getppid(), 9)"),
    "answers nothing": (
        "f(1) == 1",
        f"{_WRITE.format(sent='bytes(4)')}\n    raise KeyError",
    ),
    "redefines all": ("all(f(x) for x in [1])", "def all(xs): return True\ndef f(x): return 0"),
    "nests an argument": (
        "g([x for x in [[1]] if f(x) is None]) == 0",
        f"{_DEEP}def f(x): x[:] = v\ndef g(x): return 1",
    ),
    "an exception without a name": (
        "f(1) == 1",
        "class M(type):\n    __name__ = property(lambda s: 1 / 0)\n"
        "class E(Exception, metaclass=M): pass\ndef f(x): raise E",
    ),
    "an exception of tests": ("f(1) == 1", "def f(x): raise ImportError('numpy')"),
    "lone surrogates": ("f(1) == 1", "def f(x): return '\\ud800'"),
    "a null byte": ("f(1) == 1", "def f(x): return 1\0"),
}


@pytest.mark.parametrize(("test", "program"), WRONG.values(), ids=WRONG.keys())
def test_no_program_chooses_a_failure(test: str, program: str) -> None:
    assert score([f"assert {test}"], program, seconds=0.2) == 0.0


@pytest.mark.parametrize(
    "program",
    ["print('x' * 10**9)", "import os\nos.closerange(0, 9)", "import os\nos.kill(os.getppid(), 9)", "x = [0] * 10**10"],
)
def test_no_script_chooses_a_failure(program: str) -> None:
    assert score({"inputs": [""], "outputs": ["1"]}, program, seconds=0.2) == 0.0


def test_an_expected_number_that_is_not_finite_is_not_near_everything() -> None:
    assert not OutputComparison(tolerance=0.1).same_output(b"5", "1e999")
    assert not same(5, float("inf"), 0.1)
    assert same(float("inf"), float("inf"), 0.1)


def test_slow_programs_end_well_before_the_deadline_of_the_rule() -> None:
    table = {"type": "rule", "rule": {"type": "code", "total": 58.0}}
    with pytest.raises(UserError, match=r"total = 58 s .* deadline is 60 s"):
        asyncio.run(check(make_reward(table)))
    asyncio.run(check(make_reward(table | {"deadline": 120.0})))


def test_tests_that_call_a_function_without_its_name_are_invalid() -> None:
    tests = [{"input": "[1, 2]\n3", "output": "4", "testtype": "functional"}]
    with pytest.raises(CannotScore, match="fn_name is missing"):
        code(Prompt("p", [Message("user", "?")], answer=tests), "```python\nx = 1\n```")


def test_tests_may_lie_in_the_extra_info_of_a_row() -> None:
    prompt = Prompt("p", [Message("user", "?")], info={"extra_info": {"tests": ["assert add(1, 2) == 3"]}})
    assert code(prompt, "```python\ndef add(a, b):\n    return a + b\n```") == 1.0


# ---- tests in the shape of HumanEval: nothing but the function that is tested comes from the program ----------------

CHEATS = {f"{name}-{kind}": (row.tests, cheat) for name, row in ROWS.items() for kind, cheat in row.cheats.items()}


def humaneval(test: str, prompt: str = "", entry: str = "f") -> dict[str, str]:
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
        assert score(humaneval(consumer), f"def f(x): raise {ending}") == 0.0


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
    assert score(humaneval(test), right) == 1.0


def test_modules_that_nobody_imports_are_the_tests_own() -> None:
    test = humaneval("assert math.fabs(candidate(2) - math.sqrt(2)) < 1e-9 and random.randint(3, 3) == 3")
    assert score(test, "def f(x): return x ** 0.5") == 1.0
    assert score(test, "class math:\n    fabs = sqrt = lambda x: 0\ndef f(x): return 1") == 0.0


def test_a_name_that_only_a_program_could_define_makes_the_tests_invalid() -> None:
    for program in ("def f(x): return x", "def helper(x): return x\ndef f(x): return x", "", "1 / 0"):
        with pytest.raises(CannotScore, match=r"'helper'.*\"prompt\"") as caught:
            score(humaneval("assert helper(candidate(1)) == 1"), program)
        assert caught.value.kind == "invalid"
    star = humaneval("assert sqrt(candidate(1)) == 1", "from math import *\ndef f(x): ''\n")
    assert score(star, "def f(x): return x") == 1.0


@pytest.mark.parametrize(
    "prompt", ["import numpy\n", "1 / 0\n", "raise SystemExit\n", "helper(1)\n", "from math import no\n"]
)
def test_a_prompt_that_cannot_be_run_is_invalid_whatever_the_program(prompt: str) -> None:
    for program in ("def f(x): return x", "def f(x): return 0", "1 / 0", "def f(:"):
        with pytest.raises(CannotScore) as caught:
            score(humaneval("assert candidate(1) == 1", prompt), program)
        assert caught.value.kind == "invalid"
