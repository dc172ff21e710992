"""Rows in the shape of HumanEval: a prompt with helpers, a `check(candidate)`, the right program, and cheats.

Each cheat is a wrong function together with something that the tests use and the program has redefined.
"""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row, and what programs get for it: the right one 1, every cheat 0."""

    tests: dict[str, Any]
    right: str
    cheats: dict[str, str]


_FIND_ZERO = '''
import math


def poly(xs: list, x: float):
    """
    The value at x of the polynomial whose coefficients are xs, the constant first.
    """
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])


def find_zero(xs: list):
    """ Some x at which the polynomial xs is zero.
    There is an even number of coefficients, and the largest is not zero.
    """
'''

_FIND_ZERO_TEST = """
METADATA = {}


def check(candidate):
    import math
    import random
    rng = random.Random(42)
    import copy
    for _ in range(10):
        ncoeff = 2 * rng.randint(1, 4)
        coeffs = []
        for _ in range(ncoeff):
            coeff = rng.randint(-10, 10)
            if coeff == 0:
                coeff = 1
            coeffs.append(coeff)
        solution = candidate(copy.deepcopy(coeffs))
        assert math.fabs(poly(coeffs, solution)) < 1e-4
"""

_FIND_ZERO_RIGHT = """
def find_zero(xs):
    begin, end = -1., 1.
    while poly(xs, begin) * poly(xs, end) > 0:
        begin *= 2.0
        end *= 2.0
    while end - begin > 1e-10:
        center = (begin + end) / 2.0
        if poly(xs, center) * poly(xs, begin) > 0:
            begin = center
        else:
            end = center
    return begin
"""

_CYCLIC = '''
def encode_cyclic(s: str):
    """
    Moves the letters of each group of three one place to the left.
    """
    groups = [s[(3 * i):min((3 * i + 3), len(s))] for i in range((len(s) + 2) // 3)]
    groups = [(group[1:] + group[0]) if len(group) == 3 else group for group in groups]
    return "".join(groups)


def decode_cyclic(s: str):
    """
    The text that encode_cyclic has encoded.
    """
'''


def _decoding(name: str) -> str:
    return f"""
METADATA = {{}}


def check(candidate):
    from random import randint, choice
    import copy
    import string

    letters = string.ascii_lowercase
    for _ in range(20):
        str = ''.join(choice(letters) for i in range(randint(10, 20)))
        encoded_str = {name}(copy.deepcopy(str))
        assert candidate(copy.deepcopy(encoded_str)) == str
"""


_PALINDROME = '''
def is_palindrome(string: str) -> bool:
    """ Whether a text reads the same from both ends """
    return string == string[::-1]


def make_palindrome(string: str) -> str:
    """ The shortest palindrome that begins with a text """
'''

_PALINDROME_TEST = """
METADATA = {'author': 'x', 'dataset': 'test'}


def check(candidate):
    assert candidate('') == ''
    assert all(is_palindrome(candidate(text)) and candidate(text).startswith(text) for text in ('x', 'xy', 'cat'))
    assert len(candidate('cat')) == 5
"""

_DEVIATION = '''
from typing import List


def mean_absolute_deviation(numbers: List[float]) -> float:
    """ The mean distance of the numbers from their mean. """
'''

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

_PRIME = "def is_prime(n): return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))"


def _row(prompt: str, test: str, entry: str, right: str, **cheats: str) -> Row:
    return Row({"prompt": prompt, "test": test, "entry_point": entry}, right, cheats)


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
        _decoding("encode_cyclic"),
        "decode_cyclic",
        "def decode_cyclic(s): return encode_cyclic(encode_cyclic(s))",
        helper="def encode_cyclic(s): return s\ndef decode_cyclic(s): return s",
        known="import random\ndef decode_cyclic(s):\n"
        "    letters = 'abcdefghijklmnopqrstuvwxyz'\n"
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
    "mean_absolute_deviation": _row(
        _DEVIATION,
        _DEVIATION_TEST,
        "mean_absolute_deviation",
        "def mean_absolute_deviation(xs):\n    m = sum(xs) / len(xs)\n    return sum(abs(x - m) for x in xs) / len(xs)",
        builtin="def abs(x): return 0\ndef mean_absolute_deviation(xs): return 7",
        everywhere="import builtins\nbuiltins.abs = lambda x: 0\ndef mean_absolute_deviation(xs): return 7",
        namespace="__builtins__ = {'abs': lambda x: 0}\ndef mean_absolute_deviation(xs): return 7",
        tests="def check(candidate): pass\nMETADATA = {}\ndef mean_absolute_deviation(xs): return 7",
    ),
    "is_prime": _row(
        "def is_prime(n):\n    ''' Whether a number is prime '''\n",
        _PRIME_TEST,
        "is_prime",
        _PRIME,
        stops="def is_prime(n): raise StopIteration",
        builtins="def all(xs): return True\ndef any(xs): return False\ndef is_prime(n): return 7",
        maps="def map(f, xs): return ()\ndef is_prime(n): return 7",
    ),
}
