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

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rewardsmith.checks import (
    FrozenDict,
    finite,
    flags,
    freeze,
    require,
    require_count,
    require_text,
    tuple_of,
    unicode,
    vector,
)

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
    "skipped",  # nothing went wrong: it was not called, because it could not change the result
    "dropped",  # nothing went wrong here: it was left out for the whole group, for which another rollout is the cause
]

NOT_COMPUTED = frozenset({"skipped", "dropped"})
"""The kinds that are no failure of the reward itself: no metric and no budget counts them as one."""

MAX_DETAIL = 2_000
"""Characters kept of a failure's detail: it may quote model output, which has no bound of its own."""

MAX_PART_LEVELS = 16  # that scores may nest, also in users' rows; real compositions have three or four


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
    """One message of a chat."""

    role: str  # `system`, `user`, `assistant`, or another name that the chat template knows
    content: str

    def __post_init__(self) -> None:
        require_text("Message.role", self.role, empty=False)
        require_text("Message.content", self.content)


@dataclass(frozen=True, eq=False)
class Prompt(_Noun):
    """The input of a policy, and what a reward needs to know about the right answer."""

    id: str  # unique within its data set, for example `gsm8k-train-17`
    messages: Sequence[Message]  # the chat up to the point where the policy writes; at least one
    source: str = ""  # name of the data set or task; rewards are routed by it
    answer: Any = None  # ground truth for rules and verifiers, any JSON value; None where there is none
    # Whatever else came with the row, as JSON values: rubric, tests, reference translation, judge prompt.
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_text("Prompt.id", self.id, empty=False)
        require_text("Prompt.source", self.source)
        self._set("messages", tuple_of("Prompt.messages", self.messages, Message))
        if not self.messages:
            raise ValueError(f"Prompt.messages of {self.id!r} is empty: a prompt needs at least one message")
        self._set("answer", freeze("Prompt.answer", self.answer))
        require("Prompt.info", self.info, Mapping)
        self._set("info", freeze("Prompt.info", self.info))


@dataclass(frozen=True, eq=False)
class Rollout(_Noun):
    """One answer of the policy."""

    text: str  # the decoded answer, without the end-of-sequence marker
    # [T], the sampled token ids, the end-of-sequence token included. Empty where only the text is known.
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    # [T], log-probability of each token under the sampling distribution; empty where unknown.
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    stop_reason: StopReason = "stop"  # `length` when the token limit cut it off
    # [T], how many characters of `text` there are up to the end of each token: where a reward for a part of the text
    # belongs (`rewardsmith.text.steps`). None where no reward needs it.
    ends: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        require_text("Rollout.text", self.text)
        tokens = vector("Rollout.tokens", self.tokens, np.int32)
        logprobs = vector("Rollout.logprobs", self.logprobs, np.float32)
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
        if self.ends is not None:
            ends = vector("Rollout.ends", self.ends, np.int32)
            if len(ends) != len(tokens):
                raise ValueError(f"Rollout has {len(tokens)} tokens but {len(ends)} ends: one for each, or None")
            if ends.size and (int(ends[0]) < 0 or int(ends[-1]) > len(self.text) or bool((ends[1:] < ends[:-1]).any())):
                raise ValueError("Rollout.ends must not fall, and must lie between 0 and the length of the text")
            self._set("ends", ends)


@dataclass(frozen=True, eq=False)
class RolloutGroup(_Noun):
    """One prompt and all its rollouts, at least one. A reward always sees the whole group."""

    prompt: Prompt
    rollouts: Sequence[Rollout]
    policy_version: int = 0  # how many updates the policy had when it wrote them; bounds staleness

    def __post_init__(self) -> None:
        require("RolloutGroup.prompt", self.prompt, Prompt)
        self._set("rollouts", tuple_of("RolloutGroup.rollouts", self.rollouts, Rollout))
        if not self.rollouts:
            raise ValueError(f"RolloutGroup of prompt {self.prompt.id!r} has no rollouts: it needs at least one")
        require_count("RolloutGroup.policy_version", self.policy_version, minimum=0)


@dataclass(frozen=True, eq=False)
class Failure(_Noun):
    """Why there is no score.

    The detail is for a person to read, and cut to `MAX_DETAIL` characters. It may quote hostile text: what is no
    Unicode is replaced, never refused, so that reporting a failure cannot fail.
    """

    kind: FailureKind
    detail: str = ""
    attempts: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(FailureKind):
            raise ValueError(f"Failure.kind is {self.kind!r}: one of {', '.join(get_args(FailureKind))}")
        require("Failure.detail", self.detail, str)
        self._set("detail", unicode(self.detail[:MAX_DETAIL]))
        require_count("Failure.attempts", self.attempts, minimum=1)


