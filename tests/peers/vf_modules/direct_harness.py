"""A harness of verifiers that asks the model once, in this process: the built-in ones start programs with uv."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI


class DirectHarness(vf.Harness[vf.HarnessConfig]):
    """Sends the prompt, and ends."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
        *_: Any,
        **__: Any,
    ) -> vf.ProgramResult:
        """Ask the model through verifiers' interception server."""
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            messages = [{"role": "user", "content": data.prompt_text}]
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["DirectHarness"]
