"""The reward server: one aiohttp application around one reward, within bounds of size, time and number.

A failure is never a number: our own form has `value: null` and the failure, the forms of other systems, which have no
place for one, get status 503.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rewardsmith import __version__
from rewardsmith.errors import UserError
from rewardsmith.integrations.openrlhf_reward import openrlhf_table
from rewardsmith.integrations.server_metrics import ServerMetrics, Snapshot, render
from rewardsmith.integrations.server_openapi import openapi, page
from rewardsmith.integrations.server_protocols import (
    ScoreRequest,
    aggregate_metrics,
    failure_json,
    parse_openrlhf,
    parse_score_request,
    parse_verify,
    score_reply,
    verify_reply,
)
from rewardsmith.records import read_json
from rewardsmith.rewards.base import Halt
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import latencies, walk
from rewardsmith.types import Failure, RolloutGroup, ScoredGroup

RETRY_AFTER = 1
"""Seconds after which a client should come back."""

BODIES_IN_FLIGHT = 16
"""Bodies of the largest size that may be in memory together."""

Handler = Callable[[web.Request], Awaitable[web.Response]]


@dataclass(frozen=True)
class ServerLimits:
    """What one process accepts."""

    max_body: int = 16 * 2**20  # bytes
    max_in_flight: int = 4096  # rollouts that are accepted and have no reply yet
    concurrency: int = 256  # groups that are scored at a time
    deadline: float = 170.0  # seconds for a request; OpenRLHF waits for 180
    body_pause: float = 30.0  # seconds without a byte of a body after which it is given up


class Refusal(Exception):  # noqa: N818 it is a reply
    """A request that gets an error reply."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error": {"kind": kind, "message": message, **more}}


