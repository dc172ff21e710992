"""A function of the user with its settings, and the texts that wait for it."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.types import Failure, Score


@dataclass(frozen=True)
class Call:
    """A function that workers can import, with its settings.

    Attributes:
        name: where the rule is, as `module:attribute`.
        arguments: its settings, as keyword arguments; they must be picklable.
        modules: heavy modules that the rule imports when it is called; the fork server imports them once.
        version: a module whose version changed is imported again.
        loader: empty for a rule. Else `module:function` of ours that gets the name and the arguments and returns the
            function to call: it takes two arguments, as a rule does, and returns JSON instead of a number.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    version: str = ""
    loader: str = ""

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.name if self.loader else f"the rule {self.name}"

    @cached_property
    def pickled(self) -> bytes:
        """All fields as bytes: the message for the fork server, and the identity of the call."""
        try:
            return pickle.dumps((self.name, dict(self.arguments), self.modules, self.version, self.loader))
        except Exception as error:  # a setting may be anything
            raise UserError(
                f"the settings of {self.title} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error


def version_of(target: Any) -> str:
    """Return the file of a function's module with its time and size, or "" without a file."""
    path = getattr(sys.modules.get(getattr(target, "__module__", "")), "__file__", None)
    try:
        status = os.stat(path or "")
    except OSError:
        return ""
    return f"{path}:{status.st_mtime_ns}:{status.st_size}"


@dataclass(frozen=True)
class JsonResult:
    """What a function that is not a rule returned."""

    value: Any


@dataclass(eq=False, slots=True)
class PendingText:
    """One text of a pending call.

    Attributes:
        call: the call it belongs to.
        index: its position there.
        text: the answer to score.
        tries: how often its worker was lost. From the first time on it is scored by a fresh worker that gets nothing
            else, so that the outcome is due to this text.
        exclusive: the fork server was lost with its worker; the next try runs while no other text does.
    """

    call: PendingCall
    index: int
    text: str
    tries: int = 0
    exclusive: bool = False

    def fail(self, kind: str, detail: str) -> None:
        """Set a failure as the score."""
        self.call.finish(self.index, Score(failure=Failure(kind, detail, attempts=self.tries + 1)))  # type: ignore[arg-type]


class PendingCall:
    """The distinct texts of one call of `Pool.score`.

    Attributes:
        call: the rule.
        argument: the prompt, or the first argument of a function that is not a rule; pickled.
        deadline: seconds per text.
        memory: MiB that a worker may use beyond what it had when it was forked.
        kind: texts of calls with an equal kind may be sent to a worker together.
        future: the outcomes, in the order of the texts.
    """

    def __init__(self, call: Call, argument: Any, texts: Sequence[str], deadline: float, memory: int) -> None:
        self.call = call
        self.argument = pickle.dumps(argument)
        self.deadline = deadline
        self.memory = memory
        self.texts = [PendingText(self, i, text) for i, text in enumerate(texts)]
        self.future: Future[list[Score | JsonResult]] = Future()
        try:
            self.kind: object = (call.pickled, deadline, memory)
        except UserError:
            self.kind = object()  # loading will fail
        self._outcomes: list[Score | JsonResult | None] = [None] * len(texts)
        self._left = len(texts)
        self._lock = threading.Lock()

    def finish(self, index: int, outcome: Score | JsonResult) -> None:
        """Set the outcome of one text; the first one counts. The last text resolves the future."""
        with self._lock:
            if self._outcomes[index] is not None:
                return
            self._outcomes[index] = outcome
            self._left -= 1
            if self._left:
                return
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_result([outcome for outcome in self._outcomes if outcome is not None])


def encode_task(chunk: Sequence[PendingText], number: int) -> bytes:
    """Return the message for a worker: the number of the rule, its memory cap, the distinct prompts and the texts."""
    prompts: dict[bytes, int] = {}
    texts = [(prompts.setdefault(item.call.argument, len(prompts)), item.text) for item in chunk]
    return pickle.dumps((number, chunk[0].call.memory, list(prompts), texts))
