"""The base class of judges. A judge is `render`, from a group to prompts, and `parse`, from a reply to a verdict."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.config import Refers
from rewardsmith.errors import UserError
from rewardsmith.llm import Asker, Conversation, Models, Parsed, RequestSettings, joined_replies, settled
from rewardsmith.masking import shown
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.rules.rule_settings import Way
from rewardsmith.text import answers
from rewardsmith.text.judge_prompts import PromptIdentity
from rewardsmith.text.templates import Template
from rewardsmith.types import RolloutGroup, Score


@dataclass(frozen=True)
class Question:
    """One prompt of a judge, or text that the model continues; `about` is what `parse` must know of it."""

    messages: Conversation | str
    about: Any = None

    @property
    def key(self) -> Hashable:
        """Equal questions have equal keys."""
        prompt = self.messages if isinstance(self.messages, str) else tuple((m.role, m.content) for m in self.messages)
        return prompt, self.about


Rendered = Sequence[Score | Question | Sequence[Question]]
Result = Parsed[Any] | list[Parsed[Any]]
Call = Callable[[Question], Coroutine[Any, Any, Result]]


class Judge:
    """A reward by verdicts of one chat model: subclasses write `render` and `parse`.

    Equal questions of a group are sent once. A question without a verdict is a failure of its rollouts alone, with all
    that the judge wrote as feedback.

    Attributes:
        deadline: seconds for one verdict.
        parser: version of the parser, for the record of a run.
        model_name: the judge, one of the recipe's models.
        allows_other_prompt: whether the model may have been trained with another prompt; None: it has no such setting.
    """

    parser = ""
    allows_other_prompt: bool | None = None
    _template: Template | None = None

    def __init__(self, model: str, request: RequestSettings, votes: int = 1) -> None:
        if votes > 1 and request.temperature == 0:
            raise UserError(f"votes = {votes} needs request.temperature above 0, such as 0.7: at 0 all votes are equal")
        self._asker, self.model_name = Asker(model, request), model
        self._votes = votes
        self.deadline = request.deadline

    def render(self, group: RolloutGroup) -> Rendered | Awaitable[Rendered]:
        """Return the question about each rollout, or several questions, or the score of one that needs no verdict."""
        raise NotImplementedError

    def parse(self, reply: str, about: Any) -> Any:
        """Return the value of a reply, or a `Score`; raise `Unparsable`."""
        raise NotImplementedError

    def combine(self, questions: Sequence[Question], scores: Sequence[Score]) -> Score:
        """Return the score of a rollout from those of its questions."""
        return scores[0]

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, each with the judge's replies as feedback."""
        rendered = self.render(group)
        items = await rendered if inspect.isawaitable(rendered) else rendered
        lists = [[item] if isinstance(item, Question) else item for item in items]
        questions = {question.key: question for one in lists if not isinstance(one, Score) for question in one}
        call: Call = self.request if self._votes == 1 else self._request_votes
        replies: list[Result | Exception] = settled(
            await asyncio.gather(*map(call, questions.values()), return_exceptions=True)
        )
        verdicts = dict(zip(questions, map(_verdict, replies), strict=True))
        return tuple(
            one if isinstance(one, Score) else self.combine(one, [verdicts[question.key] for question in one])
            for one in lists
        )

    def request(self, question: Question) -> Coroutine[Any, Any, Parsed[Any]]:
        """Return the call whose result is the first reply that `parse` accepts."""
        return self._asker.request(question.messages, partial(self.parse, about=question.about))

    def _request_votes(self, question: Question) -> Coroutine[Any, Any, list[Parsed[Any]]]:
        return self._asker.votes(question.messages, partial(self.parse, about=question.about), self._votes)

    def connect(self, models: Models) -> None:
        """Take the model."""
        self._asker.connect(models)

    async def check(self) -> None:
        """Raise if the model cannot work."""
        await self._asker.model.check()

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on apart from model and settings, for the record of a run."""
        parser = {"parser": self.parser} if self.parser else {}
        return {**self.judge_prompt(), **parser}

    def judge_prompt(self) -> PromptIdentity:
        """Return what the prompts depend on apart from the rollouts, to compare with the judge's training."""
        return {} if self._template is None else self._template.facts()


