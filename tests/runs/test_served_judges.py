"""Real runs whose judge is behind a server that fails, dies and comes back: no reward is ever a lie."""

import asyncio
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from rewardsmith.recipe import parse_recipe
from rewardsmith.rewards.base import Halt
from rewardsmith.runs.start import start
from tests.data.prepare.serving import Serving
from tests.engines import small_server
from tests.engines.faulty import last_text, said

pytestmark = pytest.mark.slow

PASSING = ["429-after", "500", "502", "503", "reset", "reset-midway", "half", "schema", "empty"]
UNREADABLE = said("I would rather not say."), said("Total Score: 4", finish="length"), said("Total Score: nan")


def true_grade(response: str) -> int:
    """What the judge thinks of a response: a pure function of it."""
    return len(response.encode()) * 7 % 11


def verdict(body: dict) -> str:
    (response,) = re.findall(r"## Answer\n\n`{3,}\n(.*?)\n`{3,}\n\n## Your task", last_text(body), re.DOTALL)
    return f"Total Score: {true_grade(response)}/10"


@pytest.fixture
def serving():
    with Serving(verdict) as serving:
        yield serving


def recipe(judge: Serving | dict, **failure: object):
    if isinstance(judge, Serving):
        judge = {"type": "server", "urls": [judge.server.url], "retries": 8, "backoff": 0.01}
    return parse_recipe(
        {
            "cache": "",
            "models": {
                "policy": {"init": "tiny-llama"},
                "judge": judge,
            },
            "data": {"train": {"type": "arithmetic", "operations": 2}},
            "stages": [
                {
                    "type": "policy",
                    "model": "policy",
                    "data": "train",
                    "steps": 3,
                    "prompts_per_step": 6,
                    "rollouts_per_prompt": 4,
                    "sampling": {"max_tokens": 8},
                    "save": {"every": 1},
                    "reward": {"type": "rubric", "model": "judge", "criteria": "right: 10", "failure": failure},
                }
            ],
        }
    )


def run(folder: Path, checked) -> Counter:
    """Run it; return how many rollouts have the judge's own grade, another one, or a failure."""
    start(checked, "run", folder=folder, console=Console(quiet=True))
    return fates(folder)


def fates(folder: Path) -> Counter:
    counts: Counter = Counter()
    for line in (folder / "rollouts" / "policy.jsonl").read_text().splitlines():
        scored = json.loads(line)["scored"]
        for rollout, score in zip(scored["group"]["rollouts"], scored["scores"], strict=True):
            if score.get("value") is None:
                counts[score["failure"]["kind"]] += 1
            elif not rollout["text"]:
                counts["empty"] += score["value"] == 0
            else:
                counts["right" if score["value"] == true_grade(rollout["text"]) / 10 else "false"] += 1
    return counts


def weights(folder: Path) -> bytes:
    return (folder / "models" / "policy" / "model.safetensors").read_bytes()


def test_passing_faults_change_nothing(tmp_path, serving):
    counts = run(tmp_path / "clean", recipe(serving))
    assert counts["right"] + counts["empty"] == 72
    dice = random.Random(0)
    serving.server.plan(*(dice.choice(PASSING) if dice.random() < 0.4 else "ok" for _ in range(150)))
    again = run(tmp_path / "faulty", recipe(serving))
    assert again == counts
    assert weights(tmp_path / "faulty") == weights(tmp_path / "clean")
    metrics = [json.loads(line)["metrics"] for line in (tmp_path / "faulty" / "metrics.jsonl").read_text().splitlines()]
    assert sum(one["models/judge/retries"] for one in metrics) > 20


def test_lasting_faults_are_failures_and_never_rewards(tmp_path, serving):
    dice = random.Random(1)
    bad = [*UNREADABLE, "400"]
    serving.server.plan(*(dice.choice(bad) if dice.random() < 0.3 else "ok" for _ in range(200)))
    counts = run(tmp_path, recipe(serving, share=0.9))
    assert counts["false"] == 0
    assert counts["refused"] > 0
    assert counts["right"] > 30
    assert sum(counts.values()) == 72


def test_an_outage_is_waited_for_and_leaves_no_trace(tmp_path, serving):
    run(tmp_path / "clean", recipe(serving))

    async def dies(server, request, body):
        asyncio.get_running_loop().create_task(outage(server))
        request.transport.abort()

    async def outage(server):
        await server.stop()
        await asyncio.sleep(2)
        await server.__aenter__()

    serving.server.plan(*["ok"] * 30, dies)
    counts = run(tmp_path / "outage", recipe(serving))
    assert set(counts) <= {"right", "empty"}
    assert weights(tmp_path / "outage") == weights(tmp_path / "clean")


def test_a_judge_that_stays_away_stops_the_run_and_the_run_resumes_when_it_is_back(tmp_path, serving):
    run(tmp_path / "clean", recipe(serving))

    async def dies(server, request, body):
        asyncio.get_running_loop().create_task(server.stop())
        request.transport.abort()

    serving.server.plan(*["ok"] * 30, dies)
    short = recipe(serving, wait=1.0)
    with pytest.raises(Halt, match="unreachable for 1 s"):
        run(tmp_path / "stopped", short)
    serving.do(serving.server.__aenter__())
    counts = run(tmp_path / "stopped", short)
    assert set(counts) <= {"right", "empty"}
    assert weights(tmp_path / "stopped") == weights(tmp_path / "clean")


def test_a_judge_that_is_not_there_is_found_out_before_the_first_step(tmp_path, serving):
    checked = recipe(serving)
    serving.do(serving.server.stop())
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as error:
        run(tmp_path, checked)
    assert "stages.0.reward" in str(error.value)
    assert not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text()


# ---- a server that the run started -----------------------------------------------------------------------------------


def managed(mark: Path, **settings: object) -> dict:
    """Return a judge whose server is killed at its thirtieth question, in the second step, unless there is a mark."""
    arguments = ["--says", "GRADE", "--dies-at", "30", "--mark", str(mark)]
    command = [sys.executable, small_server.__file__, "--model", "{model}", "--host", "{host}", "--port", "{port}"]
    table = {"type": "managed", "command": command, "model": "small", "arguments": arguments, "backoff": 0.01}
    return table | settings


def test_a_managed_server_that_is_killed_is_started_again_or_the_run_stops_and_resumes(tmp_path):
    mark = tmp_path / "mark"
    mark.touch()
    judge = managed(mark)
    start(recipe(judge), "clean", folder=tmp_path / "clean", console=Console(quiet=True))
    mark.unlink()
    start(recipe(judge), "killed", folder=tmp_path / "killed", console=Console(quiet=True))
    assert "restart 1 of 2" in (tmp_path / "killed" / "run.log").read_text()
    assert weights(tmp_path / "killed") == weights(tmp_path / "clean")

    mark.unlink()
    alone, budget = managed(mark, restarts=0, retries=1), {"share": 0.2, "window": 16, "min_failures": 4}
    with pytest.raises(Halt, match="after 0 restarts"):
        start(recipe(alone, **budget), "stopped", folder=tmp_path / "stopped", console=Console(quiet=True))
    steps = len((tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines())
    assert 0 < steps < 3  # the first step is saved
    start(recipe(alone, **budget), "stopped", folder=tmp_path / "stopped", console=Console(quiet=True))
    assert weights(tmp_path / "stopped") == weights(tmp_path / "clean")  # the step was done again
