"""A language model grades answers, behind an OpenAI-compatible server.

    python examples/03_judge.py                                              # a small server that stands in
    python examples/03_judge.py http://localhost:8000/v1 Qwen/Qwen3-8B       # a real one

The stand-in gives ten points to an answer with an equals sign. Every third reply has no verdict, as a weak judge's may.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from itertools import count

from aiohttp import web

import rewardsmith as rs


def stand_in() -> str:
    """Start a server in a thread, and return its URL."""
    url: list[str] = []
    ready, number = threading.Event(), count(1)

    async def chat(request: web.Request) -> web.Response:
        prompt = (await request.json())["messages"][-1]["content"]
        answer = prompt.partition("## Answer")[2].partition("## Your task")[0]
        text = f"Total Score: {10 if '=' in answer else 2}/10" if next(number) % 3 else "A fine answer."
        reply = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"choices": [reply], "usage": {"prompt_tokens": 100, "completion_tokens": 8}})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stand-in"}]})

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        url.append(f"http://{host}:{port}/v1")
        ready.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    ready.wait()
    return url[0]


def main(url: str = "", model: str = "stand-in") -> None:
    """Grade four answers: the judge is called only where the rule holds."""
    table = {
        "type": "gate",
        "rule": {"type": "rule", "rule": "numeric"},
        "judge": {"type": "rubric", "model": "judge", "criteria": "10 points for an answer that shows its steps."},
    }
    judge = {"type": "server", "urls": [url or stand_in()], "model": model}
    with rs.reward(table, models={"judge": judge}) as reward:
        scores = rs.score(reward, "8+5?", ["8+5=13", "13", "8+5=14", "14"], answers="13")
    for row in scores.rows():
        print(f"reward {row['reward']}  {row['response']!r}")
    print("the judge's part:", scores.part("judge")[0])  # None where it was not called
    for failure in scores.failures[0]:
        if failure is not None:  # a reply without a verdict is requested again, so there should be none
            print(f"failure: {failure.kind}: {failure.detail}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
