"""The peers' side of `judges.py`: their own code, run in the peers' environment.

    python benchmarks/judges_peers.py WORK.json WAY      # prints what came out of each phase, JSON, as the last line

WAY is `verl` (the rate-limited reward manager), `verifiers` (a task with a judge) or `openai` (the plain client behind
a semaphore). All ask about prompts that are ready, so that making them costs nothing here. Time limits, which are
300 s, none and 600 s by default, are those of the phase; everything else is as each documents it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from judges_server import Behaviour, behave, counted

Outcome = tuple[float | None, str]
"""The reward, or None where there is none; and what was said about it."""

One = Callable[[str, float], Awaitable[Outcome]]
"""From a prompt and the seconds for a request to what came out."""

SAMPLING = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 2048}


def points(text: str) -> float:
    """Return the total that a verdict states, in [0, 1]; raise if there is none. A careful user would read it so."""
    found = re.search(r"Total Score:\s*(\d+(?:\.\d+)?)\s*/\s*10\b", text)
    if found is None:
        raise ValueError(f"no total in {text!r}")
    return float(found.group(1)) / 10


def by_openai(address: str, concurrency: int) -> One:
    """Ask with the plain client. Its user reads the verdict, and takes 0 where there is none."""
    from openai import AsyncOpenAI  # noqa: PLC0415

    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none")
    gate = asyncio.Semaphore(concurrency)

    async def one(prompt: str, limit: float) -> Outcome:
        try:
            async with gate:
                messages: Any = [{"role": "user", "content": prompt}]
                asked = client.chat.completions.create(model="judge", messages=messages, timeout=limit, **SAMPLING)
                answer = await asked
            text = answer.choices[0].message.content or ""
        except Exception as error:  # noqa: BLE001 counted, whatever it is
            return None, f"raised {type(error).__name__}"
        try:
            return points(text), ""
        except ValueError:
            return 0.0, ""

    return one


def by_verl(address: str, concurrency: int) -> One:
    """Ask as verl's examples of a generative reward do: a session for each call, and 0 for what cannot be read."""
    import aiohttp  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415
    from openai.types.chat import ChatCompletion  # noqa: PLC0415
    from verl import DataProto  # noqa: PLC0415
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls  # noqa: PLC0415

    logging.disable(logging.ERROR)  # it logs each failure; ours is not timed with a log either

    class Letters:
        """A tokenizer that costs nothing: a token is a letter."""

        def decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
            return "".join(map(chr, tokens.tolist()))

    async def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **_: Any
    ) -> dict[str, float]:
        request = {"model": "judge", "messages": [{"role": "user", "content": extra_info["prompt"]}], **SAMPLING}
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        try:
            async with session.post(f"{address}/v1/chat/completions", json=request) as response:
                answer = ChatCompletion(**json.loads(await response.text()))
        finally:
            await session.close()
        text = answer.choices[0].message.content or ""
        try:
            return {"score": points(text)}
        except ValueError:
            return {"score": 0.0}

    config = OmegaConf.create({"reward": {"max_concurrent": concurrency, "timeout": 300.0}})
    manager = get_reward_manager_cls("rate_limited")(config, Letters(), compute_score)
    tokens = torch.tensor([[ord(letter) for letter in "an answer"]])

    async def one(prompt: str, limit: float) -> Outcome:
        row = DataProto.from_dict(
            tensors={"responses": tokens, "attention_mask": torch.ones_like(tokens)},
            non_tensors={
                "data_source": np.array(["math"], dtype=object),
                "reward_model": np.array([{"ground_truth": ""}], dtype=object),
                "extra_info": np.array([{"prompt": prompt}], dtype=object),
            },
        )
        manager.timeout = limit
        given = await manager.run_single(row)
        said = given["reward_extra_info"]
        flag = "a flag beside it" if "error" in said or "timeout" in said else ""
        return float(given["reward_score"]), flag

    return one


def by_verifiers(address: str, concurrency: int) -> One:
    """Ask through a task whose reward is a judge; what its scoring raises ends the rollout, without a reward."""
    sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]  # it has a verifiers.py
    import verifiers.v1 as vf  # noqa: PLC0415

    class Points(vf.Judge[float]):
        prompt = "{response}"

        def parse(self, response: vf.JudgeResponse[float]) -> float:
            return points(response.text)

    @cache
    def settings(limit: float) -> vf.JudgeConfig:
        return vf.JudgeConfig(
            base_url=f"{address}/v1",
            api_key_var="NO_KEY",
            model="judge",
            sampling=vf.SamplingConfig(**SAMPLING),
            timeout={"connect": 30.0, "read": limit},
        )

    class Judged(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
        limit = 0.0

        @vf.reward
        async def judged(self, trace: vf.Trace) -> float:
            given = await Points(settings(self.limit)).evaluate(trace=trace, response=self.data.prompt_text)
            return float(given.parsed)

    gate = asyncio.Semaphore(concurrency)
    agent = vf.AgentInfo(config=vf.AgentConfig())

    async def one(prompt: str, limit: float) -> Outcome:
        task = Judged(vf.TaskData(prompt=prompt))
        task.limit = limit
        trace = vf.Trace(task=vf.TraceTask(type="Judged", data=task.data), agent=agent, state=vf.State())
        async with gate:
            try:
                await task.score(trace)
            except vf.RolloutError as error:
                return None, f"recorded as {type(error).__name__}"
        return trace.reward, ""

    return one


WAYS = {"openai": by_openai, "verl": by_verl, "verifiers": by_verifiers}


async def phases(work: dict[str, Any], way: str) -> list[dict[str, Any]]:
    """Ask about the prompts of each phase at once; the first phase warms up."""
    one = WAYS[way](work["address"], work["concurrency"])
    done = []
    for phase in work["phases"]:
        behave(work["address"], Behaviour(**phase["behaviour"]))
        begun, cpu = time.perf_counter(), time.process_time()
        outcomes = await asyncio.gather(*(one(prompt, phase["limit"]) for prompt in phase["prompts"]))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        counts = asdict(counted(work["address"]))
        done.append({"seconds": seconds, "cpu": cpu, "outcomes": outcomes, "counts": counts})
    return done


if __name__ == "__main__":
    print(json.dumps(asyncio.run(phases(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))), flush=True)
