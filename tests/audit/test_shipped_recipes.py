"""`rewardsmith audit` of every reward that a shipped recipe learns from: it ends with findings."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rewardsmith
from rewardsmith.recipe import load_recipe
from tests.command_line import call
from tests.data.prepare.serving import Serving
from tests.recipe_stand_ins import reply_as_judge, scale_stand_ins, stand_ins, write_rows

ROOT = Path(__file__).parents[2] / "recipes"
LEARNING = ("policy", "process_model")
"""Stages whose reward teaches somebody."""

HEADLINES = {
    "trained_judge": "judge_rl",
    "rrm": "judged",
    "grrm": "judged",
    "several": "gated",
    "prime": "trusted",
    "failures": "long_zeros",
}
"""Of each recipe with several arms one whose reward has much in it; a ranker would have to be trained first."""


def rewards() -> Iterator[tuple[Path, str]]:
    """Yield each recipe with each of its stages that learns from a reward."""
    for path in sorted(ROOT.glob("**/*.toml")):
        for stage in load_recipe(path).stages:
            name: str = stage.settings.name  # type: ignore[attr-defined]
            if stage.name in LEARNING and (path.parent.name != "headlines" or HEADLINES.get(path.stem) == name):
                yield path, name


REWARDS = list(rewards())
FAST = {"quickstart", "judge", "own_reward", "rubric_gate"}


@pytest.fixture(scope="module")
def judge() -> Iterator[Serving]:
    """A server that replies as a judge would."""
    with Serving(reply_as_judge) as served:
        yield served


def changes(path: Path, folder: Path, url: str) -> list[str]:
    """Return the overrides with which the reward of a recipe can be audited here; judges are served at `url`."""
    server = f'{{ type = "server", urls = ["{url}"] }}'
    if path.parent.name == "scale" and path.stem != "quickstart_verl":
        return scale_stand_ins(path, folder, url)
    if path.parent.name == "headlines":
        models = tomllib.loads(path.read_text())["models"]
        tiny = [f"models.{name}.init=tiny-llama" for name, model in models.items() if "init" in model]
        return [*tiny, f"models.judge={server}"] if "judge" in models and path.stem != "trained_judge" else tiny
    if path.parent.name == "start":
        return ["models.policy.init=tiny-llama", *([f"models.judge={server}"] if path.stem == "judge" else [])]
    if path.parent.name == "judges" or path.stem == "policy_with_a_ranker":
        models = [f"models.{'ranker' if path.parent.name == 'grrm' else 'judge'}={server}"]
        if path.stem == "several":
            kinds = {"preference": "classify", "sentences": "embed"}
            models += [f'models.{name}={server[:-2]}, serves = "{kind}" }}' for name, kind in kinds.items()]
        return [f'data.train.path="{write_rows(folder)}"', "models.policy.init=tiny-llama", *models]
    return stand_ins(path, folder, folder)


def audit(path: Path, stage: str, overrides: list[str]) -> dict[str, Any]:
    small = ["--prompts", "4", "--max-attacks", "6", "--samples", "2", "--rollouts-per-prompt", "4"]
    if path.stem == "lifecycle":  # its judges are models in this process, which write to the limit
        small = ["--prompts", "2", "--max-attacks", "2", "--samples", "0", "--repeats", "1", "--orders", "1"]
    ended = call("audit", f"{path}:{stage}", *overrides, *small, "--json")
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        pytest.param(
            path,
            stage,
            id=f"{path.parent.name}-{path.stem}-{stage}",
            marks=[] if path.stem in FAST else pytest.mark.slow,
        )
        for path, stage in REWARDS
    ],
)
def test_the_reward_of_a_recipe_can_be_audited(
    path: Path, stage: str, judge: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(path.parent if path.parent.name == "start" else tmp_path)  # it has files of its own
    found = audit(path, stage, changes(path, tmp_path, judge.server.url))
    assert (found["kind"], found["audit"]["passed"]) == ("audit", None)
    measures = found["metrics"]
    if path.stem == "judge":  # its questions have no true answer, and its policy is not trained
        assert measures == {}
        assert any("no right and wrong answers to them are known" in note for note in found["audit"]["notes"])
        return
    if measures["failed"] == 1:  # a judge that is not trained yet writes nothing that can be read
        assert path.stem == "lifecycle"
        return
    assert {"false_positive", "false_negative", "separation", "length_bias", "edit_sensitivity"} <= measures.keys()
    # A judge that is not trained yet may give all answers the same grade.
    assert "attack" in measures or any("attacks cannot be measured" in note for note in found["audit"]["notes"])
    if path.parent.name in ("recipes", "prime") and path.stem != "gsm8k":  # the rule of the arithmetic world
        assert measures["false_positive"] == measures["false_negative"] == measures["attack"] == 0.0
        assert measures["separation"] == 1.0
    if path.stem == "online" and stage in ("prime", "trusted"):
        assert any("implicit process reward, and was left out" in note for note in found["audit"]["notes"])


# ---- the command -----------------------------------------------------------------------------------------------------

RECIPE = """
[models.policy]
init = "tiny-llama"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
prompts_per_step = 4
rollouts_per_prompt = 4
sampling = { max_tokens = 6 }
reward = { type = "rule", rule = "arithmetic" }
[stages.audit]
require = { false_positive = 0.0, unsound = 0.5 }
prompts = 3
max_attacks = 5
samples = 0
on_fail = "warn"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe whose stage has an audit of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "rule.toml").write_text('type = "rule"\nrule = "math"\n')
    return tmp_path


