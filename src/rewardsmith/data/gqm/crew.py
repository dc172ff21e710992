"""Rows made in this process, or by several others; in the order of the input either way."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context

from rewardsmith.data.gqm.inputs import Raw
from rewardsmith.data.gqm.making import Made, Maker
from rewardsmith.data.gqm.settings import GqmSettings
from rewardsmith.data.rows import RowError
from rewardsmith.errors import UserError

_CHUNK = 32  # rows that a process gets at once
_AHEAD = 3  # chunks for each process that are on their way

_maker: Maker | None = None  # of a process of ours


def make_all(
    rows: Iterable[Raw], settings: GqmSettings, limit: int, *, workers: int, only_check: Callable[[], bool]
) -> Generator[tuple[Raw, Made | RowError]]:
    """Yield each row with what became of it.

    Args:
        rows: of the input.
        settings: what is made.
        limit: the source key below which sources are held out.
        workers: processes; 1 does it here.
        only_check: is asked from time to time whether rows need only be checked.
    """
    if workers == 1:
        maker = Maker(settings, limit)
        for raw in rows:
            yield raw, maker.make(raw, only_check=only_check())
        return
    # Never forked: this process may have threads. What the others raise beside row errors is a bug, and shown as one.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(settings, limit))
    waiting: deque[tuple[list[Raw], Future[list[Made | RowError]]]] = deque()
    try:
        left = iter(rows)
        while True:
            while len(waiting) < _AHEAD * workers and (chunk := list(islice(left, _CHUNK))):
                with _no_interrupt():  # a process may start now
                    future = pool.submit(_make, chunk, only_check())
                waiting.append((chunk, future))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            yield from zip(chunk, future.result(), strict=True)
    except BrokenProcessPool:
        raise UserError(
            f"one of the {workers} processes died, perhaps for want of memory: use fewer --workers"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait. A process that is started meanwhile never gets it: that is the business of this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(settings: GqmSettings, limit: int) -> None:
    global _maker  # noqa: PLW0603 a process of the pool has no other place
    _maker = Maker(settings, limit)


def _make(chunk: list[Raw], only_check: bool) -> list[Made | RowError]:
    assert _maker is not None
    return [_maker.make(raw, only_check=only_check) for raw in chunk]


__all__ = ["make_all"]
