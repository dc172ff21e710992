"""A process reward model after its training: `rewardsmith score` gives the rewards that the run itself gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.recipe import parse_recipe
from rewardsmith.records import from_json
from rewardsmith.runs.start import start
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Score
from tests.runs.scoring.groups import lines, write
from tests.test_cli import run

STEPS = 3
PART = "learn.reward.parts.process"


def recipe(*stages: dict[str, Any], lora: bool = False, **part: Any) -> dict[str, Any]:
    """Return a run in which a tiny policy writes, and a process reward model learns what its digits are worth."""
    process = {
        "type": "implicit",
        "model": "prm",
        "beta": 0.5,
        "normalise": "none",
        "learn": {"optimizer": {"lr": 3e-3}, "mini_batch": 8},
    }
    first = {
        "type": "process_model",
        "name": "learn",
        "model": "policy",
        "data": "train",
        "steps": STEPS,
        "prompts_per_step": 4,
        "rollouts_per_prompt": 4,
        "sampling": {"max_tokens": 8},
        "validation": {"data": "train", "every": 1, "prompts": 4, "rollouts_per_prompt": 4},
        "reward": {
            "type": "sum",
            "parts": {"answer": {"type": "tests.trainers.world:Digits"}, "process": process | part},
        },
    }
    prm: dict[str, Any] = {"init": "tiny-llama", "lora": {"rank": 4}} if lora else {"copy_of": "policy"}
    return {
        "models": {"policy": {"init": "tiny-llama"}, "prm": prm, "base": {"init": "tiny-llama"}},
        "data": {"train": {"type": "arithmetic", "operations": 1}},
        "stages": [first, *(first | stage for stage in stages)],
    }


def train(folder: Path, *stages: dict[str, Any], lora: bool = False, **part: Any) -> Path:
    return start(parse_recipe(recipe(*stages, lora=lora, **part)), "x", folder=folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return train(tmp_path_factory.mktemp("process") / "run")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def parts(file: Path) -> list[Score]:
    """Return the scores of the process part in a run's file: those of the last validation."""
    records = [from_json(GroupRecord, line) for line in lines(file)]
    last = [record for record in records if record.kind == "validation" and record.step == STEPS]
    return [score.parts["process"] for record in last for score in record.scored.scores]


def rescored(monkeypatch: pytest.MonkeyPatch, rollouts: Path, reward: str, *more: str, stage: str = "learn") -> Any:
    """Score the last validation of a stage again, and return the scores."""
    chosen = ("--stage", stage, "--kind", "validation", "--step", str(STEPS))
    out = Path("scores.jsonl")
    assert run(monkeypatch, "score", str(rollouts), "--reward", reward, *chosen, "--out", str(out), *more) == 0
    return [score for line in lines(out) for score in from_json(GroupRecord, line).scored.scores]


def assert_same(found: list[Score], expected: list[Score]) -> None:
    assert len(found) == len(expected) == 16
    assert any(abs(score.value or 0) > 0.05 for score in expected)  # it has learned something
    for now, then in zip(found, expected, strict=True):
        assert now.value == pytest.approx(then.value, abs=1e-4)
        assert now.token_values is not None
        assert then.token_values is not None
        np.testing.assert_allclose(now.token_values, then.token_values, atol=1e-4)


# ---- as in training ----------------------------------------------------------------------------------------------


def test_the_rewards_are_those_of_the_run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rescored(monkeypatch, trained, f"{trained}:{PART}")
    assert_same(found, parts(trained / "rollouts" / "learn.jsonl"))


