"""A service that is gone is waited for: the rollouts that it did not answer are asked again when it is back."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from rewardsmith.errors import UserError
from rewardsmith.types import Failure, Score

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds before a service is tried again: doubled each time, up to the second."""

BLAMED = 3
"""How often a rollout may find no answer while the service is there for others: then it is the rollout."""

Ask = Callable[[Sequence[int]], Awaitable[tuple[Sequence[Score], bool]]]
"""Scores some rollouts; also says whether a timeout among the failures may pass, as that of a client may."""


class Patience:
    """Waits for one service on behalf of all groups that need it.

    Args:
        wait: seconds that a group waits; 0 does not wait at all.
        check: raises while the service is gone; None where one can only try.

    Attributes:
        waiting: whether an outage has begun, and nobody was answered since.
    """

    def __init__(self, wait: float, check: Callable[[], Awaitable[None]] | None) -> None:
        self._wait = wait
        self._check = check
        self._answered = -math.inf  # when it last answered all that it was asked
        self._seen_up = -math.inf  # when the check last passed
        self.waiting = False
        self._probing: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def scores(
        self,
        first: tuple[Sequence[Score], bool],
        ask: Ask,
        tell: Callable[[Failure, float], None],
        back: Callable[[], None] = lambda: None,
    ) -> tuple[list[Score], bool]:
        """Return a score for each rollout, and whether the service answered nobody while we waited.

        Args:
            first: what the first `ask` for all rollouts returned.
            ask: scores the rollouts of these numbers.
            tell: called once when an outage begins, with what was seen and the seconds that we wait.
            back: called once when it is over.
        """
        scores, late = list(first[0]), first[1]
        gone = self._gone(scores, range(len(scores)), late, back)
        begun = since = time.monotonic()
        pause, blamed = FIRST_WAIT, 0
        while gone and self._wait and blamed < BLAMED:
            left = begun + self._wait - time.monotonic()
            if left <= 0:
                return scores, self._answered < begun and not blamed and not late
            self._tell(tell, scores[gone[0]], left)
            up = await self._back(min(pause, left), left, since)
            pause = min(2 * pause, LONGEST_WAIT)
            if up is False:
                continue
            tried = time.monotonic()
            found, late = await ask(gone)
            for i, answer in zip(gone, found, strict=True):
                scores[i] = answer
            asked, gone = gone, self._gone(scores, gone, late, back)
            since = time.monotonic()
            others = len(gone) < len(asked) or self._answered >= tried
            blamed += bool(gone) and (up is True or others or late)  # a service that is slow is tried a few times
        return scores, False

    def _gone(self, scores: Sequence[Score], asked: Sequence[int], late: bool, back: Callable[[], None]) -> list[int]:
        """Return which of those asked found nobody. Answers before an outage say nothing about what came after."""
        kinds = ("unreachable", "timeout") if late else ("unreachable",)
        gone = [i for i in asked if (why := scores[i].failure) is not None and why.kind in kinds]
        if not gone:
            if self.waiting:
                back()
            self._answered, self.waiting = time.monotonic(), False
        return gone

    def _tell(self, tell: Callable[[Failure, float], None], score: Score, left: float) -> None:
        if not self.waiting and score.failure is not None:
            self.waiting = True
            tell(score.failure, left)

    async def _back(self, pause: float, left: float, since: float) -> bool | None:
        """Wait a little; return whether the service is back, None where only trying tells."""
        if self._check is None:
            await asyncio.sleep(pause)
            return None
        async with self._one_at_a_time():  # one group finds out, for all
            if self._seen_up >= since:
                return True
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(left):
                    await self._check()
            except UserError:
                return None  # waiting does not mend it: asking again says what it is
            except (Exception, SystemExit):  # noqa: BLE001 whatever it is, it is not back
                return False
            self._seen_up = time.monotonic()
            return True

    def _one_at_a_time(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._probing is None or self._probing[0] is not loop:  # a lock belongs to one event loop
            self._probing = loop, asyncio.Lock()
        return self._probing[1]
