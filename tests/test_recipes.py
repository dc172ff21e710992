"""Every recipe that is shipped runs: two small steps of each stage, with all its files at the end."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rewardsmith.recipe import Recipe, load_recipe
from rewardsmith.runs.start import start
from rewardsmith.trainers.process.implicit_parts import process_parts
from tests.recipe_stand_ins import shared_folder, stand_ins

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
    "process_model": {"steps": 2, "prompts_per_step": 4, "validation.prompts": 3},
    "evaluate": {"prompts": 3},
}


def trained(recipe: Recipe) -> set[str]:
    """Return the models that some stage trains."""
    stages = [stage.settings for stage in recipe.stages if stage.name != "evaluate"]
    critics = {stage.critic.model for stage in stages if getattr(stage, "critic", None)}  # type: ignore[attr-defined]
    process = {part.settings.model for stage in recipe.stages for part in process_parts(stage).values()}  # type: ignore[attr-defined]
    learners = {stage.settings.model for stage in recipe.stages if stage.name not in ("evaluate", "process_model")}  # type: ignore[attr-defined]
    return learners | critics | process


def check_judges(lines: list[dict[str, Any]]) -> None:
    """The judge was asked, and answered most of the time: it has learned a form, not what it is asked."""
    metrics: dict[str, float] = {}
    for line in lines:
        metrics |= line["metrics"]
    assert metrics["models/judge/calls"] > 0
    assert metrics.get("failures/reward/unparsable", 0.0) <= 0.5
    assert {name for name in metrics if name.startswith("failures/") and not name.endswith("/unparsable")} == set()


def check_labels(lines: list[dict[str, Any]]) -> None:
    """Every verdict of a judge that is being trained was read, or it is known why not."""
    for line in (line["metrics"] for line in lines if "reward/readable" in line["metrics"]):
        refused = math.fsum(share for name, share in line.items() if name.startswith("labels/reward/"))
        assert refused == pytest.approx(1 - line["reward/readable"])
    assert any(name.startswith("validation/labels/reward/") for line in lines for name in line["metrics"])


def small(path: Path, changes: list[str]) -> Recipe:
    """Return a recipe with its stages cut down; what a stage does not have is not added."""
    cuts = []
    for i, stage in enumerate(tomllib.loads(path.read_text())["stages"]):
        for key, value in SMALL.get(stage["type"], {}).items():
            outer, _, inner = key.partition(".")
            if key == "steps" and "steps" not in stage:
                cuts.append(f"stages.{i}.epochs=1")
            elif not inner or outer in stage:
                cuts.append(f"stages.{i}.{key}={value}")
    return load_recipe(path, [*cuts, *changes])


CLUSTERS = [p for p in RECIPES if p.parent.name == "scale" and p.stem != "quickstart_verl"]
# Lifecycles, headlines and those with files of their own (tests/runs/test_starters.py) have tests of their own.
OTHERS = ("headlines", "start")
HERE = [p for p in RECIPES if p.stem != "lifecycle" and p.parent.name not in OTHERS and p not in CLUSTERS]
LONG = ("policy_with_a_ranker", "online")


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in HERE]
)
def test_a_recipe_runs_from_end_to_end(
    path: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    recipe = small(path, stand_ins(path, tmp_path, shared_folder(tmp_path_factory)))
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
    if path.parent.name == "judges":
        check_judges(lines)
    if path.stem in ("rl_of_a_judge", "rl_of_a_ranker"):
        check_labels(lines)
    for name in trained(recipe):
        scalar = recipe.models[name].settings.head == "scalar"  # type: ignore[attr-defined]
        kind = AutoModelForSequenceClassification if scalar else AutoModelForCausalLM
        model = kind.from_pretrained(folder / "models" / name)
        assert AutoTokenizer.from_pretrained(folder / "models" / name).vocab_size > 0
        assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_the_readme_names_every_recipe() -> None:
    text = README.read_text()
    names = [str(path.relative_to(README.parent)) for path in RECIPES]
    assert [name for name in names if f"rewardsmith run recipes/{name}" not in text] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_says_what_it_is_and_is_short(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    stages = max(4, lines.count("[[stages]]"))
    assert sum("=" in line and not line.startswith("#") for line in lines) <= 15 * stages
