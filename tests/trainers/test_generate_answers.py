"""`rewardsmith generate`: what is written, resumed, refused; embedded and served; as a command and as a stage."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.llm import ModelCallError
from rewardsmith.records import from_json
from rewardsmith.trainers.generate_answers import AnswerTally
from rewardsmith.types import Message, Prompt, RolloutGroup
from tests.command_line import Outcome, call
from tests.data.prepare.jobs import write_rows
from tests.data.prepare.serving import Serving, problems

RECIPE = """
[models.policy]
init = "tiny-llama"
[data.sums]
type = "arithmetic"
[[stages]]
type = "generate"
name = "solved"
model = "policy"
data = "sums"
prompts = 3
rollouts_per_prompt = 2
sampling = { max_tokens = 4 }
"""
SAMPLED = ("--rollouts-per-prompt", "3", "--max-tokens", "6", "--seed", "5")


def generate(
    *arguments: str, data: str = "problems.jsonl", out: str = "out.jsonl", model: str = "tiny-llama"
) -> Outcome:
    return call("generate", data, out, "--model", model, *arguments)


def groups(file: str = "out.jsonl") -> list[RolloutGroup]:
    return [from_json(RolloutGroup, json.loads(line)) for line in Path(file).read_text().splitlines()]


def texts(file: str = "out.jsonl") -> list[list[str]]:
    return [[rollout.text for rollout in group.rollouts] for group in groups(file)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    write_rows(tmp_path / "problems.jsonl", problems(8))


# ---- a model in this process ----------------------------------------------------------------------------------------


def test_answers_are_written_in_order_resumed_and_read_by_other_commands() -> None:
    done = generate(*SAMPLED, "--json", "--show-prompts", "1")
    assert done.status == 0
    assert done.err.count("--- reply 1 of model") == 1
    found = groups()
    assert [group.prompt.id for group in found] == [f"p{i}" for i in range(8)]
    assert [group.prompt.answer for group in found] == [str(2 * i) for i in range(8)]
    rollouts = [rollout for group in found for rollout in group.rollouts]
    assert len(rollouts) == 24
    assert all(0 < len(r.tokens) <= 6 and len(r.logprobs) == len(r.tokens) for r in rollouts)
    metrics = json.loads(done.out)["metrics"]
    assert metrics["length"] == pytest.approx(sum(len(r.tokens) for r in rollouts) / 24)
    assert metrics["truncated"] == pytest.approx(sum(r.stop_reason == "length" for r in rollouts) / 24)
    # A killed command leaves a torn line; what is complete stays, and the others come out the same.
    before, lines = texts(), Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    assert "3 of the prompts had answers before" in generate(*SAMPLED).out
    assert Path("out.jsonl").read_bytes().splitlines(keepends=True)[:3] == lines[:3]
    assert texts() == before
    # Nothing is missing: the model is not even loaded.
    assert "loading" not in generate(*SAMPLED).err
    Path("reward.toml").write_text('type = "rule"\nrule = "exact"\n')
    scored = call("score", "out.jsonl", "--reward", "reward.toml", "--json")
    assert (scored.status, json.loads(scored.out)["rollouts"]) == (0, 24)
    measured = call("evaluate-policy", "out.jsonl", "--reward", "reward.toml", "--json")
    assert (measured.status, json.loads(measured.out)["metrics"]["rollouts"]) == (0, 24)


def test_more_prompts_go_on_and_the_seed_decides() -> None:
    assert generate(*SAMPLED, "--prompts", "2", out="few.jsonl").status == 0
    first = texts("few.jsonl")
    assert generate(*SAMPLED, "--prompts", "5", out="few.jsonl").status == 0
    assert texts("few.jsonl")[:2] == first
    assert [group.prompt.id for group in groups("few.jsonl")] == [f"p{i}" for i in range(5)]
    assert generate(*SAMPLED[:-1], "6", "--prompts", "2", out="other.jsonl").status == 0
    assert texts("other.jsonl") != first
    fewer = generate(*SAMPLED, "--prompts", "1", out="few.jsonl")
    assert (fewer.status, "4 prompts that are not among the 1" in fewer.err) == (2, True)


def test_ids_are_those_of_the_file_and_must_be_unique() -> None:
    write_rows(Path("twice.jsonl"), [problems(1)[0] for _ in range(3)])
    assert 'id_column = ""' in generate(data="twice.jsonl").err
    assert generate(*SAMPLED, "--source", 'id_column=""', data="twice.jsonl").status == 0
    assert len({str(answers) for answers in texts()}) == 3  # each has a seed of its own


def test_other_settings_or_weights_are_refused() -> None:
    assert generate(*SAMPLED).status == 0
    for change, named in (
        (("--temperature", "0.5"), "sampling.temperature: 1.0 -> 0.5"),
        (("--stop", "7"), 'sampling.stop: [] -> ["7"]'),
    ):
        refused = generate(*SAMPLED, *change)
        assert (refused.status, named in refused.err, "--fresh" in refused.err) == (2, True, True)
    Path("out.jsonl").write_bytes(b"".join(Path("out.jsonl").read_bytes().splitlines(keepends=True)[:4]))
    refused = generate(*SAMPLED, model="tiny-qwen3")
    assert (refused.status, "identity: " in refused.err) == (2, True)
    assert generate(*SAMPLED, "--temperature", "0.5", "--fresh").status == 0
    assert len(groups()) == 8


def test_a_prompt_without_room_is_counted_and_the_others_are_written() -> None:
    rows = problems(3)
    rows[0]["prompt"] = rows[2]["prompt"] = "1 + " * 4000
    write_rows(Path("problems.jsonl"), rows)
    done = generate(*SAMPLED, "--fail-above", "0.5")
    assert done.status == 1
    assert "p0: refused: its " in done.out
    assert [group.prompt.id for group in groups()] == ["p1"]
    write_rows(Path("problems.jsonl"), rows[:1])
    refused = generate(*SAMPLED, "--fresh")
    assert (refused.status, "leaves room for max_tokens = 6" in refused.err) == (2, True)


def test_models_of_recipes_and_runs() -> None:
    recipe = '[models.a]\ninit = "tiny-llama"\n[models.b]\ninit = "tiny-qwen3"\n'
    Path("models.toml").write_text(recipe)
    assert generate(*SAMPLED, model="models.toml:b").status == 0
    assert generate("--models", "models.toml", *SAMPLED, model="b").status == 0  # the same weights
    refused = generate(*SAMPLED, out="x.jsonl", model="models.toml")
    assert "has several models: name one. Known: a, b" in refused.err
    assert "no model 'c'" in generate(*SAMPLED, out="x.jsonl", model="models.toml:c").err
    assert "models.b.init" in generate(*SAMPLED, "models.b.init=3", out="x.jsonl", model="models.toml:b").err
    run = Path("runs/first")
    (run / "models").mkdir(parents=True)
    stage = '[[stages]]\ntype = "sft"\nname = "sft"\nmodel = "a"\ndata = "sums"\nsteps = 1\n'
    (run / "recipe.toml").write_text(f'{recipe}[data.sums]\ntype = "arithmetic"\n{stage}')
    assert call(
        "generate", "runs/first/recipe.toml:sums", "y.jsonl", "--model", "runs/first:a", "--prompts", "1"
    ).err.count("warning: runs/first has not published models.a")
    misspelt = generate(*SAMPLED, out="x.jsonl", model="runs/frist")
    assert 'Did you mean "first"' in misspelt.err
    for wrong in ("strong", "/no/such/folder", "runs/first:"):
        assert generate(*SAMPLED, out="x.jsonl", model=wrong).status == 2
    assert not Path("x.jsonl").exists() or not Path("x.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--temperature", "-1"), "--temperature"),
        (("--min-tokens", "9", "--max-tokens", "5"), "min_tokens is 9, more than max_tokens = 5"),
        (("--rollouts-per-prompt", "0"), "--rollouts-per-prompt"),
        (("--prompts", "few"), "--prompts"),
        (("--max-token", "5"), "--max-tokens"),
    ],
)
def test_mistakes_name_the_flag(arguments: tuple[str, ...], named: str) -> None:
    refused = generate(*arguments)
    assert (refused.status, refused.out) == (2, "")
    assert named in refused.err


def test_only_json_lines_are_written() -> None:
    assert "name a .jsonl file" in generate(out="out.parquet").err
    Path("mine.jsonl").write_text("{}\n")
    assert "did not write it" in generate(out="mine.jsonl").err
    assert Path("mine.jsonl").read_text() == "{}\n"


@pytest.mark.slow
def test_a_killed_command_continues_and_writes_the_same_answers() -> None:
    sampled = ["--rollouts-per-prompt", "8", "--max-tokens", "24", "--prompts", "256"]
    Path("recipe.toml").write_text(RECIPE)
    command = [
        sys.executable,
        "-m",
        "rewardsmith",
        "generate",
        "recipe.toml:sums",
        "killed.jsonl",
        "--model",
        "tiny-llama",
    ]
    process = subprocess.Popen([*command, *sampled], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with process:
        until = time.monotonic() + 300
        while time.monotonic() < until and process.poll() is None:
            if Path("killed.jsonl").exists() and Path("killed.jsonl").stat().st_size > 0:
                break
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    kept = sum(line.endswith(b"\n") for line in Path("killed.jsonl").read_bytes().splitlines(keepends=True))
    assert 0 < kept < 256
    again = generate(*sampled, data="recipe.toml:sums", out="killed.jsonl")
    assert f"{kept} of the prompts had answers before" in again.out
    assert generate(*sampled, data="recipe.toml:sums", out="whole.jsonl").status == 0
    same = [a == b for a, b in zip(texts("killed.jsonl"), texts("whole.jsonl"), strict=True)]
    assert sum(same) >= 252  # apart from rounding, where two tokens are all but equally likely


# ---- a server -------------------------------------------------------------------------------------------------------


def test_a_server_writes_with_a_seed_for_each_answer_and_resumes() -> None:
    with Serving(lambda body: f"{body['seed']} {body['temperature']} {body['max_tokens']}") as serving:
        url = serving.server.url
        assert generate(*SAMPLED, "--temperature", "0.7", "--prompts", "4", model=url).status == 0
        assert len(serving.prompts) == 12
        assert (
            "--- prompt 1 to model" in generate(*SAMPLED, "--temperature", "0.7", "--show-prompts", "1", model=url).err
        )
        assert len(serving.prompts) == 24
    found = texts()
    assert [group.prompt.id for group in groups()] == [f"p{i}" for i in range(8)]
    assert len({answer.split()[0] for some in found for answer in some}) == 24
    assert {answer.split(maxsplit=1)[1] for some in found for answer in some} == {"0.7 6"}


def test_a_failed_request_has_no_line_and_is_tried_again() -> None:
    with Serving(lambda body: "fine") as serving:
        serving.server.plan("400")
        once = generate(*SAMPLED, "--concurrency", "1", "--fail-above", "0.1", model=serving.server.url)
        assert once.status == 1
        assert "p0: refused" in once.out
        assert [group.prompt.id for group in groups()] == [f"p{i}" for i in range(1, 8)]
        again = generate(*SAMPLED, model=serving.server.url)
        assert (again.status, [group.prompt.id for group in groups()][-1]) == (0, "p0")
        assert texts() == [["fine"] * 3] * 8
        serving.server.plan(*["400"] * 1000)
        write_rows(Path("problems.jsonl"), problems(40))
        stopped = generate(*SAMPLED, model=serving.server.url)
        assert (stopped.status, "20 prompts in a row without answers, the last (refused)" in stopped.err) == (2, True)
    down = generate(*SAMPLED, "--wait", "0", out="new.jsonl", model="http://127.0.0.1:9/v1")
    assert (down.status, "cannot be called (unreachable)" in down.err) == (2, True)


def test_without_an_answer_there_are_no_shares() -> None:
    tally = AnswerTally()
    tally.add(Prompt("p0", [Message("user", "7?")]), ModelCallError("refused", "too long"))
    found = tally.result(Path("out.jsonl"))
    assert found.metrics == {"prompts": 0.0, "rollouts": 0.0}
    assert found.tables[0].rows == [(0, 0, None, None, None)]


def test_sampling_that_servers_have_not_is_refused() -> None:
    refused = generate("--top-k", "5", model="http://127.0.0.1:9/v1")
    assert refused.status == 2
    assert "sampling.top_k is 5" in refused.err
    assert "models.model.body = { top_k = 5 }" in refused.err


# ---- in a run -------------------------------------------------------------------------------------------------------


def test_a_stage_writes_into_the_run_folder() -> None:
    Path("recipe.toml").write_text(RECIPE)
    assert call("run", "recipe.toml", "--folder", "run").status == 0
    found = groups("run/generated/solved.jsonl")
    assert [len(group.rollouts) for group in found] == [2, 2, 2]
    table: dict[str, Any] = json.loads(Path("run/evaluations/solved.json").read_text())
    assert table["metrics"]["rollouts"] == 6
    assert tomllib.loads(Path("run/recipe.toml").read_text())["stages"][0]["type"] == "generate"


def test_a_stage_with_a_server_and_one_whose_sampling_it_has_not() -> None:
    served = '[models.policy]\ntype = "server"\nurls = ["{}"]'
    with Serving(lambda body: "fine") as serving:
        Path("recipe.toml").write_text(
            RECIPE.replace('[models.policy]\ninit = "tiny-llama"', served.format(serving.server.url))
        )
        assert call("run", "recipe.toml", "--folder", "run").status == 0
        refused = call("run", "recipe.toml", "stages.solved.sampling.top_k=3", "--folder", "other")
    assert texts("run/generated/solved.jsonl") == [["fine"] * 2] * 3
    assert (refused.status, "stages.0.sampling.top_k is 3" in refused.err) == (2, True)
