"""What the recipe, the data and the files of models can tell is found before the first model is loaded."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.recipe_checks import RewardTrees
from rewardsmith.runs.checks import check_models
from rewardsmith.runs.folder import RunFolder
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.run import Run
from rewardsmith.types import Prompt

DIGITS = "tests.trainers.world:Digits"
TINY = {"init": "tiny-llama", "device": "cpu"}


def table(**policy: Any) -> dict[str, Any]:
    """Return a recipe of two stages; keyword arguments change the second, in which a process reward learns."""
    models = {"policy": TINY, "prm": TINY, "other": TINY}
    data = {"train": {"type": "arithmetic", "operations": 2}, "held_out": {"type": "arithmetic", "split": "held-out"}}
    first = {"type": "sft", "model": "policy", "data": "train", "steps": 1, "batch_size": 2}
    parts = {"answer": {"type": DIGITS}, "process": {"type": "implicit", "model": "prm", "outcome": "answer"}}
    second = {
        "type": "policy",
        "model": "policy",
        "data": "train",
        "steps": 1,
        "prompts_per_step": 2,
        "rollouts_per_prompt": 2,
        "sampling": {"max_tokens": 4},
        "advantage": {"type": "rloo", "combine": "after"},
        "reward": {"type": "sum", "parts": parts},
    }
    return {"cache": "", "models": models, "data": data, "stages": [first, second | policy]}


def evaluate(**changes: Any) -> dict[str, Any]:
    return {"type": "evaluate", "model": "policy", "data": "train", "reward": DIGITS} | changes


def with_part(name: str, part: dict[str, Any]) -> dict[str, Any]:
    reward = table()["stages"][1]["reward"]
    return {"reward": reward | {"parts": reward["parts"] | {name: part}}}


def problems(recipe: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong with a recipe, by path."""
    with pytest.raises(RecipeError) as caught:
        RewardTrees(parse_recipe(recipe))
    return {problem.path: f"{problem.value} {problem.message}" for problem in caught.value.problems}


def refused(folder: Path, recipe: dict[str, Any]) -> str:
    """Start a run, which must end before a model is loaded, and return why."""
    progress = Progress(Console(file=io.StringIO()))
    run = Run(parse_recipe(recipe), RunFolder(folder / "run"), progress)
    with pytest.raises(UserError) as caught:
        asyncio.run(run.go())
    assert not run._engines
    return str(caught.value)


# ---- what the recipe alone tells -------------------------------------------------------------------------------------


def test_the_recipe_of_these_tests_is_sound() -> None:
    RewardTrees(parse_recipe(table()))


@pytest.mark.parametrize("kind", ["policy", "process_model"])
def test_a_typo_in_the_part_to_select_by_is_found_with_the_recipe(kind: str) -> None:
    recipe = table(type=kind, select={"part": "answr", "lowest": 0.1})
    if kind == "process_model":
        del recipe["stages"][1]["advantage"]
    found = problems(recipe)["stages.1.select.part"]
    assert '"answr"' in found
    assert 'Did you mean "answer"?' in found


def test_a_rule_has_no_parts_to_select_by() -> None:
    recipe = table(reward={"type": "rule", "rule": "exact"}, select={"part": "exact"})
    assert "no part" in problems(recipe)["stages.1.select.part"]


def test_a_reward_of_ones_own_may_have_any_part_to_select_by() -> None:
    RewardTrees(parse_recipe(table(reward=DIGITS, select={"part": "anything"})))


def test_a_reference_without_the_adapter_of_a_model_that_has_none_is_found_with_the_recipe() -> None:
    part = {"type": "implicit", "model": "prm", "outcome": "answer", "reference": "adapter-off"}
    found = problems(table(**with_part("process", part)))["stages.1.reward.parts.process.reference"]
    assert "models.prm has no adapter" in found
    assert "lora" in found


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"model": "prm"}, "models.prm learns for another part already"),
        ({"model": "other", "reference_model": "prm"}, "reference_model is models.prm, which learns in this stage"),
    ],
)
def test_models_that_two_process_rewards_cannot_share_are_found_with_the_recipe(
    part: dict[str, str], words: str
) -> None:
    recipe = table(**with_part("again", {"type": "implicit", "outcome": "answer"} | part))
    assert words in problems(recipe)["stages.1"]


@pytest.mark.parametrize("kind", ["policy", "evaluate"])
def test_a_part_that_is_called_as_the_second_verdict_is_found_with_the_recipe(kind: str) -> None:
    reward = {"type": "sum", "parts": {"reasoning_check": {"type": DIGITS}}}
    recipe = table(validation={"data": "held_out", "reward": reward, "reasoning_check": DIGITS})
    if kind == "evaluate":
        recipe["stages"][1] = evaluate(reward=reward, reasoning_check=DIGITS)
    ((path, found),) = problems(recipe).items()
    assert path == ("stages.1.validation.reasoning_check" if kind == "policy" else "stages.1.reasoning_check")
    assert 'part "reasoning_check"' in found


def test_a_run_says_what_is_seldom_meant_before_it_begins(tmp_path: Path) -> None:
    out = io.StringIO()
    recipe = with_data("Empty", data="mine", loss="gspo")
    run = Run(parse_recipe(recipe), RunFolder(tmp_path / "run"), Progress(Console(file=out, width=300)))
    with pytest.raises(UserError):
        asyncio.run(run.go())
    assert "warning: stages.1.reduction" in out.getvalue()


# ---- what the files of models tell -----------------------------------------------------------------------------------