@pytest.mark.slow
def test_a_reference_that_is_a_copy_is_what_it_was_when_it_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy of which it is a copy learns afterwards."""
    then = {"type": "policy", "name": "then", "reward": "tests.trainers.world:Digits", "optimizer": {"lr": 3e-2}}
    table = recipe(then, reference_model="base")
    table["models"]["base"] = {"copy_of": "policy"}
    folder = start(parse_recipe(table), "x", folder=tmp_path / "run")
    found = rescored(monkeypatch, folder, f"{folder}:{PART}")
    assert_same(found, parts(folder / "rollouts" / "learn.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("part", [{}, {"reference": "adapter-off"}, {"reference_model": "base"}], ids=str)
def test_the_rewards_of_an_adapter_are_those_of_the_run(
    part: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(tmp_path / "run", lora=True, **part)
    found = rescored(monkeypatch, folder, f"{folder}:{PART}")
    assert_same(found, parts(folder / "rollouts" / "learn.jsonl"))


@pytest.mark.slow
def test_an_adapter_that_had_learned_when_the_stage_began_has_the_reference_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(tmp_path / "run", {"name": "again"}, lora=True)
    assert "warning: stages.1: models.prm has been a process reward model before" in capsys.readouterr().err
    assert (folder / "references" / "again.process").is_dir()
    found = rescored(monkeypatch, folder, f"{folder}:again.reward.parts.process", stage="again")
    assert_same(found, parts(folder / "rollouts" / "again.jsonl"))
    assert "warning: stages" not in capsys.readouterr().err


# ---- elsewhere -----------------------------------------------------------------------------------------------------


def test_the_folders_of_a_run_are_models_of_any_reward_table(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prm.toml").write_text(
        'type = "implicit"\nmodel = "prm"\nreference_model = "start"\nbeta = 0.5\n'
        f'[models.prm]\ninit = "{trained / "models" / "prm"}"\n'
        f'[models.start]\ninit = "{trained / "references" / "learn.process"}"\n'
    )
    assert_same(rescored(monkeypatch, trained, "prm.toml"), parts(trained / "rollouts" / "learn.jsonl"))


def test_answers_of_others_have_no_tokens_and_are_scored_all_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "answers.jsonl", [{"prompt": "1+1?", "responses": ["1+1=2;#2", "no idea", "", "1;" * 900]}])
    assert run(monkeypatch, "score", "answers.jsonl", "--reward", f"{trained}:{PART}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reward"]["scored"] == 3
    assert found["reward"]["failed"] == {"refused": 0.25}
    assert "prm reads" in found["details"]["reward refused"]


def test_a_recipe_file_needs_a_reference_model_and_warns_of_untrained_weights(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (trained / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(text)
    command = ("score", str(trained), "--reward", f"recipe.toml:{PART}", "--limit", "1")
    assert run(monkeypatch, *command) == 2
    assert 'the reference of an implicit reward is "start"' in capsys.readouterr().err
    assert run(monkeypatch, *command, "stages.learn.reward.parts.process.reference_model=base") == 0
    assert "models.prm is as before the stage learn, which trains it" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_policy_as_reference_has_gone_on_and_another_model_must_stand_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(tmp_path / "run", reference="policy")
    command = ("score", str(folder), "--reward", f"{folder}:{PART}", "--limit", "1")
    assert run(monkeypatch, *command) == 2
    assert 'set reference = "start" and reference_model to a model' in capsys.readouterr().err
    place = "stages.learn.reward.parts.process"
    chosen = (f"{place}.reference=start", f"{place}.reference_model=policy")
    # The policy of this stage does not learn, so that it still is what wrote the answers.
    assert_same(rescored(monkeypatch, folder, f"{folder}:{PART}", *chosen), parts(folder / "rollouts" / "learn.jsonl"))


# ---- what it knows of the outcome ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("where", "name"), [(PART, ""), ("learn", "process")])
def test_the_outcome_judges_it_as_in_the_run(
    where: str, name: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("--kind", "validation", "--step", str(STEPS), "--outcome", "answer", "--json")
    assert run(monkeypatch, "score", str(trained), "--reward", f"{trained}:{where}", *chosen) == 0
    found = json.loads(capsys.readouterr().out)["outcome"]
    metrics = lines(trained / "metrics.jsonl")[-1]["metrics"]
    assert found["source"] == ("new" if name else "stored")
    assert set(found["components"]) == ({"", "process"} if name else {""})
    one = found["components"][name]
    assert one["accuracy"] == pytest.approx(metrics["validation/process/accuracy_fresh"])
    assert one["best"] == pytest.approx(metrics["validation/process/best_of_n"])
    assert found["mean"] == pytest.approx(metrics["validation/process/outcome"])
    assert (found["groups"], found["rollouts"], found["size"]) == (4, 16, 4)


# ---- as the beginning of another run -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trained_model_resumes_in_another_run_against_what_it_began_as(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = recipe(reference_model="base", update="none")
    table["models"]["prm"] = {"init": str(trained / "models" / "prm")}
    table["models"]["base"] = {"init": str(trained / "references" / "learn.process")}
    table["stages"][0]["type"] = "policy"
    table["stages"][0] |= {"advantage": {"type": "rloo", "combine": "after"}, "steps": 1}
    table["stages"][0].pop("validation")
    folder = start(parse_recipe(table), "x", folder=tmp_path / "next")
    metrics = lines(folder / "metrics.jsonl")[-1]["metrics"]
    assert abs(metrics["reward/process"]) > 0.01  # it knows from the first step on
    assert "warning: stages" not in capsys.readouterr().err


# ---- compared with the run ---------------------------------------------------------------------------------------


def compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rollouts: Path, reward: str, *more: str
) -> dict[str, Any]:
    capsys.readouterr()
    assert run(monkeypatch, "score", str(rollouts), "--reward", reward, "--compare", "--json", *more) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["compared"]
    return found


def test_the_same_reward_compares_as_the_same_although_a_run_keeps_its_implicit_part_apart(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(monkeypatch, capsys, trained, f"{trained}:learn", "--out", "all.jsonl")
    assert (found["changed"], found["sign_changes"], found["left_out"]) == (0, 0, ["process"])
    assert found["both"] == found["rollouts"] == (STEPS + STEPS + 1) * 16
    # What another weight would have done still shows; the implicit part counts on neither side.
    other = compared(monkeypatch, capsys, trained, f"{trained}:learn", "stages.learn.reward.parts.answer.weight=2.0")
    assert other["changed"] > 0
    assert other["new_mean"] == pytest.approx(2 * other["old_mean"])
    # A file of this command has the implicit part in its values: so has what it is compared with.
    again = compared(monkeypatch, capsys, Path("all.jsonl"), f"{trained}:learn")
    assert (again["changed"], again["left_out"]) == (0, [])
    assert again["old_mean"] != pytest.approx(found["old_mean"], abs=1e-6)


@pytest.mark.slow
def test_an_evaluation_has_the_implicit_part_in_its_values_and_is_compared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = recipe(reference_model="base")
    learn = table["stages"][0] | {"steps": 1}
    reward = {**learn["reward"], "parts": {**learn["reward"]["parts"]}}
    measure = {"type": "evaluate", "name": "measure", "model": "policy", "data": "train", "prompts": 2}
    measure |= {"rollouts_per_prompt": 2, "sampling": {"max_tokens": 8}, "reward": reward}
    folder = start(parse_recipe(table | {"stages": [learn, measure]}), "x", folder=tmp_path / "run")
    for stage, left_out in (("learn", ["process"]), ("measure", [])):
        found = compared(monkeypatch, capsys, folder, f"{folder}:{stage}", "--stage", stage)
        assert (found["left_out"], found["sign_changes"]) == (left_out, 0), stage
        assert found["old_mean"] == pytest.approx(found["new_mean"], abs=1e-5), stage
