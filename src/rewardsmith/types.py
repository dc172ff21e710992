"""The nouns: what flows through a run, from a prompt to a scored group, and what reward models are trained on.

    Prompt --generate--> RolloutGroup --score--> ScoredGroup --collate--> Batch --update--> Update

All nouns are frozen and checked when they are made, so no later stage has to check again. Lists are accepted where
an array or a tuple is kept. `records.py` writes them to JSON lines and reads them back. A worked example:

    >>> prompt = Prompt("arith-7", [Message("user", "7+5-3?")], source="arithmetic", answer="9")
    >>> rollouts = [Rollout("7+5=12;12-3=9;#9"), Rollout("7+5=2", stop_reason="length")]
    >>> group = RolloutGroup(prompt, rollouts, policy_version=3)
    >>> scores = [Score(1.0), Score(failure=Failure("truncated", "stopped after 5 tokens"))]
    >>> [score.ok for score in ScoredGroup(group, scores).scores]
    [True, False]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

StopReason = Literal["stop", "length"]

FailureKind = Literal[
    "timeout",  # no answer within the deadline
    "unreachable",  # the service did not accept or finish the connection
    "refused",  # the service answered with an error, or the model declined
    "truncated",  # the answer was cut off by a length limit
    "unparsable",  # an answer came, but holds no verdict that can be read
    "invalid",  # a verdict was read, but lies outside what is allowed
    "crashed",  # the reward's own code raised, or its worker died
    "cancelled",  # the run stopped before the answer came
]

MAX_DETAIL = 2_000
"""Characters kept of a failure's detail: it may quote model output, which has no bound of its own."""


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed; equal to a plain one, and as easily pickled or written as JSON."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping belongs to a frozen noun: make a new noun with dataclasses.replace()")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        """Pickle by value: the default protocol would call `__setitem__`."""
        return FrozenDict, (dict(self),)


class _Noun:
    """Equality that understands arrays, and the assignment that `__post_init__` of a frozen class needs."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[_Noun], tuple[Any, ...]]:
        """Pickle by value: what is unpickled is checked, and its arrays are made read-only, once more."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)  # type: ignore[arg-type]
    return bool(a == b)


