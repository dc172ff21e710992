"""The code rule: tests in every shape, programs that are right, wrong or dishonest, and failures that are not zeros."""

import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.code_rule import MAX_PROGRAM, choose, code, extract
from rewardsmith.sandbox import Sandbox
from rewardsmith.sandbox import sandbox as sandbox_module
from tests.rewards.rules.cheats import CHEATS

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")


def prompt(tests: Any, **info: Any) -> Prompt:
    return Prompt("p", [Message("user", "write a program")], answer=tests, info=info)


def score(tests: Any, program: str, **settings: Any) -> float:
    return code(prompt(tests), f"Here it is.\n```python\n{program}\n```\nDone.", **settings)


STDIN = {"inputs": ["1 2\n", "3 4\n", "5 5\n"], "outputs": ["3\n", "7\n", "10\n"]}
ADD = "print(sum(map(int, input().split())))"
F = "def f(a, b):\n    return a + b"
ASSERTS = ["assert f(1, 2) == 3", "assert f('a', 'b') == 'ab'", "assert f([1], [2]) == [1, 2]"]
CALLS = {"fn_name": "f", "inputs": [[1, 2], ["a", "b"], [[1], [2]]], "outputs": [3, "ab", [1, 2]]}
CHECK = {
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4",
    "entry_point": "f",
}

# Tests, a right program, a program that passes some of them, and the share that it passes.
SHAPES = {
    "stdin": (STDIN, ADD, "input()\nprint(3)", 1 / 3),
    "stdin, code contests": ({"input": STDIN["inputs"], "output": STDIN["outputs"]}, ADD, "print(7)", 1 / 3),
    "stdin, pairs": ([{"input": "1 2", "output": "3"}, {"input": "0 0", "output": "0"}], ADD, "print(0)", 0.5),
    "calls": (CALLS, F, "def f(a, b): return 3", 1 / 3),
    "calls with lists": (
        {"fn_name": "f", "inputs": [[[1], {"a": [2]}]], "outputs": [[1, 2]]},
        "def f(a, b):\n    a.append(b['a'].pop())\n    return a",
        "def f(a, b): return [2, 1]",
        0,
    ),
    "calls of a method": (CALLS, "class Solution:\n    def f(self, a, b): return a + b", "class Solution: pass", 0),
    "calls, lines of JSON": (
        [{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "fn_name": "f"}],
        "def f(a, b):\n    a.append(b)\n    return a",
        "def f(a, b): return a",
        0,
    ),
    "asserts": (ASSERTS, F, "def f(a, b): return 3", 1 / 3),
    "asserts, MBPP": (
        {"test_list": ["assert f(4) == math.sqrt(4)"], "test_setup_code": "import math", "test_imports": []},
        "def f(x): return x ** 0.5",
        "def f(x): return 1",
        0,
    ),
    "asserts, with objects of the program": (
        {"test_list": ["assert total(root) == 3"], "test_setup_code": "root = Node(1)\nroot.next = Node(2)"},
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
        "def total(n): return n.v + (total(n.next) if n.next else 0)",
        "def total(n): return 3",
        0,
    ),
    "check": (CHECK, F, "def f(a, b): return 3", 0),
    "check with the prompt's own functions": (
        {**CHECK, "prompt": "import math\ndef one(): return 1\ndef f(a, b):\n    'add'\n"},
        "def f(a, b): return a + b + one() - math.gcd(1, 1)",
        "",
        0,
    ),
}


@needs_linux
@pytest.mark.parametrize(("tests", "right", "other", "share"), SHAPES.values(), ids=SHAPES.keys())
def test_every_shape(tests: Any, right: str, other: str, share: float) -> None:
    text = f"```python\n{right}\n```"
    assert code(Prompt("p", [Message("user", "?")], answer="unused", info={"tests": tests}), text) == 1.0
    for form in (json.dumps(tests), tests):
        assert score(form, right) == 1.0
        assert score(form, other) == pytest.approx(share)


BROKEN = {
    "nothing": (None, "there are no tests"),
    "not JSON": ("assert f(1) == 2", "not JSON"),
    "an unknown table": ({"cases": []}, "no known shape"),
    "too few outputs": ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs and 1 outputs"),
    "arguments that are not JSON": ({"fn_name": "f", "inputs": ["x"], "outputs": ["1"]}, "not JSON"),
    "a name that is no text": ({"fn_name": 1, "inputs": [[]], "outputs": [1]}, "fn_name"),
    "a test that is not valid Python": (["assert f(1) =="], "not valid Python"),
    "no check": ({"test": "assert f(1)", "entry_point": "f"}, "no function check"),
    "no entry point": ({"test": "def check(c): pass"}, "entry_point"),
    "a module that is not there": (["import numpy\nassert numpy.all(f(1))"], "import 'numpy'"),
}


