"""Evaluations as stages of a run: the reward's, and a policy's with a second reward that looks at the steps."""

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.folder import RunFolder
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.run import Run
from rewardsmith.trainers.evaluate.evaluate_policy import EvaluateStage, JudgedGroup, measure_policy
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.evaluate.reward_measures import (
    Verdicts,
    measure_grades,
    measure_pairs,
    measure_rankings,
)
from rewardsmith.trainers.trainer import JobStage
from rewardsmith.types import Graded, Preference, Prompt, Ranking
from tests.trainers.evaluate.rewards import graded, pair, prompt, ranking
from tests.trainers.world import World, steps, wait

HERE = "tests.trainers.evaluate"


class Groups:
    """Five groups, of which one cannot be scored; endless prompts of no use to the reward."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        while True:
            yield prompt()

    def rankings(self, seed: int) -> Iterator[Ranking]:
        yield from (ranking([1, 2, 3], ["1", "2", "3"], i) for i in range(4))
        yield ranking([1, 2], ["1", "?"], 4)

    def graded(self, seed: int) -> Iterator[Graded]:
        while True:
            yield graded(1.0, "0.8", True, True)
            yield graded(0.2, "0.3", True, False)

    def preferences(self, seed: int) -> Iterator[Preference]:
        yield pair("2", "1", "hep-go")


class Empty:
    """Nothing at all."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        return iter(())

    rankings = prompts


def stage(**table: Any) -> EvaluateReward:
    return EvaluateReward(**{"kind": "rankings", "data": "groups", "reward": f"{HERE}.rewards:Numbers"} | table)


@pytest.mark.parametrize(
    ("kind", "metric", "value"), [("rankings", "accuracy", 1.0), ("grades", "mad", 0.15), ("pairs", "score", 1.0)]
)
def test_a_reward_is_measured_in_one_step(tmp_path: Path, kind: str, metric: str, value: float) -> None:
    world = World(tmp_path, sources={"groups": Groups()})
    trainer = JobStage(stage(kind=kind, items=10, name="judge"), world)
    assert (trainer.steps, trainer.learners, trainer.best_by, wait(trainer.begin()).metrics) == (1, {}, "", {})
    (metrics,) = steps(trainer, 1, begin=False)
    assert metrics[f"validation/{metric}"] == pytest.approx(value)
    (found,) = world.results
    assert found.facts["kind"] == kind
    assert metrics == {f"validation/{name}": value for name, value in found.metrics.items()}
    trainer.restore(trainer.state())


def test_as_many_items_as_there_are_or_as_are_wanted(tmp_path: Path) -> None:
    world = World(tmp_path, sources={"groups": Groups()})
    (few,) = steps(JobStage(stage(items=2), world), 1)
    (every,) = steps(JobStage(stage(items=99), world), 1)
    assert (few["validation/groups"], every["validation/groups"]) == (2, 5)
    assert every["validation/failed"] == pytest.approx(0.2)
    assert every["validation/failures/reward/unparsable"] == pytest.approx(1 / 14)


def test_data_that_cannot_be_measured_with_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, sources={"empty": Empty()})
    with pytest.raises(UserError, match=r"data\.empty is empty"):
        steps(JobStage(stage(data="empty"), world), 1)
    with pytest.raises(UserError, match=r"data\.held_out has no rankings"):
        steps(JobStage(stage(data="held_out"), world), 1)


