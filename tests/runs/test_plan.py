"""The plan of a step: formulas worked out by hand, what more hardware does, and figures of a measured run."""

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.memory_estimate import kv_token_bytes, named_shape
from rewardsmith.errors import UserError
from rewardsmith.recipe import explain, parse_recipe
from rewardsmith.runs.plan import PlanJob
from rewardsmith.runs.step_time import (
    GPUS,
    JudgeLoad,
    LearningModel,
    Speeds,
    Workload,
    judge_seconds,
    learning_seconds,
    remedies,
    step_time,
    sync_seconds,
    waiting_seconds,
    writing_seconds,
)
from tests.command_line import call

SHAPE = named_shape("Qwen3-4B")
assert SHAPE is not None
H100 = GPUS["h100"]
FREE = dict.fromkeys(("layer_overhead", "pass_overhead", "row_overhead", "server_overhead", "judge_overhead"), 0.0)
IDEAL = Speeds(H100, 1.0, 1.0, 1.0, 1.0, **FREE)
POLICY = LearningModel("policy", SHAPE, trainings=1.0, updates=1, tokens_per_pass=10**9)
LOAD = Workload(SHAPE, 64, 8, 256.0, 1000.0, 1000.0, (POLICY,))
JUDGE = JudgeLoad("judge", SHAPE, 512.0, 1000.0, 200.0, concurrency=64)


def test_learning_takes_six_flops_for_each_parameter_and_token() -> None:
    tokens = 64 * 256 + 512 * 1000  # a prompt is read once for its group
    attention = 2 * 1256 * SHAPE.heads * SHAPE.head_width * SHAPE.layers
    states = 30 * SHAPE.parameters / H100.bandwidth
    expected = tokens * 3 * (2 * SHAPE.matrices + attention) / H100.flops
    assert learning_seconds(LOAD, POLICY, IDEAL) == pytest.approx(expected + states)
    recomputed = learning_seconds(LOAD, replace(POLICY, recompute=True), IDEAL)
    assert recomputed == pytest.approx(expected * 4 / 3 + states)
    measured = learning_seconds(LOAD, replace(POLICY, trainings=0.0, updates=0, forwards=1.0), IDEAL)
    assert measured == pytest.approx(expected / 3)


def test_a_pass_on_a_cluster_is_no_shorter_than_its_gathers() -> None:
    load = replace(LOAD, cluster=True, gpus=4096)
    model = replace(POLICY, updates=4)
    links = min(H100.link, 8 * H100.network)
    gathers = 4 * 4 * 2 * SHAPE.parameters / links  # four updates: gather twice, scatter float32 gradients
    assert learning_seconds(load, model, IDEAL) == pytest.approx(gathers, rel=0.02)


def test_decoding_reads_weights_and_cache_at_every_step() -> None:
    each = kv_token_bytes(SHAPE, 2)
    load = replace(LOAD, max_rows=512, gpus=8, cluster=True)  # 64 answers for each server, all at a time
    one = (SHAPE.parameters * 2 + 64 * (256 + 500) * each) / H100.bandwidth
    prefill = 2 * SHAPE.matrices * 64 * 256 / 8 / H100.flops
    assert writing_seconds(load, IDEAL) == pytest.approx(1000 * one + prefill)
    # Half as many at a time: twice the steps, and the weights are read twice as often.
    half = (SHAPE.parameters * 2 + 32 * (256 + 500) * each) / H100.bandwidth
    assert writing_seconds(replace(load, max_rows=32), IDEAL) == pytest.approx(2000 * half + prefill)


def test_the_longest_answer_is_waited_for() -> None:
    short, long = (replace(LOAD, gpus=512, longest_tokens=longest) for longest in (1000.0, 4000.0))
    assert writing_seconds(long, IDEAL) > 3.5 * writing_seconds(short, IDEAL)


