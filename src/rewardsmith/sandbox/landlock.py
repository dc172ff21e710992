"""The files that a program may read: its own folder and the Python installation. Loaded in the child.

Landlock is a part of Linux (5.13 and later) with which a process gives up its own access to files.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from .kernel import syscall

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# All rights over files that each version of the interface knows; what is named here and not granted below is refused.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}

_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
)


def readable(folder: str) -> list[str]:
    """Return what a program may read: its folder, Python's library, and the system's libraries and time zones."""
    own = (folder, f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib", *sys.path)
    return [path for path in (*own, *_SYSTEM) if os.path.exists(path)]


def make_rules(paths: list[str]) -> int:
    """Return a descriptor of the rule "nothing but reading these paths"; OSError where the kernel has no Landlock."""
    version = syscall(_CREATE, 0, 0, _VERSION)
    handled = [_FILE_RIGHTS[min(version, 5)]]
    if version >= 4:
        handled.append(0b11)  # TCP: bind, connect
    if version >= 6:
        handled.append(0b11)  # abstract sockets and signals, to processes outside
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules = syscall(_CREATE, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)
    for path in paths:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rights = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
        beneath = struct.pack("=Qi", rights, at)
        syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.create_string_buffer(beneath, len(beneath)), 0)
        os.close(at)
    return rules


def restrict(rules: int) -> None:
    """Put this process, for good, under the rules; it must have given up new privileges before."""
    syscall(_RESTRICT, rules, 0)
