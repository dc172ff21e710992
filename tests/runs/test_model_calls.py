"""Rewards that call models, inside real runs: with a cache, with models that sleep, and on stored rollouts."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from rewardsmith.errors import UserError
from rewardsmith.recipe import load_recipe
from rewardsmith.rewards import CannotScore
from rewardsmith.runs.start import start
from rewardsmith.types import Score
from tests.command_line import call
from tests.recipe_stand_ins import shared_folder, stand_ins
from tests.test_recipes import RECIPES

RECIPE = next(path for path in RECIPES if path.stem == "rubric_mixed")
SMALL = ["prompts_per_step=4", "mini_batches=2", "steps=2", "critic.warmup=1", "save.every=1"]


@pytest.fixture
def changes(tmp_path, tmp_path_factory, monkeypatch):
    """What makes the recipe small."""
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    return [*stand_ins(RECIPE, tmp_path, shared_folder(tmp_path_factory)), *(f"stages.0.{one}" for one in SMALL)]


def run(folder: Path, changes: list[str]) -> list[dict[str, float]]:
    start(load_recipe(RECIPE, changes), "run", folder=folder, console=Console(quiet=True))
    return [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def learned(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return the numbers that do not depend on how the models were run."""
    return [
        {k: v for k, v in one.items() if not k.startswith(("time/", "memory/", "models/", "tokens/s"))}
        for one in metrics
    ]


def weights(folder: Path) -> bytes:
    return (folder / "models" / "policy" / "model.safetensors").read_bytes()


def test_a_replayed_run_makes_no_calls_and_ends_the_same(tmp_path, changes):
    first = run(tmp_path / "first", changes)
    again = run(tmp_path / "again", changes)
    assert sum(one["models/judge/calls"] for one in first) > 0
    assert [one["models/judge/calls"] for one in again] == [0.0, 0.0]
    calls = [one["models/judge/calls"] + one["models/judge/cached"] for one in first]
    assert [one["models/judge/cached"] for one in again] == calls
    assert learned(again) == learned(first)
    assert weights(tmp_path / "again") == weights(tmp_path / "first")


def test_models_that_sleep_while_others_work_change_nothing(tmp_path, changes):
    awake = run(tmp_path / "awake", [*changes, 'cache=""'])
    judge = next(one for one in changes if one.startswith("models.judge="))
    asleep = [judge.replace(" }", ", offload = true }"), "models.policy.offload=true", "models.critic.offload=true"]
    resting = run(tmp_path / "resting", [*changes, 'cache=""', *asleep])
    assert learned(resting) == learned(awake)
    assert weights(tmp_path / "resting") == weights(tmp_path / "awake")


def test_a_run_that_sleeps_resumes_where_it_stopped(tmp_path, changes):
    judge = next(one for one in changes if one.startswith("models.judge="))
    asleep = [judge.replace(" }", ", offload = true }"), "models.policy.offload=true", "stages.0.kl.coefficient=0.1"]
    whole = run(tmp_path / "whole", [*changes, *asleep])
    changed = [*changes, *asleep, "stages.0.save.keep=2"]
    other = tmp_path / "other"
    run(other, changed)
    # As if it had been killed after the first step: only the first checkpoint is there.
    (other / "summary.json").unlink()
    shutil.rmtree(sorted((other / "checkpoints").iterdir())[-1])
    resumed = run(other, changed)
    assert learned(resumed) == learned(whole)
    assert weights(other) == weights(tmp_path / "whole")


def usage(folder: Path) -> dict[str, float]:
    """Return the usage of the judge in summary.json without times."""
    used = json.loads((folder / "summary.json").read_text())["models"]["judge"]
    return {name: value for name, value in used.items() if name != "seconds"}