def test_a_judge_is_hidden_behind_writing_unless_it_shares_the_gpus() -> None:
    load = replace(LOAD, judges=(JUDGE,))
    whole, one = judge_seconds(JUDGE, IDEAL)
    reading = 2 * SHAPE.matrices * 1000 / H100.flops
    step = (SHAPE.parameters * 2 + 64 * 1100 * kv_token_bytes(SHAPE, 2)) / H100.bandwidth
    assert whole == pytest.approx(512 * reading + 512 / 64 * 200 * step)
    assert one == pytest.approx(reading + 200 * step)
    assert waiting_seconds(load, IDEAL, writing=0.0) == pytest.approx(whole)
    assert waiting_seconds(load, IDEAL, writing=1000.0) == pytest.approx(one)
    shared = replace(load, judges=(replace(JUDGE, shared=True),))
    assert waiting_seconds(shared, IDEAL, writing=1000.0) == pytest.approx(whole)
    unknown = replace(JUDGE, shape=None, seconds=3.0, servers=2, cached=0.5)
    assert judge_seconds(unknown, IDEAL) == (pytest.approx(128 / 64 * 3), 3.0)


def test_new_weights_are_sent_once() -> None:
    load = replace(LOAD, cluster=True, gpus=8)
    assert sync_seconds(load, IDEAL) == pytest.approx(2 * SHAPE.parameters / H100.link)
    assert sync_seconds(LOAD, IDEAL) == 0
    moved = sync_seconds(replace(load, offload=True), IDEAL) - sync_seconds(load, IDEAL)
    assert moved == pytest.approx(24 * SHAPE.parameters / 8 / H100.host)


@given(
    gpus=st.sampled_from([8, 16, 64, 512]),
    answer=st.floats(10, 5000),
    written=st.floats(1, 4),
    requests=st.integers(0, 100).map(lambda hundreds: 100.0 * hundreds),
    recompute=st.booleans(),
)
def test_no_remedy_makes_a_step_longer(
    gpus: int, answer: float, written: float, requests: float, recompute: bool
) -> None:
    load = replace(
        LOAD, cluster=True, gpus=gpus, answer_tokens=answer, longest_tokens=3 * answer, written=written,
        learning=(replace(POLICY, recompute=recompute),), judges=(replace(JUDGE, requests=requests, shared=True),),
    )  # fmt: skip
    speeds = Speeds(H100)
    now = step_time(load, speeds)
    for name, other in remedies(load).items():
        slack = 0.3 if name == "twice the GPUs" else 0.0  # collectives between nodes are slower than within one
        assert step_time(other, speeds).total <= now.total * (1 + slack) + 1e-9, name


# ---- the command -----------------------------------------------------------------------------------------------------


def table(**stage: Any) -> dict[str, Any]:
    policy = {"type": "policy", "model": "policy", "data": "train", "steps": 4, "prompts_per_step": 16}
    policy |= {"rollouts_per_prompt": 4, "reward": {"type": "rule", "rule": "arithmetic"}}
    models = {"policy": {"init": "tiny-llama"}, "judge": {"type": "server", "urls": ["http://localhost:1/v1"]}}
    return {"models": models, "data": {"train": {"type": "arithmetic"}}, "stages": [policy | stage]}


def written(folder: Path, **stage: Any) -> Path:
    file = folder / "recipe.toml"
    folder.mkdir(exist_ok=True)
    file.write_text(explain(parse_recipe(table(**stage))))
    return file


