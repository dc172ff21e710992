"""Replay of a run whose watch has lowered the weight of a part: each step has the weight that it was trained with."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.rewards.base import Part
from rewardsmith.runs.replay_stage import LoweredPart, find_stage
from tests.runs.scoring.groups import lines
from tests.runs.scoring.replayed import PARTS, HandMadeRun, Row, estimate, random_rows, replay, rloo
from tests.runs.scoring.test_replay_runs import assert_reproduced, train

AUDIT = {
    "reference": {"type": "tests.runs.scoring.replayed:never"},
    "every": 1,
    "max_false_discovery": 0.5,
    "on_alarm": "lower",
    "lower": "digits",
    "factor": 0.25,
}
"""A watch whose reference rejects every answer, so that each look lowers the weight."""

LARGE = {"prompts_per_step": 10, "rollouts_per_prompt": 8}
"""Steps of enough answers for an alarm."""

AFTER = {"type": "rloo", "combine": "after"}


def summed(rows: list[Row], weights: dict[str, float]) -> list[float]:
    """Return the weighted sum of what rloo gives to each part alone."""
    each = {name: estimate(rows, rloo, lambda row, name=name: row.values[name]) for name in weights}
    return [math.fsum(weights[name] * each[name][i] for name in weights) for i in range(len(rows))]  # type: ignore[misc, operator]


def log(run: HandMadeRun, *rows: tuple[str, int, dict[str, float]]) -> None:
    table = [{"stage": stage, "step": step, "metrics": metrics} for stage, step, metrics in rows]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table) + '{"stage": "pol')


@pytest.fixture
def lowered(tmp_path: Path) -> tuple[HandMadeRun, dict[int, list[Row]]]:
    """Four steps; after the second and the fourth the weight of digits is lowered. Values are those of the reward."""
    run, steps = HandMadeRun(tmp_path / "run", {"advantage": AFTER, "audit": AUDIT | {"every": 2}}), {}
    for step, factor in {1: 1.0, 2: 1.0, 3: 0.25, 4: 0.25, 5: 0.0625}.items():
        rows = random_rows(step)
        for i, row in enumerate(rows):
            row.text = "1" * (i * step % 5) + "a" * 3
            row.values = {"digits": (i * step % 5) / 8, "brevity": 1 - row.tokens / 8}
        for row, advantage in zip(rows, summed(rows, {"digits": 2.0 * factor, "brevity": -1.0}), strict=True):
            row.advantage = advantage
        run.add(step, rows)
        steps[step] = rows
    run.write()
    log(
        run,
        ("policy", 1, {"watch/unscored": 1.0}),  # a look at which the reference failed
        ("policy", 2, {"watch/weight": 0.25}),
        ("policy", 3, {"groups/kept": 4.0}),
        ("other", 3, {"watch/weight": 0.5}),
        ("policy", 4, {"watch/weight": 0.0625}),
    )
    return run, steps


def test_each_step_has_the_weight_that_was_in_force(lowered: tuple[HandMadeRun, dict[int, list[Row]]]) -> None:
    run, _ = lowered
    found = replay(run.folder, "--estimator", json.dumps(AFTER).replace(":", " ="))["replay"]
    assert found["reproduced"]["rollouts"] == 80
    assert found["reproduced"]["difference"] < 2e-6
    assert "Warning" not in " ".join(found["notes"])
    assert (found["cosine"], found["largest_disagreements"]) == (pytest.approx(1), [])
    stage = find_stage(run.folder / "rollouts" / "policy.jsonl")
    assert stage is not None
    assert stage.lowered == LoweredPart("digits", [(2, 0.25), (4, 0.0625)])
    assert [stage.lowered.factor_after(step) for step in range(6)] == [1, 1, 0.25, 0.25, 0.0625, 0.0625]
    parts = {"digits": Part(2.0, 0.5), "brevity": Part(-1.0)}
    assert stage.parts_at(2, parts) == parts  # the look comes after the step
    assert stage.parts_at(3, parts) == {"digits": Part(2.0 * 0.25, 0.5), "brevity": Part(-1.0)}
    assert stage.parts_at(3, {"other": Part()}) == {"other": Part()}


def test_the_factor_of_the_run_counts_on_the_new_side_too(lowered: tuple[HandMadeRun, dict[int, list[Row]]]) -> None:
    run, steps = lowered
    weight, factor = -3.0, 0.25
    change = f"stages.policy.reward.parts.digits.weight={weight}"
    found = replay(run.folder, "--reward", f"{run.folder}:policy", change, "--step", "3")["replay"]
    rows, cosines = steps[3], []
    old, new = (summed(rows, {"digits": w * factor, "brevity": -1.0}) for w in (2.0, weight))
    for group in range(4):
        own = [i for i, row in enumerate(rows) if row.group == group]
        dot, ours, theirs = (
            math.fsum(rows[i].tokens * a[i] * b[i] for i in own) for a, b in ((old, new), (old, old), (new, new))
        )
        cosines.append(dot / math.sqrt(ours * theirs))
    assert found["cosine"] == pytest.approx(sum(cosines) / 4, abs=1e-5)
    assert "The watch has lowered the weight of digits" in " ".join(found["notes"])
    first = replay(run.folder, "--reward", f"{run.folder}:policy", change, "--step", "1-2")["replay"]
    assert "The watch" not in " ".join(first["notes"])  # no weight was lowered yet


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("combine", ["before", "after"])
def test_a_real_run_is_reproduced_and_its_own_reward_changes_nothing(combine: str, ahead: int, tmp_path: Path) -> None:
    stage: dict[str, Any] = {"advantage": {"type": "rloo", "combine": combine}, "audit": AUDIT, **LARGE, "steps": 3}
    validation = {"data": "train", "prompts": 2, "every": 1, "rollouts_per_prompt": 2}
    folder = train(tmp_path / "run", **stage, ahead=ahead, validation=validation)
    weights = [row["metrics"].get("watch/weight") for row in lines(folder / "metrics.jsonl") if row["step"]]
    assert weights == [0.25, 0.25**2, 0.25**3]
    found = replay(folder, "--reward", f"{folder}:policy")
    assert_reproduced(found, rollouts=3 * 80)
    assert found["both"] == 3 * 80 + 4 * 4  # also the validations after 0 to 3 steps have the weight of the step
    # Were the weight not lowered, the last step would have taught something else.
    (folder / "metrics.jsonl").unlink()
    forgotten = replay(folder, "--reward", f"{folder}:policy")
    assert forgotten["changed"] > 20
    assert forgotten["replay"]["cosine"] < 0.999
    warned = "Warning" in " ".join(forgotten["replay"]["notes"])
    assert warned == (combine == "after")  # under "before" the stored sums have the weight in them


def test_a_validation_with_a_reward_of_its_own_is_not_lowered(tmp_path: Path) -> None:
    reward = {"type": "sum", "parts": PARTS}
    validation = {"data": "train", "prompts": 2, "every": 1, "rollouts_per_prompt": 2, "reward": reward}
    folder = train(tmp_path / "run", audit=AUDIT, **LARGE, validation=validation)
    assert lines(folder / "metrics.jsonl")[-1]["metrics"]["watch/weight"] == 0.25**2
    found = replay(folder, "--reward", f"{folder}:policy", "--kind", "validation")
    assert (found["both"], found["changed"]) == (3 * 4, 0)
