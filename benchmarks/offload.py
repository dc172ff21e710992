"""Measures what offload costs: the same policy steps with all models on the GPU, and with models that share it.

    python benchmarks/offload.py     # one GPU

A policy of 0.7 billion random weights learns from two scalar reward models of the same size. Each side runs in its own
process. With offload only one of the three is on the device at a time; the rewards and gradients must not change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.start import start

SHAPE = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 20, "num_attention_heads": 12}


def write_models(folder: Path) -> None:
    """Write a policy and a reward model with random weights; a token is a character."""
    _, tokenizer = make_tiny("tiny-llama", seed=0)
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    torch.manual_seed(0)
    for name, kind, more in (
        ("policy", LlamaForCausalLM, {}),
        ("reward", LlamaForSequenceClassification, {"num_labels": 1}),
    ):
        config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, **SHAPE, **special, **more)
        kind(config).to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def recipe(folder: Path, offload: bool, steps: int) -> dict[str, Any]:
    """Return a policy stage whose reward is the sum of two reward models."""
    rater = {"init": str(folder / "reward"), "head": "scalar", "offload": offload}
    parts = {name: {"type": "classifier", "model": name} for name in ("first", "second")}
    stage = {
        "type": "policy",
        "model": "policy",
        "data": "train",
        "steps": steps,
        "sampling": {"max_tokens": 64},
        "save": {"every": steps},
        "reward": {"type": "sum", "parts": parts},
    }
    policy = {"init": str(folder / "policy"), "offload": offload}
    return {
        "cache": "",
        "models": {"policy": policy, "first": rater, "second": rater},
        "data": {"train": {"type": "arithmetic", "operations": 2}},
        "stages": [stage],
    }


def side(folder: Path, offload: bool, steps: int) -> None:
    """Run one side and print its figures as JSON."""
    run = start(parse_recipe(recipe(folder, offload, steps)), "run", folder=folder / f"run-{offload}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = ("reward/mean", "policy/grad_norm", "time/write", "time/wait", "time/learn")
    every = [json.loads(line)["metrics"] for line in lines]
    peak = max(value for one in every for name, value in one.items() if name.startswith("memory/"))
    metrics = [{name: one[name] for name in kept} for one in every]
    print(json.dumps({"peak": peak, "steps": metrics}))


def main() -> None:
    """Run both sides and print the last step of each, when host memory has been locked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--side", choices=["awake", "turns"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side(asked.folder, asked.side == "turns", asked.steps)
        return
    if not torch.cuda.is_available():
        sys.exit("this needs a GPU: on a CPU all models share the host's memory anyway")
    table = Table("models", "peak GiB", "writing s", "waiting for rewards s", "learning s", title="the last step")
    with tempfile.TemporaryDirectory() as place:
        write_models(Path(place))
        sides = {}
        for name in ("awake", "turns"):
            command = [sys.executable, __file__, "--side", name, "--folder", place, "--steps", str(asked.steps)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            sides[name] = json.loads(done.stdout.splitlines()[-1])
            last = sides[name]["steps"][-1]
            times = (f"{last[f'time/{what}']:.2f}" for what in ("write", "wait", "learn"))
            table.add_row(name, f"{sides[name]['peak']:.1f}", *times)
    Console().print(table)
    same = all(
        a[name] == b[name]
        for a, b in zip(sides["awake"]["steps"], sides["turns"]["steps"], strict=True)
        for name in ("reward/mean", "policy/grad_norm")
    )
    print("rewards and gradient norms are", "the same" if same else "NOT the same")


if __name__ == "__main__":
    main()
