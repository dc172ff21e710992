"""What docs/evaluation.md says is so: its code, its recipe, and the names of all metrics."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from rewardsmith.algorithms.ranks import gain, tie_calibrated_agreement
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.trainers.evaluate.evaluate_grades import GradedAnswer, measure_grades
from rewardsmith.trainers.evaluate.evaluate_pairs import JudgedPair, measure_pairs
from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup, measure_policy
from rewardsmith.trainers.evaluate.evaluate_rankings import RankedGroup, measure_rankings

PAGE = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)
    return found


def test_the_recipe_is_valid() -> None:
    table = tomllib.loads(block("toml"))
    table["models"] = {"policy": {"init": "tiny-llama"}, "judge": {"init": "tiny-llama"}}
    table["data"] = {"sums": {"type": "arithmetic"}, "held_out": {"type": "jsonl", "path": "x.jsonl"}}
    RewardTrees(parse_recipe(table))


def test_the_code_says_what_the_comments_say() -> None:
    exec(compile(block("python"), "evaluation.md", "exec"), {})
    assert gain([0, 1, 5], [3, 2, 1], 2) == pytest.approx((-5 / 3, 5 / 3))
    assert tie_calibrated_agreement([[8, 3, 3]], [[2.0, 1.1, 1.0]]) == pytest.approx((1.0, 0.1))


def test_every_metric_is_explained() -> None:
    truth, said = np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 3.0, 2.0, 2.0])
    ranked = RankedGroup(truth, truth, said, [said], [((0, 1, 2, 3), said), ((1, 2, 3, 0), said)])
    answers = [GradedAnswer(1.0, 9.0, True, True, (0.5,)), GradedAnswer(0.0, 0.1, True, False, (0.5,))]
    both = ((1.0, 0.0), (1.0, 0.0))
    pairs = [JudgedPair(subset, 1.0, 1, False, both, both) for subset in ("math-prm", "shp")]
    metrics = {
        *measure_rankings([ranked])[0],
        *measure_grades(answers)[0],
        *measure_pairs(pairs)[0],
        *measure_policy([JudgedGroup((True, False), (True, None))])[0],
    }
    named = set(re.findall(r"`([a-z0-9_@./-]+)`", PAGE))
    counts = {"answers", "pairs", "prompts", "rollouts"}
    for name in {re.sub(r"@\d+", "@n" if name.startswith("gain") else "@k", name) for name in metrics} - counts:
        assert name in named, name
