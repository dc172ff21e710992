"""The pools that everything in this process shares."""

from __future__ import annotations

import os
import threading

from rewardsmith.rewards.pool.pool import Pool

_shared: dict[str, Pool] = {}
_shared_lock = threading.Lock()

MOST_WAITING = 32
"""Workers of the pool for functions that mostly wait, such as coroutines that ask a service."""


def shared(workers: int | None = None) -> Pool:
    """Return the pool of this process, made when first asked for.

    Args:
        workers: how many there may be from now on; None leaves the number as it is, at first one per processor.
    """
    pool = _pool("working", workers)
    if workers is not None:
        pool.resize(workers)
    return pool


def shared_waiting() -> Pool:
    """Return another pool of this process, for functions that mostly wait: it has more workers than processors."""
    return _pool("waiting", MOST_WAITING)


def _pool(kind: str, workers: int | None) -> Pool:
    with _shared_lock:
        found = _shared.get(kind)
        if found is None or found.closed:
            found = _shared[kind] = Pool(workers)
        return found


def _after_fork() -> None:
    """A forked child makes pools of its own."""
    global _shared_lock  # noqa: PLW0603 one per process is the point
    _shared.clear()
    _shared_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
