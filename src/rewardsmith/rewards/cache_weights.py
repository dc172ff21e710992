"""Which weights are behind the name of a served model: verdicts of others must not be taken for its own.

A model that has `fingerprint` gets a few fixed probes when it is first used, and after each `check`. Its replies are
compared with those that were kept: where they are alike, it is the model of then, and has that one's identity; where
none are, it is a new one. So other weights behind a name are noticed, and the old ones find their verdicts again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rewardsmith.llm import ModelCallError, ProbeReply
from rewardsmith.rewards.cache_file import VerdictCache
from rewardsmith.rewards.cache_packing import encoded
from rewardsmith.rewards.cache_tables import Fingerprint

TOLERANCE = 0.03
"""Numbers are alike whose difference has at most this share of their root mean square."""

UNPROBED = "unprobed"
"""Stands for the fingerprint of a model that refuses probes."""


def alike(one: Sequence[ProbeReply], other: Sequence[ProbeReply]) -> bool:
    """Whether two fingerprints are of the same weights, but for the noise of batches and kernels.

    Texts must be the same, and numbers close to each other. One of four written replies may differ: where two tokens
    are nearly as likely as each other, noise decides.
    """
    if len(one) != len(other):
        return False
    differing = sum(not _same(a, b) for a, b in zip(one, other, strict=True))
    return differing <= len(one) // 4


def _same(one: ProbeReply, other: ProbeReply) -> bool:
    if one.text != other.text:
        return False
    if not one.numbers or not other.numbers:
        return bool(one.text)
    if len(one.numbers) != len(other.numbers):
        return False
    distance = math.dist(one.numbers, other.numbers)
    return distance <= TOLERANCE * max(math.hypot(*one.numbers), math.hypot(*other.numbers))


class Weights:
    """Finds out which weights a model has.

    Args:
        model: any of `rewardsmith.llm`.
        cache: where fingerprints are kept.
    """

    def __init__(self, model: Any, cache: VerdictCache) -> None:
        self._model = model
        self._cache = cache
        self._known: dict[str, str] = {}
        self._finding: dict[str, asyncio.Task[str]] = {}

    def forget(self) -> None:
        """Probe again before the next question: a server that was away may be back with other weights."""
        self._known = {}

    async def identity(self, base: str, deadline: float) -> str:
        """Return what verdicts are kept under: the model's own identity, and which weights these are.

        Args:
            base: the identity that the model has by its settings.
            deadline: seconds for one probe.

        Raises:
            ModelCallError: the model cannot be asked now.
        """
        if not hasattr(self._model, "fingerprint"):
            return base
        if base in self._known:
            return self._known[base]
        running = self._finding.get(base)
        if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            running = self._finding[base] = asyncio.ensure_future(self._find(base, deadline))
            running.add_done_callback(lambda task: task.cancelled() or task.exception())  # somebody has looked
        return await asyncio.shield(running)  # who waits may be cancelled; the others still want to know

    async def _find(self, base: str, deadline: float) -> str:
        try:
            replies = tuple(map(_digested, await self._model.fingerprint(deadline)))
        except ModelCallError as error:
            if error.kind != "refused":
                raise
            self._cache.say(
                f"models.{self._model.name}: the server refuses the probes by which the verdict cache notices other"
                f" weights. Set models.{self._model.name}.version, and change it with the weights. Its reply:"
                f" {str(error)[:300]}"
            )
            self._known[base] = f"{UNPROBED}:{base}"
            return self._known[base]
        self._known[base] = base if not replies else await asyncio.to_thread(self._recognised, base, replies)
        return self._known[base]

    def _recognised(self, base: str, replies: tuple[ProbeReply, ...]) -> str:
        """Return the identity of the kept fingerprint that is like this one; if there is none, keep this one."""
        known = self._cache.fingerprints(base)
        for one in known:
            if alike(_unpacked(one.value), replies):
                return one.identity
        value = _packed(replies)
        digest = hashlib.sha256(value).hexdigest()[:12]
        new = Fingerprint(f"probed-{digest}:{base}", base, int(time.time()), value)
        self._cache.keep_fingerprint(new)
        self._tell_change(known)
        return new.identity

    def _tell_change(self, known: Sequence[Fingerprint]) -> None:
        verdicts = sum(held.verdicts for one in known for held in self._cache.holdings(one.identity))
        if not verdicts:
            return
        name = f"models.{self._model.name}"
        day = datetime.fromtimestamp(max(one.time for one in known)).strftime("%Y-%m-%d %H:%M")
        self._cache.say(
            f"warning: {name}: the server's replies to fixed probes are not those of {day}: there seem to be other"
            f" weights behind the same name. The {verdicts:,} verdicts of the others are not used. If the weights are"
            f" the same, and the replies vary by themselves, set {name}.version: then there are no probes"
        )


def _digested(reply: ProbeReply) -> ProbeReply:
    """Return a reply with a hash in place of its text: what a server wrote is nobody's business here."""
    if not reply.text:
        return reply
    data = reply.text.encode("utf-8", "surrogatepass")
    return ProbeReply(hashlib.sha256(data).hexdigest(), reply.numbers)


def _packed(replies: Sequence[ProbeReply]) -> bytes:
    return encoded([[reply.text, [round(number, 6) for number in reply.numbers]] for reply in replies])


def _unpacked(value: bytes) -> tuple[ProbeReply, ...]:
    """Return kept replies; () for what is none, which is like no other."""
    try:
        return tuple(ProbeReply(str(text), tuple(map(float, numbers))) for text, numbers in json.loads(value))
    except (ValueError, TypeError):
        return ()


__all__ = ["TOLERANCE", "Weights", "alike"]
