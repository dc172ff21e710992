"""A Python function as the chat model of a judge.

async def judge(messages): return (await client.chat.completions.create(model=…, messages=messages)).…
rewardsmith.reward({"type": "rubric", "model": "judge", "criteria": …}, models={"judge": judge})
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError, Usage
from rewardsmith.records import to_json
from rewardsmith.rewards.base import failure_of, must_propagate
from rewardsmith.rewards.user_calls import call_function


class FunctionModel:
    """A chat model that is a function of messages, `[{"role": …, "content": …}]`, to the reply; sync or async."""

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self.name, self.usage, self._function = name, Usage(), function

    async def identity(self) -> str:
        """Return its name: nothing else is known, and its replies are not cached."""
        return self.name

    async def check(self) -> None:
        """Find nothing wrong: only a call can show it."""

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Return the reply of the function; what it raises is a failure of the call."""
        prompt = request.prompt if isinstance(request.prompt, str) else [to_json(one) for one in request.prompt]
        begun = time.monotonic()
        try:
            async with asyncio.timeout(request.deadline):
                reply = await call_function(self._function, prompt)
            if not isinstance(reply, str):
                raise ModelCallError("invalid", f"the function returned a {type(reply).__name__}: it must return text")
        except BaseException as error:
            if must_propagate(error):
                raise
            self.usage.failed += 1
            why = failure_of(error)
            raise ModelCallError(why.kind, why.detail) from error
        self.usage.calls += 1
        return ChatReply(reply, seconds=time.monotonic() - begun)