def test_a_run_ends_with_what_each_model_was_used_for_and_a_resume_keeps_it(tmp_path, changes):
    changed, folder = [*changes, "stages.0.save.keep=2"], tmp_path / "run"

    def whole() -> tuple[dict[str, float], str]:
        console = Console(file=io.StringIO(), width=200, _environ={})
        start(load_recipe(RECIPE, changed), "run", folder=folder, console=console)
        steps = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summed = {name: sum(one[f"models/judge/{name}"] for one in steps) for name in usage(folder)}
        return summed, console.file.getvalue()

    summed, printed = whole()
    assert summed == usage(folder)
    assert f"\njudge: {summed['calls']:.0f} calls, " in printed
    (folder / "summary.json").unlink()
    shutil.rmtree(sorted((folder / "checkpoints").iterdir())[-1])
    resumed, printed = whole()
    assert resumed == usage(folder)
    assert 0 < resumed["calls"] < summed["calls"]  # the second step is known now, the first one was paid for
    assert f"\njudge: {resumed['calls']:.0f} calls, " in printed
    assert '"judge","used":{"calls":' in (folder / "report.html").read_text()


def test_stored_rollouts_are_scored_by_the_recipe_s_judge(tmp_path, changes, monkeypatch):
    run(tmp_path / "run", changes)
    monkeypatch.chdir(tmp_path)
    command = ["score", str(tmp_path / "run"), "--reward", str(RECIPE), *changes, "--compare", "--json"]
    result = call(*command)
    assert result.status == 0, result.out + result.err
    found = json.loads(result.out)
    assert found["groups"] == 8
    assert found["compared"]["changed"] == 0
    assert found["models"]["judge"]["calls"] == 0  # all verdicts were known
    assert found["models"]["judge"]["cached"] > 0


@pytest.mark.parametrize(
    ("change", "output"),
    [
        ("stages.0.reward.judge.model=referee", "there is no [models.referee]"),
        ("stages.0.reward.judge.model=critic", 'a model that writes: one with head = "language"'),
        ('models.policy={ type = "server", urls = ["http://localhost:1/v1"] }', "a model in this process"),
        ('models.judge.urls=["localhost"]', "models.judge"),
    ],
)
def test_a_model_that_cannot_do_it_is_refused_before_the_run(changes, change, output):
    with pytest.raises(UserError) as error:
        load_recipe(RECIPE, [*changes, change])
    assert output in str(error.value)


class Picky:
    """Scores only prompts with the criteria that it wants."""

    async def score(self, group):
        return tuple(Score(1.0) for _ in group.rollouts)

    def require(self, prompt):
        if "criteria" not in prompt.info:
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has no 'criteria'")


def test_data_that_the_reward_cannot_use_is_found_before_the_run(tmp_path, changes):
    own = 'stages.0.reward={ type = "gate", rule = { type = "rule", rule = "exact" }, judge = { type = "%s" } }'
    with pytest.raises(UserError, match=r"stages\.0\.reward: judge: 12 of the first 12 prompts of data\.train cannot"):
        run(tmp_path / "run", [*changes, own % f"{__name__}:Picky"])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


class Plain:
    """Calls a model that it names in a setting like any other."""

    def __init__(self, *, model: str) -> None:
        self._name = model

    def connect(self, models):
        self._model = models(self._name)

    async def score(self, group):
        return tuple(Score(float(bool(self._model.name))) for _ in group.rollouts)


def test_a_reward_that_does_not_mark_its_model_gets_it_too_and_a_wrong_name_is_reported(tmp_path, changes, monkeypatch):
    run(tmp_path / "run", changes)
    judge = next(one for one in changes if one.startswith("models.judge=")).partition("=")[2]
    monkeypatch.chdir(tmp_path)
    for name, code in (("judge", 0), ("jugde", 2)):
        file = tmp_path / "own.toml"
        file.write_text(f'type = "{__name__}:Plain"\nmodel = "{name}"\n[models]\njudge = {judge}\n')
        result = call("score", str(tmp_path / "run"), "--reward", str(file))
        assert result.status == code, result.out + result.err
    assert 'there is no [models.jugde]. Did you mean "judge"?' in result.err
