"""The viewer with a large run: how fast rollouts are indexed, and how long a page, a filter, a search and a group take.

    python benchmarks/viewer.py [--rollouts 100000] [--folder FOLDER]

Writes a run folder with groups of 8 rollouts of about 200 tokens, indexes it, and sends requests to a real server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from aiohttp import ClientSession, web

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json
from rewardsmith.viewer.rollout_index import RolloutIndex, index_file
from rewardsmith.viewer.run_list import RunList
from rewardsmith.viewer.view_server import make_app

GROUP, TOKENS, REPEATS = 8, 200, 40
WORDS = ["we", "add", "the", "numbers", "and", "then", "carry", "one", "so", "that", "it", "equals", "because", "holds"]


def write_run(folder: Path, rollouts: int) -> int:
    """Write the run and return its size in bytes."""
    dice, numbers = random.Random(0), np.random.default_rng(0)
    path = folder / "rollouts" / "policy.jsonl"
    path.parent.mkdir(parents=True)
    groups = rollouts // GROUP
    with path.open("w", encoding="utf-8") as file:
        for i in range(groups):
            prompt = Prompt(
                f"p-{i % 5_000}", [Message("user", f"What is {i} + {dice.randrange(1000)}?")], f"source-{i % 7}"
            )
            answers, scores = [], []
            for _ in range(GROUP):
                text = " ".join(dice.choices(WORDS, k=TOKENS * 3 // 4))
                text += " needle" if dice.random() < 1e-4 else ""
                tokens = numbers.integers(0, 50_000, TOKENS)
                answers.append(Rollout(text, tokens, -numbers.random(TOKENS)))
                rule = Score(float(dice.random() < 0.5))
                failed = Score(failure=Failure("timeout", "no reply within 30 s"))
                judge = failed if dice.random() < 0.02 else Score(dice.random(), feedback="It is clear. Grade: 7")
                value = None if judge.failure else (rule.value or 0.0) + (judge.value or 0.0)
                scores.append(Score(value, judge.failure, {"rule": rule, "judge": judge}))
            scored = ScoredGroup(RolloutGroup(prompt, answers), scores)
            line = {"step": 1 + i * 500 // groups, "kind": "train", "dropped": "", "scored": to_json(scored)}
            line["advantages"] = [None if s.value is None else s.value - 1 for s in scores]
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    return path.stat().st_size


async def measure(folder: Path) -> None:
    """Print the median and the worst time of each kind of request."""
    runner = web.AppRunner(make_app(RunList([folder])))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    run, dice = {"run": folder.name, "stage": "policy"}, random.Random(1)

    async with ClientSession() as session:

        async def get(path: str, **query: object) -> dict[str, object]:
            wanted = run | {name: str(value) for name, value in query.items()}
            async with session.get(f"{base}{path}", params=wanted) as response:
                return dict(await response.json())

        async def search(text: str) -> None:
            while (await get("/api/rows", text=text))["searched"] != 1.0:
                pass

        groups = int((await get("/api/stages"))["stages"][0]["groups"])  # type: ignore[index]
        while (await get("/api/stages"))["indexed"] != 1.0:
            await asyncio.sleep(0.05)
        kinds = {
            "what one can filter by": lambda: get("/api/stages"),
            "page in order of steps": lambda: get("/api/rows", offset=dice.randrange(groups)),
            "page by reward": lambda: get(
                "/api/rows", by="rollouts", sort="reward", order="down", offset=dice.randrange(9_000)
            ),
            "filter: one step": lambda: get("/api/rows", step_min=(s := dice.randrange(500)), step_max=s),
            "filter: source, reward, failure": lambda: get(
                "/api/rows", source=f"source-{dice.randrange(7)}", reward_min=0.1, failure="any", by="rollouts"
            ),
            "search: first answer": lambda: get("/api/rows", text=f"needle{dice.random()}"),
            "search: all bodies, rare text": lambda: search("needle"),
            "search: all bodies, no match": lambda: search(f"{dice.random()}"),
            "one group": lambda: get("/api/group", line=dice.randrange(groups)),
            "poll": lambda: get("/api/version"),
        }
        for name, request in kinds.items():
            times = []
            for _ in range(5 if "all bodies" in name else REPEATS):
                begun = time.perf_counter()
                await request()
                times.append(1e3 * (time.perf_counter() - begun))
            print(f"{name:34s} median {statistics.median(times):8.1f} ms   worst {max(times):8.1f} ms")
    await runner.cleanup()


def main() -> None:
    """Make the run, index it and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the run is written; default: a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["REWARDSMITH_CACHE"] = f"{temporary}/cache"
        folder = (given.folder or Path(temporary)) / "large"
        size = write_run(folder, given.rollouts)
        print(f"{given.rollouts:,} rollouts, {size / 1e6:,.0f} MB")
        index = RolloutIndex(folder, index_file(folder))
        begun = time.perf_counter()
        while index.update() < 1:
            pass
        seconds = time.perf_counter() - begun
        print(
            f"indexed in {seconds:.1f} s: {given.rollouts / seconds:,.0f} rollouts/s, {size / seconds / 1e6:,.0f} MB/s"
        )
        print(f"index file {index_file(folder).stat().st_size / 1e6:,.0f} MB")
        asyncio.run(measure(folder))
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


if __name__ == "__main__":
    main()
