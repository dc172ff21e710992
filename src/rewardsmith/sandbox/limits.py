"""What a confined process may use, and the order in which it gives up the rest. Loaded in the child."""

from __future__ import annotations

import math
import os
import resource
import sys

from . import kernel, landlock, seccomp

FILES = 64
"""Descriptors that a program may have open at once."""

THREADS = 256
"""Threads at which a program is stopped; the host counts them, because the kernel's own limit is one per user."""

_STACK = 64 << 20  # bytes; deep recursion needs more than the usual 8 MiB


def ready(isolation: str, folder: str) -> int:
    """Return what the processes of one program share: a descriptor of Landlock's rules, -1 where there are none.

    Raises OSError with the remedy where this system cannot isolate in the way that is asked for.
    """
    if isolation == "limits":
        return -1
    missing = seccomp.supported()
    if missing:
        raise OSError(f'{missing}; isolation = "limits" runs programs with limits on their resources alone')
    if isolation == "syscalls":
        return -1
    try:
        return landlock.make_rules(landlock.readable(folder))
    except OSError as error:
        raise OSError(
            f'this kernel does not offer Landlock ({error}); isolation = "syscalls" does without: programs can then'
            " read the files that you can read"
        ) from None


def confine(isolation: str, rules: int, host: int, memory: int, seconds: float) -> None:
    """Take from this process what the isolation says; there is no way back. OSError or ValueError where it fails.

    Args:
        isolation: "full", "syscalls" or "limits".
        rules: what `ready` returned.
        host: id of the parent process, with which this one shall end.
        memory: bytes of address space.
        seconds: of processor time, over all threads.
    """
    whole = math.ceil(seconds) + 1
    for kind, most in (
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES),
    ):
        _lower(kind, most)
    if sys.platform == "linux":
        kernel.die_with_parent(host)
        _lower(resource.RLIMIT_AS, memory)  # elsewhere the kernel takes no notice of it
    if isolation == "limits":
        # On Linux this is the number of threads of all the user's processes, so threads are refused too. Without
        # effect for root.
        _lower(resource.RLIMIT_NPROC, 0)
        return
    kernel.drop_privileges()
    if rules >= 0:
        landlock.restrict(rules)
        os.close(rules)
    seccomp.install()


def widen_stack() -> None:
    """Let the stack of the main thread grow, as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    most = _STACK if hard == resource.RLIM_INFINITY else min(hard, _STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
