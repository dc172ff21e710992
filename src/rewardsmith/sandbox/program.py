"""The process in which a program's functions are called. Everything in it is the program's to change.

It replies to requests such as `{"op": "call", "on": ["o", 2], "args": […]}` with `{"value": …}` or `{"raise": […]}`. A
reply is believed as a value that the program returned, and as nothing else. Loaded in the child.
"""

from __future__ import annotations

import json
import operator
import sys
from itertools import islice

from .values import DEPTH, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_DETAIL = 500  # characters of an exception's message


class LoadedProgram:
    """A loaded program, and the objects of it that the other side refers to by number."""

    def __init__(self, sources: list[str]) -> None:
        module = type(sys)("solution")
        sys.modules["solution"] = module
        self._names = module.__dict__
        self._objects: list[Any] = []
        for source in sources:
            exec(compile(source, "program.py", "exec", dont_inherit=True), self._names)

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the value of a request, with the arguments that it changed in place, or what it raised."""
        try:
            on, sent = self._decode(request["on"]), request["args"]
            arguments = [self._decode(argument) for argument in sent]
            named = {name: self._decode(argument) for name, argument in request["named"].items()}
            if request["op"] == "name":
                value = self._names[on]
            elif request["op"] == "entry":  # a function, or as on LeetCode a method of the class Solution
                value = (self._names.get(on) or getattr(self._names["Solution"](), on))(*arguments)
            else:
                value = _OPERATIONS[request["op"]](on, *arguments, **named)
            changed = [
                after if isinstance(a, list | dict | set) and (after := self._encode(a, 4 * DEPTH)) != before else None
                for a, before in zip(arguments, sent, strict=True)
            ]
            return {"value": self._encode(value), "args": changed}
        except BaseException as error:  # noqa: BLE001 SystemExit is a reply too
            return {"raise": _described(error)}

    def _decode(self, data: object) -> Any:
        return decode(data, self._objects.__getitem__, 4 * DEPTH)

    def _encode(self, value: object, depth: int = DEPTH) -> Any:
        return encode(value, self._keep, depth)

    def _keep(self, value: object) -> list[object]:
        for number, known in enumerate(self._objects[:100]):  # classes and functions are requested again and again
            if known is value:
                return ["o", number]
        self._objects.append(value)
        return ["o", len(self._objects) - 1]


def _described(error: BaseException) -> list[str]:
    try:
        return [type(error).__name__, str(error)[:_DETAIL]]
    except BaseException:  # noqa: BLE001 an exception's own __str__ may raise
        return [type(error).__name__, ""]


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "call": lambda on, *arguments, **named: on(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "store": operator.setitem,
    "contains": operator.contains,
    "bool": bool,
    "len": len,
    "str": str,
    "repr": repr,
    "iter": iter,
    "next": next,
    "take": lambda on, count: list(islice(on, count)),
}


def serve_program(sources: list[str], receive: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
    """Load a program and reply for it until the other side is gone."""
    try:
        program = LoadedProgram(sources)
    except BaseException as error:  # noqa: BLE001 SystemExit too
        send(json.dumps({"raise": _described(error)}).encode())
        return
    send(b"{}")
    while request := receive():
        send(json.dumps(program.reply(json.loads(request))).encode())
