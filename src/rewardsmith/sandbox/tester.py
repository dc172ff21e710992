"""The process in which tests run. The program is in another one, so it cannot touch the tests or their verdict.

Tests see the program through a `Remote`: calling it sends a request to the other process. Data come back as themselves.
Anything else stays there and comes back as a `Remote`, which is equal to nothing but itself, whatever the program
defines as equality. Loaded in the child.
"""

from __future__ import annotations

import builtins
import json
from collections import deque
from contextlib import suppress
from functools import partial

from .values import DEPTH, MalformedValue, decode, encode, same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class BrokenTests(BaseException):
    """The tests cannot be run, whatever the program is."""


class ProgramError(Exception):
    """The program raised something that has no name of its own here."""


class Border:
    """Turns what tests do with a `Remote` into requests."""

    def __init__(self, exchange: Callable[[bytes], bytes]) -> None:
        self._exchange = exchange
        self._known: dict[int, Remote] = {}
        self.requests = 0

    def __call__(self, op: str, on: Any, *arguments: Any, **named: Any) -> Any:
        """Return what an operation gives in the program's process, or raise what it raised there."""
        self.requests += 1
        # What comes of a class is believed more than what a function returns, see `Remote`.
        made = on._made if isinstance(on, Remote) else op == "name" and on[:1].isupper()
        request = {
            "op": op,
            "on": _encode(on),
            "args": [_encode(a) for a in arguments],
            "named": {name: _encode(a) for name, a in named.items()},
        }
        try:
            reply = json.loads(self._exchange(json.dumps(request).encode()))
            if "raise" in reply:
                raise _raised(op, *reply["raise"])
            remote = partial(self._remote, made)
            for argument, changed in zip(arguments, reply["args"], strict=False):
                _update(argument, changed and decode(changed, remote, 4 * DEPTH))
            return decode(reply["value"], remote)
        except (TypeError, KeyError, RecursionError, json.JSONDecodeError) as error:
            if getattr(error, "of_program", False):
                raise
            raise MalformedValue("the program's process sent a malformed reply") from None

    def _remote(self, made: bool, number: int) -> Remote:
        if number not in self._known:
            self._known[number] = Remote(self, number, made)
        return self._known[number]


def _forward(op: str) -> Any:
    return lambda remote, *arguments, **named: remote._border(op, remote, *arguments, **named)


class Remote:
    """An object of the program, as the tests use it.

    `made`: it is a class, or comes of one: then the tests are about its methods, `__contains__` too. What a function
    returns contains what it yields, whatever its `__contains__` is.
    """

    __slots__ = ("_at", "_border", "_made")
    __call__, __getitem__, __setitem__ = _forward("call"), _forward("item"), _forward("store")
    __setattr__, __next__ = _forward("set"), _forward("next")
    __bool__, __len__, __str__, __repr__ = map(_forward, ("bool", "len", "str", "repr"))

    def __init__(self, border: Border, at: int, made: bool) -> None:
        object.__setattr__(self, "_border", border)
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_made", made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._border("get", self, name)

    def __contains__(self, value: object) -> bool:
        if self._made:
            return self._border("contains", self, value) is True
        return any(item is value or item == value for item in self)

    def __iter__(self) -> Iterator[Any]:
        iterator, count = self._border("iter", self), 1
        while items := self._border("take", iterator, count):  # a few first: the program's iterator may have no end
            yield from items
            count = min(2 * count, 1024)


def _encode(value: object) -> Any:
    return encode(value, _number, 4 * DEPTH)


def _number(value: object) -> list[object]:
    if isinstance(value, Remote):
        return ["o", value._at]
    if isinstance(value, list | tuple | set | frozenset | dict | deque):  # only a program nests values so deeply
        raise RecursionError("a value of the program is nested too deeply")
    raise BrokenTests(f"the tests hand the program a {type(value).__name__}, which cannot be sent to its process")


