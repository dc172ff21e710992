"""From a prompt to a verdict: ask, read, and ask again a little warmer if the answer could not be read."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar, cast

from pydantic import Field

from rewardsmith.config import Refers, Settings
from rewardsmith.llm import ChatModel, ChatReply, ChatRequest, Conversation, ModelCallError, Models, UnconnectedModel
from rewardsmith.rewards.base import Halt, failure_of
from rewardsmith.rewards.judges.together import settled
from rewardsmith.text.judge_replies import Unparsable, after_thinking
from rewardsmith.text.quoting import shortened
from rewardsmith.types import Failure, FailureKind, Score

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)

JudgeName = Annotated[str, Refers("models", offer="chat"), Field(description="which of the recipe's models is asked")]
"""A setting that names a model which writes."""

MAX_FEEDBACK = 20_000
"""Characters kept of what a judge wrote."""

_NEARLY = 0.9
"""An answer that was cut off after a smaller share of its token limit was cut off by something else."""


class AskingSettings(Settings):
    """How a model is asked."""

    temperature: float = Field(default=0.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="keep the likeliest tokens of this total probability")
    max_tokens: int = Field(default=2048, ge=1, description="longest answer; one that is cut off is not read")
    seed: int = Field(default=0, ge=0, lt=2**31, description="of the sampling, where a server takes one")
    tries: int = Field(default=3, ge=1, description="answers that may be unreadable or cut off before it is a failure")
    warmer: float = Field(default=0.3, ge=0, description="added to the temperature after each such answer")
    warmest: float = Field(default=1.0, ge=0, description="the temperature does not grow beyond this")
    deadline: float = Field(default=120.0, gt=0, description="seconds for one verdict, all tries together")


Asking = Annotated[AskingSettings, Field(description="how the model is asked")]
"""A setting of a judge."""

AS_USUAL = AskingSettings()
"""Its default."""


@dataclass(frozen=True)
class Verdict(Generic[V]):
    """What was read.

    Attributes:
        value: of the verdict.
        feedback: all that the judge wrote, for people.
        attempts: how many answers it took.
    """

    value: V
    feedback: str
    attempts: int = 1


class NoVerdict(ModelCallError):  # noqa: N818
    """There is no verdict, although the judge may have written something.

    Args:
        why: there is none.
        feedback: what the judge wrote in all tries, for people.
    """

    def __init__(self, why: Failure, feedback: str) -> None:
        super().__init__(why.kind, why.detail, why.attempts)
        self.feedback = feedback


class Asker:
    """Asks one model for verdicts.

    Args:
        model: its name in the recipe.
        settings: how it is asked.
    """

    def __init__(self, model: str, settings: AskingSettings) -> None:
        self._name = model
        self._settings = settings
        self._model: ChatModel = UnconnectedModel(model)

    def connect(self, models: Models) -> None:
        """Take the model."""
        self._model = models(self._name)

    async def check(self) -> None:
        """Raise if the model cannot work."""
        await self._model.check()

    async def verdict(
        self, prompt: Conversation | str, read: Callable[[str], V | Awaitable[V]], *, sample: int = 0
    ) -> Verdict[V]:
        """Return the first answer that can be read.

        Args:
            prompt: what is asked.
            read: from an answer, without what the model thought before it, to a value; raises `Unparsable`. It may be
                a coroutine function, which keeps a deadline of its own: its time is not the judge's.
            sample: tells apart several verdicts on the same prompt.

        Raises:
            NoVerdict: with the kind and the reason of the last try, and what the judge wrote in all of them.
        """
        told: list[str] = []
        asked: list[ChatRequest] = []
        try:
            return await self._first_readable(prompt, read, sample, told, asked)
        except Halt:
            raise
        except (Exception, SystemExit) as error:  # `read` may be a user's own code
            forget = getattr(self._model, "forget", None)
            if forget is not None:  # a judge that is mended must be asked anew
                await forget(asked)
            raise NoVerdict(failure_of(error), feedback_of(told)) from error

    async def _first_readable(
        self,
        prompt: Conversation | str,
        read: Callable[[str], V | Awaitable[V]],
        sample: int,
        told: list[str],
        asked: list[ChatRequest],
    ) -> Verdict[V]:
        """Do what `verdict` says; `told` gets what each try brought, `asked` its question."""
        asking, left, why = self._settings, self._settings.deadline, Failure("unparsable")
        for attempt in range(asking.tries):
            if left <= 0:
                why = Failure("timeout", f"no verdict within {asking.deadline:g} s; the last try: {why.detail}")
                break
            asked.append(self._question(prompt, attempt, sample, left))
            answer = await self._model.chat(asked[-1])
            left -= answer.seconds
            text = _feedback(answer)
            told.append(f"[try {len(asked)}]\n{text}")
            try:
                value = read(_readable(answer, asking.max_tokens))
                return Verdict(cast("V", await value if inspect.isawaitable(value) else value), text, len(asked))
            except Unparsable as error:
                why = _why(error, answer)
                told[-1] = f"[try {len(asked)}: {shortened(str(error), 300)}]\n{text}"
        raise ModelCallError(why.kind, why.detail, attempts=len(asked))

    def _question(self, prompt: Conversation | str, attempt: int, sample: int, left: float) -> ChatRequest:
        asking = self._settings
        return ChatRequest(
            prompt=prompt,
            temperature=max(asking.temperature, min(asking.warmest, asking.temperature + attempt * asking.warmer)),
            top_p=asking.top_p,
            max_tokens=asking.max_tokens,
            seed=asking.seed + sample * asking.tries + attempt,
            attempt=sample * asking.tries + attempt,
            deadline=left,
        )


class AsksOne:
    """A reward that asks one model: how it gets it, and whether it can work."""

    _asker: Asker

    def connect(self, models: Models) -> None:
        """Take the model."""
        self._asker.connect(models)

    async def check(self) -> None:
        """Raise if the model cannot work."""
        await self._asker.check()


def _readable(answer: ChatReply, most: int) -> str:
    if not answer.truncated:
        return after_thinking(answer.text)
    limit = f"asking.max_tokens = {most}"
    if not answer.tokens:
        raise Unparsable("cut off", f"by the token limit ({limit})")
    if answer.tokens >= _NEARLY * most:
        raise Unparsable("cut off", f"after {answer.tokens} tokens ({limit})")
    raise Unparsable(
        "cut off",
        f"after {answer.tokens} tokens, well before {limit}: prompt and answer fill the model's context. Give it a"
        " larger one (max_length of a managed model, or what its server was started with), or show it less (longest)",
    )


def _why(error: Unparsable, answer: ChatReply) -> Failure:
    kind: FailureKind = "truncated" if answer.truncated else "invalid" if error.invalid else "unparsable"
    return Failure(kind, f"{error}; it ends: {answer.text[-300:]!r}")


def _feedback(answer: ChatReply) -> str:
    text = f"<think>{answer.thought}</think>\n{answer.text}" if answer.thought else answer.text
    return shortened(text, MAX_FEEDBACK)


def feedback_of(texts: Sequence[str]) -> str:
    """Return what a judge wrote in several answers, each cut so that all together stay in bounds."""
    most = MAX_FEEDBACK // max(1, len(texts))
    return "\n\n".join(text if len(text) <= most else f"{text[: most // 2]}\n…\n{text[-most // 2 :]}" for text in texts)


def written(error: BaseException) -> str:
    """Return what a judge wrote before it failed; "" where that is not known."""
    return error.feedback if isinstance(error, NoVerdict) else ""


def failed_score(error: BaseException, parts: Sequence[str] = ()) -> Score:
    """Return the score of a rollout for which there is no verdict; for use around each rollout of a group.

    What the judge wrote nevertheless is its feedback.

    Raises:
        Halt: that is what the exception is.
    """
    why = failure_of(error)
    return Score(failure=why, parts={name: Score(failure=why) for name in parts}, feedback=written(error))


async def judged(
    keys: Sequence[K], judge: Callable[[K], Awaitable[Score]], parts: Sequence[str] = ()
) -> tuple[Score, ...]:
    """Return one score per key, all judged at once and equal ones only once; what one raises is its own failure.

    Args:
        keys: what is judged of each rollout: its text, or the prompt that is made of it.
        judge: scores one.
        parts: the names that a score which failed has too.

    Raises:
        Halt: one of them said so; the others are cancelled.
    """
    distinct = list(dict.fromkeys(keys))
    found = dict(zip(distinct, await settled(judge, distinct), strict=True))
    scores = {key: failed_score(one, parts) if isinstance(one, Exception) else one for key, one in found.items()}
    return tuple(scores[key] for key in keys)


__all__ = [
    "AS_USUAL",
    "MAX_FEEDBACK",
    "Asker",
    "AsksOne",
    "Asking",
    "AskingSettings",
    "JudgeName",
    "NoVerdict",
    "Verdict",
    "failed_score",
    "feedback_of",
    "judged",
    "written",
]
