"""What a confined process gives up: privileges, files (Landlock), resources, system calls. Loaded in the child.

Landlock is a part of Linux (5.13 and later) with which a process gives up its own access to files.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
import sys

from . import seccomp
from .seccomp import libc, prctl

SIGKILL = 9
"""The module `signal` has it too, but takes longer to import than everything else here together."""

MAX_FILES = 64
"""Descriptors that a program may have open at once."""

MAX_THREADS = 256
"""Threads at which a program is stopped; the host counts them, because the kernel's limit is one per user."""

_STACK = 64 << 20  # bytes; deep recursion needs more than the usual 8 MiB
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_GET_VERSION, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# All rights over files that each version of the interface has; a right that is listed and not granted is refused.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_SYSTEM_PATHS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom"),
)


def prepare(isolation: str, folder: str) -> int:
    """Return a descriptor of Landlock's rules for a program, -1 without any; OSError if the isolation is missing."""
    if isolation == "limits":
        return -1
    missing = seccomp.why_unsupported()
    if missing:
        raise OSError(f'{missing}; isolation = "limits" runs programs with limits on their resources alone')
    if isolation == "syscalls":
        return -1
    try:
        return _landlock_rules(folder)
    except OSError as error:
        raise OSError(
            f'this kernel does not offer Landlock ({error}); isolation = "syscalls" does without: programs can then'
            " read the files that you can read"
        ) from None


def confine(isolation: str, rules: int, host: int, memory: int, seconds: float) -> None:
    """Confine this process for good. OSError or ValueError where that fails."""
    _lower(resource.RLIMIT_CPU, math.ceil(seconds) + 1)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_NOFILE, MAX_FILES)
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != host:  # it ended before that
            os.kill(os.getpid(), SIGKILL)
        _lower(resource.RLIMIT_AS, memory)  # elsewhere the kernel ignores it
    if isolation == "limits":
        # On Linux it counts the threads of all the user's processes, so threads are refused too. No effect for root.
        _lower(resource.RLIMIT_NPROC, 0)
        return
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = _buffer(_CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4))
    _syscall(_CAPSET[os.uname().machine], header, _buffer(bytes(24)))  # no capability is left
    if rules >= 0:
        _syscall(_RESTRICT_SELF, rules, 0)
        os.close(rules)
    seccomp.install()


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def widen_stack() -> None:
    """Let the stack of the main thread grow, as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard == resource.RLIM_INFINITY else min(hard, _STACK), hard))


def _landlock_rules(folder: str) -> int:
    """Return a descriptor of the rule "read this folder, Python's library and the system's, and nothing else"."""
    version = _syscall(_CREATE_RULESET, 0, 0, _GET_VERSION)
    handled = [_FILE_RIGHTS[min(version, 5)]]
    if version >= 4:
        handled.append(0b11)  # TCP: bind, connect
    if version >= 6:
        handled.append(0b11)  # abstract sockets and signals, to processes outside
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules = _syscall(_CREATE_RULESET, _buffer(attributes), len(attributes), 0)
    paths = (folder, f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib", *sys.path, *_SYSTEM_PATHS)
    for path in filter(os.path.exists, paths):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
        _syscall(_ADD_RULE, rules, _PATH_BENEATH, _buffer(struct.pack("=Qi", rights, descriptor)), 0)
        os.close(descriptor)
    return rules


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


def _syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    result = int(
        libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
