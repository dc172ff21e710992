"""The lifecycles of a rubric judge, a group ranker and a Bradley-Terry model, cut down to a few steps.

Every stage runs, and a run that broke resumes to the same end. A few steps teach nothing, so no test measures learning.
"""

import json
import math
import shlex
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rewardsmith.data import Arithmetic, Translation
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.run import Run
from rewardsmith.runs.start import start
from rewardsmith.text.rankings import write_ranking
from rewardsmith.trainers.trainer import Update
from tests.tiny_judges import teach

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[1] / "recipes"
RUBRIC = {"type": "rubric", "model": "judge", "template": "rubric_short"}
RANKING = {"type": "ranking", "model": "judge", "template": "ranking_short", "max_candidates": 3, "reading": "strict"}
SLOW = "optimizer.lr=1e-9"  # the judge of a test keeps what it was taught
SFT = ("steps=2", "batch_size=4")
RL = ("steps=2", "prompts_per_step=4", "rollouts_per_prompt=2", "validation.prompts=4")


def changes(stages: str, *settings: str) -> list[str]:
    return [f"stages.{stage}.{setting}" for stage in stages.split() for setting in settings]


RRM = [
    *changes("base cold_start", *SFT, SLOW),
    *changes("imitation", *SFT),
    *changes("judge_rl outcome_rl judged_rl", *RL, "mini_batches=2", SLOW),
    *changes("judge_rl", "select.constant=keep"),
    *changes("judge_after_cold_start judge_after_rl", "items=6"),
    *changes("policy_after_imitation policy_with_the_answer_alone policy_with_the_judge", "prompts=4"),
]
GRRM = [
    *changes("cold_start", *SFT, SLOW),
    *changes("imitation", *SFT),
    *changes("ranker_rl", *RL, "mini_batches=2", SLOW, "select.constant=keep"),
    *changes("ranker_rl", "validation.sampling={ temperature = 0.0, max_tokens = 128 }"),
    *changes("policy_rl", *RL),
    *changes("ranker_after_cold_start ranker_after_rl", "items=4"),
    *changes("policy_before policy_after", "prompts=4"),
    *(f"data.{name}.max_candidates=2" for name in ("rankings", "held_out_rankings", "held_out")),
]
BRADLEY_TERRY = [
    *changes("reward_model", *SFT, "validation.items=8"),
    *changes("proxy_against_the_truth", "items=8"),
    *changes("imitation", *SFT),
    *changes("near_the_start free", *RL),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))


def ran(name: str, settings: list[str], folder: Path) -> dict[str, dict[str, float]]:
    """Run a lifecycle and return the last value of each metric, by stage."""
    recipe = load_recipe(RECIPES / name / "lifecycle.toml", settings)
    start(recipe, "lifecycle", folder=folder, console=Console(quiet=True))
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    assert (folder / "report.html").stat().st_size
    found: dict[str, dict[str, float]] = {}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        found.setdefault(line["stage"], {}).update(line["metrics"])
    assert list(found) == [stage.settings.name for stage in recipe.stages]  # type: ignore[attr-defined]
    assert [k for metrics in found.values() for k, v in metrics.items() if not math.isfinite(v)] == []
    return found


class Broken(Exception):  # noqa: N818
    """What ends a run in the middle."""


