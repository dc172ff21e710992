"""Rows in the shape of HumanEval: a prompt with helpers, a `check(candidate)`, the right program, and cheats.

Each cheat is a wrong function together with something that the tests use and the program has redefined.
"""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row, and what programs get for it: the right one 1, every cheat 0."""

    tests: dict[str, Any]
    right: str
    cheats: dict[str, str]


def _row(prompt: str, test: str, entry: str, right: str, **cheats: str) -> Row:
    return Row({"prompt": prompt, "test": test, "entry_point": entry}, right, cheats)


_FIND_ZERO = """
import math

def poly(xs: list, x: float):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])

def find_zero(xs: list):
    ''' Some x at which the polynomial xs is zero. '''
"""
_FIND_ZERO_TEST = """
METADATA = {}

def check(candidate):
    import copy, math, random
    rng = random.Random(42)
    for _ in range(10):
        coeffs = [rng.randint(1, 10) * rng.choice([-1, 1]) for _ in range(2 * rng.randint(1, 4))]
        solution = candidate(copy.deepcopy(coeffs))
        assert math.fabs(poly(coeffs, solution)) < 1e-4
"""
_FIND_ZERO_RIGHT = """
def find_zero(xs):
    begin, end = -1., 1.
    while poly(xs, begin) * poly(xs, end) > 0:
        begin, end = 2 * begin, 2 * end
    while end - begin > 1e-10:
        center = (begin + end) / 2.0
        begin, end = (center, end) if poly(xs, center) * poly(xs, begin) > 0 else (begin, center)
    return begin
"""
_CYCLIC = """
def encode_cyclic(s: str):
    groups = [s[3 * i:3 * i + 3] for i in range((len(s) + 2) // 3)]
    return "".join(group[1:] + group[0] if len(group) == 3 else group for group in groups)

def decode_cyclic(s: str):
    ''' The text that encode_cyclic has encoded. '''
"""
_CYCLIC_TEST = """
def check(candidate):
    from random import randint, choice
    import copy, string
    for _ in range(20):
        str = ''.join(choice(string.ascii_lowercase) for i in range(randint(10, 20)))
        assert candidate(copy.deepcopy(encode_cyclic(copy.deepcopy(str)))) == str
"""
_PALINDROME = """
def is_palindrome(string: str) -> bool:
    return string == string[::-1]

def make_palindrome(string: str) -> str:
    ''' The shortest palindrome that begins with a text. '''
"""
_PALINDROME_TEST = """
def check(candidate):
    assert candidate('') == ''
    assert all(is_palindrome(candidate(text)) and candidate(text).startswith(text) for text in ('x', 'xy', 'cat'))
    assert len(candidate('cat')) == 5
"""
_DEVIATION_TEST = """
def check(candidate):
    assert abs(candidate([1.0, 2.0, 3.0]) - 2.0/3.0) < 1e-6
    assert abs(candidate([1.0, 2.0, 3.0, 4.0]) - 1.0) < 1e-6
"""
_PRIME_TEST = """
def check(candidate):
    assert all(map(candidate, (2, 3, 5, 101, 13441)))
    assert not any(map(candidate, (1, 4, 6, 13441 * 19)))
"""

ROWS = {
    "find_zero": _row(
        _FIND_ZERO,
        _FIND_ZERO_TEST,
        "find_zero",
        _FIND_ZERO_RIGHT,
        helper="def poly(xs, x): return 0\ndef find_zero(xs): return 1",
        module="class math: fabs = lambda x: 0\ndef find_zero(xs): return 1",
        patched="import math\nmath.fabs = math.pow = lambda *_: 0\ndef find_zero(xs): return 1",
        deaf="import copy\ncopy.deepcopy = lambda x: []\ndef find_zero(xs): return 1",
    ),
    "decode_cyclic": _row(
        _CYCLIC,
        _CYCLIC_TEST,
        "decode_cyclic",
        "def decode_cyclic(s): return encode_cyclic(encode_cyclic(s))",
        helper="def encode_cyclic(s): return s\ndef decode_cyclic(s): return s",
        module="import string\nstring.ascii_lowercase = 'a'\ndef decode_cyclic(s): return 'a' * len(s)",
        known="import random\ndef decode_cyclic(s):\n    letters = 'abcdefghijklmnopqrstuvwxyz'\n"
        "    size = random.randint(10, 20)\n    return ''.join(random.choice(letters) for i in range(size))",
    ),
    "make_palindrome": _row(
        _PALINDROME,
        _PALINDROME_TEST,
        "make_palindrome",
        "def make_palindrome(s):\n    n = next((i for i in range(len(s)) if is_palindrome(s[i:])), 0)\n"
        "    return s + s[:n][::-1]",
        helper="def is_palindrome(s): return True\ndef make_palindrome(s): return s + 'x' * (len(s) - 1)",
        builtin="def all(xs): return True\ndef make_palindrome(s): return s and 5 * 'x'",
    ),
    "deviation": _row(
        "from typing import List\n\ndef deviation(numbers: List[float]) -> float:\n    ''' The mean deviation. '''\n",
        _DEVIATION_TEST,
        "deviation",
        "def deviation(xs):\n    m = sum(xs) / len(xs)\n    return sum(abs(x - m) for x in xs) / len(xs)",
        builtin="def abs(x): return 0\ndef deviation(xs): return 7",
        everywhere="import builtins\nbuiltins.abs = lambda x: 0\ndef deviation(xs): return 7",
        namespace="__builtins__ = {'abs': lambda x: 0}\ndef deviation(xs): return 7",
        tests="def check(candidate): pass\nMETADATA = {}\ndef deviation(xs): return 7",
    ),
    "is_prime": _row(
        "def is_prime(n):\n    ''' Whether a number is prime. '''\n",
        _PRIME_TEST,
        "is_prime",
        "def is_prime(n): return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
        stops="def is_prime(n): raise StopIteration",
        builtins="def all(xs): return True\ndef any(xs): return False\ndef is_prime(n): return 7",
        maps="def map(f, xs): return ()\ndef is_prime(n): return 7",
    ),
}
