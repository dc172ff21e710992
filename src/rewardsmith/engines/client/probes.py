"""Fixed probes whose replies tell the weights of served models apart: short, so that they cost little, and open.

Changing them invalidates all stored fingerprints.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rewardsmith.llm import ChatRequest, ModelCallError, ProbeReply
from rewardsmith.types import Message

if TYPE_CHECKING:
    from rewardsmith.engines.client.served_model import ServedModel

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
TOKENS = 16  # of each reply
NUMBERS = 256  # of each vector that are compared

_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "stop", "min_tokens", "max_tokens"}
    | {"max_completion_tokens", "logprobs", "top_logprobs"}
)


def without_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return extra fields of requests without those that would change the sampling of a probe."""
    return {name: value for name, value in body.items() if name not in _SAMPLING}


async def probe_replies(model: ServedModel, serves: str, deadline: float) -> tuple[ProbeReply, ...]:
    """Return the replies of a served model; `deadline` is in seconds for each request for text."""
    if serves == "embed":
        vectors = await model.embed(TEXTS)
        return (ProbeReply(numbers=tuple(float(x) for x in vectors[:, :NUMBERS].ravel())),)
    if serves != "chat":
        pairs = [(Message("user", question), Message("assistant", answer)) for question, answer in ANSWERS]
        return (ProbeReply(numbers=tuple(await model.rate(pairs))),)
    for logprobs in (True, False):  # not every server returns logprobs
        requests = [
            ChatRequest([Message("user", text)], max_tokens=TOKENS, logprobs=logprobs, deadline=deadline)
            for text in QUESTIONS
        ]
        results = await asyncio.gather(*map(model.chat, requests), return_exceptions=True)
        error = next((each for each in results if isinstance(each, BaseException)), None)
        if error is None:
            break
        if not logprobs or not isinstance(error, ModelCallError) or error.kind != "refused":
            raise error
    return tuple(
        ProbeReply(f"{each.thought}\n{each.text}", tuple(math.exp(min(0.0, value)) for value in each.logprobs))
        for each in results
        if not isinstance(each, BaseException)
    )
