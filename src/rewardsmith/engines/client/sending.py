"""From a request to its answer: a place at one of the addresses, and another try after a fault that may pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rewardsmith.engines.client.addresses import Address, Limits, address_of, forget, take_place
from rewardsmith.engines.client.faults import Fault
from rewardsmith.engines.client.replies import tokens_of
from rewardsmith.engines.client.wire import Base, Patient, Wire
from rewardsmith.engines.settings import ClientSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError, Usage

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What is sent.

    Attributes:
        path: of the verb, below the address.
        payload: returns the body; called for each try.
        deadline: seconds from when it is first sent.
        tokens: expected to be read and written.
        root: the verb is no part of the versioned interface: `/classify`, not `/v1/classify`.
        mend: called once with a fault that would not pass and the body that caused it; returns whether `payload` has
            something better now.
    """

    path: str
    payload: Callable[[], Mapping[str, Any]]
    deadline: float
    tokens: float = 0.0
    root: bool = False
    mend: Callable[[Fault, Mapping[str, Any]], bool] = lambda _fault, _payload: False


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What came back.

    Attributes:
        value: as it was read.
        prompt_tokens: that the model read.
        tokens: that it wrote.
        seconds: from when it was first sent.
        attempts: how often it was sent.
    """

    value: T
    prompt_tokens: int
    tokens: int
    seconds: float
    attempts: int


class _Course:
    """How far one request has come: what was tried, and the time that is left."""

    def __init__(self, request: Request, settings: ClientSettings, spare: int) -> None:
        self.request = request
        self.sent = 0
        self.begun = 0.0
        self.until: float | None = None
        self.address: Address | None = None
        self.payload: Mapping[str, Any] = {}
        self._settings = settings
        self._again = 0
        self._mended = False
        self._moves = spare
        self._last: Fault | None = None

    @property
    def last(self) -> Fault:
        """What was seen last."""
        return self._last or Fault("timeout", "no address had a place")

    def begin(self, address: Address) -> None:
        """A place was found: the clock runs from the first of them."""
        self.address = address
        self.sent += 1
        if self.until is None:
            self.begun = _now()
            self.until = self.begun + self.request.deadline

    def pause(self, fault: Fault, others: bool) -> float:
        """Return the seconds until the next try.

        Args:
            fault: of the last one.
            others: whether there is another address that seems to live.

        Raises:
            ModelCallError: there is no next try.
        """
        assert self.until is not None
        left = self.until - _now()
        if left <= 0:
            raise self.late(fault)
        self._last = fault
        if fault.busy and (others or fault.after is None or fault.after < left):
            return 0.0  # the address itself holds all back; that is no fault of this request
        elsewhere = fault.kind == "unreachable" or fault.after is not None
        if elsewhere and others and self._moves > 0:  # a dead address costs nothing while another one lives
            self._moves -= 1
            return 0.0
        if not fault.passing and not self._mended and self.request.mend(fault, self.payload):
            self._mended = True
            return 0.0
        if not fault.passing or self._again >= self._settings.retries:
            raise self.end(fault.kind, str(fault))
        longest = min(self._settings.longest_backoff, self._settings.backoff * 2.0 ** min(self._again, 60))
        self._again += 1
        jitter = random.uniform(0, longest)
        if fault.after is not None and fault.after < left:
            return min(fault.after + jitter, (fault.after + left) / 2)
        if fault.after is not None or jitter >= left:
            asks = "" if fault.after is None else f"; it asks to wait {fault.after:.0f} s"
            raise self.end(fault.kind, f"{fault}{asks}; {left:.1f} s of {self.request.deadline:g} s are left")
        return jitter

    def late(self, fault: Fault) -> ModelCallError:
        """Return the end of a request whose time is over, with the last that was seen."""
        last = self._last
        before = f"; before that: {last}" if last is not None and last is not fault else ""
        # Who was gone, and was not seen since, is gone.
        kind = "unreachable" if last is not None and last.kind == "unreachable" else fault.kind
        return self.end(kind, f"no answer within {self.request.deadline:g} s: {fault}{before}")

    def end(self, kind: Any, detail: str) -> ModelCallError:
        """Return what the one who asked is told."""
        tries = f" ({self.sent} attempts)" if self.sent > 1 else ""
        return ModelCallError(kind, f"{detail}{tries}", attempts=max(1, self.sent))


class Sender:
    """Sends requests to the addresses of one model.

    Args:
        settings: how.
        bases: where to.
        key: returns the API key; raises `UserError` if it is missing.
        usage: where everything is counted.
        secrets: returns what else of a request is shown nowhere.
    """

    def __init__(
        self,
        settings: ClientSettings,
        bases: Sequence[Base],
        key: Callable[[], str | None],
        usage: Usage,
        secrets: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._settings = settings
        self.bases = list(bases)
        self._key = key
        self._secrets = secrets
        self._usage = usage
        self._wire: Wire | None = None
        self._joined: dict[Address, Base] = {}
        self._joined_in: asyncio.AbstractEventLoop | None = None
        self._joined_for: list[Base] = []

    async def wire(self) -> Wire:
        """Return the connections of the running event loop.

        Raises:
            UserError: the key is missing.
        """
        if self._wire is None or not self._wire.usable:
            self._wire = Wire(self._key(), self._secrets())
            await self._wire.open()
        return self._wire

    def addresses(self) -> dict[Address, Base]:
        """Return the addresses in the running event loop, joined."""
        loop = asyncio.get_running_loop()
        if self._joined_in is loop and self._joined_for is self.bases:
            return self._joined
        if self._joined_in is loop:
            self._leave()
        settings = self._settings
        limits = Limits(settings.concurrency, settings.requests_per_minute, settings.tokens_per_minute)
        self._joined, self._joined_in = {address_of(base.key): base for base in self.bases}, loop
        self._joined_for = self.bases
        for address in self._joined:
            address.join(self, limits)
        return self._joined

    def _leave(self) -> None:
        for address in self._joined:
            if address.leave(self):
                forget(address)
        self._joined, self._joined_in = {}, None

    async def close(self) -> None:
        """Close the connections and free the addresses; it may be used again."""
        if self._joined_in is asyncio.get_running_loop():
            self._leave()
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    async def call(self, request: Request, read: Callable[[Any], T]) -> Reply[T]:
        """Send until there is an answer that can be read, or no hope.

        Args:
            request: what is sent.
            read: from the answer's JSON to a value; raises `Fault`.

        Raises:
            ModelCallError: there is none.
        """
        try:
            await self.wire()  # a missing key is told before a place is waited for
            return await self._call(request, read)
        except ModelCallError:
            self._usage.failed += 1
            raise
        except UserError as error:
            self._usage.failed += 1
            raise ModelCallError("refused", str(error)) from None

    async def _call(self, request: Request, read: Callable[[Any], T]) -> Reply[T]:
        course = _Course(request, self._settings, spare=len(self.bases))
        while True:
            base = await self._place(course)
            self._usage.retries += course.sent > 1
            try:
                value, prompt_tokens, tokens = await self._once(course, base, read)
            except Fault as fault:
                now = _now()
                others = any(not each.avoided(now) for each in self.addresses() if each is not course.address)
                await asyncio.sleep(course.pause(fault, others))
                continue
            return Reply(value, prompt_tokens, tokens, _now() - course.begun, course.sent)

    async def _place(self, course: _Course) -> Base:
        """Take a place at an address that the model still has."""
        while True:
            try:
                async with asyncio.timeout_at(course.until):
                    address = await take_place(
                        self.addresses(), course.request.tokens, again=course.sent > 0, but=course.address
                    )
            except TimeoutError:
                raise course.late(course.last) from None
            base = self.addresses().get(address)
            if base is not None:
                course.begin(address)
                return base
            address.release(course.request.tokens, 0.0)

    async def _once(self, course: _Course, base: Base, read: Callable[[Any], T]) -> tuple[T, int, int]:
        """Send once; whatever happens, the place is given back."""
        address, request, usage, settings = course.address, course.request, self._usage, self._settings
        assert address is not None
        assert course.until is not None
        begun = _now()
        used: float | None = None
        try:
            wire = await self.wire()  # somebody may have closed it meanwhile
            course.payload = request.payload()
            patience = Patient(settings.connect, settings.first_byte, course.until)
            body = await wire.send(base, base.at(request.path, root=request.root), course.payload, patience)
            prompt_tokens, tokens = tokens_of(body)
            used = prompt_tokens + tokens or None
            usage.prompt_tokens += prompt_tokens
            usage.tokens += tokens
            usage.cost += (prompt_tokens * settings.price_in + tokens * settings.price_out) / 1e6
            value = read(body)
        except Fault as fault:
            where = "" if base.shown in str(fault) else f"{base.shown}: "
            fault.args = (wire.without_key(f"{where}{fault}"),)
            if fault.busy:
                address.overloaded(begun, fault.after)
            if fault.gone:
                address.failed()
            elif fault.kind in ("refused", "unparsable"):
                address.answered()
            if fault.kind != "timeout" and used is None:
                used = 0.0  # it was not worked on
            raise
        else:
            address.answered()
            address.eased()
            usage.calls += 1
            return value, prompt_tokens, tokens
        finally:
            usage.seconds += _now() - begun
            address.release(request.tokens, used)


def _now() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["Reply", "Request", "Sender"]