@pytest.mark.parametrize(("tests", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_tests_are_a_failure_whatever_the_answer(tests: Any, why: str) -> None:
    for text in ("```python\nprint(1)\n```", ""):
        with pytest.raises(CannotScore, match=why) as caught:
            code(prompt(tests), text)
        assert caught.value.kind == "invalid"


@needs_linux
@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (["class A: pass\nassert f(A())"], "the program a A"),
        (["assert f(lambda: 1)"], "program a function"),
        ({"test_list": ["assert f(1)"], "test_setup_code": "1 / 0"}, "ZeroDivisionError"),
        (["return f(1)"], "SyntaxError"),
        (["from math import nothing\nassert f(1)"], "ImportError"),
    ],
)
def test_tests_that_turn_out_to_be_broken_are_a_failure_too(tests: Any, why: str) -> None:
    with pytest.raises(CannotScore, match=why) as caught:
        score(tests, "def f(x): return True")
    assert caught.value.kind == "invalid"


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    change = "import jail.confine; jail.confine.why_unsupported = lambda: 'there is no filter'\nmain()"
    monkeypatch.setattr(
        sandbox_module, "_OPTIONS", tuple(option.replace("main()", change) for option in sandbox_module._OPTIONS)
    )
    sandbox_module.probe.cache_clear()
    with pytest.raises(CannotScore, match='there is no filter; isolation = "limits"') as caught:
        score(STDIN, ADD)
    assert caught.value.kind == "refused"


@needs_linux
def test_a_sandbox_that_breaks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    score(STDIN, ADD)
    start = Sandbox.run
    monkeypatch.setattr(Sandbox, "run", lambda self, text: self._host.kill() or start(self, text))
    with pytest.raises(CannotScore, match="the sandbox broke") as caught:
        score(STDIN, ADD)
    assert caught.value.kind == "crashed"


SECRET = [
    ["assert f(2) == 's3cret'"],
    ["assert len(f(2)) == len('s3cret') and repr(f(2)) == repr('s3cret')"],
    {"test": "def check(candidate):\n    assert candidate(2) == 's3cret'", "entry_point": "f"},
    {"fn_name": "f", "inputs": [[2]], "outputs": ["s3cret"]},
]


@needs_linux
@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS.keys())
def test_no_verdict_can_be_forged(program: str) -> None:
    assert [score(tests, program, seconds=0.4) for tests in SECRET] == [0.0] * len(SECRET)
    assert score(SECRET[0], "def f(x): return 's3cret'") == 1.0


@needs_linux
@pytest.mark.parametrize(
    ("test", "program"),
    [
        (
            "assert g(f(1)) == 0",
            "def f(x):\n    v = []\n    for _ in range(49): v = [v]\n    return v\ndef g(x): return 1",
        ),
        (
            "assert g([[f(1)]]) == 0",
            "def f(x):\n    v = []\n    for _ in range(99): v = [v]\n    return v\ndef g(x): return 1",
        ),
        ("assert eval(f(1)) == 0", "def f(x): return '(('"),
        ("assert __import__(f(1)) == 0", "def f(x): return 'nowhere'"),
        ("assert f(1) == 0", "def f(x): import nowhere"),
    ],
)
def test_no_program_can_pass_for_a_broken_test(test: str, program: str) -> None:
    assert score([test], program) == 0.0


@needs_linux
def test_a_script_cannot_find_its_expected_output() -> None:
    hostile = (
        "import gc, sys\nframe = sys._getframe()\nseen = repr(gc.get_objects()) + repr(sys.modules)\n"
        "while frame: seen += repr(frame.f_locals); frame = frame.f_back\n"
        "at = seen.find(bytes.fromhex('7333637265742d').decode())\nprint(seen[at:at + 10])"
    )
    assert score({"inputs": [""], "outputs": ["s3cret-921"]}, hostile) == 0.0


# Tests that use the program in other ways than calling a function with plain values.
USES = {
    "a class": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]",
        "s = Stack()\ns.push(3)\nassert len(s) == 1 and s[0] == 3 and s.items == [3] and 3 in s and s",
    ),
    "objects as arguments": (
        "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
        "def total(n): return n.v + (total(n.next) if n.next else 0)",
        "a = Node(1)\na.next = Node(2)\nassert total(a) == 3",
    ),
    "a generator": (
        "def f(n):\n    while True: yield n; n += 1",
        "from itertools import islice\nassert list(islice(f(3), 2)) == [3, 4]",
    ),
    "a changed argument": ("def f(xs): xs.sort()", "xs = [2, 1]\nassert f(xs) is None and xs == [1, 2]"),
    "an exception": (
        "def f(x): raise ValueError('no')",
        "try: f(1)\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert 0",
    ),
    "the name of a built-in function": ("def sum(a, b): return a * b", "assert sum(2, 3) == 6"),
    "two functions": ("def e(s): return s[::-1]\nd = e", "assert d(e('abc')) == 'abc' and e('ab') == 'ba'"),
    "an object is itself": ("class A: pass\na = A()\ndef f(): return a", "assert f() == f() and f() is a"),
    "an object is nothing else": ("class A: pass\ndef f(): return A()", "assert f() != f()"),
}