def _raised(op: str, name: str, message: str) -> Exception:
    kind = getattr(builtins, str(name), None)
    error: Exception = ProgramError(f"{name}: {message}")
    ends = name in ("StopIteration", "StopAsyncIteration") and op != "next"  # it would end a loop of the tests
    if isinstance(kind, type) and issubclass(kind, Exception) and not ends:
        with suppress(TypeError):  # UnicodeDecodeError and others want more than a message
            error = kind(message)
    error.of_program = True  # type: ignore[attr-defined]
    return error


def _update(argument: Any, changed: Any) -> None:
    """Do to the tests' own list, dictionary or set what the call has done to its copy."""
    if isinstance(argument, list) and isinstance(changed, list):
        argument[:] = changed
    elif isinstance(argument, dict | set) and type(changed) is type(argument):
        argument.clear()
        argument.update(changed)


class Tester:
    """Tests, each run on its own against one loaded program; `cases.py` writes the table `tests`."""

    def __init__(self, tests: dict[str, Any], exchange: Callable[[bytes], bytes]) -> None:
        self._tests = tests
        self._border = Border(exchange)
        self._requests_before = 0
        self._of_program: dict[str, Any] | None = None

    def verdict(self, index: int) -> bytes:
        """Return `pass`, `fail` or `broken` with the reason."""
        self._requests_before = self._border.requests
        try:
            passed = self._call(index) if "calls" in self._tests else self._run(self._tests["sources"][index])
            return b"pass" if passed else b"fail"
        except BrokenTests as error:
            return f"broken{error}".encode(errors="replace")
        except BaseException as error:  # noqa: BLE001 whatever a test raises, it has not passed
            if isinstance(error, ImportError) and not self._has_called():
                return f"broken{type(error).__name__}: {error}".encode(errors="replace")
            return b"fail"

    def _call(self, index: int) -> bool:
        """Return whether a call of the entry point returns one of the right values."""
        arguments, right = self._tests["calls"][index]
        value = self._border("entry", self._tests["entry"], *arguments)
        return any(same(value, expected, self._tests["tolerance"]) for expected in right)

    def _run(self, source: str) -> bool:
        """Run a test source to its end."""
        tests = self._tests
        namespace: dict[str, Any] = {"__name__": "tests"}
        try:
            compiled, setup, prompt = (
                compile(text, "test.py", "exec", dont_inherit=True)
                for text in (source, tests["setup"], tests["prompt"])
            )
            namespace |= {name: __import__(name) for name in tests["modules"]}
            exec(prompt, namespace)
        except BaseException as error:  # noqa: BLE001 SystemExit too
            raise BrokenTests(f"before the program is called: {type(error).__name__}: {error}") from None
        namespace |= self._names()
        try:
            exec(setup, namespace)
        except Exception as error:
            if isinstance(error, NameError) or self._has_called():  # the set-up uses the program, too
                raise
            raise BrokenTests(f"before the program is called: {type(error).__name__}: {error}") from None
        exec(compiled, namespace)
        if tests["entry"]:
            namespace["check"](self._names()[tests["entry"]])
        return True

    def _has_called(self) -> bool:
        """Return whether the program has had a part in this test, beyond the names that it defines."""
        return self._border.requests > self._requests_before

    def _names(self) -> dict[str, Any]:
        """Return what the tests take from the program, by name."""
        if self._of_program is None:
            self._of_program = {}
            for name in self._tests["names"]:
                try:
                    self._of_program[name] = self._border("name", name)
                except Exception:  # noqa: BLE001 a name that the program lacks is missing in the tests
                    if hasattr(builtins, name):  # else the tests would call the built-in one
                        self._of_program[name] = partial(_missing, name)
            self._requests_before = self._border.requests
        return self._of_program


def _missing(name: str, *_: object, **__: object) -> None:
    raise NameError(f"the program has no {name}")


def serve_tests(tests: dict[str, Any], receive: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
    """Run the tests whose numbers arrive; requests to the program's process leave with a `?`, verdicts with a `=`."""

    def exchange(request: bytes) -> bytes:
        send(b"?" + request)
        return receive()

    tester = Tester(tests, exchange)
    while index := receive():
        send(b"=" + tester.verdict(int(index)))
