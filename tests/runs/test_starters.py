"""Recipes by name from any folder, and `rewardsmith init`, which writes them."""

import json
import math
import re
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.recipe import load_recipe, load_table
from rewardsmith.recipe_files import ALIASES, completions, find_recipe, recipe_names, recipes_folder, shipped_recipes
from rewardsmith.runs.lookup import find_reward
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.starter_files import COMPANIONS, write_starter
from tests.command_line import call
from tests.data.prepare.serving import Serving
from tests.recipe_stand_ins import reply_as_judge

TWO_STEPS = ["stages.policy.steps=2", "stages.policy.prompts_per_step=4", "stages.policy.rollouts_per_prompt=2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def finished(run: Path) -> list[dict[str, float]]:
    """Return the metrics of a run, after a look at whether it ended well."""
    assert json.loads((run / "summary.json").read_text())["state"] == "finished"
    metrics = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for line in metrics for value in line.values())
    return metrics


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_can_be_written_and_explained(name: str, folder: Path) -> None:
    files = write_starter(name, folder / "new" / "project")
    source = shipped_recipes()[name]
    for file, origin in zip(files, [source, *(source.parent / other for other in files[1:])], strict=True):
        assert file.read_text() == (origin.parent / file.name if file != files[0] else origin).read_text()
    assert [file.name for file in files[1:]] == list(COMPANIONS.get(source.stem, ()))
    recipe = load_recipe(files[0])
    RewardTrees(recipe, str(files[0]))
    assert load_recipe(name) == recipe


@pytest.mark.parametrize("name", ["quickstart", "own-reward", "gsm8k", "judge", "ranker", "bradley-terry", "prime"])
def test_init_prints_commands_that_work(name: str, folder: Path) -> None:
    written = call("init", name, "my project")
    assert written.status == 0, written.err
    recipe = re.search(r"rewardsmith explain (\S+)", written.out)[1]  # type: ignore[index]
    assert "cd 'my project'" in written.out
    assert f"rewardsmith run {recipe}" in written.out
    explained = call("explain", f"my project/{recipe}")
    assert explained.status == 0, explained.err


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "my_rewards.py").write_text("mine")
    refused = call("init", "own-reward")
    assert refused.status == 2
    assert "my_rewards.py" in refused.err
    assert [file.name for file in folder.iterdir()] == ["my_rewards.py"]
    assert (folder / "my_rewards.py").read_text() == "mine"
    (folder / "file").write_text("")
    assert call("init", "quickstart", "file").status == 2


def test_init_without_a_name_lists_the_recipes(folder: Path) -> None:
    listed = call("init")
    assert listed.status == 0
    assert all(name in listed.out for name in recipe_names())
    assert list(folder.iterdir()) == []
    assert 'Did you mean "quickstart"?' in call("init", "quickstar").err


def test_a_reward_of_your_own_runs_from_the_folder_that_init_writes(folder: Path) -> None:
    assert call("init", "own-reward").status == 0
    done = call("run", "own_reward.toml", "stages.sft.steps=2", *TWO_STEPS, "stages.policy.validation.prompts=4")
    assert done.status == 0, done.err
    metrics = finished(folder / "runs" / "own_reward")
    assert {"reward/answer", "reward/short"} <= set(metrics[-1])


def test_the_recipe_with_a_judge_runs_with_a_server(folder: Path) -> None:
    assert call("init", "judge").status == 0
    with Serving(reply_as_judge) as judge:
        changes = [f'models.judge.urls=["{judge.server.url}"]', "models.policy.init=tiny-llama"]
        done = call("run", "judge.toml", *changes, *TWO_STEPS, "stages.policy.sampling.max_tokens=8")
        assert done.status == 0, done.err
        assert any("reader in a hurry" in prompt for prompt in judge.prompts)
    metrics = finished(folder / "runs" / "judge")
    assert 0 <= metrics[-1]["reward/helpful"] <= 1
    assert [name for name in metrics[-1] if name.startswith("failures/")] == []


def test_the_quickstart_runs_by_name_from_any_folder(folder: Path) -> None:
    changes = ["stages.sft.steps=2", *TWO_STEPS, "stages.policy.validation.prompts=4", "stages.greedy.prompts=4"]
    done = call("run", "quickstart", *changes)
    assert done.status == 0, done.err
    finished(folder / "runs" / "quickstart")
    assert call("score", "runs/quickstart", "--reward", "quickstart:policy").status == 0


def test_names_of_recipes(folder: Path) -> None:
    quickstart = recipes_folder() / "quickstart.toml"
    for name in ("quickstart", "recipes/quickstart.toml", Path("quickstart")):
        assert find_recipe(name) == quickstart
    assert find_recipe("bradley-terry") == find_recipe("bradley_terry") == find_recipe("bradley_terry/lifecycle")
    assert set(ALIASES) <= set(recipe_names())
    assert find_reward("quickstart:policy").reward.name == "rule"
    assert call("plan", "quickstart", "--gpu", "cpu").status == 0
    (folder / "quickstart").mkdir()  # a folder of that name is no recipe
    assert find_recipe("quickstart") == quickstart
    (folder / "grpo").write_text("title = 'mine'")  # a file is
    assert load_table("grpo") == {"title": "mine"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quikstart", 'Did you mean "quickstart"? Known: '),
        ("quickstart.toml", "there is no recipe 'quickstart.toml'. Did you mean \"quickstart\"?"),
        ("mine.tolm", 'Did you mean "mine.toml"?'),
        ("../recipes/quickstart.toml", "there is no recipe"),
        ("folder", "is a folder"),
        ("x" * 5_000, "there is no recipe"),
        ("a\0b", "there is no recipe"),
    ],
)
def test_an_unknown_recipe_gets_the_nearest_name(name: str, words: str, folder: Path) -> None:
    (folder / "mine.toml").write_text("")
    (folder / "folder").mkdir()
    with pytest.raises(UserError, match=re.escape(words)):
        load_table(name)


def test_completions_are_names_and_files(folder: Path) -> None:
    (folder / "quick.toml").write_text("")
    (folder / "quick.txt").write_text("")
    (folder / "quiet").mkdir()
    assert completions("qui") == ["quickstart", "quiet/", "quick.toml"]
    assert completions("[") == []