@needs_linux
@pytest.mark.parametrize(("program", "test"), USES.values(), ids=USES.keys())
def test_tests_may_use_a_program_in_many_ways(program: str, test: str) -> None:
    assert score([test], program) == 1.0


@needs_linux
@pytest.mark.parametrize(
    "tests", [ASSERTS * 2, {**CALLS, "inputs": CALLS["inputs"] * 2, "outputs": CALLS["outputs"] * 2}]
)
@pytest.mark.parametrize("fate", ["while True: pass", "import os; os._exit(0)", "raise SystemExit", "f(a, b)"])
def test_a_test_that_ends_the_program_costs_that_test_alone(tests: Any, fate: str) -> None:
    program = f"def f(a, b):\n    if a == 'a':\n        {fate}\n    return a + b"
    assert score(tests, program, seconds=0.5) == pytest.approx(4 / 6)


@needs_linux
def test_all_stops_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    start = Sandbox.run
    monkeypatch.setattr(Sandbox, "run", lambda self, text: (seen.append(text), start(self, text))[1])
    assert score(STDIN, "print(3)", reward="all") == 0.0
    assert seen[-2:] == STDIN["inputs"][:2]
    assert score(STDIN, ADD, reward="all") == 1.0


@needs_linux
def test_settings_reach_the_sandbox() -> None:
    assert score(STDIN, f"x = bytearray(200 << 20)\n{ADD}", memory=128) == 0.0
    assert score(STDIN, f"x = bytearray(200 << 20)\n{ADD}", memory=400) == 1.0
    long = {"inputs": [""], "outputs": ["x" * 1_500_000]}
    assert score(long, "print('x' * 1_500_000)", output=1) == 0.0
    assert score(long, "print('x' * 1_500_000)", output=2) == 1.0
    assert (
        score({"inputs": ["0", "9", "0"], "outputs": [""] * 3}, "import time\ntime.sleep(int(input()))", total=2)
        == 1 / 3
    )
    assert score({"inputs": [""], "outputs": ["2.0000001"]}, "print(2)", tolerance=1e-6) == 1.0
    assert score({"inputs": [""], "outputs": ["1 2"]}, "print('1\\n2')", whitespace="lines") == 0.0
    assert score(STDIN, ADD, isolation="limits") == 1.0
    tests = {"inputs": [str(i) for i in range(9)], "outputs": ["0"] * 9}
    assert score(tests, "n = int(input())\nprint(0 if n in (0, 4, 8) else 1)", max_tests=3) == 1.0


@given(st.integers(1, 500), st.integers(1, 500))
def test_chosen_tests_are_spread_evenly(count: int, limit: int) -> None:
    chosen = choose(count, limit)
    assert len(chosen) == min(count, limit)
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert chosen[-1] == (count - 1 if limit > 1 or count == 1 else 0)
    steps = [b - a for a, b in pairwise(chosen)]
    assert not steps or max(steps) - min(steps) <= 1


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a"), ("```Python3\na\n```", "a"), ("```py\na\n```\nthen\n```python\nb\n```", "b"),
        ("```python\na\n```\nOutput:\n```\nb\n```", "a"), ("```python\na\n```\n```bash\nb\n```", "a"),
        ("```\na\n```\nor\n```\nb\n```", "b"), ("a", "a"),
        ("  - so:\n    ```python\n    if a:\n        b\n    ```", "if a:\n    b"), ("```python\na", "a"),
        ("```python\na\n```\n```python\nb", "a"), ("```python\na\n```python\nb\n```", "b"),
        ("```python\nx = '''\n```js\n'''\n```", "x = '''\n```js\n'''"), ("```python title=x\na\n```", "a"),
        ("```cpp\na\n```", ""), ("use ```python\na", "a"), ("```python\n```", ""), ("", ""),
        ("```python\r\na\r\n```\r\n", "a\r"),
    ],
)  # fmt: skip
def test_the_program_in_an_answer(text: str, program: str) -> None:
    assert extract(text) == program


def test_an_answer_without_a_block_may_be_refused() -> None:
    assert extract("print(1)", unfenced=False) == ""
    assert extract("```python\nprint(1)\n```", unfenced=False) == "print(1)"
    assert code(prompt(STDIN), ADD, unfenced=False) == 0.0


def test_huge_answers_are_wrong_and_soon_read() -> None:
    for text in (
        "```python\n" + "x" * (MAX_PROGRAM + 1) + "\n```",
        "```\n" * 500_000,
        "`" * 5_000_000,
        "\n" * 3_000_000,
    ):
        assert code(prompt(STDIN), text) == 0.0
