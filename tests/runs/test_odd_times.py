"""The same recipe and seed end in the same weights, however long a rule takes before a model of this process rates."""

import json
from pathlib import Path

from rich.console import Console

from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.start import start
from tests.engines.test_rater import write_folder


def run(folder: Path, rater: Path, seconds: float) -> tuple[list[float], bytes]:
    """Return all scores and the weights after a run in which a classifier waits for a rule."""
    late = {"type": "rule", "rule": {"type": "tests.runs.odd_times:late", "seconds": seconds}}
    likes = {"type": "classifier", "model": "rater", "when": "late", "weight": 0.5}
    stage = {
        "type": "policy",
        "model": "policy",
        "data": "train",
        "steps": 1,
        "prompts_per_step": 12,
        "rollouts_per_prompt": 4,
        "sampling": {"max_tokens": 12},
        "reward": {"type": "sum", "parts": {"late": late, "likes": likes}},
    }
    recipe = {
        "cache": "",
        "models": {
            "policy": {"init": "tiny-llama", "device": "cpu"},
            "rater": {"init": str(rater), "head": "scalar", "device": "cpu"},
        },
        "data": {"train": {"type": "arithmetic", "operations": 2}},
        "stages": [stage],
    }
    start(parse_recipe(recipe), "run", folder=folder, console=Console(quiet=True))
    lines = (folder / "rollouts" / "policy.jsonl").read_text().splitlines()
    values = [score["value"] for line in lines for score in json.loads(line)["scored"]["scores"]]
    return values, (folder / "models" / "policy" / "model.safetensors").read_bytes()


def test_a_classifier_that_waits_for_a_rule_gives_the_same_numbers_whenever_the_rule_is_done(
    tmp_path: Path,
) -> None:
    rater = write_folder("tiny-llama", tmp_path / "rater")
    first = run(tmp_path / "first", rater, 0.0)
    second = run(tmp_path / "second", rater, 0.03)
    assert len(set(first[0])) > 10  # the classifier is asked
    assert first == second
