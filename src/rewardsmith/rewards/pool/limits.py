"""What a child process may use, and with whom it dies. Where a system knows no such limit, there is none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

_LINUX = sys.platform == "linux"
_DIE_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)

MIB = 1 << 20


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; `parent` is the process id it must still have."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none can slip away."""
    _prctl(_ADOPT, 1)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children() -> set[int]:
    """Return the process ids of this process's children; empty where the system does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except (OSError, ValueError):
        return set()


def no_core_files() -> None:
    """Let a crash leave no file behind."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Usage:
    """The memory of this process, compared with what it had when this was made."""

    def __init__(self) -> None:
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY)  # kept open: it is read for each answer
        except OSError:
            self._statm = None
        self._space, self._peak = self._address_space(), _peak_memory()

    def cap(self, memory: int | None) -> None:
        """Let the address space grow by `memory` MiB; None lifts the cap. Only the soft limit, so that it can move."""
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = hard if memory is None or self._space is None else self._space + memory * MIB
            resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    def grown(self, memory: int) -> bool:
        """Return whether more than half of `memory` MiB is taken, or was; True when that cannot be seen any more."""
        half = memory * MIB // 2
        if _peak_memory() - self._peak > half:
            return True
        space = self._address_space()
        return self._space is not None and (space is None or space - self._space > half)

    def _address_space(self) -> int | None:
        """Return the bytes of address space in use, or None where the system does not tell."""
        if self._statm is None:
            return None
        try:
            return int(os.pread(self._statm, 100, 0).split()[0]) * resource.getpagesize()
        except (OSError, ValueError, IndexError):  # the rule closed it, perhaps
            return None


def _peak_memory() -> int:
    """Return the bytes that were resident at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def plain_signals() -> None:
    """Undo what imported modules did to signals; a closed pipe stays an exception, as Python has it."""
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - kept:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