def run_folder(folder: Path, stage: dict[str, Any], **metrics: float) -> Path:
    """Write a run of four steps with these metrics; the first step took longer."""
    written(folder, **stage)
    figures = {"tokens/sampled": 64 * 100.0, "response/length": 100.0, "response/longest": 150.0, "groups/kept": 16.0}
    figures |= {"tokens/learned": 6400.0, "time/write": 4.0, "time/learn": 2.0, "time/wait": 1.0, "time/keep": 0.5}
    lines = [
        {"stage": "policy", "step": step, "metrics": figures | metrics | ({"time/write": 99.0} if step == 1 else {})}
        for step in range(1, 5)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def planned(file: Path, **flags: Any) -> dict[str, float]:
    result = asyncio.run(PlanJob(recipe=file, **flags).run(None))  # type: ignore[arg-type]
    return {name.removeprefix("seconds/"): value for name, value in result.metrics.items()}


def test_a_plan_of_the_measured_run_is_that_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", {})
    found = planned(run / "recipe.toml", gpu="cpu", measured=run)
    parts = {"writing": 4.0, "learning": 2.0, "judging": 1.0, "other": 0.5, "process": 0.0, "sync": 0.0}
    assert found == {name: pytest.approx(value) for name, value in parts.items()} | {"total": pytest.approx(7.5)}


def test_a_plan_scales_what_was_measured(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", {})
    double = planned(written(tmp_path, prompts_per_step=32), gpu="cpu", measured=run)
    assert double["judging"] == pytest.approx(2.0)  # of rules, answer by answer
    assert 3.0 < double["learning"] <= 4.0
    assert 4.0 < double["writing"] < 8.0
    longer = planned(run / "recipe.toml", gpu="cpu", measured=run, answer_tokens=200, longest_tokens=300)
    assert longer["writing"] == pytest.approx(8.0, rel=0.1)
    assert longer["other"] == pytest.approx(0.5)


def test_judges_are_planned_from_their_measured_requests(tmp_path: Path) -> None:
    stage = {"reward": {"type": "judge", "model": "judge", "prompt": "Grade {{response}}"}}
    usage = {"calls": 128.0, "cached": 32.0, "prompt_tokens": 64e3, "tokens": 6400.0, "seconds": 512.0}
    run = run_folder(tmp_path / "run", stage, **{f"models/judge/{name}": value for name, value in usage.items()})
    job = PlanJob(recipe=run / "recipe.toml", gpu="h100", measured=run)
    builder, _ = job._calibrated(parse_recipe(table(**stage)), run)
    (judge,) = builder.workload().judges
    assert asdict(judge) | {"name": ""} == asdict(
        JudgeLoad("", None, 128.0, 500.0, 50.0, seconds=4.0, servers=1, concurrency=64, cached=0.25)
    )


def test_every_assumption_has_a_flag_and_the_bottleneck_a_remedy(tmp_path: Path) -> None:
    stage = {"reward": {"type": "judge", "model": "judge", "prompt": "Grade {{response}}"}}
    file = written(tmp_path, **stage)
    arguments = ["plan", str(file), "--gpus", "8", "--judge-size", "8", "--judge-tokens", "2000", "--json"]
    done = call(*arguments, "models.policy.init=Qwen3-4B", "models.judge.concurrency=2")
    assert done.status == 0
    found = json.loads(done.out)
    assert found["bottleneck"] == "judging"
    tables = {one["title"].partition(",")[0]: one for one in found["tables"]}
    gains = {row[0]: row[2] for row in tables["what would help"]["rows"]}
    assert gains["twice the judge servers, on GPUs of their own"] > 1.5
    assert "twice the GPUs" not in gains or gains["twice the GPUs"] < 1.1
    flags = {f"--{name.replace('_', '-')}" for name in PlanJob.model_fields}
    assert {row[3] for row in tables["assumptions"]["rows"]} <= flags | {""}
    values = {row[0]: row[1:3] for row in tables["assumptions"]["rows"]}
    assert values["judge_tokens"] == ["2,000", "given"]
    assert values["size of policy"] == ["4.02B", "its name"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"stage": "no"}, "no such policy stage"),
        ({"measured": Path("nowhere")}, "no run in this folder"),
        ({"overrides": ["models.policy.init=no/such-model"]}, "its name says no size"),
    ],
)
def test_what_cannot_be_planned_says_why(flags: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        planned(written(tmp_path), **flags)
