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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")


def score(tests: Any, program: str, **settings: Any) -> float:
    return code(Prompt("p", [Message("user", "?")], answer=tests), f"```python\n{program}\n```", **settings)


_BOX = "class Box:\n    def __init__(self, n): self.n = n\n    def __contains__(self, x): return x < self.n"

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
    "everything is in it, and it has no entries": (
        "assert 'error' in f('x')",
        "class All:\n    __contains__ = lambda self, x: True\ndef f(n): return All()",
    ),
    "everything is in what a function of a class makes": (
        "assert 3 in f(5)",
        "class A:\n    __contains__ = lambda self, x: True\nf = lambda n: A()",
    ),
    "a built-in function that is not redefined": ("assert sum([1, 2]) == 3", "def total(xs): return 0"),
    "exceptions end the loop of a test": ("assert all(map(f, [1, 2]))", "def f(x): raise StopIteration"),
}


@pytest.mark.parametrize(("test", "program"), PAID.values(), ids=PAID.keys())
def test_a_wrong_program_is_not_paid(test: str, program: str) -> None:
    assert score([test], program) == 0.0


@pytest.mark.parametrize(
    ("test", "right"),
    [
        ("assert math.isclose(f(2), math.sqrt(2))", "def f(x): return x ** 0.5"),
        ("assert 3 in f(5) and 7 not in f(5)", "def f(n): return iter(range(n))"),
        ("assert 3 in Box(5)", _BOX),
        ("assert 3 in Box(5).copy()", f"{_BOX}\n    def copy(self): return Box(self.n)"),
        ("assert calendar(1) == 2", "def calendar(x): return x + 1"),
        ("assert sum(2, 3) == 6", "def sum(a, b): return a * b"),
    ],
)
def test_and_the_right_one_is(test: str, right: str) -> None:
    assert score([test], right) == 1.0


_WRITE = (
    "import os\ndef f(x):\n    for n in range(3, 64):\n        try: os.write(n, {said})\n        except OSError: pass"
)
_DEEP = "v = 1\nfor _ in range(200): v = [v]\n"

# Tests that are in order, and what a program may do about them. All of it is wrong; none of it is a failure.
WRONG = {
    "memory": ("f(1) == 1", "def f(x): return bytearray(1 << 40)"),
    "memory, bit by bit": ("f(1) == 1", "def f(x):\n    v = []\n    while True: v.append(bytes(1 << 20))"),
    "memory of the tests": ("len(list(f(1))) == 1", "def f(x): return range(10**12)"),
    "time of the tests": ("f(1) ** f(1) == 1", "def f(x): return 10**9"),
    "numbers of the tests": (
        "f(1) == 1",
        "from decimal import *\nclass F:\n    __module__ = 'fractions'\n"
        "    __str__ = lambda s: '1e99999999'\nF.__name__ = 'Fraction'\ndef f(x): return F()",
    ),
    "forks": ("f(1) == 1", "import os\ndef f(x):\n    while True: os.fork()"),
    "threads": (
        "f(1) == 1",
        "import threading\ndef f(x):\n    while True: threading.Thread(target=threading.Event().wait).start()",
    ),
    "ends its parent": ("f(1) == 1", "import os\ndef f(x): os.kill(os.getppid(), 9)"),
    "stops itself": ("f(1) == 1", "import os\ndef f(x): os.kill(os.getpid(), 19)"),
    "answers nothing": (
        "f(1) == 1",
        f"{_WRITE.format(said='bytes(4)')}\n    raise KeyError",
    ),
    "an endless message": (
        "f(1) == 1",
        _WRITE.format(said="b'\\xff' * 4"),
    ),
    "redefines all": ("all(f(x) for x in [1])", "def all(xs): return True\ndef f(x): return 0"),
    "nests an argument": (
        "g([x for x in [[1]] if f(x) is None]) == 0",
        f"{_DEEP}def f(x): x[:] = v\ndef g(x): return 1",
    ),
    "dates for numbers": (
        "g(f(1) - f(0)) == 1",
        "import datetime\ndef f(x): return datetime.date(2024, 1, 1 + x)\ndef g(x): return 0",
    ),
    "an exception without a name": (
        "f(1) == 1",
        "class M(type):\n    __name__ = property(lambda s: 1 / 0)\n"
        "class E(Exception, metaclass=M): pass\ndef f(x): raise E",
    ),
    "an exception of tests": ("f(1) == 1", "def f(x): raise ImportError('numpy')"),
    "lone surrogates": ("f(1) == 1", "def f(x): return '\\ud800'"),
    "lone surrogates in the source": ("f(1) == 1", "def f(x): return '\ud800'"),
    "a null byte": ("f(1) == 1", "def f(x): return 1\0"),
}


@pytest.mark.parametrize(("test", "program"), WRONG.values(), ids=WRONG.keys())
def test_no_program_chooses_a_failure(test: str, program: str) -> None:
    assert score([f"assert {test}"], program, seconds=0.2) == 0.0


def test_no_program_chooses_a_failure_by_a_built_in_name_of_its_check() -> None:
    tests = {"test": "def check(f):\n    assert all(f(x) for x in [1])", "entry_point": "f"}
    assert score(tests, "def all(xs): return True\ndef f(x): return 0") == 0.0


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


def test_tests_of_which_the_program_chooses_what_is_sent_are_still_invalid() -> None:
    with pytest.raises(CannotScore) as caught:
        score(["key = lambda x: x\nassert f([1], key) == [1]"], "def f(xs, key): return xs")
    assert caught.value.kind == "invalid"


def test_tests_that_call_a_function_without_its_name_are_invalid() -> None:
    tests = [{"input": "[1, 2]\n3", "output": "4", "testtype": "functional"}]
    with pytest.raises(CannotScore, match="fn_name is missing"):
        code(Prompt("p", [Message("user", "?")], answer=tests), "```python\nx = 1\n```")


def test_tests_may_lie_in_the_extra_info_of_a_row() -> None:
    prompt = Prompt("p", [Message("user", "?")], info={"extra_info": {"tests": ["assert add(1, 2) == 3"]}})
    assert code(prompt, "```python\ndef add(a, b):\n    return a + b\n```") == 1.0
