"""mean@n, best@n and pass@k against brute force; the same prompts and the same randomness each time."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data import Source
from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.scalar_judges import Classifier
from rewardsmith.trainers.evaluate.eval_measures import MAX_SOURCES, measure_sources, metric_names
from rewardsmith.trainers.evaluate.evaluate_policy import correct_threshold_of, measures
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.sft import SftTrainer
from rewardsmith.trainers.stages import EvaluateStage
from rewardsmith.trainers.trainer import JobStage
from rewardsmith.types import Score
from tests.trainers.world import FAILED, Digits, World, policy_stage, prompt, scored, sft_stage, steps, wait

N = 5
VALUES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.none())


@given(st.lists(st.lists(VALUES, min_size=N, max_size=N), min_size=1, max_size=4))
def test_the_measures_are_what_counting_gives(groups: list[list[float | None]]) -> None:
    found = measures(
        [scored([FAILED if v is None else Score(v) for v in group], number=i) for i, group in enumerate(groups)],
        n=N,
        correct_threshold=0.5,
    )
    values = [[v for v in group if v is not None] for group in groups]
    voting = [group for group in values if group]
    expected = {"failed": mean(v is None for group in groups for v in group), "truncated": 0, "length": 2}
    if voting:
        expected |= {f"mean@{N}": mean(map(mean, voting)), f"best@{N}": mean(map(max, voting))}
    for k in (1, 2, 4):
        chances = [mean(max(some) >= 0.5 for some in combinations(g, k)) for g in values if len(g) >= k]
        expected |= {f"pass@{k}": mean(chances)} if chances else {}
    assert found == pytest.approx(expected)


def test_a_policy_is_measured_before_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    validation = {"data": "held_out", "every": 2, "prompts": 3, "rollouts_per_prompt": 2}
    trainer = PolicyTrainer(policy_stage(steps=3, validation=validation), world)
    assert trainer.best_by == "validation/mean@2"
    begun = wait(trainer.begin())
    metrics = steps(trainer, 3, begin=False)
    assert begun.step == 0
    assert "validation/mean@2" in begun.metrics
    assert ["validation/mean@2" in m for m in metrics] == [False, True, True]
    measured = [r for r in world.records if r.kind == "validation"]
    assert [r.step for r in measured] == [0] * 3 + [2] * 3 + [3] * 3
    assert [r.scored.group.policy_version for r in measured] == [0] * 3 + [2] * 3 + [3] * 3
    prompts = [r.scored.group.prompt.id for r in measured]
    assert prompts[:3] == prompts[3:6] == prompts[6:]
    values = [[s.value or 0.0 for s in r.scored.scores] for r in measured if r.step == 3]
    assert metrics[-1]["validation/mean@2"] == pytest.approx(mean(mean(v) for v in values))
    assert metrics[-1]["validation/best@2"] == pytest.approx(mean(max(v) for v in values))


def test_validation_before_training_can_be_switched_off(tmp_path: Path) -> None:
    world = World(tmp_path)
    validation = {"data": "held_out", "every": 2, "prompts": 2, "at_start": False}
    trainer = PolicyTrainer(policy_stage(steps=3, validation=validation), world)
    assert wait(trainer.begin()).metrics == {}
    assert ["validation/mean@1" in m for m in steps(trainer, 3, begin=False)] == [False, True, True]
    sft = SftTrainer(sft_stage(validation={"data": "held_out", "demonstrations": 2, "at_start": False}), world)
    assert wait(sft.begin()).metrics == {}


def mixed(sources: Sequence[str]) -> dict[str, Source]:
    prompts = [replace(prompt(i, f"{i}+1?"), source=source) for i, source in enumerate(sources)]
    return {"held_out": SimpleNamespace(prompts=lambda seed: iter(prompts))}  # type: ignore[dict-item]


@pytest.mark.parametrize("stage", ["policy", "evaluate"])
def test_each_source_of_the_prompts_has_its_own_figures(stage: str, tmp_path: Path) -> None:
    sources = ["openai/gsm8k", "math 500", "openai/gsm8k", "math/500", ""]
    world = World(tmp_path, sources=mixed(sources))
    settings = {"data": "held_out", "prompts": "all", "rollouts_per_prompt": 2}
    if stage == "policy":
        metrics = wait(PolicyTrainer(policy_stage(validation=settings, correct_threshold=0.1), world).begin()).metrics
    else:
        table = settings | {"model": "policy", "correct_threshold": 0.1, "reward": "tests.trainers.world:Digits"}
        (metrics,) = steps(JobStage(EvaluateStage(**table, sampling={"max_tokens": 4}), world), 1)  # type: ignore[arg-type]
    groups = [record.scored for record in world.records]
    assert len(groups) == 5
    found = sorted({name.split("/")[2] for name in metrics if name.startswith("validation/sources/")})
    assert len(found) == 4
    assert [re.sub("-[0-9a-f]{6}$", "", name) for name in found] == ["math_500", "math_500", "openai_gsm8k", "unnamed"]
    alone = measures([groups[0], groups[2]], n=2, correct_threshold=0.1) | {"prompts": 2.0}
    assert metrics.items() >= {f"validation/sources/openai_gsm8k/{name}": v for name, v in alone.items()}.items()
    if stage == "evaluate":
        (table,) = [table for table in world.results[0].tables if table.title == "by source"]  # type: ignore[assignment]
        row = next(row for row in table.rows if row[0] == "openai_gsm8k")  # type: ignore[attr-defined]
        cells = dict(zip(table.columns, row, strict=True))  # type: ignore[attr-defined]
        assert (cells["prompts"], cells["mean@2"], cells["pass@2"]) == (2, alone["mean@2"], alone["pass@2"])


def test_one_source_and_very_many_sources_have_no_figures_of_their_own() -> None:
    def count(at: Sequence[int]) -> dict[str, float]:
        return {"prompts": float(len(at))}

    assert measure_sources(["x"] * 3, count) == {}
    many = [str(i) for i in range(MAX_SOURCES + 1)]
    assert len(measure_sources(many[:-1], count)) == MAX_SOURCES
    assert measure_sources(many, count) == {}


@given(st.sets(st.text(), max_size=6))
def test_names_of_sources_are_safe_and_apart(sources: set[str]) -> None:
    names = metric_names(sources)
    assert len(set(names.values())) == len(names) == len(sources)
    assert all(re.fullmatch(r"[\w.-]{1,70}", name) for name in names.values())


def test_validation_may_have_a_reward_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    validation = {"data": "held_out", "prompts": 2, "reward": "tests.trainers.world:Brevity"}
    wait(PolicyTrainer(policy_stage(validation=validation), world).begin())
    for record in world.records:
        lengths = [len(r.tokens) for r in record.scored.group.rollouts]
        assert [s.value for s in record.scored.scores] == [1 - length / 8 for length in lengths]


def test_an_evaluation_is_one_validation(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = {"model": "policy", "data": "held_out", "prompts": 3, "rollouts_per_prompt": 2, "correct_threshold": 0.1}
    stage = EvaluateStage(**table, reward="tests.trainers.world:Digits", sampling={"max_tokens": 4})  # type: ignore[arg-type]
    trainer = JobStage(stage, world)
    assert (trainer.steps, trainer.learners, wait(trainer.begin()).metrics) == (1, {}, {})
    (metrics,) = steps(trainer, 1, begin=False)
    groups = [r.scored for r in world.records]
    expected = measures(groups, n=2, correct_threshold=0.1)
    assert len(groups) == 3
    assert metrics.items() >= {f"validation/{name}": value for name, value in expected.items()}.items()
    trainer.restore(trainer.state())


@pytest.mark.parametrize(
    "settings", [{}, {"correct_threshold": 0.5}, {"reasoning_check": "tests.trainers.world:Brevity"}]
)
def test_where_no_number_means_right_none_is_counted(
    settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a scalar reward model, until the user says from where on a number is right."""
    monkeypatch.setattr(Digits, "scaleless", True, raising=False)
    world = World(tmp_path)
    table = {"model": "policy", "data": "held_out", "prompts": 3, "reward": "tests.trainers.world:Digits", **settings}
    trainer = JobStage(EvaluateStage(**table, sampling={"max_tokens": 4}), world)  # type: ignore[arg-type]
    (metrics,) = steps(trainer, 1)
    (kept,) = world.results
    assert "validation/mean@1" in metrics
    assert ("validation/pass@1" in metrics) == ("accuracy" in kept.metrics) == bool(settings)
    assert "failed" in kept.facts["main"]


def test_a_classifier_says_whether_its_numbers_have_a_scale() -> None:
    assert correct_threshold_of(Classifier(model="m"), 1.0) is None
    assert correct_threshold_of(Classifier(model="m"), 0.0) == 0
    assert correct_threshold_of(Classifier(model="m", activation="sigmoid"), 1.0) == 1


# ---- what is measured on is chosen by the data alone --------------------------------------------------------------


def test_all_of_a_source_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_HELD_OUT", 100)
    trainer = PolicyTrainer(policy_stage(validation={"data": "held_out", "prompts": "all"}), World(tmp_path))
    with pytest.raises(UserError, match=r"data\.held_out has no end.*a number"):
        wait(trainer.begin())
