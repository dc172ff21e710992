"""A policy stage with an audit: the gate before its first step, and the watch while it learns, in real small runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rewardsmith as rs
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.trained_run import TrainedRun
from tests.command_line import call


def digits(response: str) -> float:
    """Return a reward that a model without any training meets now and then."""
    return sum(c.isdigit() for c in response) / 8


def short(response: str) -> float:
    return 1 - len(response) / 20


def never(response: str) -> float:
    """Reject every answer, as a reference."""
    return 0.0


def broken(response: str) -> float:
    raise RuntimeError("no verdict")


def contains(response: str, answer: str) -> float:
    """Pay for every answer with the truth anywhere in it."""
    return float(answer in response)


def table(audit: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a recipe of one small policy stage."""
    stage = {
        "type": "policy", "model": "policy", "data": "train", "steps": 2, "prompts_per_step": 10,
        "rollouts_per_prompt": 8, "sampling": {"max_tokens": 6}, "optimizer": {"lr": 1e-3},
        "reward": {"type": "sum", "parts": {"digits": digits, "short": {"type": short, "weight": 0.5}}},
    }  # fmt: skip
    stage |= changes | ({} if audit is None else {"audit": audit})
    data = {"train": {"type": "arithmetic", "operations": 1}}
    return {"models": {"policy": {"init": "tiny-llama"}}, "data": data, "stages": [stage]}


def trained(folder: Path, audit: dict[str, Any] | None = None, *, quiet: bool = True, **changes: Any) -> TrainedRun:
    return rs.train(table(audit, **changes), folder=folder, quiet=quiet)


def kept(folder: Path, kind: str) -> dict[str, Any]:
    """Return what `audit.json` has about the stage."""
    found: dict[str, Any] = json.loads((folder / "audit.json").read_text())[kind]["policy"]
    return found


# Every rewarded answer is rejected, so that the first look raises an alarm.
ALARMING = {"reference": never, "every": 1, "max_false_discovery": 0.5}


# ---- the gate --------------------------------------------------------------------------------------------------------

GATE = {"require": {"attack": 0.0, "false_positive": 0.1}, "prompts": 2, "samples": 2}


def test_the_gate_stops_a_run_before_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fails its audit, so this stage does not start") as raised:
        trained(tmp_path / "run", GATE, reward=contains)
    assert "false_positive is 0.667, at most 0.1 is required" in str(raised.value)
    assert 'audit.on_fail = "warn"' in str(raised.value)
    found = kept(tmp_path / "run", "audits")
    assert found["passed"] is False
    wrong = next(one for one in found["findings"] if one["name"] == "false_positive")
    assert (wrong["passed"], wrong["limit"]) == (False, 0.1)
    assert all(one["reward"] == 1.0 for one in wrong["examples"])
    assert wrong["examples"]
    assert {"flat", "failed", "seconds_per_step"} <= {one["name"] for one in found["findings"]}  # of its own answers
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_gate_that_warns_lets_the_run_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", GATE | {"on_fail": "warn", "samples": 0}, quiet=False, reward=contains, steps=1)
    assert run.state == "finished"
    assert kept(tmp_path / "run", "audits")["passed"] is False
    assert "audit of the reward: false_positive is 0.667" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sound_reward_passes_the_gate_and_a_requirement_without_data_does_not(tmp_path: Path) -> None:
    rule = {"type": "rule", "rule": "arithmetic"}
    run = trained(tmp_path / "sound", GATE | {"samples": 0}, reward=rule, steps=1)
    assert (run.state, kept(tmp_path / "sound", "audits")["passed"]) == ("finished", True)
    with pytest.raises(UserError, match="order_bias could not be measured"):
        trained(tmp_path / "unknown", GATE | {"samples": 0, "require": {"order_bias": 0.1}}, reward=rule, steps=1)