@dataclass(frozen=True, eq=False)
class Message(_Noun):
    """One turn of a chat.

    Attributes:
        role: who speaks: `system`, `user`, `assistant`, or another name that the chat template knows.
        content: the text.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        _require_text("Message.role", self.role, empty=False)
        _require_text("Message.content", self.content)


@dataclass(frozen=True, eq=False)
class Prompt(_Noun):
    """What a policy is asked, and what a reward needs to know about the right answer.

    Attributes:
        id: unique within its data set, for example `gsm8k-train-17`.
        messages: the chat up to the point where the policy speaks; at least one message.
        source: name of the data set or task; rewards are routed by it.
        answer: ground truth for rules and verifiers, any JSON value; None where there is none.
        info: whatever else came with the row, as JSON values: rubric, tests, reference translation, judge prompt.
    """

    id: str
    messages: Sequence[Message]
    source: str = ""
    answer: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_text("Prompt.id", self.id, empty=False)
        _require_text("Prompt.source", self.source)
        self._set("messages", _tuple_of("Prompt.messages", self.messages, Message))
        if not self.messages:
            raise ValueError(f"Prompt.messages of {self.id!r} is empty: a prompt needs at least one message")
        self._set("answer", _freeze("Prompt.answer", self.answer))
        _require("Prompt.info", self.info, Mapping)
        self._set("info", _freeze("Prompt.info", self.info))


@dataclass(frozen=True, eq=False)
class Rollout(_Noun):
    """One answer of the policy.

    Attributes:
        text: the decoded answer, without the end-of-sequence marker.
        tokens: int32 [T], the sampled token ids, the end-of-sequence token included. Empty where only the text is
            known, as for answers that another system wrote.
        logprobs: float32 [T], log-probability of each token under the sampling distribution; empty where unknown.
        stop_reason: `stop` when the policy ended the answer itself, `length` when the token limit cut it off.
    """

    text: str
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    stop_reason: StopReason = "stop"

    def __post_init__(self) -> None:
        _require_text("Rollout.text", self.text)
        tokens = _vector("Rollout.tokens", self.tokens, np.int32)
        logprobs = _vector("Rollout.logprobs", self.logprobs, np.float32)
        if len(logprobs) not in (0, len(tokens)):
            raise ValueError(f"Rollout has {len(tokens)} tokens but {len(logprobs)} logprobs: one for each, or none")
        if tokens.size and int(tokens.min()) < 0:
            raise ValueError(f"Rollout.tokens holds {int(tokens.min())}: a token id is not negative")
        # Rounding in a softmax may put a certain token a little above zero.
        if logprobs.size and float(logprobs.max()) > 1e-3:
            raise ValueError(f"Rollout.logprobs holds {float(logprobs.max())}: a log-probability is at most 0")
        if self.stop_reason not in get_args(StopReason):
            raise ValueError(f"Rollout.stop_reason is {self.stop_reason!r}: one of {get_args(StopReason)}")
        self._set("tokens", tokens)
        self._set("logprobs", logprobs)


@dataclass(frozen=True, eq=False)
class RolloutGroup(_Noun):
    """One prompt and all its rollouts. A reward always sees the whole group.

    Attributes:
        prompt: what was asked.
        rollouts: the n answers, at least one.
        policy_version: how many updates the policy had seen when it wrote them; bounds staleness.
    """

    prompt: Prompt
    rollouts: Sequence[Rollout]
    policy_version: int = 0

    def __post_init__(self) -> None:
        _require("RolloutGroup.prompt", self.prompt, Prompt)
        self._set("rollouts", _tuple_of("RolloutGroup.rollouts", self.rollouts, Rollout))
        if not self.rollouts:
            raise ValueError(f"RolloutGroup of prompt {self.prompt.id!r} has no rollouts: it needs at least one")
        _require_count("RolloutGroup.policy_version", self.policy_version, least=0)


@dataclass(frozen=True, eq=False)
class Failure(_Noun):
    """Why there is no score.

    Attributes:
        kind: the cause, one of `FailureKind`.
        detail: what was seen, for a person to read; cut to `MAX_DETAIL` characters. It may quote hostile text: what is
            no Unicode is replaced, never refused, so that reporting a failure cannot fail.
        attempts: how many times it was tried.
    """

    kind: FailureKind
    detail: str = ""
    attempts: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(FailureKind):
            raise ValueError(f"Failure.kind is {self.kind!r}: one of {', '.join(get_args(FailureKind))}")
        _require("Failure.detail", self.detail, str)
        self._set("detail", _unicode(self.detail[:MAX_DETAIL]))
        _require_count("Failure.attempts", self.attempts, least=1)


@dataclass(frozen=True, eq=False)
class Score(_Noun):
    """What a reward says of one rollout: a finite value or a failure, never both and never neither.

    Attributes:
        value: the reward, finite; None exactly when `failure` is set.
        failure: why there is no value; None exactly when `value` is set.
        parts: the named scores that this one was composed of; each has a value or a failure of its own. The names
            are there even when this score failed, so that metrics and files keep one schema.
        token_values: float32 [T], a reward per token for rewards that give one; None for outcome rewards.
        token_support: bool [T], which tokens carry a reward of their own, such as the ends of steps; None when all do.
            Only with `token_values`.
        feedback: what a judge wrote, for people and for the rollouts file.
    """

    value: float | None = None
    failure: Failure | None = None
    parts: Mapping[str, Score] = field(default_factory=dict)
    token_values: NDArray[np.float32] | None = None
    token_support: NDArray[np.bool_] | None = None
    feedback: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failure is None):
            raise ValueError(
                f"Score has value {self.value!r} and failure {self.failure!r}: give exactly one of the two"
            )
        if self.value is not None:
            self._set("value", _finite("Score.value", self.value))
        if self.failure is not None:
            _require("Score.failure", self.failure, Failure)
        _require("Score.parts", self.parts, Mapping)
        for name, part in self.parts.items():
            _require_text("a name in Score.parts", name, empty=False)
            _require(f"Score.parts[{name!r}]", part, Score)
        self._set("parts", FrozenDict(self.parts))
        if _depth(self) > _MAX_PARTS:
            raise ValueError(f"Score.parts are nested deeper than {_MAX_PARTS} levels")
        if self.token_values is not None:
            if self.failure is not None:
                raise ValueError("Score.token_values is given for a failed score: a failure has no values")
            self._set("token_values", _vector("Score.token_values", self.token_values, np.float32))
        if self.token_support is not None:
            self._set("token_support", _flags("Score.token_support", self.token_support))
            if self.token_values is None or len(self.token_values) != len(self.token_support):
                raise ValueError("Score.token_support has no token_values of its length: they go together")
        _require("Score.feedback", self.feedback, str)
        self._set("feedback", _unicode(self.feedback))

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.failure is None

    def named_parts(self, prefix: str = "") -> Iterator[tuple[str, Score]]:
        """Yield every part, outer before inner, with its dotted name, such as `judge` and then `judge.rubric`."""
        for name, part in self.parts.items():
            yield f"{prefix}{name}", part
            yield from part.named_parts(f"{prefix}{name}.")


@dataclass(frozen=True, eq=False)
class ScoredGroup(_Noun):
    """A group with one score per rollout; all scores have the same part names.

    Attributes:
        group: the rollouts.
        scores: one per rollout, in the same order.
    """

    group: RolloutGroup
    scores: Sequence[Score]

    def __post_init__(self) -> None:
        _require("ScoredGroup.group", self.group, RolloutGroup)
        self._set("scores", _tuple_of("ScoredGroup.scores", self.scores, Score))
        if len(self.scores) != len(self.group.rollouts):
            raise ValueError(
                f"ScoredGroup of prompt {self.group.prompt.id!r} has {len(self.group.rollouts)} rollouts"
                f" but {len(self.scores)} scores: a reward returns one score per rollout"
            )
        schema = [name for name, _ in self.scores[0].named_parts()]
        for i, (score, rollout) in enumerate(zip(self.scores, self.group.rollouts, strict=True)):
            names = [name for name, _ in score.named_parts()]
            if set(names) != set(schema):
                raise ValueError(
                    f"ScoredGroup.scores[{i}] has parts {sorted(names)} but scores[0] has {sorted(schema)}:"
                    " every rollout of a group keeps the same part names, failed or not"
                )
            for name, part in (("", score), *score.named_parts()):
                if part.token_values is not None and len(part.token_values) != len(rollout.tokens):
                    raise ValueError(
                        f"ScoredGroup.scores[{i}]{'.' if name else ''}{name}: {len(part.token_values)} token_values"
                        f" for a rollout of {len(rollout.tokens)} tokens"
                    )


@dataclass(frozen=True, eq=False)
class Demonstration(_Noun):
    """A prompt with an answer to imitate.

    Attributes:
        prompt: what was asked.
        response: the answer to imitate, not empty.
    """

    prompt: Prompt
    response: str

    def __post_init__(self) -> None:
        _require("Demonstration.prompt", self.prompt, Prompt)
        _require_text("Demonstration.response", self.response, empty=False)


@dataclass(frozen=True, eq=False)
class Preference(_Noun):
    """Two answers to one prompt, one better than the other or both alike.

    Attributes:
        prompt: what was asked.
        chosen: the better answer.
        rejected: the other one.
        margin: by how much the first is better, at least 0, in the unit of the annotation; 0 where unknown.
        tied: True when neither is better; `margin` is 0 then.
    """

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0
    tied: bool = False

    def __post_init__(self) -> None:
        _require("Preference.prompt", self.prompt, Prompt)
        _require_text("Preference.chosen", self.chosen)
        _require_text("Preference.rejected", self.rejected)
        self._set("margin", _finite("Preference.margin", self.margin))
        _require("Preference.tied", self.tied, bool)
        if self.margin < 0:
            raise ValueError(f"Preference.margin is {self.margin}: swap chosen and rejected instead")
        if self.tied and self.margin:
            raise ValueError(f"Preference.margin is {self.margin} in a tied pair: a tie has margin 0")


@dataclass(frozen=True, eq=False)
class Ranking(_Noun):
    """Several answers to one prompt with a quality score each: what a group ranker is trained on.

    Attributes:
        prompt: what was asked.
        candidates: at least two answers.
        scores: float64 [n], one finite score per candidate, higher is better; equal scores are ties.
        analysis: the annotator's comparison, "" where there is none.
    """

    prompt: Prompt
    candidates: Sequence[str]
    scores: NDArray[np.float64]
    analysis: str = ""

    def __post_init__(self) -> None:
        _require("Ranking.prompt", self.prompt, Prompt)
        self._set("candidates", _tuple_of("Ranking.candidates", self.candidates, str))
        for i, candidate in enumerate(self.candidates):
            _require_text(f"Ranking.candidates[{i}]", candidate)
        self._set("scores", _vector("Ranking.scores", self.scores, np.float64))
        _require_text("Ranking.analysis", self.analysis)
        if len(self.candidates) < 2:
            raise ValueError(f"Ranking of prompt {self.prompt.id!r} has {len(self.candidates)} candidates: at least 2")
        if len(self.candidates) != len(self.scores):
            raise ValueError(
                f"Ranking of prompt {self.prompt.id!r} has {len(self.candidates)} candidates"
                f" but {len(self.scores)} scores"
            )


# ---- checks used above ---------------------------------------------------------------------------------------------


def _require(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be {kind.__name__}")


def _require_text(name: str, value: object, *, empty: bool = True) -> None:
    _require(name, value, str)
    assert isinstance(value, str)
    if not empty and not value:
        raise ValueError(f"{name} is empty")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} has a lone surrogate at character {error.start}: it is not Unicode") from None


def _require_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be int")
    if not least <= value < 2**63:
        shown = str(value) if abs(value) < 2**64 else f"an integer of {value.bit_length()} bits"
        raise ValueError(f"{name} is {shown}: it must be at least {least}, and fit 64 bits")


def _finite(name: str, value: object) -> float:
    """Return `value` as a Python float; refuse anything that is not a finite number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: it must fit a float") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: it must be finite; what cannot be scored is a Failure, not a number")
    return number


