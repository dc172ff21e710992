"""A recipe on verl's workers against the same recipe on one device: metrics, rollouts, kill and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HEAD = """
title = "the same on one device and on a cluster"

[scale]
device = "cpu"
gpus_per_node = 2

[models.policy]
init = "tiny-llama"
device = "cpu"

[data.train]
type = "arithmetic"

[[stages]]
type = "sft"
model = "policy"
data = "train"
steps = 30
optimizer = { lr = 2e-3 }
"""
STAGE = """
[[stages]]
name = "{name}"
type = "policy"
model = "policy"
data = "train"
steps = {steps}
prompts_per_step = 6
rollouts_per_prompt = 3
mini_batches = 2
sampling = {{ max_tokens = 20 }}
optimizer = {{ lr = 1e-4 }}
{more}
[stages.reward]
type = "sum"
parts.short = {{ type = "own_rewards:Short", failure = {{ share = 1.0 }} }}
parts.answer = {{ type = "rule", rule = "arithmetic" }}
"""
OWN_REWARDS = '''
"""Pays for short answers, and fails for every fifth one."""
from rewardsmith.types import Failure, Score

class Short:
    async def score(self, group):
        return [
            Score(failure=Failure("crashed", "planned")) if int(r.tokens.sum()) % 5 == 0 else Score(-len(r.text) / 20)
            for r in group.rollouts
        ]
'''
MACHINE = ("time/", "memory/", "tokens/s", "latency")


def metrics(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Return the metrics of each step, without those that depend on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        (line["stage"], line["step"]): {
            name: value for name, value in line["metrics"].items() if not any(word in name for word in MACHINE)
        }
        for line in lines
    }


def start(recipe: Path, folder: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "rewardsmith", "run", str(recipe), "--folder", str(folder)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def run(recipe: Path, folder: Path, *options: str) -> dict[tuple[str, int], dict[str, float]]:
    """Return the metrics of a whole run."""
    process = start(recipe, folder, *options)
    printed, _ = process.communicate(timeout=900)
    assert process.returncode == 0, printed[-4000:]
    return metrics(folder)


def write_recipe(folder: Path, text: str) -> Path:
    (folder / "own_rewards.py").write_text(OWN_REWARDS)
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    return recipe


def test_every_algorithm_learns_the_same_on_a_cluster(tmp_path: Path) -> None:
    """One run of PPO, GRPO, GSPO, RLOO with two streams and PRIME on both engines, with rewards that fail."""
    models = """
[models.critic]
copy_of = "policy"
head = "scalar"
[models.prm]
copy_of = "policy"
"""
    stages = {
        "ppo": 'advantage = { type = "gae", whiten = true }\n'
        'kl = { coefficient = 0.01, place = "both", reward_coefficient = 0.02 }\n'
        'critic = { model = "critic", optimizer = { lr = 1e-3 } }\n'
        'loss = { type = "clip", low = 0.25, high = 0.25 }',  # at 0.2 a ratio lies on the bound, within rounding
        "grpo": 'advantage = "grpo"\noverlong = { buffer = 8, limit = 16 }\n'
        'loss = { type = "clip", low = 0.2, high = 0.28 }',
        "gspo": 'advantage = "grpo"\nloss = "gspo"\nreduction = "sequence-mean-token-mean"',
        "rloo": 'advantage = { type = "rloo", combine = "after" }',
        "prime": 'advantage = { type = "rloo", combine = "after", whiten = true }',
    }
    text = HEAD + models + "".join(STAGE.format(name=n, steps=2, more=more) for n, more in stages.items())
    text += (
        'parts.process = { type = "implicit", model = "prm", beta = 0.5, separator = ";", outcome = "answer",'
        " learn = { mini_batch = 8, optimizer = { lr = 5e-4 } } }\n"
    )
    recipe = write_recipe(tmp_path, text)
    here, there = run(recipe, tmp_path / "here"), run(recipe, tmp_path / "there", "--on", "verl")
    assert here.keys() == there.keys()
    for step, values in here.items():  # rounding adds up over the optimizer steps of five stages
        close = {"rel": 1e-4, "abs": 1e-5} if step in (("sft", 30), ("ppo", 1)) else {"rel": 5e-3, "abs": 1e-3}
        assert there[step] == pytest.approx(values, **close), step
    assert any(name.startswith("failures") or "failed" in name for name in here["grpo", 1]), here["grpo", 1].keys()


@pytest.mark.slow
def test_a_killed_run_resumes_on_the_cluster(tmp_path: Path) -> None:
    text = HEAD + STAGE.format(name="policy", steps=6, more='advantage = "grpo"\nsave = { every = 1 }')
    recipe = write_recipe(tmp_path, text)
    whole = run(recipe, tmp_path / "whole", "--on", "verl")
    process = start(recipe, tmp_path / "killed", "--on", "verl", start_new_session=True)
    deadline = time.monotonic() + 600
    while not list((tmp_path / "killed").glob("checkpoints/*policy-000002")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0][-4000:]
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)  # the driver and its Ray
    process.wait()
    resumed = run(recipe, tmp_path / "killed", "--on", "verl")
    assert resumed.keys() == whole.keys()
    for step, values in whole.items():
        assert resumed[step] == pytest.approx(values, rel=1e-4, abs=2e-5), step