# ---- the watch -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run whose watch warns at every step."""
    return trained(tmp_path_factory.mktemp("warned") / "run", ALARMING | {"on_alarm": "warn"})


WATCHED = {
    "unscored", "reward", "reference", "gap", "gap_low", "false_discovery", "false_discovery_low",
    "false_discovery_high", "rewarded", "length", "length_correlation", "repetition", "confidence", "exploits", "alarm",
}  # fmt: skip


def test_a_watch_that_warns_changes_nothing_but_metrics_and_files(warned: TrainedRun, tmp_path: Path) -> None:
    assert warned.state == "finished"
    without = trained(tmp_path / "run")
    assert without.rollouts() == warned.rollouts()
    for row, plain in zip(warned.metrics(), without.metrics(), strict=True):
        assert {name.removeprefix("watch/") for name in row if name.startswith("watch/")} == WATCHED
        assert row["watch/alarm"] == row["watch/false_discovery"] == 1.0
        assert row["watch/unscored"] == 0.0
        assert row["time/watch"] > 0
        same = {name for name in plain if not name.startswith(("time/", "memory/", "idle/"))}
        same -= {"seconds", "tokens/s"}
        assert {name: row[name] for name in same} == {name: plain[name] for name in same}
    assert not (tmp_path / "run" / "audit.json").exists()


def test_what_the_watch_saw_are_the_answers_of_the_step(warned: TrainedRun) -> None:
    for row in warned.metrics():
        rollouts = [one for one in warned.rollouts() if one["step"] == row["step"]]
        values = [one["reward"] for one in rollouts]
        groups = [values[i : i + 8] for i in range(0, len(values), 8)]
        rewarded = sum(value > sum(one) / len(one) + 1e-9 for one in groups for value in one)
        assert row["watch/rewarded"] == rewarded >= 20
        assert row["watch/reward"] == pytest.approx(sum(one["reward"] for one in rollouts) / len(rollouts))
        assert row["watch/length"] == pytest.approx(sum(one["tokens"] for one in rollouts) / len(rollouts))


def test_alarms_are_kept_with_the_answers_that_raised_them(warned: TrainedRun) -> None:
    found = kept(warned.folder, "watch")
    assert (found["every"], found["on_alarm"]) == (1, "warn")
    assert [(one["step"], one["measure"]) for one in found["alarms"]] == [
        (1, "false_discovery"),
        (2, "false_discovery"),
    ]
    shown = found["alarms"][0]["examples"]
    assert [one["reward"] for one in shown] == sorted((one["reward"] for one in shown), reverse=True)
    texts = {one["response"] for one in warned.rollouts() if one["step"] == 1}
    assert {one["text"] for one in shown} <= texts
    assert found["alarms"][0]["line"].startswith("the reference rejects 100% of the rewarded answers (limit 50%)")
    assert "false_discovery" in (warned.folder / "report.html").read_text()


