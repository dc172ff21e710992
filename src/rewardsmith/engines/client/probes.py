"""Fixed probes whose replies tell the weights of one served model from those of another.

They are short, so that they cost next to nothing, and open, so that other weights reply in other words. A change in
them makes all older fingerprints unknown.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rewardsmith.llm import ChatRequest, ModelCallError, ProbeReply
from rewardsmith.types import Message

if TYPE_CHECKING:
    from rewardsmith.engines.client.served import ServedModel

QUESTIONS = (
    "Write one sentence about the sea in winter.",
    "Is 91 a prime number? Give the reason first.",
    "Translate into French: The old bridge was closed last spring.",
    "Grade this answer from 0 to 10 and say why. Question: how many legs has a spider? Answer: six, like every insect.",
)
ANSWERS = (
    ("How many legs has a spider?", "Eight."),
    ("How many legs has a spider?", "Six, like every insect."),
    ("Name the capital of Australia and say why it was chosen.", "It is Sydney, because Sydney is the largest city."),
    ("Is 91 a prime number?", "No: 91 = 7 * 13."),
)
TEXTS = ("The old bridge was closed last spring.", "91 = 7 * 13", "Eight legs, like every spider.")

TOKENS = 16
"""Of each reply."""

NUMBERS = 256
"""Of each vector that are compared."""

_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "stop", "min_tokens", "max_tokens"}
    | {"max_completion_tokens", "logprobs", "top_logprobs"}
)


def without_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's further fields of each request without those that would change how a probe is sampled."""
    return {name: value for name, value in body.items() if name not in _SAMPLING}


async def probe_replies(model: ServedModel, serves: str, deadline: float) -> tuple[ProbeReply, ...]:
    """Return the replies of a served model.

    Args:
        model: is asked.
        serves: what is asked of it.
        deadline: seconds for each request that asks for text.

    Raises:
        ModelCallError: there are none.
    """
    if serves == "embed":
        vectors = await model.embed(TEXTS)
        return (ProbeReply(numbers=tuple(float(x) for x in vectors[:, :NUMBERS].ravel())),)
    if serves != "chat":
        talks = [(Message("user", question), Message("assistant", answer)) for question, answer in ANSWERS]
        return (ProbeReply(numbers=tuple(await model.rate(talks))),)
    try:
        return await _written(model, deadline, logprobs=True)
    except ModelCallError as error:
        if error.kind != "refused":
            raise
    return await _written(model, deadline, logprobs=False)  # not every server gives log-probabilities


async def _written(model: ServedModel, deadline: float, *, logprobs: bool) -> tuple[ProbeReply, ...]:
    questions = [
        ChatRequest([Message("user", text)], max_tokens=TOKENS, logprobs=logprobs, deadline=deadline)
        for text in QUESTIONS
    ]
    answers = await asyncio.gather(*map(model.chat, questions), return_exceptions=True)
    replies = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        numbers = tuple(math.exp(min(0.0, logprob)) for logprob in answer.logprobs)
        replies.append(ProbeReply(f"{answer.thought}\n{answer.text}", numbers))
    return tuple(replies)
