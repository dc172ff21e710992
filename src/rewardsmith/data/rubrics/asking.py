"""From a prompt to something that can be read: ask, read, and ask again a little warmer if that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rewardsmith.llm import ChatModel, ChatReply, ChatRequest, ModelCallError
from rewardsmith.text.judge_replies import Unparsable, after_thinking
from rewardsmith.text.quoting import harmless, shortened
from rewardsmith.types import FailureKind, Message

V = TypeVar("V")

MOST_REPEATED = 20_000
"""Characters of an answer that its author is shown again."""

Again = Callable[[Sequence[Message], str, Unparsable], Sequence[Message]]
"""From what was asked, what was answered (cut off: "") and what is wrong with that, to what is asked next."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a model is asked.

    Attributes:
        temperature: of the first try; 0 is greedy.
        top_p: keep the likeliest tokens of this total probability.
        max_tokens: longest answer.
        seed: of the sampling, where a model takes one.
        tries: answers that may be unreadable or cut off before it is a failure.
        warmer: added to the temperature after each such answer.
        warmest: the temperature does not grow beyond this.
        deadline: seconds for all tries together.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 4096
    seed: int = 0
    tries: int = 3
    warmer: float = 0.3
    warmest: float = 1.0
    deadline: float = 300.0


@dataclass(frozen=True)
class Said(Generic[V]):
    """What a model said at last.

    Attributes:
        value: what was read.
        text: the answer that it was read from, without what the model thought before.
        tries: how many answers it took.
        prompt_tokens: read by the model in all tries; 0 where that is not known.
        tokens: written by it.
    """

    value: V
    text: str
    tries: int
    prompt_tokens: int
    tokens: int


async def first_readable(
    model: ChatModel,
    prompt: Sequence[Message],
    read: Callable[[str], V],
    asking: Asking,
    *,
    vote: int = 0,
    again: Again | None = None,
) -> Said[V]:
    """Return the first answer that can be read.

    Args:
        model: is asked.
        prompt: what is asked.
        read: from an answer, without what the model thought before it, to a value; raises `Unparsable`.
        asking: how it is asked.
        vote: tells apart several answers to the same prompt.
        again: what is asked after an answer that cannot be read; None asks the same.

    Raises:
        ModelCallError: with the kind and the reason of the last try. What a cache kept of the tries is forgotten, so
            that the same command asks anew.
    """
    asked: list[ChatRequest] = []
    answers: list[ChatReply] = []
    left, kind, why = asking.deadline, "unparsable", ""
    try:
        while len(asked) < asking.tries and left > 0:
            asked.append(_question(prompt, asking, vote, len(asked), left))
            answer = await model.chat(asked[-1])
            answers.append(answer)
            left -= answer.seconds
            text = ""
            try:
                text = _whole(answer, asking.max_tokens)
                read_tokens, written = sum(a.prompt_tokens for a in answers), sum(a.tokens for a in answers)
                return Said(read(text), text, len(asked), read_tokens, written)
            except Unparsable as error:
                kind = "truncated" if answer.truncated else "invalid" if error.invalid else "unparsable"
                why = str(error)
                prompt = prompt if again is None else again(prompt, text, error)
        if left <= 0:
            kind, why = "timeout", f"nothing readable within {asking.deadline:g} s; the last try: {why}"
        raise ModelCallError(_kind(kind), why, attempts=len(asked))
    except ModelCallError:
        forget = getattr(model, "forget", None)
        if forget is not None:
            await forget(asked)
        raise


def _kind(name: str) -> FailureKind:
    return name  # type: ignore[return-value]


def _question(prompt: Sequence[Message], asking: Asking, vote: int, attempt: int, left: float) -> ChatRequest:
    return ChatRequest(
        prompt=tuple(prompt),
        temperature=max(asking.temperature, min(asking.warmest, asking.temperature + attempt * asking.warmer)),
        top_p=asking.top_p,
        max_tokens=asking.max_tokens,
        seed=asking.seed + vote * asking.tries + attempt,
        attempt=vote * asking.tries + attempt,
        deadline=left,
    )


def _whole(answer: ChatReply, most: int) -> str:
    if answer.truncated:
        after = f"after {answer.tokens} tokens" if answer.tokens else "by the token limit"
        raise Unparsable("cut off", f"{after} (--max-tokens {most})")
    return after_thinking(answer.text).strip()


def mend(first: Sequence[Message], said: str, error: Unparsable) -> tuple[Message, ...]:
    """Return a prompt that shows a model its own answer and what is wrong with it.

    Only the last answer is shown: those before it would fill the context, and teach nothing. An answer that was cut
    off is not shown either; then the reason stands at the end of the user's message, so that the turns still alternate.

    Args:
        first: what was asked at the very first.
        said: the last answer; "" if it was cut off.
        error: why it cannot be used.
    """
    if not said.strip():
        *others, last = first
        note = f"{last.content}\n\n(An earlier answer could not be used: {error}. Be brief.)"
        return (*others, Message(last.role, note))
    wrong = (
        f"This cannot be used: {harmless(str(error))}.\n\nMend it, and write the whole answer again in the same form."
    )
    return (*first, Message("assistant", harmless(shortened(said, MOST_REPEATED))), Message("user", wrong))


__all__ = ["Again", "Asking", "Said", "first_readable", "mend"]