def _verdict(result: Result | Exception) -> Score:
    """Return the score of a question: of its reply, the mean of its votes, or the failure."""
    if isinstance(result, Exception):
        return failed_score(result)
    votes = result if isinstance(result, list) else [result]
    scores = [vote.value if isinstance(vote.value, Score) else Score(vote.value) for vote in votes]
    if len(votes) == 1:
        return replace(scores[0], feedback=scores[0].feedback or votes[0].feedback)
    values = [score.value or 0.0 for score in scores]
    notes = [f"[vote {i} of {len(votes)}: {values[i - 1]:.4g}]\n{vote.feedback}" for i, vote in enumerate(votes, 1)]
    labels = Counter(score.label for score in scores).most_common(1)
    return Score(sum(values) / len(values), feedback=joined_replies(notes), label=labels[0][0])


def failed_score(error: BaseException, parts: Iterable[str] = ()) -> Score:
    """Return an exception as a failed score, with what the judge wrote as feedback; a `Halt` is raised."""
    failed = Score(failure=failure_of(error))
    return replace(failed, parts=dict.fromkeys(parts, failed), feedback=getattr(error, "replies", ""))


# ---- settings that several judges have -----------------------------------------------------------------------------

ChatModelName = Annotated[
    str, Refers("models", offer="chat"), Field(description="the judge, one of the recipe's models")
]
Request = Annotated[RequestSettings, Field(description="how the judge is called")]
Show = Annotated[
    Literal["response", "final", "answer"],
    Field(description="what the judge sees: the whole response, what follows </think>, or the extracted answer"),
]
Ways = Annotated[tuple[Way, ...], Field(min_length=1, description="ways to find the answer; the first success decides")]
MaxChars = Annotated[int, Field(ge=100, description="a longer response loses its middle")]
QuotingStyle = Annotated[Literal["fence", "verbatim"], Field(description="foreign text in a fence, or bare")]
Votes = Annotated[int, Field(ge=1, le=64, description="verdicts to average; more than half must be parsable")]
OwnTemplate = Annotated[str, Field(min_length=1, description="a built-in prompt, or the path of your own")]
AllowOtherPrompt = Annotated[bool, Field(description="call a judge that was trained with another prompt")]

DEFAULT_REQUEST = RequestSettings()
DEFAULT_WAYS: tuple[Way, ...] = ("boxed", "hash", "stated", "final")
MAX_CHARS = 100_000


def require_unset(context: str, **settings: object) -> None:
    """Raise a `UserError` for the first setting that is not None, because it has no effect with `context`."""
    for name, value in settings.items():
        if value is not None:
            raise UserError(f"{name} = {shown(value)} has no effect with {context}: leave one of the two out")


def require_extracting(show: str, ways: Sequence[str]) -> None:
    """Raise a `UserError` if `extract` is set where no answer is extracted."""
    if show != "answer" and tuple(ways) != DEFAULT_WAYS:
        require_unset(f'show = "{show}"', extract=tuple(ways))


# ---- stored answers ------------------------------------------------------------------------------------------------

_STORED: ContextVar[bool | None] = ContextVar("stored answers", default=None)


@contextmanager
def stored_answers(*, keep_order: bool = False) -> Iterator[None]:
    """Treat rollouts as answers of a data file, which need not have the form of a policy's rollouts.

    It holds for the tasks that begin inside the block. With `keep_order` judges of groups show the candidates in the
    order of the rollouts, which is how position bias is measured.
    """
    before = _STORED.set(keep_order)
    try:
        yield
    finally:
        _STORED.reset(before)


def are_stored() -> bool:
    """Whether this task began inside of `stored_answers`."""
    return _STORED.get() is not None


def keeps_order() -> bool:
    """Whether this task began inside of `stored_answers(keep_order=True)`."""
    return _STORED.get() is True


def visible_text(text: str, show: str, ways: Sequence[str]) -> str:
    """Return the part of a response that the judge sees, "" if there is none; a stored answer is seen in any case."""
    if show == "response":
        return text if text.strip() else ""
    found = answers.final(text) if show == "final" else answers.extract(text, ways)
    if not found and are_stored():
        found = text
    return found if found and found.strip() else ""