def recipe(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    data = {"groups": {"type": f"{HERE}.test_evaluate_stages:Groups"}, "sums": {"type": "arithmetic", "operations": 2}}
    models = {"policy": {"init": "tiny-llama", "device": "cpu"}}
    return {"models": models, "data": data, "stages": list(stages), "cache": ""} | more


REWARD_STAGE = {"type": "evaluate_reward", "kind": "rankings", "data": "groups", "reward": f"{HERE}.rewards:Numbers"}


def test_a_mistake_in_the_stage_is_named() -> None:
    for change, words in (
        ({"kind": "rankigs"}, "rankings"),
        ({"data": "group"}, "groups"),
        ({"items": 0}, "at least 1"),
    ):
        with pytest.raises(RecipeError, match=words):
            parse_recipe(recipe(REWARD_STAGE | change))


class Silent(Progress):
    """Shows nothing."""

    def __init__(self) -> None:
        pass

    def log(self, text: str) -> None:
        pass

    def stage(self, *_: Any, **__: Any) -> Any:
        return nullcontext()

    def step(self, update: Any) -> None:
        pass

    def within(self, *_: Any, **__: Any) -> None:
        pass


def run(table: dict[str, Any], folder: Path) -> Run:
    checked = parse_recipe(table)
    files = RunFolder(folder)
    with files.locked():
        going = Run(checked, files, Silent())
        wait(going.go())
    return going


def test_a_run_writes_the_tables_and_sums_up(tmp_path: Path) -> None:
    going = run(recipe(REWARD_STAGE | {"name": "judge"}), tmp_path)
    written = json.loads((tmp_path / "evaluations" / "judge.json").read_text())
    assert written["kind"] == "rankings"
    assert written["metrics"]["accuracy"] == 1.0
    assert written["tables"][0]["columns"][0] == {"name": "measure", "form": "text"}
    (summary,) = going.state.summary.stages
    assert (summary.type, summary.after["validation/accuracy"]) == ("evaluate_reward", 1.0)


# ---- a second reward for policies -----------------------------------------------------------------------------------

POLICY = {"model": "policy", "data": "held_out", "prompts": 3, "rollouts_per_prompt": 2, "correct_threshold": 0.0}
SOUND = {"reasoning_check": f"{HERE}.rewards:Steps", "sampling": {"max_tokens": 6}}


def test_an_evaluation_with_a_second_reward_measures_what_is_verified(tmp_path: Path) -> None:
    world = World(tmp_path)
    settings = EvaluateStage(**POLICY, reward="tests.trainers.world:Digits", **SOUND)  # type: ignore[arg-type]
    (metrics,) = steps(JobStage(settings, world), 1)
    rollouts = [
        (r, s)
        for record in world.records
        for r, s in zip(record.scored.group.rollouts, record.scored.scores, strict=True)
    ]
    holds = ["?" not in rollout.text for rollout, _ in rollouts]
    assert [score.parts["reasoning_check"].value for _, score in rollouts] == [float(one) for one in holds]
    assert metrics["validation/verified"] == pytest.approx(sum(holds) / 6)  # a digit share of 0 counts as right here
    assert metrics["validation/unsound"] == pytest.approx(1 - sum(holds) / 6)
    assert metrics["validation/pass@1"] == 1.0
    assert metrics["validation/verified@1"] == pytest.approx(sum(holds) / 6)
    assert metrics["validation/reward/reasoning_check"] == pytest.approx(sum(holds) / 6)
    (found,) = world.results
    assert found.facts["kind"] == "policy"
    assert found.metrics["verified@2"] == metrics["validation/verified@2"]
    assert "mean@2" in found.metrics


class Unparsable:
    """Groups that no reward of these tests can score."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        while True:
            yield prompt()

    def rankings(self, seed: int) -> Iterator[Ranking]:
        yield from (ranking([1, 2], ["a", "b"], i) for i in range(3))


def test_a_stage_that_could_score_nothing_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    table = recipe(REWARD_STAGE | {"name": "judge"})
    table["data"]["groups"]["type"] = f"{HERE}.test_evaluate_stages:Unparsable"
    with pytest.raises(UserError, match=r"no item has a result.*a is no number"):
        run(table, tmp_path)
    assert json.loads((tmp_path / "evaluations" / "judge.json").read_text())["metrics"]["failed"] == 1.0


# ---- docs/evaluation.md ---------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    table = tomllib.loads(text)
    table["models"] = {"policy": {"init": "tiny-llama"}, "judge": {"init": "tiny-llama"}}
    table["data"] = {"sums": {"type": "arithmetic"}, "held_out": {"type": "jsonl", "path": "x.jsonl"}}
    RewardTrees(parse_recipe(table))


def test_the_page_explains_every_metric() -> None:
    scores = np.array([1.0, 3.0, 2.0, 2.0])
    orders = [((0, 1, 2, 3), scores), ((1, 2, 3, 0), scores)]
    groups = [Verdicts(ranking([1, 2, 3, 3], ["a", "bb", "c", "dd"]), scores, [scores], orders)]
    answers = [
        Verdicts(graded(grade, "x", True, sound), np.array([score]), [np.array([0.5])])
        for grade, score, sound in ((1.0, 9.0, True), (0.0, 0.1, False))
    ]
    pairs = [Verdicts(pair("a", "b", subset), np.array([1.0, 0.0])) for subset in ("math-prm", "shp")]
    metrics = {
        *measure_rankings(groups)[0],
        *measure_grades(answers)[0],
        *measure_pairs(pairs)[0],
        *measure_policy([JudgedGroup((True, False), (True, None))])[0],
        *measure_policy([JudgedGroup((True,), (False,), faults=("miracle-steps",))])[0],
    }
    named = set(re.findall(r"`([a-z0-9_@./-]+)`", PAGE))
    counts = {"answers", "pairs", "prompts", "rollouts"}
    for name in {re.sub(r"@\d+", "@n" if name.startswith("gain") else "@k", name) for name in metrics} - counts:
        assert name in named, name
