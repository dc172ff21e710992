"""Reward functions as TRL's documentation writes them."""

import asyncio
import os
import time


def right(prompts, completions, solution, **kwargs):
    """1 where the completion is the solution; None where there is none."""
    assert len(prompts) == len(completions) == len(kwargs["completion_ids"])
    kwargs["log_extra"]("said", [one[0]["content"] for one in completions])
    kwargs["log_metric"]("count", len(completions))
    assert kwargs["trainer_state"].global_step == 0
    pairs = zip(completions, solution, strict=True)
    return [None if truth is None else float(one[0]["content"] == truth) for one, truth in pairs]


def of_text(prompts, completions, level, **kwargs):
    """The length of texts, with a column of the data."""
    assert prompts[0] == "question"
    return [len(one) + more for one, more in zip(completions, level, strict=True)]


async def waits(completions, **kwargs):
    """Waits for a service."""
    await asyncio.sleep(0.01)
    return [float(len(one[0]["content"])) for one in completions]


def ranks(completions, **kwargs):
    """The rank within the call."""
    texts = sorted(one[0]["content"] for one in completions)
    return [float(texts.index(one[0]["content"])) for one in completions]


def odd(completions, **kwargs):
    """Returns or does what the completion says."""
    return [_odd(one[0]["content"]) for one in completions]


def _odd(text):
    if text == "raise":
        raise ValueError("no")
    if text == "hang":
        time.sleep(60)
    if text == "exit":
        os._exit(3)
    return {"nan": float("nan"), "text": "1.0", "none": None, "list": [1]}.get(text, 1.0)


def too_few(completions, **kwargs):
    """Forgets all but one."""
    return [1.0]


not_a_function = 3
