"""A recipe on verl's workers against the same recipe on one device: metrics, rollouts and resume."""

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

RECIPE = """
title = "two streams, a critic, a reference"

[scale]
device = "cpu"
gpus_per_node = 2

[models.policy]
init = "tiny-llama"
device = "cpu"

[models.critic]
copy_of = "policy"
head = "scalar"

[data.train]
type = "arithmetic"

[[stages]]
type = "sft"
model = "policy"
data = "train"
steps = 20
optimizer = { lr = 2e-3 }

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 4
prompts_per_step = 6
rollouts_per_prompt = 4
mini_batches = 2
sampling = { max_tokens = 24 }
advantage = "ADVANTAGE"
optimizer = { lr = 3e-4 }
checkpoint_every = 1
"""
TIMES = ("time/", "memory/", "tokens/s")


def metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of a run without those that depend on the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line["metrics"].items() if not k.startswith(TIMES)} for line in lines]


def run(recipe: Path, folder: Path, *options: str, **how: Any) -> subprocess.Popen[str]:
    """Start a run in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "rewardsmith", "run", str(recipe), "--folder", str(folder)]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a run, and show what it printed if it failed."""
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed[-4000:]
