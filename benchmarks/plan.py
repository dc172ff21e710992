"""Compares `rewardsmith plan` with real steps: a plan from one measured run, against runs with other settings.

    python benchmarks/plan.py [--device cuda] [--shape qwen3-0.6b] [--steps 6]

A model of random weights is trained for some steps. From that run the plan predicts the seconds per step with
twice the group size, twice the answer length and twice the prompts; each is then run, and the table has the ratio of
prediction and truth, which should be within 1.5.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import torch
from embedded import SHAPES, build
from rich.console import Console
from rich.table import Table

from rewardsmith.recipe import load_recipe
from rewardsmith.runs.plan import PlanJob
from rewardsmith.runs.plan_workload import LAPS, measured_figures
from rewardsmith.runs.start import start

RECIPE = """
[models.policy]
init = "{init}"
device = "{device}"
{model}
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = {steps}
prompts_per_step = {prompts}
rollouts_per_prompt = {group}
mini_batches = 2
sampling = {{ max_tokens = {tokens}, min_tokens = {tokens} }}
reward = {{ type = "rule", rule = "text_number:letters" }}
optimizer = {{ lr = 1e-6 }}
"""
CHANGES = {
    "twice the group": ("stages.policy.rollouts_per_prompt={group}",),
    "twice the answer": ("stages.policy.sampling.max_tokens={tokens}", "stages.policy.sampling.min_tokens={tokens}"),
    "twice the prompts": ("stages.policy.prompts_per_step={prompts}",),
}
SIZES = {  # prompts, group, tokens
    "cpu": (8, 4, 32),
    "cuda": (32, 8, 512),
}


def real(file: Path, overrides: list[str], folder: Path) -> dict[str, float]:
    """Run a recipe, and return the median of its figures."""
    recipe = load_recipe(file, overrides)
    start(recipe, "plan", folder=folder, console=Console(file=(folder.with_suffix(".log")).open("w")))
    figures = measured_figures(folder, recipe.stages[0].settings)
    laps = {lap: figures.get(f"time/{lap}", 0.0) for lap in LAPS}
    rest = sum(v for k, v in figures.items() if k.startswith("time/") and k.count("/") == 1) - sum(laps.values())
    return laps | {"total": sum(laps.values()) + rest}


def main() -> None:
    """Measure, predict, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--gpu", help="kind of device for the plan; default: cpu or h200")
    parser.add_argument("--shape", choices=list(SHAPES), help="default: the built-in tiny-llama, on a GPU qwen3-0.6b")
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    sys.path.append(str(Path(__file__).parent))
    cuda = given.device == "cuda"
    gpu = given.gpu or ("h200" if cuda else "cpu")
    prompts, group, tokens = SIZES[given.device]
    table = Table("change", "part", "real s", "plan s", "plan / real")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = given.shape or ("qwen3-0.6b" if cuda else None)
        init, model = "tiny-llama", ""
        if shape is not None:
            build(folder / "model", SHAPES[shape](), 0)
            (folder / "chat.jinja").write_text("{% for message in messages %}{{ message['content'] }} {% endfor %}")
            init, model = str(folder / "model"), f'chat = "{folder}/chat.jinja"'
        text = RECIPE.format(
            init=init, device=given.device, model=model, steps=given.steps, prompts=prompts, group=group, tokens=tokens
        )
        (folder / "recipe.toml").write_text(text)
        double = {"prompts": 2 * prompts, "group": 2 * group, "tokens": 2 * tokens}
        for number, (change, overrides) in enumerate(CHANGES.items()):
            changed = [one.format(**double) for one in overrides]
            # Measured right before, so that both meet the same state of the machine.
            measured = folder / f"measured{number}"
            real(folder / "recipe.toml", [], measured)
            found = real(folder / "recipe.toml", changed, folder / f"run{number}")
            job = PlanJob(recipe=folder / "recipe.toml", overrides=changed, gpu=gpu, measured=measured)
            planned = asyncio.run(job.run(None)).metrics  # type: ignore[arg-type]
            for lap, part in {**LAPS, "total": "total"}.items():
                if found[lap] or planned[f"seconds/{part}"]:
                    truth, plan = found[lap], planned[f"seconds/{part}"]
                    ratio = f"{plan / truth:.2f}" if truth else "-"
                    table.add_row(change, part, f"{truth:.4g}", f"{plan:.4g}", ratio)
            print(f"{change}: done", flush=True)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
