"""Calls to the Linux kernel that Python's library does not have. Loaded in the child: standard library only."""

from __future__ import annotations

import ctypes
import os

SIGKILL = 9
"""The module `signal` has it too, but takes longer to import than everything else here together."""

_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER = 1, 38, 36
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    """Return the result of a system call, or raise OSError with the cause."""
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *given))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def prctl(option: int, *arguments: int) -> None:
    """Change the behaviour of this process, or raise OSError."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if _libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(a) for a in padded)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; `parent` is the id that it should have."""
    prctl(_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), SIGKILL)


def ignore_interrupts() -> None:
    """Let Ctrl-C pass by: it reaches every process of the terminal, and what it means is the parent's to decide."""
    _libc.signal(ctypes.c_int(2), ctypes.c_void_p(1))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended."""
    prctl(_SUBREAPER, 1)


def drop_privileges() -> None:
    """Give up every capability, and the way to new ones; without effect on whose files may be read."""
    prctl(_NO_NEW_PRIVS, 1)
    header = ctypes.create_string_buffer(_CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4), 8)
    syscall(_CAPSET[os.uname().machine], header, ctypes.create_string_buffer(24))