def assert_resumes_to_the_same_end(
    name: str, settings: list[str], folder: Path, stages: Iterable[tuple[str, int]], models: Iterable[str]
) -> None:
    """Break a second run when it is about to log each of these steps; its models must end as those in `folder`."""
    again = folder.with_name("broken")
    log = Run._log
    for stage, step in stages:

        def breaking(self: Run, update: Update, at: tuple[str, int] = (stage, step)) -> None:
            if (self._stage, update.step) == at:
                raise Broken
            log(self, update)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "_log", breaking)
            with pytest.raises(Broken):
                ran(name, settings, again)
    ran(name, settings, again)
    for model in models:
        weights = [(place / "models" / model / "model.safetensors").read_bytes() for place in (folder, again)]
        assert weights[0] == weights[1], model


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An ordinary Hugging Face folder: a model that writes grades, whatever its prompt."""
    prompts = list(islice(Arithmetic(operations=2).prompts(0), 20))
    folder = tmp_path_factory.mktemp("taught") / "model"
    return str(teach(folder, RUBRIC, prompts, lambda dice: f"So.\nTotal Score: {dice.choice((3, 7))}/10", n=2))


def test_the_life_of_a_judge(judge: str, tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", [*RRM, f'models.base.init="{judge}"']
    found = ran("rrm", settings, folder)
    for name in ("judge_after_cold_start", "judge_after_rl"):
        assert 0 < found[name]["validation/mad"] < 1
        assert found[name]["models/judge/calls"] > 0
        assert (folder / "evaluations" / f"{name}.json").exists()
    assert 0 <= found["judge_rl"]["validation/reward/readable"] <= 1
    assert found["judged_rl"]["models/judge/calls"] > 0
    assert 0 < found["judged_rl"]["reward/mean"] <= 0.7  # an answer of nothing is worth nothing
    for name in ("policy_after_imitation", "policy_with_the_answer_alone", "policy_with_the_judge"):
        assert found[name]["validation/verified@4"] <= found[name]["validation/pass@4"]
    models = ("base", "judge", "policy", "outcome", "judged")
    for name in models:
        AutoModelForCausalLM.from_pretrained(folder / "models" / name)
        AutoTokenizer.from_pretrained(folder / "models" / name)
    assert "Total Score: " in (folder / "rollouts" / "judged_rl.jsonl").read_text()  # what the judge wrote
    stages = (("judge_rl", 2), ("imitation", 1), ("judged_rl", 2))  # inside a stage, and between two
    assert_resumes_to_the_same_end("rrm", settings, folder, stages, models)


def test_the_variants_of_the_page_are_recipes(judge: str) -> None:
    recipe = RECIPES / "rrm" / "lifecycle.toml"
    page = (recipe.parent / "README.md").read_text().replace("PATH", judge).replace("OTHER", judge)
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("rewardsmith run ")]
    assert len(commands) >= 3
    for command in commands:
        assert recipe.match(command[2])
        load_recipe(recipe, command[3:])


def hugging_face(folder: Path, init: str) -> str:
    """Return the path of an ordinary Hugging Face folder."""
    model, tokenizer = make_tiny(init, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_life_of_a_ranker_that_is_a_hugging_face_folder(tmp_path: Path) -> None:
    """The ranker writes verdicts of the right form, always the same one: that lets every later stage do its work."""
    prompts = list(islice(Translation().prompts(0), 20))
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
    assert "A:kP.aT.bV!=8" in (tmp_path / "run" / "rollouts" / "policy_rl.jsonl").read_text()  # what the ranker wrote


def test_the_life_of_a_bradley_terry_model(tmp_path: Path) -> None:
    inits = [f'models.{name}.init="{hugging_face(tmp_path / name, "tiny-llama")}"' for name in ("proxy", "policy")]
    folder, settings = tmp_path / "run", [*BRADLEY_TERRY, *inits]
    found = ran("bradley_terry", settings, folder)
    for stage in ("near_the_start", "free"):
        for where in ("", "validation/"):
            assert math.isfinite(found[stage][f"{where}reward/proxy"])
            assert 0 <= found[stage][f"{where}reward/truth"] <= 1
        assert found[stage]["validation/mean@1"] == pytest.approx(found[stage]["validation/reward/proxy"])
    assert 0 <= found["proxy_against_the_truth"]["validation/accuracy"] <= 1
    AutoModelForSequenceClassification.from_pretrained(folder / "models" / "proxy")
    stages = (("reward_model", 2), ("near_the_start", 2), ("free", 2))  # the copy of the policy is made on the way
    assert_resumes_to_the_same_end("bradley_terry", settings, folder, stages, ("proxy", "near", "policy"))
