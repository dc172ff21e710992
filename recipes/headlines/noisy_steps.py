"""A step truth that is wrong now and then: how right do the rewards of steps have to be?"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from rewardsmith import Prompt
from rewardsmith.data.arithmetic import step_truth
from rewardsmith.text.steps import JudgedStep


def noisy_sums(
    prompt: Prompt,
    text: str,
    *,
    wrong: Annotated[float, Field(ge=0, le=0.5, description="share of the verdicts that are wrong")] = 0.2,
) -> Sequence[JudgedStep]:
    """Return the steps of a chain of sums, some of them with the wrong verdict: always the same ones of an answer."""
    return [
        dataclasses.replace(step, right=step.right != (draw(prompt, text, number) < wrong))
        for number, step in enumerate(step_truth(prompt, text))
    ]


def draw(prompt: Prompt, text: str, number: int) -> float:
    """Return a number from 0 to 1, the same one for the same prompt, answer and step."""
    digest = hashlib.blake2b(repr((prompt.id, text, number)).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
