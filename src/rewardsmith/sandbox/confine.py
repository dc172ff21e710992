"""What a confined process gives up for good: privileges, files, resources, system calls. Loaded in the child.

Landlock (Linux 5.13 and later) takes its access to files. A filter (seccomp) allows a list of system calls, and
everything else fails with EPERM. The filter sees numbers alone, never what a pointer leads to, so it can refuse to open
for writing but cannot distinguish paths.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
import sys

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

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def prepare(isolation: str, folder: str) -> int:
    """Return a descriptor of Landlock's rules for a program, -1 without any; OSError if the isolation is missing."""
    if isolation == "limits":
        return -1
    missing = why_unsupported()
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
    prctl(_PR_SET_NO_NEW_PRIVS, 1)  # the filter needs it too
    header = _buffer(_CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4))
    _syscall(_CAPSET[os.uname().machine], header, _buffer(bytes(24)))  # no capability is left
    if rules >= 0:
        _syscall(_RESTRICT_SELF, rules, 0)
        os.close(rules)
    install_filter()


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def widen_stack() -> None:
    """Let the stack of the main thread grow, as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK if hard == resource.RLIM_INFINITY else min(hard, _STACK), hard))


def prctl(option: int, *arguments: int) -> None:
    """Change the behaviour of this process, or raise OSError."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(a) for a in padded)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


def _syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    result = int(
        libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# ---- files: Landlock ----------------------------------------------------------------------------------------------


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


# ---- system calls: seccomp ----------------------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the table below, and the kernel's name of the architecture."""

# fmt: off
# The calls by topic: name, number on x86_64, number on aarch64; -1 where an architecture has no such call.
# setrlimit is harmless: hard limits only go down.
_ALLOWED = {
    # memory
    "brk": (12, 214), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215), "membarrier": (324, 283),
    # open files
    "close": (3, 57), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "fadvise64": (221, 223), "fstat": (5, 80),
    "getdents64": (217, 61), "lseek": (8, 62), "pipe": (22, -1), "pipe2": (293, 59), "poll": (7, -1),
    "ppoll": (271, 73), "pread64": (17, 67), "pselect6": (270, 72), "read": (0, 63), "readv": (19, 65),
    "select": (23, -1), "write": (1, 64), "writev": (20, 66),
    # names of files, to look at
    "access": (21, -1), "chdir": (80, 49), "faccessat": (269, 48), "faccessat2": (439, 439), "getcwd": (79, 17),
    "lstat": (6, -1), "newfstatat": (262, 79), "readlink": (89, -1), "readlinkat": (267, 78), "stat": (4, -1),
    "statx": (332, 291),
    # this process and its threads
    "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "getcpu": (309, 168), "getegid": (108, 177),
    "geteuid": (107, 175), "getgid": (104, 176), "getpgid": (121, 155), "getpgrp": (111, -1), "getpid": (39, 172),
    "getppid": (110, 173), "getrlimit": (97, 163), "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178),
    "getuid": (102, 174), "rseq": (334, 293), "sched_getaffinity": (204, 123), "sched_yield": (24, 124),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setrlimit": (160, 164), "times": (100, 153),
    # signals to itself
    "alarm": (37, -1), "getitimer": (36, 102), "pause": (34, -1), "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134), "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "setitimer": (38, 103), "sigaltstack": (131, 132),
    # time, chance and the machine
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "getrandom": (318, 278),
    "gettimeofday": (96, 169), "nanosleep": (35, 101), "sysinfo": (99, 179), "time": (201, -1), "uname": (63, 160),
}
# fmt: on

_WRITING = 0o3 | os.O_CREAT | os.O_TRUNC | 0o20000000  # any access but reading; a temporary file
# Number, position of the argument, bits that must not be set.
_ALLOWED_WITHOUT = {
    "open": ((2, -1), 1, _WRITING),
    "openat": ((257, 56), 2, _WRITING),
}

_THREAD = 0x3D0F00  # the flags with which the C library starts a thread: shared memory, files, signals, same process
_OWN_PID = -1  # stands for the number of the process that the filter is made for
# Number, position of the argument, its values. The kernel reads 32 bits of each of these arguments.
_ALLOWED_WITH = {
    "clone": ((56, 220), 0, (_THREAD, _THREAD | 0x400000)),
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 1030)),  # duplicate, close on exec, read flags; no owner, lease or lock
    "ioctl": ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)),  # is it a terminal, its size, bytes to read
    "kill": ((62, 129), 0, (_OWN_PID,)),
    "prctl": ((157, 167), 0, (15, 0x53564D41)),  # names of threads and of memory
    "prlimit64": ((302, 261), 0, (0,)),  # of itself
    "tgkill": ((234, 131), 0, (_OWN_PID,)),
}

# The C library takes the older call, whose arguments the filter can read, where these do not exist.
_MISSING = {"clone3": (435, 435), "openat2": (437, 437)}

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_SET_SECCOMP, _MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]


def why_unsupported() -> str:
    """Return why this system has no filter, or ""."""
    machine = os.uname().machine
    if sys.platform != "linux":
        return f"system calls can be filtered on Linux only, and this is {sys.platform}"
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        return f"no filter of system calls is known for {machine}: {', '.join(_ARCHITECTURES)} have one"
    return ""


def build_filter(machine: str, pid: int) -> list[Instruction]:
    """Return the filter as instructions (code, jump if true, jump if false, value) for the process `pid`."""
    column, architecture = _ARCHITECTURES[machine]
    deny = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    # Another architecture numbers its calls differently (32-bit calls on x86): such a program is killed.
    filters = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]

    def when(numbers: tuple[int, int], *body: Instruction) -> None:
        if numbers[column] >= 0:
            filters.extend([(_EQUAL, 0, len(body), numbers[column]), *body])

    for numbers in _ALLOWED.values():
        when(numbers, allow)
    for numbers, position, bits in _ALLOWED_WITHOUT.values():
        when(numbers, (_LOAD, 0, 0, _argument(position)), (_ANY_BIT, 0, 1, bits), deny, allow)
    for numbers, position, values in _ALLOWED_WITH.values():
        tests = [(_EQUAL, 0, 1, pid if value == _OWN_PID else value) for value in values]
        body = [instruction for test in tests for instruction in (test, allow)]
        when(numbers, (_LOAD, 0, 0, _argument(position)), *body, deny)
    for numbers in _MISSING.values():
        when(numbers, (_RETURN, 0, 0, _ERRNO | _ENOSYS))
    return [*filters, deny]


def _argument(position: int) -> int:
    return 16 + 8 * position  # the lower half, on little-endian machines


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def install_filter() -> None:
    """Put this process, for good, under the filter; OSError where the kernel refuses."""
    instructions = build_filter(os.uname().machine, os.getpid())
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *i) for i in instructions))
    program = _Program(len(instructions), ctypes.addressof(packed))
    prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))
