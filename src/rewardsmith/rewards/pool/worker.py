"""The inside of a worker: takes answers, calls the rule, says what came of each before it looks at the next."""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.pool import limits
from rewardsmith.rewards.pool.wire import LONGEST_RESULT, Inbox, reply
from rewardsmith.types import Prompt

RuleFunction = Callable[[Prompt, str], float]

Answerer = Callable[[Any, str], tuple[Any, ...]]
"""A loaded function inside of `verdict` or `result`: returns what is said of an answer."""

MOST_SERVED = 20_000
"""Answers after which a worker is tired: what a rule's libraries leak stays bounded."""


def serve(connection: socket.socket, bell: int, rules: Sequence[Answerer], parent: int) -> None:
    """Serve until the other side hangs up.

    A task is `(number of the rule, MiB it may use, pickled prompts, [(number of the prompt, text), …])`. The replies
    are `begin`, and for each answer in order one of

        ["value", position, value, tired]
        ["result", position, JSON, tired]: of a function that is no rule
        ["failure", position, kind, detail, tired]
        ["memory", position]: the cap was reached

    After `memory`, and when it is tired, the worker ends: what it did so far must not harm the answers that follow.

    Args:
        connection: to the trainer.
        bell: file descriptor of a pipe. A byte says that the task is done, or that one answer is left: while the
            worker looks at that, the trainer reads what it said of the others.
        rules: the rules that were loaded when this worker was forked, with their settings.
        parent: process id of the nursery.
    """
    os.setsid()  # a group of its own: whatever the rule starts can be ended with it
    limits.die_with_parent(parent)
    limits.adopt_orphans()
    limits.plain_signals()
    # A child of the rule must not speak for the worker, nor keep its death from being heard.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=partial(os.close, bell))
    used = limits.Usage()
    served, prompt_bytes, prompt = 0, b"", None
    for number, memory, prompts, answers in _tasks(connection):
        connection.sendall(reply("begin"))
        used.cap(memory)
        for position, (which, text) in enumerate(answers):
            try:
                if prompts[which] != prompt_bytes:
                    prompt_bytes, prompt = prompts[which], pickle.loads(prompts[which])  # noqa: S301 from the trainer
                said = rules[number](prompt, text)
            except MemoryError:
                used.cap(None)
                connection.sendall(reply("memory", position))
                return
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the rule forgot must not hit its neighbour
            served += 1
            last = position + 1 == len(answers)
            tired = used.grown(memory) or served >= MOST_SERVED or (last and _has_company())
            message = reply(said[0], position, *said[1:], tired)
            if len(message) > LONGEST_RESULT:
                detail = f"it returned more than {LONGEST_RESULT >> 20} MiB"
                message = reply("failure", position, "crashed", detail, tired)
            if said[0] == "result":
                os.write(bell, b"!")  # what does not fit into the socket is read while it is sent
            connection.sendall(message)
            if tired:
                return
            if position + 2 >= len(answers):
                os.write(bell, b"!")
        used.cap(None)  # for the next task, however long it is


def _tasks(connection: socket.socket) -> Iterator[Any]:
    """Yield what is to be done, until the other side hangs up."""
    inbox = Inbox(longest=None)
    while True:
        while (body := inbox.take()) is None:
            data = connection.recv(1 << 16)
            if not data:
                return
            inbox.add(data)
        yield pickle.loads(body)  # noqa: S301 from the trainer


def _has_company() -> bool:
    """Return whether the rule left threads or processes behind: they end with the worker, and go on until then."""
    return threading.active_count() > 1 or bool(limits.children())


def result(function: Callable[[Any, str], Any], argument: Any, text: str) -> tuple[Any, ...]:
    """Return `("result", JSON)` or `("failure", kind, detail)`; a MemoryError is the caller's business."""
    try:
        return "result", function(argument, text)
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 whatever it raises, SystemExit too, is about this call alone
        return _failed(error)


def verdict(rule: RuleFunction, prompt: Any, text: str) -> tuple[Any, ...]:
    """Return `("value", v)` or `("failure", kind, detail)`; a MemoryError is the caller's business."""
    try:
        value: object = rule(prompt, text)
        if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):  # float() would read text
            raise TypeError(f"the rule returned {type(value).__name__}: it must return a number")
        number = float(value)
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 whatever a rule raises, SystemExit too, is about this answer alone
        return _failed(error)
    if not math.isfinite(number):
        return "failure", "invalid", f"the rule returned {number}"
    return "value", number


def _failed(error: BaseException) -> tuple[str, str, str]:
    try:
        failure = failure_of(error)
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 an exception may be as hostile as it likes
        return "failure", "crashed", "an exception that cannot be shown"
    return "failure", failure.kind, failure.detail