def test_what_is_not_set_comes_from_the_stage_and_its_requirements_decide_the_status(place: Path) -> None:
    ended = call("audit", "recipe.toml", "--out", "found.json")
    assert ended.status == 1
    assert "FAILED: unsound is 1, at most 0.5 is required" in " ".join(ended.out.split())
    found = json.loads((place / "found.json").read_text())
    findings = {one["name"]: one for one in found["findings"]}
    assert (findings["unsound"]["passed"], findings["false_positive"]["passed"]) == (False, True)
    assert 0 < findings["attack"]["count"] <= 3 * 5
    # A flag comes before the setting of the stage.
    ended = call("audit", "recipe.toml", "--require.unsound", "1", "--prompts", "2", "--json")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["audit"]["findings"][0]["count"] == 2 * 3


def test_only_a_run_keeps_an_audit(place: Path) -> None:
    run = place / "run"
    run.mkdir()
    ended = call("audit", "recipe.toml", "--run-folder", "run")
    assert (ended.status, "is no run folder" in ended.err) == (2, True)
    assert list(run.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rule.toml",), ["data is not set", "--data FILE"]),
        (("recipe.toml:polcy",), ["polcy", "policy"]),
        (("nowhere.toml",), ["nowhere.toml"]),
        (("recipe.toml", "--require.atack", "0"), ["atack", "attack"]),
        (("recipe.toml", "--own-attacks", "mine.txt"), ["mine.txt", "is no file"]),
        (("recipe.toml", "--prompts", "1"), ["--prompts"]),
    ],
)
def test_a_mistake_is_reported_with_its_remedy(place: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    ended = call("audit", *arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err
    for word in words:
        assert word in " ".join(ended.err.split())


def test_attacks_of_the_users_own(place: Path) -> None:
    (place / "mine.txt").write_text("{right} and more\n{wrong} said my uncle\n")
    ended = call(
        "audit", "recipe.toml", "--own-attacks", "mine.txt", "--require.unsound", "1", "--max-attacks", "500", "--json"
    )
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["metrics"]["attack/own"] == 0.0


def test_requirements_of_a_stage_hold_for_python_too(tmp_path: Path) -> None:
    recipe = (ROOT / "quickstart.toml").read_text(encoding="utf-8")
    limits = '[stages.audit]\nrequire = { unsound = 0.5 }\n\n[[stages]]\nname = "greedy"'
    (tmp_path / "recipe.toml").write_text(recipe.replace('[[stages]]\nname = "greedy"', limits), encoding="utf-8")
    found = rewardsmith.audit(f"{tmp_path / 'recipe.toml'}:policy", prompts=2)
    assert "unsound is 1, at most 0.5 is required" in found.problem
