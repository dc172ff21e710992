"""The lifecycles of a group ranker and of a Bradley-Terry model, cut down to a few steps: every stage runs.

What they learn is not asked here: a few steps teach nothing.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rewardsmith.data import Translation
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.run import Run
from rewardsmith.runs.start import start
from rewardsmith.text.rankings import write_ranking
from rewardsmith.trainers.trainer import Update
from tests.tiny_judges import teach

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[1] / "recipes"
RANKING = {"type": "ranking", "model": "judge", "template": "ranking_short", "max_candidates": 3, "reading": "strict"}

GRRM = [
    "stages.cold_start.steps=2",
    "stages.cold_start.batch_size=4",
    "stages.cold_start.optimizer.lr=1e-9",  # the ranker of the tests keeps what it was taught
    "stages.ranker_after_cold_start.items=4",
    "stages.ranker_rl.steps=2",
    "stages.ranker_rl.prompts_per_step=4",
    "stages.ranker_rl.mini_batches=2",
    "stages.ranker_rl.rollouts_per_prompt=2",
    "stages.ranker_rl.optimizer.lr=1e-9",
    "stages.ranker_rl.select.constant=keep",
    "stages.ranker_rl.validation.prompts=4",
    "stages.ranker_rl.validation.sampling={ temperature = 0.0, max_tokens = 128 }",
    "stages.ranker_after_rl.items=4",
    "stages.imitation.steps=2",
    "stages.imitation.batch_size=4",
    "stages.policy_before.prompts=4",
    "stages.policy_rl.steps=2",
    "stages.policy_rl.prompts_per_step=4",
    "stages.policy_rl.rollouts_per_prompt=2",
    "stages.policy_rl.validation.prompts=4",
    "stages.policy_after.prompts=4",
    *(f"data.{name}.max_candidates=2" for name in ("rankings", "held_out_rankings", "held_out")),
]

BRADLEY_TERRY = [
    "stages.reward_model.steps=2",
    "stages.reward_model.batch_size=4",
    "stages.reward_model.validation.items=8",
    "stages.proxy_against_the_truth.items=8",
    "stages.imitation.steps=2",
    "stages.imitation.batch_size=4",
    *(
        f"stages.{stage}.{change}"
        for stage in ("near_the_start", "free")
        for change in ("steps=2", "prompts_per_step=4", "rollouts_per_prompt=2", "validation.prompts=4")
    ),
]


class Broken(Exception):  # noqa: N818
    """What ends a run in the middle."""


def break_at(monkeypatch: pytest.MonkeyPatch, stage: str, step: int) -> None:
    """Let a run end when it is about to write down this step."""
    log = Run._log

    def breaking(self: Run, update: Update) -> None:
        if (self._stage, update.step) == (stage, step):
            raise Broken
        log(self, update)

    monkeypatch.setattr(Run, "_log", breaking)


def ran(name: str, changes: list[str], folder: Path) -> dict[str, dict[str, float]]:
    """Run a lifecycle and return the last value of each metric, by stage."""
    recipe = load_recipe(RECIPES / name / "lifecycle.toml", changes)
    start(recipe, "lifecycle", folder=folder, console=Console(quiet=True))
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    assert (folder / "report.html").stat().st_size
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        found.setdefault(line["stage"], {}).update(line["metrics"])
    assert list(found) == [stage.settings.name for stage in recipe.stages]  # type: ignore[attr-defined]
    assert [k for metrics in found.values() for k, v in metrics.items() if not math.isfinite(v)] == []
    return found


def hugging_face(folder: Path, init: str) -> str:
    """Return the path of an ordinary Hugging Face folder."""
    model, tokenizer = make_tiny(init, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))


def test_the_life_of_a_ranker_that_is_a_hugging_face_folder(tmp_path: Path) -> None:
    """The ranker writes verdicts of the right form, always the same one: that lets every later stage do its work."""
    prompts = [prompt for prompt, _ in zip(Translation().prompts(0), range(20), strict=False)]
    verdict = write_ranking({"A": 8, "B": 6}, "A:kP.aT.bV!=8")
    ranker = teach(tmp_path / "ranker", RANKING, prompts, lambda dice: verdict, n=2)
    policy = hugging_face(tmp_path / "policy", "tiny-qwen3")
    found = ran("grrm", [*GRRM, f'models.ranker.init="{ranker}"', f'models.policy.init="{policy}"'], tmp_path / "run")
    assert found["ranker_rl"]["validation/reward/readable"] == 1.0
    assert 0 <= found["ranker_rl"]["validation/reward/order"] <= 1
    assert 0 <= found["policy_rl"]["validation/mean@1"] <= 1
    assert found["policy_rl"]["models/ranker/calls"] > 0
    assert "failures/reward/unparsable" not in found["policy_rl"]
    for stage in ("ranker_after_cold_start", "ranker_after_rl"):
        assert found[stage]["validation/failed"] == 0
        assert 0 <= found[stage]["validation/accuracy"] <= 1
        assert (tmp_path / "run" / "evaluations" / f"{stage}.json").exists()
    for name in ("ranker", "policy"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "models" / name)
    kept = [line for line in _rollouts(tmp_path / "run", "policy_rl") if line["kind"] == "train"]
    assert "A:kP.aT.bV!=8" in json.dumps(kept)  # what the ranker wrote is in the rollouts file


def test_the_life_of_a_bradley_terry_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [f'models.{name}.init="{hugging_face(tmp_path / name, "tiny-llama")}"' for name in ("proxy", "policy")]
    found = ran("bradley_terry", [*BRADLEY_TERRY, *changes], tmp_path / "run")
    for stage in ("near_the_start", "free"):
        for where in ("", "validation/"):
            assert math.isfinite(found[stage][f"{where}reward/proxy"])
            assert 0 <= found[stage][f"{where}reward/truth"] <= 1
        assert found[stage]["validation/mean@1"] == pytest.approx(found[stage]["validation/reward/proxy"])
    assert 0 <= found["proxy_against_the_truth"]["validation/accuracy"] <= 1
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "models" / "proxy")

    # Broken inside stages it goes on to the same end, the copy of the policy that was made on the way included.
    for stage in ("reward_model", "near_the_start", "free"):
        with monkeypatch.context() as patch:
            break_at(patch, stage, 2)
            with pytest.raises(Broken):
                ran("bradley_terry", [*BRADLEY_TERRY, *changes], tmp_path / "broken")
    ran("bradley_terry", [*BRADLEY_TERRY, *changes], tmp_path / "broken")
    for name in ("proxy", "near", "policy"):
        weights = [
            (tmp_path / place / "models" / name / "model.safetensors").read_bytes() for place in ("run", "broken")
        ]
        assert weights[0] == weights[1], name


def _rollouts(folder: Path, stage: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts" / f"{stage}.jsonl").read_text().splitlines()]