def with_model(**prm: Any) -> dict[str, Any]:
    recipe = table()
    recipe["models"]["prm"] = {"init": "tiny-llama", "device": "cpu"} | prm
    return recipe


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub that cannot be reached, and an empty cache of it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("init", ["models/x", "./x", "tiny-lama", "owner/no-such-model"])
def test_a_model_that_is_not_there_is_found_before_another_one_is_loaded(init: str, tmp_path: Path) -> None:
    found = refused(tmp_path, with_model(init=init))
    assert "models.prm" in found
    assert f'"{init}"' in found


@pytest.mark.usefixtures("offline")
def test_a_model_that_no_stage_uses_need_not_be_there(tmp_path: Path) -> None:
    recipe = table()
    recipe["models"] |= {"other": {"init": "./x"}, "prm": {"copy_of": "source"}, "source": {"init": "./y"}}
    assert "./y" in refused(tmp_path, recipe)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "cuda"}, ["models.prm", 'device = "cuda"', '"cpu"']),
        ({"chat": "no_such.jinja"}, ["models.prm", "no_such.jinja"]),
        ({"lora": {"init": "nowhere"}}, ["models.prm.lora.init", "nowhere"]),
        ({"lora": {"targets": ["q_projx"]}}, ["models.prm.lora.targets", "q_projx"]),
    ],
)
def test_a_setting_of_a_model_that_cannot_work_is_found_before_another_one_is_loaded(
    change: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = refused(tmp_path, with_model(**change))
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), 'set chat = "chatml"'),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    ],
    ids=["template", "config", "weights", "tokenizer"],
)
def test_a_folder_that_lacks_something_is_found_before_another_model_is_loaded(
    spoil: Any, words: str, tmp_path: Path
) -> None:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "prm")
    spoil(tmp_path / "prm")
    recipe = with_model(init=str(tmp_path / "prm"))
    recipe["stages"][1] = evaluate(model="prm")
    found = refused(tmp_path, recipe)
    assert "models.prm" in found
    assert words in found


def test_a_model_that_reads_the_tokens_of_the_policy_needs_no_chat_template(tmp_path: Path) -> None:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "prm")
    (tmp_path / "prm/chat_template.jinja").unlink()
    check_models(parse_recipe(with_model(init=str(tmp_path / "prm"))), lambda text: None)


def test_targets_of_an_adapter_are_looked_up_in_the_layers_of_a_folder(tmp_path: Path) -> None:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "prm")
    found = refused(tmp_path, with_model(init=str(tmp_path / "prm"), lora={"targets": ["q_proj", "k_prj"]}))
    assert "models.prm.lora.targets" in found
    assert "k_prj" in found


@pytest.mark.parametrize("place", ["stage", "validation", "evaluate"])
def test_answers_that_are_longer_than_the_model_reads_are_found_before_it_is_loaded(place: str, tmp_path: Path) -> None:
    sampling = {"max_tokens": 1024}
    if place == "evaluate":
        recipe = table()
        recipe["stages"][1] = evaluate(sampling=sampling)
    elif place == "stage":
        recipe = table(sampling=sampling)
    else:
        recipe = table(validation={"data": "held_out", "sampling": sampling, "reward": DIGITS})
    found = refused(tmp_path, recipe)
    assert f"stages.1.{'validation.' if place == 'validation' else ''}sampling.max_tokens" in found
    assert "1024" in found


def test_a_shorter_model_that_reads_the_answers_limits_them_too(tmp_path: Path) -> None:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "prm")
    config = json.loads((tmp_path / "prm/config.json").read_text())
    (tmp_path / "prm/config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    recipe = with_model(init=str(tmp_path / "prm"))
    recipe["stages"][1]["sampling"] = {"max_tokens": 64}
    assert "models.prm" in refused(tmp_path, recipe)


@pytest.mark.parametrize("setting", ["model", "reference_model"])
def test_a_process_reward_with_another_tokenizer_is_found_before_a_model_is_loaded(
    setting: str, tmp_path: Path
) -> None:
    part = {"type": "implicit", "model": "prm", "outcome": "answer"} | {setting: "bytes"}
    recipe = table(**with_part("process", part))
    recipe["models"]["bytes"] = {"init": "tiny-llama-bytes", "device": "cpu"}
    assert "models.bytes has another tokenizer" in refused(tmp_path, recipe)


# ---- what the data tells ---------------------------------------------------------------------------------------------


class Empty:
    """No prompts."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        return iter(())


class Broken:
    """Prompts that are none."""

    def prompts(self, seed: int) -> Iterator[Any]:
        yield "1+1?"


def with_data(kind: str, **policy: Any) -> dict[str, Any]:
    recipe = table(**policy)
    recipe["data"]["mine"] = {"type": f"tests.runs.test_checks:{kind}"}
    return recipe


@pytest.mark.parametrize("where", [{"data": "mine"}, {"validation": {"data": "mine", "reward": DIGITS}}])
def test_data_without_a_single_item_is_found_before_a_model_is_loaded(where: dict[str, Any], tmp_path: Path) -> None:
    assert "data.mine is empty" in refused(tmp_path, with_data("Empty", **where))


def test_data_of_ones_own_that_gives_something_else_is_found_before_a_model_is_loaded(tmp_path: Path) -> None:
    assert "data.mine" in refused(tmp_path, with_data("Broken", data="mine"))


def test_all_of_data_without_end_is_found_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_HELD_OUT", 100)
    recipe = table(validation={"data": "held_out", "prompts": "all", "reward": DIGITS})
    assert "data.held_out has no end" in refused(tmp_path, recipe)


def test_epochs_of_data_without_end_are_found_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_COUNTED", 100)
    recipe = table()
    recipe["stages"][0] = {"type": "sft", "model": "policy", "data": "train", "epochs": 1}
    found = refused(tmp_path, recipe)
    assert "data.train has no end" in found
    assert "steps" in found
