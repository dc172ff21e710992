"""Every recipe that is shipped runs: two small steps of each stage, with all its files at the end."""

import json
import math
import tomllib
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rewardsmith.recipe import Recipe, load_recipe
from rewardsmith.runs.start import start

RECIPES = sorted(Path(__file__).parents[1].glob("recipes/**/*.toml"))
README = Path(__file__).parents[1] / "recipes" / "README.md"

SMALL = {
    "sft": {"steps": 2, "batch_size": 4},
    "policy": {
        "steps": 2,
        "prompts_per_step": 4,
        "mini_batches": 2,
        "validation.prompts": 3,
        "critic.warmup": 1,
        # a model after two steps of imitation is never right: keep groups without contrast
        "select.constant": '"keep"',
    },
    "evaluate": {"prompts": 3},
}


def stand_ins(path: Path, folder: Path) -> list[str]:
    """Return what takes the place of models and data that are not shipped."""
    if path.stem != "gsm8k":
        return []
    rows = [{"question": f"What is {i} + {i}?", "answer": f"Twice {i} is {2 * i}.\n#### {2 * i}"} for i in range(12)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f'data.{name}.path="{file}"' for name in ("train", "test")]
    return ["models.policy.init=tiny-llama", *files, "stages.0.sampling.max_tokens=8"]


def small(path: Path, folder: Path) -> Recipe:
    """Return a recipe with its stages cut down; what a stage does not have is not added."""
    table = tomllib.loads(path.read_text())
    changes = stand_ins(path, folder)
    for i, stage in enumerate(table["stages"]):
        for key, value in SMALL.get(stage["type"], {}).items():
            outer, _, inner = key.partition(".")
            if not inner or outer in stage:
                changes.append(f"stages.{i}.{key}={value}")
    return load_recipe(path, changes)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_runs_from_end_to_end(path: Path, tmp_path: Path) -> None:
    recipe = small(path, tmp_path)
    folder = start(recipe, path.stem, folder=tmp_path / "run", console=Console(quiet=True))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    done = {(line["stage"], line["step"]) for line in lines}
    for stage in recipe.stages:
        expected = {1} if stage.name == "evaluate" else {1, 2}
        assert {(stage.settings.name, step) for step in expected} <= done  # type: ignore[attr-defined]
    wrong = [(line["stage"], k, v) for line in lines for k, v in line["metrics"].items() if not math.isfinite(v)]
    assert wrong == []
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    assert (folder / "recipe.toml").exists()
    assert (folder / "report.html").exists()
    for stage in recipe.stages:
        if stage.name != "sft":
            assert (folder / "rollouts" / f"{stage.settings.name}.jsonl").stat().st_size  # type: ignore[attr-defined]
    for name in recipe.models:
        scalar = recipe.models[name].settings.head == "scalar"
        kind = AutoModelForSequenceClassification if scalar else AutoModelForCausalLM
        model = kind.from_pretrained(folder / "models" / name)
        assert AutoTokenizer.from_pretrained(folder / "models" / name).vocab_size > 0
        assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_the_readme_names_every_recipe() -> None:
    text = README.read_text()
    assert [path.name for path in RECIPES if f"rewardsmith run recipes/{path.name}" not in text] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_says_what_it_is_and_is_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert sum("=" in line and not line.startswith("#") for line in lines) <= 40