@dataclass(frozen=True, eq=False)
class Score(_Noun):
    """The reward of one rollout: a finite value or a failure, never both and never neither."""

    value: float | None = None
    failure: Failure | None = None
    # The named scores that this one was composed of; each has a value or a failure of its own. The names are there even
    # when this score failed, so that metrics and files keep one schema.
    parts: Mapping[str, Score] = field(default_factory=dict)
    token_values: NDArray[np.float32] | None = None  # [T], a reward per token; None for outcome rewards
    # [T], which tokens carry a reward of their own, such as the ends of steps; None when all do.
    token_support: NDArray[np.bool_] | None = None
    feedback: str = ""  # what a judge wrote, for people and for the rollouts file
    label: str = ""  # the kind of verdict, such as the reason of a rejection; metrics count the labels of each part

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failure is None):
            raise ValueError(
                f"Score has value {self.value!r} and failure {self.failure!r}: give exactly one of the two"
            )
        if self.value is not None:
            self._set("value", finite("Score.value", self.value))
        if self.failure is not None:
            require("Score.failure", self.failure, Failure)
        require("Score.parts", self.parts, Mapping)
        for name, part in self.parts.items():
            require_text("a name in Score.parts", name, empty=False)
            require(f"Score.parts[{name!r}]", part, Score)
        self._set("parts", FrozenDict(self.parts))
        if _depth(self) > MAX_PART_LEVELS:
            raise ValueError(f"Score.parts are nested deeper than {MAX_PART_LEVELS} levels")
        if self.token_values is not None:
            if self.failure is not None:
                raise ValueError("Score.token_values is given for a failed score: a failure has no values")
            self._set("token_values", vector("Score.token_values", self.token_values, np.float32))
        if self.token_support is not None:
            self._set("token_support", flags("Score.token_support", self.token_support))
            if self.token_values is None or len(self.token_values) != len(self.token_support):
                raise ValueError("Score.token_support has no token_values of its length: they go together")
        require("Score.feedback", self.feedback, str)
        self._set("feedback", unicode(self.feedback))
        require("Score.label", self.label, str)
        if self.label and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", self.label):
            raise ValueError(f"Score.label is {self.label[:60]!r}: up to 40 lower-case letters, digits and dashes")

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.failure is None

    def named_parts(self, prefix: str = "") -> Iterator[tuple[str, Score]]:
        """Yield every part, outer before inner, with its dotted name, such as `judge` and then `judge.rubric`."""
        for name, part in self.parts.items():
            yield f"{prefix}{name}", part
            yield from part.named_parts(f"{prefix}{name}.")


def _depth(score: Score) -> int:
    return 1 + max((_depth(part) for part in score.parts.values()), default=0)


@dataclass(frozen=True, eq=False)
class ScoredGroup(_Noun):
    """A group with one score per rollout, in the same order; all scores have the same part names."""

    group: RolloutGroup
    scores: Sequence[Score]

    def __post_init__(self) -> None:
        require("ScoredGroup.group", self.group, RolloutGroup)
        self._set("scores", tuple_of("ScoredGroup.scores", self.scores, Score))
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
    """A prompt with an answer to imitate, which is not empty."""

    prompt: Prompt
    response: str

    def __post_init__(self) -> None:
        require("Demonstration.prompt", self.prompt, Prompt)
        require_text("Demonstration.response", self.response, empty=False)


@dataclass(frozen=True, eq=False)
class Preference(_Noun):
    """Two answers to one prompt, one better than the other or both alike."""

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0  # by how much the first is better, in the unit of the annotation; 0 where unknown
    tied: bool = False  # neither is better; the margin is 0 then

    def __post_init__(self) -> None:
        require("Preference.prompt", self.prompt, Prompt)
        require_text("Preference.chosen", self.chosen)
        require_text("Preference.rejected", self.rejected)
        self._set("margin", finite("Preference.margin", self.margin))
        require("Preference.tied", self.tied, bool)
        if self.margin < 0:
            raise ValueError(f"Preference.margin is {self.margin}: swap chosen and rejected instead")
        if self.tied and self.margin:
            raise ValueError(f"Preference.margin is {self.margin} in a tied pair: a tie has margin 0")


@dataclass(frozen=True, eq=False)
class Ranking(_Noun):
    """Several answers to one prompt with a quality score each: what a group ranker is trained on."""

    prompt: Prompt
    candidates: Sequence[str]  # at least two
    scores: NDArray[np.float64]  # [n], higher is better; equal scores are ties
    analysis: str = ""  # the annotator's comparison

    def __post_init__(self) -> None:
        require("Ranking.prompt", self.prompt, Prompt)
        self._set("candidates", tuple_of("Ranking.candidates", self.candidates, str))
        for i, candidate in enumerate(self.candidates):
            require_text(f"Ranking.candidates[{i}]", candidate)
        self._set("scores", vector("Ranking.scores", self.scores, np.float64))
        require_text("Ranking.analysis", self.analysis)
        if len(self.candidates) < 2:
            raise ValueError(f"Ranking of prompt {self.prompt.id!r} has {len(self.candidates)} candidates: at least 2")
        if len(self.candidates) != len(self.scores):
            raise ValueError(
                f"Ranking of prompt {self.prompt.id!r} has {len(self.candidates)} candidates"
                f" but {len(self.scores)} scores"
            )


@dataclass(frozen=True, eq=False)
class Graded(_Noun):
    """An answer with a grade: what a grading judge is measured on."""

    prompt: Prompt  # `info` may have the criteria
    response: str
    grade: float  # the teacher's, or the true one, from 0 to 1
    right: bool | None = None  # whether the final answer is right
    sound: bool | None = None  # whether every step of the way holds

    def __post_init__(self) -> None:
        require("Graded.prompt", self.prompt, Prompt)
        require_text("Graded.response", self.response)
        self._set("grade", finite("Graded.grade", self.grade))
        if not 0 <= self.grade <= 1:
            raise ValueError(f"Graded.grade is {self.grade}: from 0 to 1; divide by the points that there are in all")
        for name in ("right", "sound"):
            if getattr(self, name) is not None:
                require(f"Graded.{name}", getattr(self, name), bool)
