"""The lifecycle of a rubric reward model, cut down to a few steps: every stage runs, and a run that broke goes on.

What it learns is not asked here: a few steps teach nothing.
"""

import json
import math
import random
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewardsmith.data import Arithmetic
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.run import Run
from rewardsmith.runs.start import start
from rewardsmith.trainers.trainer import Update
from tests.tiny_judges import teach

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[1] / "recipes" / "rrm" / "lifecycle.toml"
RUBRIC = {"type": "rubric", "model": "judge", "template": "rubric_short"}
JUDGED = ("judge_after_cold_start", "judge_after_rl")
POLICIES = ("policy_after_imitation", "policy_with_the_answer_alone", "policy_with_the_judge")
TRAINED = ("base", "judge", "policy", "outcome", "judged")
SLOW = "optimizer.lr=1e-9"  # the judge of the tests keeps what it was taught

SHORT = [
    *(f"stages.{name}.{change}" for name in ("base", "cold_start") for change in ("steps=2", "batch_size=4", SLOW)),
    "stages.imitation.steps=2",
    "stages.imitation.batch_size=4",
    *(f"stages.{name}.items=6" for name in JUDGED),
    *(
        f"stages.{name}.{change}"
        for name in ("judge_rl", "outcome_rl", "judged_rl")
        for change in ("steps=2", "prompts_per_step=4", "rollouts_per_prompt=2", "mini_batches=2", SLOW)
    ),
    *(f"stages.{name}.validation.prompts=4" for name in ("judge_rl", "outcome_rl", "judged_rl")),
    "stages.judge_rl.select.constant=keep",
    *(f"stages.{name}.prompts=4" for name in POLICIES),
]


class Broken(Exception):  # noqa: N818
    """What ends a run in the middle."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An ordinary Hugging Face folder: a model that writes grades, whatever it is asked."""
    prompts = list(islice(Arithmetic(operations=2).prompts(0), 20))

    def verdict(dice: random.Random) -> str:
        return f"So.\nTotal Score: {dice.choice((3, 7))}/10"

    return str(teach(tmp_path_factory.mktemp("taught") / "model", RUBRIC, prompts, verdict, n=2))


@pytest.fixture
def lifecycle(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """What runs the recipe in a folder of that name."""
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))

    def run(name: str) -> Path:
        recipe = load_recipe(RECIPE, [*SHORT, f'models.base.init="{base}"'])
        return start(recipe, "lifecycle", folder=tmp_path / name, console=Console(quiet=True))

    return run


def metrics(folder: Path) -> dict[str, dict[str, float]]:
    """Return the last value of each metric, by stage."""
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        found.setdefault(line["stage"], {}).update(line["metrics"])
    return found


def break_at(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    log = Run._log

    def breaking(self: Run, update: Update) -> None:
        if (self._stage, update.step) == (stage, step):
            raise Broken
        log(self, update)

    monkeypatch.setattr(Run, "_log", breaking)


def test_the_life_of_a_judge(lifecycle: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lifecycle("whole")
    found = metrics(folder)
    assert list(found) == [stage.settings.name for stage in load_recipe(RECIPE, []).stages]  # type: ignore[attr-defined]
    assert [(s, k) for s, values in found.items() for k, v in values.items() if not math.isfinite(v)] == []
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    assert (folder / "report.html").stat().st_size
    for name in JUDGED:
        assert 0 < found[name]["validation/mad"] < 1
        assert found[name]["models/judge/calls"] > 0
        assert (folder / "evaluations" / f"{name}.json").exists()
    assert 0 <= found["judge_rl"]["validation/reward/readable"] <= 1
    assert found["judged_rl"]["models/judge/calls"] > 0
    assert 0 < found["judged_rl"]["reward/mean"] <= 0.7  # an answer of nothing is worth nothing
    for name in POLICIES:
        assert found[name]["validation/verified@4"] <= found[name]["validation/pass@4"]
    for name in TRAINED:
        AutoModelForCausalLM.from_pretrained(folder / "models" / name)
        AutoTokenizer.from_pretrained(folder / "models" / name)
    train = (folder / "rollouts" / "judged_rl.jsonl").read_text()
    assert "Total Score: " in train  # what the judge wrote is in the rollouts file

    # Broken inside a stage, and between two, it goes on to the same end.
    for stage, step in (("judge_rl", 2), ("imitation", 1), ("judged_rl", 2)):
        with monkeypatch.context() as patch:
            break_at(patch, stage, step)
            with pytest.raises(Broken):
                lifecycle("broken")
    again = lifecycle("broken")
    for name in TRAINED:
        weights = [(place / "models" / name / "model.safetensors").read_bytes() for place in (folder, again)]
        assert weights[0] == weights[1], name


def test_the_variants_of_the_page_are_recipes(base: str) -> None:
    page = (RECIPE.parent / "README.md").read_text().replace("PATH", base).replace("OTHER", base)
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("rewardsmith run ")]
    assert len(commands) >= 3
    for command in commands:
        assert RECIPE.match(command[2])
        load_recipe(RECIPE, command[3:])
