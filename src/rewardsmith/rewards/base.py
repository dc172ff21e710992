"""The reward protocol, how a reward reports that it cannot score, and the boundary where its exceptions are caught."""

from __future__ import annotations

import asyncio
import errno
import inspect
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, get_args

from rewardsmith.errors import UserError, where_raised
from rewardsmith.llm import ModelCallError
from rewardsmith.types import Failure, FailureKind, RolloutGroup, Score, ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.rewards.component import Component

MAX_REWARD = 1e30
"""A larger absolute value is a failure: sums and squares of such values are no longer numbers."""


class Reward(Protocol):
    """Scores a whole group at once: a ranking judge needs all of it, a rule scores one rollout after the other.

    A reward may have more than `score`:

    - `async check()` raises when the reward cannot work, before the first step and during an outage;
    - `connect(models)` gets a function from the name of a model in the recipe to the model, before anything else;
    - `require(prompt)` raises `CannotScore` if no rollout of this prompt could ever be scored;
    - `deadline`, seconds: then it enforces its deadline itself;
    - `whole`: the scores of a group depend on each other, so that after an outage the whole group is scored again;
    - `reads_ends`: it needs the character offsets of tokens (`Rollout.ends`);
    - `parts`: the names of the parts of its scores, so that a failed score has them too;
    - `async close()` closes what it has opened, such as connections;
    - `facts()`: what its verdicts depend on besides the settings, as JSON, for the record of a run;
    - `async learn(scored, part) -> metrics`, `save(folder)`, `load(folder)`, where it changes during a run: it learns
      from the groups of a step, after the policy has, under its own dotted name `part`, and nowhere else.
    """

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        """Return one score per rollout, in order. What could not be scored is a `Failure`, never a number."""
        ...


@dataclass(frozen=True)
class Part:
    """How a part of a composed reward enters the advantage: its factor, and γ of its stream (None: the estimator's)."""

    weight: float = 1.0
    discount: float | None = None


class Composed:
    """A reward that is made of others; only these have components."""

    components: Mapping[str, Component]
    streams: Mapping[str, Part] = MappingProxyType({})
    by_source: ClassVar[bool] = False  # whether the source of a prompt chooses among them

    def components_for(self, source: str) -> Iterable[Component]:
        """Return the components that score prompts of this source."""
        return self.components.values()


def parts_of(reward: Reward) -> Mapping[str, Part]:
    """Return the parts that may be reward streams of their own; a reward that is not a sum has none."""
    inner: object = getattr(reward, "reward", reward)
    return inner.streams if isinstance(inner, Composed) else {}


class CannotScore(Exception):  # noqa: N818 it is no error of the rule
    """Raised by a reward or rule that cannot score; it becomes a `Failure` of that kind."""

    def __init__(self, kind: FailureKind, detail: str, attempts: int = 1) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind
        self.attempts = attempts


class Halt(UserError):  # noqa: N818 the reward is at fault, not the program
    """The run must stop: no boundary turns this into a failure of a rollout. A checkpoint is saved first."""


async def score(reward: Reward, group: RolloutGroup) -> ScoredGroup:
    """Return the scored group; whatever the reward raises is a failure of each of its rollouts, except `Halt`."""
    try:
        return ScoredGroup(group, checked_scores(await started(reward, group), group))
    except BaseException as error:  # noqa: BLE001 a reward may be a user's own code
        return ScoredGroup(group, [Score(failure=caught(error))] * len(group.rollouts))


def started(reward: Reward, group: RolloutGroup) -> Awaitable[Any]:
    """Return the call of `score`, which must be awaited."""
    call: object = reward.score(group)
    if not inspect.isawaitable(call):
        raise TypeError("score() must be a coroutine: write `async def score(self, group)`")
    return call


def checked_scores(result: Any, group: RolloutGroup) -> list[Score]:
    """Return the scores that a reward returned, after checking that they are scores, one per rollout and bounded."""
    scores = list(islice(result, len(group.rollouts) + 1))
    if len(scores) != len(group.rollouts) or not all(isinstance(one, Score) for one in scores):
        kinds = ", ".join({type(one).__name__ for one in scores})
        raise TypeError(
            f"score() returned {len(scores)} values ({kinds}) for {len(group.rollouts)} rollouts: it must return one"
            " Score per rollout"
        )
    huge = Failure("invalid", f"the reward is beyond {MAX_REWARD:.0e}")
    return [Score(failure=huge, parts=one.parts) if abs(one.value or 0) > MAX_REWARD else one for one in scores]


def caught(error: BaseException) -> Failure:
    """Return the failure for what a reward raised; raise again what stops the run or cancels this task."""
    if must_propagate(error):
        raise error
    return failure_of(error)


