"""Seconds per step of a run whose judge is slow, with answers written ahead and without.

    python benchmarks/ahead.py [--latency 0.05] [--slots 2] [--steps 8] [--ahead 0 1 2] [--on verl --rollout-gpus 1]

The judge is a process of its own on this machine: it takes `latency` seconds for a verdict, in `slots` places. Every
variant is a real run of the same recipe in its own folder; the first two steps are not counted. `learner` and `writer`
are the shares of a step's time in which no model learned or wrote for want of rollouts, and in which none was written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import zlib
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import web
from rich.console import Console
from rich.table import Table

RECIPE = """
title = "a slow judge"
cache = ""

[scale]
device = "cpu"
rollout = {{ gpus = {gpus} }}

[models.policy]
init = "tiny-llama"
device = "cpu"

[models.judge]
type = "server"
urls = ["http://127.0.0.1:{port}/v1"]
model = "judge"
version = "1"

[data.train]
type = "arithmetic"

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = {steps}
ahead = {ahead}
prompts_per_step = 16
rollouts_per_prompt = 8
sampling = {{ max_tokens = 48 }}
optimizer = {{ lr = 3e-4 }}
reward = {{ type = "rubric", model = "judge", criteria = "right: 10" }}
save = {{ every = 1000 }}
"""
WARMUP = 2  # steps


def serve(latency: float, slots: int, port: Connection) -> None:
    """Answer every request with a verdict that depends on its text alone."""

    async def answer(request: web.Request) -> web.Response:
        text = await request.text()
        async with places:
            await asyncio.sleep(latency)
        message = {"role": "assistant", "content": f"Total Score: {zlib.crc32(text.encode()) % 11}/10"}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        app.router.add_get("/v1/models", lambda _: _models())
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    async def _models() -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "judge", "object": "model"}]})

    places = asyncio.Semaphore(slots)
    asyncio.run(run())


def measure(folder: Path, recipe: str, on: str) -> dict[str, float]:
    """Run a recipe; return the medians over its steps."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe)
    command = [sys.executable, "-W", "ignore", "-m", "rewardsmith", "run", str(folder / "recipe.toml")]
    command += ["--folder", str(folder / "run"), "--on", on]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["step"] >= WARMUP]
    ended = [line["seconds"] for line in lines]
    metrics = [line["metrics"] for line in lines[1:]]
    names = ("time/write", "time/wait", "time/learn", "idle/learner", "idle/writer", "policy/staleness")
    found = {name: statistics.median(m.get(name, 0.0) for m in metrics) for name in names}
    return {"seconds": (ended[-1] - ended[0]) / (len(ended) - 1)} | found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--on", default="embedded")
    parser.add_argument("--rollout-gpus", type=int, default=0)
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    judge = multiprocessing.Process(target=serve, args=(given.latency, given.slots, theirs), daemon=True)
    judge.start()
    port = ours.recv()
    table = Table("ahead", "s/step", "write", "wait", "learn", "learner idle", "writer idle", "staleness")
    with tempfile.TemporaryDirectory() as place:
        for ahead in given.ahead:
            recipe = RECIPE.format(port=port, steps=given.steps, ahead=ahead, gpus=given.rollout_gpus)
            found = measure(Path(place) / str(ahead), recipe, given.on)
            table.add_row(str(ahead), *(f"{value:.2f}" for value in found.values()))
    judge.terminate()
    Console().print(table)


if __name__ == "__main__":
    main()
