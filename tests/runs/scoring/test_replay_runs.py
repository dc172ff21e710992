"""Real runs of tiny models: what they stored is enough to compute their advantages again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rewardsmith as rs
from rewardsmith.recipe import parse_recipe
from rewardsmith.records import dumps, from_json, loads
from rewardsmith.runs.start import start
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.viewer.rollout_view import IN_REPORT, group_view
from tests.command_line import call
from tests.runs.scoring.groups import lines
from tests.runs.scoring.replayed import recipe, replay

IMPLICIT = {"type": "implicit", "model": "prm", "beta": 0.5, "learn": {"optimizer": {"lr": 3e-3}}}
PRIME = {
    "advantage": {"type": "rloo", "combine": "after"},
    "reward": {
        "type": "sum",
        "parts": {
            "answer": {"type": "tests.trainers.world:Digits"},
            "process": IMPLICIT | {"weight": 0.5, "trust": {"by": "scale", "start": 0.9}},
        },
    },
}
CRITIC = {"copy_of": "policy", "head": "scalar"}
GAE = {"advantage": {"type": "gae", "lam": 0.9}, "critic": {"model": "critic"}}
KL = {"kl": {"coefficient": 0.5, "place": "reward"}}


def train(folder: Path, models: dict[str, Any] | None = None, **stage: Any) -> Path:
    table = recipe(**stage)
    return start(parse_recipe(table | {"models": table["models"] | (models or {})}), "x", folder=folder)


def records(folder: Path) -> list[GroupRecord]:
    found = [from_json(GroupRecord, line) for line in lines(folder / "rollouts" / "policy.jsonl")]
    return [record for record in found if record.kind == "train"]


def assert_reproduced(found: dict[str, Any], rollouts: int = 32) -> None:
    assert found["replay"]["reproduced"]["difference"] <= 1e-6 * found["replay"]["reproduced"]["largest"]
    assert found["replay"]["reproduced"]["rollouts"] == rollouts
    assert found["replay"]["cosine"] == pytest.approx(1)
    assert (found["changed"], found["sign_changes"], found["replay"]["largest_disagreements"]) == (0, 0, [])


def test_advantages_of_tokens_are_stored_where_they_differ_and_reproduced(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", advantage={"type": "grpo", "discount": 0.9})
    varied = 0
    for record in records(folder):
        assert loads(GroupRecord, dumps(record)) == record
        tokens = record.token_advantages or [None] * len(record.advantages)
        for rollout, mean, each in zip(record.scored.group.rollouts, record.advantages, tokens, strict=True):
            if each is None:
                assert mean == 0 or len(rollout.tokens) == 1
                continue
            varied += 1
            np.testing.assert_allclose(each[:-1], 0.9 * each[1:], rtol=1e-5)  # what a reward at the end is worth
            assert each.mean() == pytest.approx(mean, rel=1e-5)
    assert varied > 10
    assert_reproduced(replay(folder, "--reward", f"{folder}:policy"))
    undiscounted = rs.compare(folder, estimator={"type": "grpo", "discount": 1.0}).facts["compared"]["replay"]
    assert 0.8 < undiscounted["cosine"] < 0.999
    assert undiscounted["flipped"] == 0
    # An old file, which has the means only, is read, and does not pass for a whole one.
    file = folder / "rollouts" / "policy.jsonl"
    old = [{name: value for name, value in line.items() if name != "token_advantages"} for line in lines(file)]
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert "Warning" in " ".join(replay(folder, "--estimator", "grpo")["replay"]["notes"])


def test_a_run_without_rewards_of_tokens_stores_means_alone_and_other_weights_are_replayed(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", advantage={"type": "rloo", "combine": "after", "whiten": True})
    assert all(line["token_advantages"] == [] for line in lines(folder / "rollouts" / "policy.jsonl"))
    assert_reproduced(replay(folder, "--reward", f"{folder}:policy"))
    turned = rs.compare(folder, overrides={"stages.policy.reward.parts.digits.weight": -2.0}, keep="turned")
    found = turned.facts["compared"]["replay"]
    assert found["cosine"] < 0
    assert found["flipped"] > 10
    assert turned.metrics["cosine"] == found["cosine"]
    assert (folder / "replays" / "turned.json").is_file()


@pytest.mark.slow
def test_an_implicit_reward_is_replayed_with_its_trust_and_with_another_weight(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", {"prm": {"copy_of": "policy"}}, **PRIME)
    trusts = [row["metrics"].get("learned/process/trust") for row in lines(folder / "metrics.jsonl")]
    assert any(trust and 0 < trust < 1 for trust in trusts)
    assert any(values is not None for record in records(folder) for values in record.token_advantages)
    found = replay(folder, "--reward", f"{folder}:policy", "--kind", "train")
    assert_reproduced(found)
    assert "process is as the run stored it" in " ".join(found["replay"]["notes"])
    change = "stages.policy.reward.parts.process.weight=-20.0"
    other = replay(folder, "--reward", f"{folder}:policy", change)["replay"]
    assert other["cosine"] < 0.9
    part = replay(folder, "--reward", f"{folder}:policy", "--part", "process")
    assert (part["part"], part["both"], part["replay"]["groups"]) == ("process", 32, 8)
    assert part["replay"]["cosine"] is not None


def test_the_viewer_colours_tokens_by_their_advantage() -> None:
    scored = rs.ScoredGroup(
        rs.RolloutGroup(rs.Prompt("p", [rs.Message("user", "?")]), [rs.Rollout("ab", [1, 2], [-1, -1], ends=[1, 2])]),
        [rs.Score(1.0)],
    )
    record = GroupRecord(1, "train", "", scored, [0.5], [np.array([0.75, 0.25])])
    (rollout,) = group_view(record, IN_REPORT)["rollouts"]
    assert rollout["rewards"] == {
        "sizes": [1, 1],
        "parts": [{"name": "advantage", "sum": 1.0, "values": [0.75, 0.25]}],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1.0, 2.0, 3.0]], "3 numbers for 2 tokens"),
        ([None, None], "2 token_advantages for 1 rollouts"),
        ([[float("nan"), 0.0]], "must be finite"),
        ([{"float32": "?"}], "base64"),
        (5, "must be"),
    ],
)
def test_damaged_advantages_of_tokens_are_refused(values: Any, message: str) -> None:
    group = {"prompt": {"id": "p", "messages": [{"role": "user", "content": "?"}]}}
    group |= {"rollouts": [{"text": "ab", "tokens": [1, 2]}]}
    line = {"step": 1, "kind": "train", "dropped": "", "advantages": [0.5], "token_advantages": values}
    with pytest.raises(rs.UserError, match=message):
        from_json(GroupRecord, line | {"scored": {"group": group, "scores": [{"value": 1.0}]}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "models"),
    [
        (GAE, {"critic": CRITIC}),
        ({"advantage": "rloo", **KL}, {}),
        (GAE | KL, {"critic": CRITIC}),
    ],
)
def test_values_of_a_critic_and_the_kl_penalty_are_stored_for_the_replay(
    stage: dict[str, Any], models: dict[str, Any], tmp_path: Path
) -> None:
    folder = train(tmp_path / "run", models, **stage, steps=3)  # the reference differs from the policy after a step
    assert all(bool(record.token_values) == ("critic" in stage) for record in records(folder))
    assert all(bool(record.token_kl) == ("kl" in stage) for record in records(folder))
    assert any(one is not None and one.any() for r in records(folder) for one in (*r.token_values, *r.token_kl))
    assert_reproduced(replay(folder, "--reward", f"{folder}:policy"), rollouts=48)
    lighter = replay(folder, "--reward", f"{folder}:policy", "stages.policy.reward.parts.digits.weight=0.25")["replay"]
    assert lighter["cosine"] < 0.999
    assert replay(folder, "--estimator", "reinforce_plus_plus")["replay"]["cosine"] < 0.999
    if "critic" in stage:
        same = replay(folder, "--estimator", '{ type = "gae", lam = 0.9 }')
        assert_reproduced(same, rollouts=48)
        assert replay(folder, "--estimator", '{ type = "gae", lam = 0.2 }')["replay"]["cosine"] < 0.999
    file = folder / "rollouts" / "policy.jsonl"
    old = [{name: value for name, value in line.items() if name[:6] != "token_"} for line in lines(file)]
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    ended = call("score", str(folder), "--compare", "--reward", f"{folder}:policy")
    assert (ended.status, "an earlier version" in ended.err) == (2, True)


@pytest.mark.slow
def test_rewards_of_greedy_answers_are_not_stored_which_a_note_says(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", advantage="remax")
    found = replay(folder, "--reward", f"{folder}:policy")
    assert "the rewards of greedy answers" in " ".join(found["replay"]["notes"])
    assert (found["replay"]["cosine"], found["sign_changes"]) == (pytest.approx(1), 0)
    assert found["replay"]["reproduced"] == {"rollouts": 0, "difference": None, "largest": None}
    other = replay(folder, "--estimator", "reinforce_plus_plus")["replay"]
    assert other["estimators"] == ["remax → reinforce_plus_plus"]
    assert other["cosine"] < 0.99


@pytest.mark.slow
def test_process_values_are_read_from_the_stored_part(tmp_path: Path) -> None:
    parts = {**PRIME["reward"]["parts"], "process": IMPLICIT | {"normalise": "none"}}  # type: ignore[index]
    stage = {"advantage": "process_value", "reward": {"type": "sum", "parts": parts}}
    folder = train(tmp_path / "run", {"prm": {"copy_of": "policy"}}, **stage)
    assert_reproduced(replay(folder, "--reward", f"{folder}:policy"))
    assert replay(folder, "--estimator", "rloo")["replay"]["cosine"] < 1