def must_propagate(error: BaseException) -> bool:
    """Whether an exception is meant for the program: Ctrl-C, which only the main thread gets, or a cancelled task."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, asyncio.CancelledError):  # else a task of the reward's own was cancelled
        task = asyncio.current_task()
        return task is not None and bool(task.cancelling())
    return False


def may_pass(error: BaseException) -> bool:
    """Whether a client inside a reward timed out or got an error of the service, which a few retries may help.

    A failure that the reward reports itself is its decision.
    """
    error = _first(error)
    if isinstance(error, CannotScore | ModelCallError):
        return False
    kind = failure_of(error).kind
    return kind == "timeout" or (kind == "refused" and any(map(_is_temporary, _chain(error))))


# Class names of common clients; their packages need not be installed.
_NO_CONNECTION = frozenset(
    {"ConnectionError", "ClientConnectionError", "NetworkError", "APIConnectionError", "gaierror"}
    | {"ClientPayloadError", "RemoteProtocolError", "ChunkedEncodingError", "IncompleteRead"}  # lost midway
)
_NEVER_A_CONNECTION = frozenset(
    {"SSLCertVerificationError", "InvalidURL", "InvalidUrlClientError", "UnsupportedProtocol"}
)
_NOT_READABLE = frozenset({"ContentTypeError", "InvalidJSONError", "DecodingError", "ContentDecodingError"})
_NO_CONNECTION_IN_TIME = frozenset({"ConnectTimeout", "ConnectionTimeoutError"})
_TIMED_OUT = frozenset(
    {"TimeoutError", "Timeout", "TimeoutException", "ServerTimeoutError", "APITimeoutError", "TimeoutExpired"}
)
_GONE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ECONNREFUSED})

_PASSING = frozenset({408, 409, 425, 429, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""The HTTP status of a service that is overloaded or restarts, or of a proxy in front of one that is gone."""

_PERMANENT = frozenset({501, 505})
"""The HTTP status of a service that will never accept the request, although it is a 5xx."""


def failure_of(error: BaseException) -> Failure:
    """Return an exception as a failure with its cause; this raises nothing but a `Halt` that it finds inside."""
    error = _first(error)
    if isinstance(error, Halt):
        raise error
    known = isinstance(error, CannotScore | ModelCallError)
    kind = error.kind if isinstance(error, CannotScore | ModelCallError) else _kind(error)
    try:
        detail = str(error) if known else f"{type(error).__name__}: {error}{where_raised(error)}"
    except (Exception, SystemExit):  # noqa: BLE001 an exception's own __str__ may raise
        detail = f"{type(error).__name__} without a message"
    if kind not in get_args(FailureKind):
        return Failure("crashed", f"{kind!r} is no kind of failure: {detail}")
    return Failure(kind, detail, error.attempts if isinstance(error, CannotScore | ModelCallError) else 1)


def _first(error: BaseException) -> BaseException:
    """Return the exception that counts in a group of them: one that stops the run, or the first."""
    while isinstance(error, BaseExceptionGroup):
        error = (error.subgroup(Halt) or error).exceptions[0]
    return error


def _kind(error: BaseException) -> FailureKind:
    """Return the kind of failure of an exception, or of its cause."""
    causes = [(cause, {kind.__name__ for kind in type(cause).__mro__}) for cause in _chain(error)]
    if any(names & _NEVER_A_CONNECTION for _, names in causes):
        return "refused"  # waiting does not help
    return next((kind for cause in causes if (kind := _kind_of_one(*cause)) is not None), "crashed")


def _kind_of_one(error: BaseException, names: set[str]) -> FailureKind | None:
    """Return the kind of one exception by its HTTP status, or by the names of its classes; None if it is another."""
    if (status := _http_status(error)) is not None:
        return "unreachable" if status in _PASSING else "refused"
    kinds: dict[FailureKind, bool] = {
        "unparsable": bool(names & _NOT_READABLE),
        "unreachable": bool(names & _NO_CONNECTION_IN_TIME) or _attribute(error, "errno") in _GONE,
        "timeout": bool(names & _TIMED_OUT),
    }
    otherwise: FailureKind | None = "unreachable" if names & _NO_CONNECTION else None
    return next((kind for kind, found in kinds.items() if found), otherwise)


def _is_temporary(error: BaseException) -> bool:
    """Whether a service replied that the fault is its own."""
    status = _http_status(error)
    return status is not None and status >= 500 and status not in _PERMANENT


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, up to five."""
    cause: BaseException | None = error
    for _ in range(5):
        if cause is None:
            return
        yield cause
        reason = _attribute(cause, "reason")
        before = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or (reason if isinstance(reason, BaseException) else before)


def _http_status(error: BaseException) -> int | None:
    """Return the status of aiohttp (`status`), openai (`status_code`), requests and httpx (`response`), urllib."""
    response = _attribute(error, "response")
    for holder, name in ((error, "status"), (error, "status_code"), (response, "status_code"), (error, "code")):
        status = _attribute(holder, name)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return None


def _attribute(holder: object, name: str) -> object:
    """Return an attribute, None where there is none; an exception's own may raise anything."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001
        return None
