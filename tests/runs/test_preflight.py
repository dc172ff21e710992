"""Mistakes in a recipe, its data and its model files are found before the first model is loaded; never a traceback."""

import asyncio
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.folder import RunFolder
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.run import Run
from rewardsmith.types import Prompt
from tests.command_line import call
from tests.runs.processes import prepared

DIGITS = "tests.trainers.world:Digits"
TINY = {"init": "tiny-llama", "device": "cpu"}


def table(**policy: Any) -> dict[str, Any]:
    """Return a recipe of two stages; keyword arguments change the second, in which a process reward learns."""
    parts = {"answer": {"type": DIGITS}, "process": {"type": "implicit", "model": "prm", "outcome": "answer"}}
    first = {"type": "sft", "model": "policy", "data": "train", "steps": 1, "batch_size": 2}
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
    data = {
        "train": {"type": "arithmetic", "operations": 2},
        "held_out": {"type": "arithmetic", "split": "held-out"},
        "empty": {"type": "tests.runs.test_preflight:Empty"},
        "rows": {"type": "jsonl", "path": "rows.jsonl"},
    }
    models = {"policy": TINY, "prm": TINY, "bytes": TINY | {"init": "tiny-llama-bytes"}}
    return {"cache": "", "models": models, "data": data, "stages": [first, second | policy]}


def without_steps(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe whose last stage has no steps."""
    del recipe["stages"][-1]["steps"]
    return recipe


class Empty:
    """No prompts."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        return iter(())


def evaluate(**changes: Any) -> dict[str, Any]:
    recipe = table()
    recipe["stages"][1] = {"type": "evaluate", "model": "policy", "data": "train", "reward": DIGITS} | changes
    return recipe


def with_process(**changes: Any) -> dict[str, Any]:
    recipe = table()
    recipe["stages"][1]["reward"]["parts"]["process"] |= changes
    return recipe


def with_model(**prm: Any) -> dict[str, Any]:
    recipe = table()
    recipe["models"]["prm"] = TINY | prm
    return recipe


def with_sft(**changes: Any) -> dict[str, Any]:
    recipe = table()
    recipe["stages"][0] |= changes
    return recipe


def refused(folder: Path, recipe: dict[str, Any], out: io.StringIO | None = None) -> str:
    """Start a run, which must end before a model is loaded, and return why."""
    run = Run(parse_recipe(recipe), RunFolder(folder / "run"), Progress(Console(file=out or io.StringIO(), width=300)))
    with pytest.raises(UserError) as caught:
        asyncio.run(run.go())
    assert not run._models._engines
    return str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "path", "message"),
    [
        (table(select={"part": "answr", "lowest": 0.1}), "stages.1.select.part", 'Did you mean "answer"?'),
        (with_process(reference="adapter-off"), "stages.1.reward.parts.process.reference", "models.prm has no adapter"),
    ],
)
def test_a_problem_between_settings_is_found_with_the_recipe(recipe: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        RewardTrees(parse_recipe(recipe))
    assert message in {problem.path: problem.message for problem in caught.value.problems}[path]


VALIDATION = {"data": "held_out", "reward": DIGITS}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (with_model(init="tiny-lama"), ["models.prm", "tiny-llama"]),
        (with_model(init="owner/no-such-model"), ["models.prm", "owner/no-such-model"]),
        (with_model(device="cuda"), ["models.prm", 'device = "cuda"', '"cpu"']),
        (with_model(chat="no_such.jinja"), ["models.prm", "no_such.jinja"]),
        (with_model(lora={"init": "nowhere"}), ["models.prm.lora.init", "nowhere"]),
        (with_model(lora={"targets": ["q_projx"]}), ["models.prm.lora.targets", "q_projx"]),
        (table(sampling={"max_tokens": 1024}), ["stages.1.sampling.max_tokens = 1024"]),
        (
            table(validation=VALIDATION | {"sampling": {"max_tokens": 1024}}),
            ["stages.1.validation.sampling.max_tokens = 1024"],
        ),
        (with_process(reference_model="bytes"), ["models.bytes has another tokenizer"]),
        (table(data="empty"), ["data.empty is empty"]),
        (table(validation=VALIDATION | {"prompts": "all"}), ["data.held_out has no end"]),
        (with_sft(steps=None, epochs=1), ["data.train has no end", "steps"]),
        (without_steps(table(epochs=1)), ["data.train has no end", "steps"]),
        (with_sft(data="empty"), ["data.empty has no demonstrations"]),
        (with_sft(data="rows"), ["2 of 3 rows", "line 2", "prompt is 7", "line 3", "no response"]),
    ],
)
def test_a_mistake_is_found_before_a_model_is_loaded(
    recipe: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_HELD_OUT", 100)
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_COUNTED", 100)
    rows = ['{"prompt": "1+1?", "response": "2"}', '{"prompt": 7, "response": "3"}', '{"prompt": "2+2?"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    found = refused(tmp_path, recipe)
    for word in words:
        assert word in found


def shorten(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), 'set chat = "chatml"'),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: os.truncate(folder / "model.safetensors", 5000), "model.safetensors is damaged"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
        (shorten, "sampling.max_tokens"),
    ],
    ids=["template", "config", "weights", "damaged", "tokenizer", "short"],
)
def test_a_bad_model_folder_is_found_before_another_model_is_loaded(spoil: Any, words: str, tmp_path: Path) -> None:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "prm")
    spoil(tmp_path / "prm")
    recipe = evaluate(model="prm")
    recipe["models"]["prm"] = TINY | {"init": str(tmp_path / "prm")}
    found = refused(tmp_path, recipe)
    assert "models.prm" in found
    assert words in found


def test_settings_that_seldom_go_together_are_warned_about(tmp_path: Path) -> None:
    out = io.StringIO()
    refused(tmp_path, table(data="empty", loss="gspo"), out)
    assert "warning: stages.1.reduction" in out.getvalue()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.sft.stepz=3", ["stages.0.stepz = 3", 'Did you mean "steps"?']),
        ("stages.polcy.steps=3", ["'polcy'", 'Did you mean "policy"?']),
        ("nonsense", ["'nonsense'", "key.path=value"]),
        ("stages.policy.reward=digits:Digts", ["the module 'digits'", "has no 'Digts'"]),
        ("stages.policy.reward=digits:Keyless", ["stages.1.reward", "no key"]),
        ("stages.policy.validation.data=held", ["stages.1.validation.data", 'Did you mean "held_out"?']),
        ("stages.sft.name=../x", ["stages.0.name"]),
        ('trackers=["tensorbord"]', ["trackers.0", 'Did you mean "tensorboard"?']),
    ],
)
def test_a_bad_recipe_ends_with_status_2_and_makes_no_folder(
    override: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    ended = call("run", "small.toml", override, "--folder", "not-made")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    for word in words:
        assert word in ended.err
    assert not (tmp_path / "not-made").exists()
