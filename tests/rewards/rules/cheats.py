"""Programs that do not know what `f(2)` is, and would like to pass their tests all the same."""

_EQUAL = """
class Equal:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = None
def f(x): return Equal()
"""

_SEARCH = """
import gc, os, sys
def f(x):
    texts = [repr(o) for o in gc.get_objects() if isinstance(o, (str, bytes, list, tuple, dict))]
    frame = sys._getframe()
    while frame:
        texts.append(repr(frame.f_locals))
        frame = frame.f_back
    for number in range(256):
        try: texts.append(repr(os.pread(number, 10**6, 0)))
        except OSError: pass
    secret = bytes.fromhex('733363726574').decode()  # not written out: the program would find itself
    return secret if any(secret in text for text in texts) else 0
"""

_FORGE = """
import os
def forge():
    for number in range(3, 64):
        try: os.write(number, {message}.__len__().to_bytes(4, 'big') + {message})
        except OSError: pass
forge()
def f(x): forge()
"""


def _answering(text: str) -> str:
    return f"import json\njson.dumps = lambda _: {text}\ndef f(x): return 1"


CHEATS = {
    "exits": "import sys\nsys.exit(0)",
    "exits when called": "import sys\ndef f(x): sys.exit(0)",
    "equal to everything": _EQUAL,
    "no assertion fails": "import builtins\nbuiltins.AssertionError = KeyError\ndef f(x): raise KeyError",
    "raises": "def f(x): raise StopIteration",
    "redefines what tests use": "def check(c): pass\nlen = abs = repr = lambda x: 's3cret'\ndef f(x): return 0",
    "looks for the answer": _SEARCH,
    "writes a verdict": _FORGE.format(message=b"=pass"),
    "writes an answer of the host": _FORGE.format(message=b"rpass"),
    "answers with rubbish": _answering("'{\"value\": '"),
    "answers with another shape": _answering('\'{"value": ["z", 1], "args": 7}\''),
    "says that the tests are broken": _answering('\'{"raise": ["ImportError", "numpy"]}\''),
    "answers with too much": "def f(x): return 'x' * 10**8",
    "never answers": "def f(x):\n    while True: pass",
    "another function": "def g(x): return 's3cret'",
    "hangs up": "import os, time\ndef f(x):\n    os.closerange(3, 99)\n    time.sleep(99)",
    "nests values as deeply as it can": "def f(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
}
