"""Rules that misbehave in many ways. The text is `deed` or `deed argument`."""

import ctypes
import os
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rewardsmith import Prompt
from rewardsmith.rewards import CannotScore

LEAKED: list[bytearray] = []


class RaisingError(Exception):
    def __str__(self) -> str:
        raise SystemExit("even this")


class NotTextError(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class LongError(Exception):
    def __str__(self) -> str:
        return "\U0001f600\x00\ud800" * 1_000_000


def act(prompt: Prompt, text: str, *, plus: float = 0.0) -> float:
    """Do what the text names; an answer of `good 3` is worth 3."""
    deed, _, argument = text.partition(" ")
    return DEEDS[deed](argument) + plus


def hang(argument: str) -> float:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001 it is meant to be stubborn
            continue


def deaf(argument: str) -> float:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return hang("")


def hoard(argument: str) -> float:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def recurse(argument: str) -> float:
    if argument:
        sys.setrecursionlimit(int(argument))
    return 1 + recurse("")


def write_at_once(path: str, text: str) -> None:
    """Write a file that another process waits for: it is not there until it is whole."""
    Path(f"{path}.part").write_text(text)
    os.replace(f"{path}.part", path)


def breed(argument: str) -> float:
    """Start a child, a child in a session of its own, and an orphan; write down their process ids; hang."""
    pids = []
    for apart in (False, True):
        pid = os.fork()
        if pid == 0:
            if apart:
                os.setsid()
                if os.fork() == 0:
                    write_at_once(f"{argument}.orphan", str(os.getpid()))
                else:
                    os._exit(0)
            time.sleep(600)
            os._exit(0)
        pids.append(pid)
    while not Path(f"{argument}.orphan").exists():
        time.sleep(0.01)
    write_at_once(argument, " ".join(map(str, [*pids, os.getpid()])))
    return hang("")


def patricide(argument: str) -> float:
    os.kill(os.getppid(), signal.SIGKILL)
    return hang("")


def sockets() -> list[int]:
    found = []
    for descriptor in range(3, 256):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                found.append(descriptor)
        except OSError:
            continue
    return found


def garble(argument: str) -> float:
    for descriptor in sockets():
        os.write(descriptor, argument.encode() * 100)
    return 1.0


def forge(argument: str) -> float:
    """Write in the name of the worker, in a well-formed frame."""
    body = argument.encode()
    for descriptor in sockets():
        os.write(descriptor, struct.pack("!Q", len(body)) + body)
    return hang("")


def child(argument: str) -> float:
    if os.fork() == 0:
        time.sleep(600)
    return 1.0


def twin(argument: str) -> float:
    """Return twice."""
    os.fork()
    return 1.0


def clone(argument: str) -> float:
    """Start a process as a C library would, without hooks. It keeps what this one has open."""
    pid = ctypes.CDLL(None).fork()
    if pid == 0:
        time.sleep(600)
    if argument:
        Path(argument).write_text(str(pid))
    return 1.0


def slow(argument: str) -> float:
    seconds, _, value = argument.partition(" ")
    time.sleep(float(seconds))
    return float(value)


def note(argument: str) -> float:
    """Leave a trace of each call."""
    with open(argument, "a") as file:
        file.write("x")
    return 1.0


def throw(argument: str) -> float:
    raise {
        "value": ValueError("\ud800 no"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "raising": RaisingError(),
        "not-text": NotTextError(),
        "long": LongError(),
        "huge": ValueError("x" * 10_000_000),
        "cannot": CannotScore("unparsable", "no verdict" + "!" * 5000),
        "odd-kind": CannotScore("no such kind", ""),  # type: ignore[arg-type]
        "memory": MemoryError(),
    }[argument]


DEEDS: dict[str, Callable[[str], float]] = {
    **{
        deed.__name__: deed
        for deed in (hang, deaf, hoard, recurse, breed, patricide, garble, forge, child, twin, clone, slow, note, throw)
    },
    "good": float,
    "power": lambda _: float(3 ** (3**19) % 7),
    "regex": lambda _: float(bool(re.match(r"(a+)+$", "a" * 60 + "b"))),
    "leave": lambda status: os._exit(int(status)),
    "segfault": lambda _: float(len(ctypes.string_at(0))),
    "leak": lambda size: LEAKED.append(bytearray(int(size) << 20)) or 1.0,
    "close": lambda _: os.closerange(0, 256) or 1.0,
    "alarm": lambda _: float(signal.setitimer(signal.ITIMER_REAL, 0.05) == (0.0, 0.0)),
    "mine": lambda _: threading.Timer(0.05, os._exit, [5]).start() or 1.0,  # it blows up a little later
    "thread": lambda _: threading.Thread(target=time.sleep, args=(600,), daemon=True).start() or 1.0,
    "process": lambda seconds: time.sleep(float(seconds or 0)) or float(os.getpid()),
    "environment": lambda names: float(not any(os.environ[name].strip("01") for name in names.split())),
}

VALUES = {
    "true": True, "numpy": np.float32(0.5), "zero-dimensional": np.array(2), "text": "1.0", "none": None,
    "nan": float("nan"), "infinite": np.inf, "large": 10**400, "array": np.ones(3),
}  # fmt: skip


def odd_value(prompt: Prompt, text: str) -> object:
    return VALUES[text]


async def later(prompt: Prompt, text: str) -> float:
    return 1.0