class RewardServer:
    """The application; `open` gives it the reward, `drain` lets it accept no more connections.

    `snapshots` returns the counts of all processes by their number; without it there is one.
    """

    def __init__(
        self,
        limits: ServerLimits,
        *,
        token: str | None = None,
        title: str = "reward",
        snapshots: Callable[[], Awaitable[Mapping[int, Snapshot]]] | None = None,
    ) -> None:
        self.limits = limits
        self.problem = "the reward is being loaded"  # why it is not ready
        self.draining = False
        self.requests = 0  # in progress
        self.metrics = ServerMetrics(self._gauges)
        self._token = None if token is None else hashlib.sha256(token.encode()).digest()
        self._title, self._snapshots = title, snapshots
        self._reward: Component | None = None
        self._rollouts = self._scoring = self._queued = self._body_bytes = 0
        self._slots = asyncio.Semaphore(limits.concurrency)

    def open(self, reward: Component) -> None:
        """Take the reward, whose check has passed; its failures are replies, and stop nothing."""
        for _, component in walk(reward):
            component.ignore_failures = component.unlimited = True
        self._reward, self.problem = reward, ""

    @property
    def ready(self) -> bool:
        """Whether requests are scored."""
        return self._reward is not None and not self.draining

    def application(self) -> web.Application:
        """Return the application with all its routes."""
        app = web.Application()
        for path, handler in {
            "/score": self._score,
            "/get_reward": self._get_reward,
            "/verify": self._verify,
            "/seed_session": self._seed_session,
            "/aggregate_metrics": self._aggregate_metrics,
        }.items():
            app.router.add_post(path, self._counted(path, handler))
        for path, handler in {
            "/ready": self._is_ready,
            "/reverify_mode": self._reverify_mode,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/docs": self._docs,
            "/": self._docs,
        }.items():
            app.router.add_get(path, self._counted(path, handler))
        app.router.add_get("/health", self._health)
        return app

    # ---- scoring -----------------------------------------------------------------------------------------------------

    async def _score(self, request: web.Request) -> web.Response:
        """Reply to our own form."""
        async with self._body(request) as body:
            parsed = parse_score_request(body)
            return _reply(score_reply(parsed, await self._scores(parsed)))

    async def _get_reward(self, request: web.Request) -> web.Response:
        """Reply to OpenRLHF, which has no place for a failure: any is status 503, and its reward stays None."""
        async with self._body(request) as body:
            answers = parse_openrlhf(body, request.query.get("source", ""))
            scored = await self._scores(ScoreRequest(answers.groups))
            _refuse_failures(scored)
            return _reply(openrlhf_table(answers.arrange([one.scores for one in scored])), allow_nan=True)

    async def _verify(self, request: web.Request) -> web.Response:
        """Reply to NeMo Gym. It would take a failure with a reward of 0, which is a number: it gets status 503."""
        async with self._body(request) as body:
            parsed = parse_verify(body, request.query.get("source", ""))
            scored = await self._scores(parsed)
            _refuse_failures(scored)
            return _reply(verify_reply(body, scored[0].scores[0]))

    async def _scores(self, request: ScoreRequest) -> list[ScoredGroup]:
        """Score the groups of a request, at most `concurrency` of all requests at a time, within the deadline."""
        count, limits = request.rollouts, self.limits
        if count > limits.max_in_flight:
            message = f"{count} answers in one request: at most {limits.max_in_flight} (--max-in-flight); split it"
            raise Refusal(413, "too_large", message)
        if self._rollouts + count > limits.max_in_flight:
            raise Refusal(429, "busy", f"{self._rollouts} answers are being scored: send it again later")
        seconds = min(limits.deadline, request.deadline or limits.deadline)
        until = asyncio.get_running_loop().time() + seconds
        self._rollouts += count
        try:
            if len(request.groups) == 1:
                results: list[Any] = [await self._scored(request.groups[0], until, seconds)]
            else:
                jobs = (self._scored(group, until, seconds) for group in request.groups)
                results = await asyncio.gather(*jobs, return_exceptions=True)
            scored: list[ScoredGroup] = []
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                scored.append(result)
        except Halt as error:
            raise Refusal(503, "stopped", str(error)) from None
        finally:
            self._rollouts -= count
        assert self._reward is not None
        self.metrics.scored(scored, latencies(self._reward))
        return scored

    async def _scored(self, group: RolloutGroup, until: float, seconds: float) -> ScoredGroup:
        """Return the scored group; what is not scored in time has failed."""
        reward = self._reward
        assert reward is not None
        try:
            async with asyncio.timeout_at(until):
                self._queued += 1
                try:
                    await self._slots.acquire()
                finally:
                    self._queued -= 1
                self._scoring += 1
                try:
                    return ScoredGroup(group, await reward.score(group))
                finally:
                    self._scoring -= 1
                    self._slots.release()
        except TimeoutError:
            waiting = [path or "reward" for path, component in walk(reward) if component.waiting]
            what = f"{', '.join(waiting)} did not respond within {seconds:g} s" if waiting else ""
            failure = Failure("unreachable" if waiting else "timeout", what or f"no scores within {seconds:g} s")
            return ScoredGroup(group, [reward.failed_score(failure)] * len(group.rollouts))

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _counted(self, endpoint: str, handler: Handler) -> Handler:
        """Return a handler with authorisation, error replies and counts."""

        async def handle(request: web.Request) -> web.Response:
            begun = time.perf_counter()
            self.requests += 1
            status = 499  # the client went away
            try:
                response = await self._answered(request, handler)
                status = response.status
            except Exception:
                status = 500  # a bug of ours, which aiohttp logs
                raise
            finally:
                self.requests -= 1
                self.metrics.request(endpoint, status, time.perf_counter() - begun)
            if self.draining:
                response.force_close()
            return response

        return handle

    async def _answered(self, request: web.Request, handler: Handler) -> web.Response:
        try:
            if request.path != "/ready" and not self._is_authorised(request):
                raise Refusal(401, "unauthorised", "send the token of the server: Authorization: Bearer TOKEN")
            return await handler(request)
        except Refusal as refusal:
            headers = {"Retry-After": str(RETRY_AFTER)} if refusal.status in (429, 503) else {}
            if refusal.status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return _reply(refusal.body, refusal.status, headers)
        except UserError as error:
            return _reply({"error": {"kind": "bad_request", "message": str(error)}}, 400)

    def _is_authorised(self, request: web.Request) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._token) and scheme.lower() == "bearer"

    def _body(self, request: web.Request) -> _Body:
        if self._reward is None:
            raise Refusal(503, "not_ready", self.problem)
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refusal(415, "unsupported", "send the body without Content-Encoding")
        if request.content_type != "application/json":  # a web page cannot send this type to another server unasked
            raise Refusal(415, "unsupported", "send JSON, with Content-Type: application/json")
        size = request.content_length
        if size is not None and size > self.limits.max_body:
            raise self.too_large()
        return _Body(self, request)

    def too_large(self) -> Refusal:
        """Return the refusal of a body."""
        return Refusal(413, "too_large", f"the body is larger than {self.limits.max_body} bytes (--max-body)")

    def reserve(self, size: int) -> None:
        """Take memory for a part of a body that has arrived."""
        if self._body_bytes + size > BODIES_IN_FLIGHT * self.limits.max_body:
            raise Refusal(429, "busy", "the requests in progress are too large together: send it again later")
        self._body_bytes += size

    def release(self, size: int) -> None:
        """Give it back."""
        self._body_bytes -= size

    # ---- the rest of Gym, and what operators read --------------------------------------------------------------------

    async def _seed_session(self, request: web.Request) -> web.Response:
        async with self._body(request):
            return _reply({})

    async def _aggregate_metrics(self, request: web.Request) -> web.Response:
        async with self._body(request) as body:
            return _reply(aggregate_metrics(body))

    async def _reverify_mode(self, request: web.Request) -> web.Response:
        return _reply("stateless")

    async def _health(self, request: web.Request) -> web.Response:
        return _reply({"live": True, "version": __version__})

    async def _is_ready(self, request: web.Request) -> web.Response:
        if self.ready:
            return _reply({"ready": True})
        problem = "the server is shutting down" if self.draining else self.problem
        shown = problem if self._is_authorised(request) else "the reward is not ready"
        raise Refusal(503, "not_ready", shown)

    async def _metrics(self, request: web.Request) -> web.Response:
        snapshots = {0: self.metrics.snapshot()} if self._snapshots is None else await self._snapshots()
        return web.Response(text=render(snapshots), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _openapi(self, request: web.Request) -> web.Response:
        return _reply(openapi(self._title))

    async def _docs(self, request: web.Request) -> web.Response:
        return web.Response(text=page(openapi(self._title)), content_type="text/html")

    def _gauges(self) -> dict[str, float]:
        return {
            "rollouts_in_flight": self._rollouts,
            "groups_scoring": self._scoring,
            "groups_queued": self._queued,
            "ready": int(self.ready),
        }


class _Body:
    """The JSON body of a request, whose memory is counted from its arrival until the reply is made."""

    def __init__(self, server: RewardServer, request: web.Request) -> None:
        self._server, self._request, self._size = server, request, 0

    async def __aenter__(self) -> Any:
        try:
            return read_json(await self._read())
        except TimeoutError:
            self._server.release(self._size)
            raise Refusal(408, "slow", "the body did not arrive in time") from None
        except BaseException:
            self._server.release(self._size)
            raise

    async def _read(self) -> bytes:
        limits, now = self._server.limits, asyncio.get_running_loop().time
        until, body = now() + limits.deadline, bytearray()
        async with asyncio.timeout_at(until) as timeout:
            while True:
                timeout.reschedule(min(until, now() + limits.body_pause))
                if not (part := await self._request.content.readany()):
                    return bytes(body)
                self._server.reserve(len(part))
                self._size += len(part)
                body += part
                if self._size > limits.max_body:
                    raise self._server.too_large()

    async def __aexit__(self, *_: object) -> None:
        self._server.release(self._size)


def _refuse_failures(scored: Sequence[ScoredGroup]) -> None:
    """Raise a 503 with the first failure if a score has none: the protocol has numbers only."""
    failures = [score.failure for group in scored for score in group.scores if score.failure is not None]
    if failures:
        count = sum(len(group.scores) for group in scored)
        message = f"no reward for {len(failures)} of {count} answers: {failures[0].kind}: {failures[0].detail}"
        raise Refusal(503, "failed", message, failures=[failure_json(one) for one in failures[:8]])


def _reply(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None, *, allow_nan: bool = False
) -> web.Response:
    data = json.dumps(body, allow_nan=allow_nan, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return web.Response(body=data, status=status, headers=headers, content_type="application/json")