def _tuple_of(name: str, values: object, kind: type) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} is of type {type(values).__name__}: it must be a list or tuple")
    for i, value in enumerate(values):
        _require(f"{name}[{i}]", value, kind)
    return tuple(values)


def _vector(name: str, values: ArrayLike, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a read-only one-dimensional copy of `values` in `dtype`, checked to hold the same finite numbers."""
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} cannot be read as numbers: {error}") from None
    if given.size == 0:
        given = np.empty(0, dtype)
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}: it must have one dimension")
    if given.dtype.kind not in "iuf" or (np.issubdtype(dtype, np.integer) and given.dtype.kind == "f"):
        raise TypeError(f"{name} has dtype {given.dtype}: it must convert to {np.dtype(dtype).name}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        at = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ValueError(f"{name}[{at}] is {given[at]}: it must be finite")
    with np.errstate(over="ignore"):
        vector = given.astype(dtype, copy=True)
    exact = (vector == given).all() if np.issubdtype(dtype, np.integer) else np.isfinite(vector).all()
    if not exact:
        raise ValueError(f"{name} holds a value that does not fit {np.dtype(dtype).name}")
    vector.flags.writeable = False
    return vector


_MAX_PARTS = 16


def _depth(score: Score) -> int:
    return 1 + max((_depth(part) for part in score.parts.values()), default=0)


def _flags(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    """Return a read-only one-dimensional copy of bools."""
    flags = np.array(values)
    if flags.ndim != 1 or (flags.size and flags.dtype != np.bool_):
        raise ValueError(f"{name} has dtype {flags.dtype} and shape {flags.shape}: it must be a list of bools")
    flags = flags.astype(np.bool_)
    flags.flags.writeable = False
    return flags


def _unicode(text: str) -> str:
    """Return the text with anything that cannot be written as UTF-8 replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


_MAX_DEPTH = 64
_MAX_BITS = 4096  # Python refuses to print integers of more than 4,300 digits


def _freeze(name: str, value: object, depth: int = 0) -> Any:
    """Return `value` as immutable JSON: None, bool, int, finite float, str, tuple, FrozenDict with string keys."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{name} is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        _require_text(name, value)
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise ValueError(
                f"{name} is an integer of {value.bit_length()} bits, more than {_MAX_BITS}: keep it as text"
            )
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}: JSON has no such number; use None for a missing value")
        return value
    if isinstance(value, Mapping):
        for key in value:
            _require_text(f"the key {key!r} of {name}", key)
        return FrozenDict({key: _freeze(f"{name}.{key}", item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(f"{name}[{i}]", item, depth + 1) for i, item in enumerate(value))
    raise TypeError(
        f"{name} is of type {type(value).__name__}: only JSON values are kept (None, bool, number, text, list, table)"
    )