def test_an_audit_is_added_to_a_run_next_to_its_watch(warned: TrainedRun, tmp_path: Path) -> None:
    (tmp_path / "rule.toml").write_text('type = "rule"\nrule = "exact"\n')
    rows = [{"id": str(i), "prompt": f"{i}?", "reward_model": {"ground_truth": str(100 + 7 * i)}} for i in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = ["--data", str(tmp_path / "rows.jsonl"), "--run-folder", str(warned.folder)]
    ended = call("audit", str(tmp_path / "rule.toml"), *place, "--prompts", "2", "--max-attacks", "3")
    assert ended.status == 0, ended.err
    found = json.loads((warned.folder / "audit.json").read_text())
    assert set(found) == {"watch", "audits"}
    assert "separation" in {one["name"] for one in found["audits"]["audit"]["findings"]}
    assert "separation" in (warned.folder / "report.html").read_text()


def test_an_alarm_stops_the_run_after_its_step_is_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the watch of policy stopped the run at step 1") as raised:
        trained(tmp_path / "run", ALARMING)
    assert "--accept-changes" in str(raised.value)
    run = rs.load_run(tmp_path / "run")
    assert [row["step"] for row in run.metrics()] == [1]
    assert len(kept(tmp_path / "run", "watch")["alarms"]) == 1
    # Started again, as a scheduler would, it does not go on to train the exploit.
    with pytest.raises(UserError, match="the watch stopped this run: the reference rejects") as raised:
        trained(tmp_path / "run", ALARMING)
    assert [row["step"] for row in rs.load_run(tmp_path / "run").metrics()] == [1]
    # It goes on where it stopped, once the user wants that.
    changed = table(ALARMING | {"on_alarm": "warn"})
    resumed = rs.train(changed, folder=tmp_path / "run", quiet=True, accept_changes=True)
    assert [row["step"] for row in resumed.metrics()] == [1, 2]
    assert len(kept(tmp_path / "run", "watch")["alarms"]) == 2


def test_another_reward_has_a_first_look_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stopped the run at step 1"):
        trained(tmp_path / "run", ALARMING)
    fixed = table({"reference": never, "every": 1, "max_gap": 0.0}, reward=short, steps=3)
    resumed = rs.train(fixed, folder=tmp_path / "run", quiet=True, accept_changes=True)
    rows = {row["step"]: row for row in resumed.metrics()}
    assert rows[2]["watch/gap"] == pytest.approx(0.0, abs=1e-12)  # it is the first of this reward
    assert "the audit begins again" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.slow
def test_a_run_that_is_resumed_with_another_reward_passes_the_gate_again(tmp_path: Path) -> None:
    gate = GATE | {"samples": 0}
    sound = {"type": "rule", "rule": "arithmetic"}
    # The stage is over, and is extended: with a reward that fails its audit it does not go on.
    trained(tmp_path / "run", gate, reward=sound, steps=1, save={"every": 1})
    longer = table(gate, reward=contains, steps=2, save={"every": 1})
    with pytest.raises(UserError, match="fails its audit"):
        rs.train(longer, folder=tmp_path / "run", quiet=True, accept_changes=True)
    assert kept(tmp_path / "run", "audits")["passed"] is False
    assert [row["step"] for row in rs.load_run(tmp_path / "run").metrics()] == [1]


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_alarm_lowers_the_weight_of_a_part(warned: TrainedRun, tmp_path: Path, ahead: int) -> None:
    lower = ALARMING | {"on_alarm": "lower", "lower": "digits", "factor": 0.25}
    run = trained(tmp_path / "run", lower, steps=3, ahead=ahead)
    assert [row["watch/weight"] for row in run.metrics()] == [0.25, 0.25**2, 0.25**3]
    weights = {1: 1.0, 2: 1.0 if ahead else 0.25, 3: 0.25 if ahead else 0.25**2}  # those ahead are scored before
    for one in run.rollouts():
        expected = weights[one["step"]] * one["part/digits"] + 0.5 * one["part/short"]
        assert one["reward"] == pytest.approx(expected), one["step"]
    if not ahead:
        first = [one["reward"] for one in run.rollouts() if one["step"] == 1]
        assert first == [one["reward"] for one in warned.rollouts() if one["step"] == 1]


def test_peoples_labels_are_a_reference(warned: TrainedRun, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    first = [one for one in warned.rollouts() if one["step"] == 1]
    rows = [{"id": one["prompt_id"], "response": one["response"], "label": i % 2 == 0} for i, one in enumerate(first)]
    seen: dict[tuple[str, str], bool] = {(row["id"], row["response"].strip()): row["label"] for row in rows}
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = trained(tmp_path / "run", {"reference": {"type": "labels", "path": str(labels)}, "on_alarm": "warn"}, steps=1)
    (row,) = run.metrics()
    assert row["watch/unscored"] == 0.0
    expected = [seen[one["prompt_id"], one["response"].strip()] for one in first]
    assert row["watch/reference"] == pytest.approx(sum(expected) / len(expected))


@pytest.mark.slow
def test_a_reference_that_fails_raises_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", ALARMING | {"reference": broken}, quiet=False, steps=2)
    assert run.state == "finished"
    for row in run.metrics():
        assert {name: row[name] for name in row if name.startswith("watch/")} == {"watch/unscored": 1.0}
    shown = " ".join(capsys.readouterr().err.split())
    assert "the reference of the watch has scored fewer than two groups: " in shown
    assert "no verdict" in shown  # the cause
    assert "no verdict" in kept(tmp_path / "run", "watch")["problem"]
    # A run that nobody watches does not go on for long where it should be watched.
    with pytest.raises(UserError, match=r"stopped the run at step 3: .*no verdict.*3 times in a row\. Fix"):
        trained(tmp_path / "other", ALARMING | {"reference": broken}, steps=5)


@pytest.mark.slow
def test_the_reference_is_not_called_while_rewards_are_equal(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {"reference": broken, "every": 1}, reward=never, steps=4, select={"min_groups": 1})
    assert run.state == "finished"
    assert not any(name.startswith("watch/") for row in run.metrics() for name in row)


@pytest.mark.slow
def test_looks_are_as_far_apart_as_they_should_be(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", ALARMING | {"every": 2, "sample": 16, "on_alarm": "warn"}, steps=4)
    looked = {row["step"]: row for row in run.metrics() if "watch/reward" in row}
    assert list(looked) == [1, 2, 4]  # the first is of the policy as it began
    assert all(row["watch/rewarded"] <= 16 for row in looked.values())
    assert all(math.isfinite(row["watch/gap"]) for row in looked.values())


# ---- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = [
    ({"every": 5}, ["every is set, but no reference"]),
    ({"reference": never, "on_alarm": "lower"}, ['on_alarm = "lower" and lower = "PART" go together']),
    ({"reference": never, "lower": "digits"}, ["go together"]),
    ({"require": {"fals_positive": 0.1}}, ["fals_positive", "false_positive"]),
    ({"require": {"attack/injektion": 0.1}}, ["attack/injection"]),
    ({"require": {"attack": "none"}}, ["require.attack", "number"]),
    ({"reference": never, "on_alarm": "halt"}, ["stop", "warn", "lower"]),
    ({"reference": never, "factor": 1.0, "on_alarm": "lower", "lower": "digits"}, ["factor"]),
    ({"reference": {"type": "rule", "rule": "maths"}}, ["reference", "math"]),
    ({"reference": never, "evry": 3}, ["evry", "every"]),
]


@pytest.mark.parametrize(("audit", "words"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_in_the_settings_is_named_with_its_remedy(audit: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as raised:
        parse_recipe(table(audit))
    assert "stages.0.audit" in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_only_a_part_of_a_sum_can_be_lowered() -> None:
    lower = {"reference": never, "on_alarm": "lower", "lower": "digit"}
    with pytest.raises(RecipeError, match=r"(?s)stages\.0\.audit\.lower.*digits"):
        RewardTrees(parse_recipe(table(lower)))
    with pytest.raises(RecipeError, match=r"stages\.0\.audit\.lower"):
        RewardTrees(parse_recipe(table(lower, reward=digits)))


def test_labels_that_cannot_be_read_end_the_run_before_it_begins(tmp_path: Path) -> None:
    labels = {"reference": {"type": "labels", "path": str(tmp_path / "labels.jsonl")}}
    with pytest.raises(UserError, match=r"stages\.0\.audit\.reference"):
        trained(tmp_path / "run", labels)
    (tmp_path / "labels.jsonl").write_text('{"id": "a", "response": "x", "label": "good"}\n')
    with pytest.raises(UserError, match=r"labels\.jsonl.*line 1.*label"):
        trained(tmp_path / "run", labels)
