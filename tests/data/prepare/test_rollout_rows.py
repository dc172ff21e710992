"""Rollouts of a run, of `generate` and of `score` as the input of `prepare`."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Failure, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.data.rollout_rows import rollout_row
from rewardsmith.data.rows import Layout
from rewardsmith.records import to_json
from tests.command_line import call
from tests.data.prepare.jobs import read_rows, write_rows
from tests.data.prepare.serving import Serving, graded_command, problems, rubric_command, solved
from tests.runs.scoring.groups import record, run_folder

VALUES = st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5)
ROWS = st.fixed_dictionaries(
    {
        "id": st.text("ab1", min_size=1),
        "prompt": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": st.text()}), min_size=1
        ),
        "data_source": st.text(max_size=4),
    },
    optional={
        "reward_model": st.fixed_dictionaries({"style": st.just("rule")}, optional={"ground_truth": VALUES}),
        "extra_info": st.dictionaries(st.text("xy", min_size=1), VALUES, min_size=1),
        "criteria": st.text(min_size=1),
    },
)


def group_of(row: dict[str, Any]) -> RolloutGroup:
    prompt = Layout().prompt_of({name: value for name, value in row.items() if name != "responses"}, "file", 1)
    return RolloutGroup(prompt, [Rollout(text) for text in row["responses"]])


def scored_group(row: dict[str, Any], values: list[float | None]) -> ScoredGroup:
    none = Score(failure=Failure("timeout"))
    return ScoredGroup(group_of(row), [none if value is None else Score(value) for value in values])


@given(ROWS, st.lists(st.text(), min_size=1, max_size=3))
def test_a_row_that_became_a_prompt_becomes_the_same_prompt_again(row: dict[str, Any], texts: list[str]) -> None:
    group = group_of({**row, "responses": texts})
    again = rollout_row(json.loads(json.dumps(to_json(group))))
    assert again["responses"] == texts
    assert group_of(dict(again)) == group


def files(rows: list[dict[str, Any]]) -> None:
    """Write the same solutions as `generate`, as `score` and as a run write them."""
    groups = [scored_group(row, [None, *map(float, range(1, len(row["responses"])))]) for row in rows]
    write_rows(Path("generated.jsonl"), [to_json(group.group) for group in groups])
    write_rows(Path("scores.jsonl"), [to_json(group) for group in groups])
    Path("run/rollouts").mkdir(parents=True)
    write_rows(Path("run/rollouts/policy.jsonl"), [record(group, step=i) for i, group in enumerate(groups)])
    Path("run/metrics.jsonl").write_text("{}\n")


@pytest.mark.parametrize("source", ["generated.jsonl", "scores.jsonl", "run", "run/rollouts/policy.jsonl"])
def test_rollouts_are_graded_like_the_table_of_the_same_solutions(serving: Serving, source: str) -> None:
    files(solved(4))
    write_rows(Path("solved.jsonl"), solved(4))
    forms = ("--forms", "sft", "--forms", "rl", "--forms", "eval")
    assert graded_command(*forms).status == 0
    assert graded_command(*forms, source=source, out="of.jsonl").status == 0
    for form in ("sft", "rl", "eval"):
        table, rollouts = read_rows(f"out.{form}.jsonl"), read_rows(f"of.{form}.jsonl")
        for row in (*table, *rollouts):
            del row["extra_info"]["from"]
        assert len(rollouts) == 16
        assert rollouts == table


def test_a_run_is_selected_and_its_last_line_may_be_incomplete(serving: Serving) -> None:
    files(solved(5))
    with Path("run/rollouts/policy.jsonl").open("a") as file:
        file.write('{"step": 5, "ki')
    found = graded_command("--step", "1-3", "--kind", "train", "--limit", "2", "--forms", "eval", source="run")
    assert found.status == 0
    assert [row["extra_info"]["problem"] for row in read_rows("out.jsonl")] == ["p1"] * 4 + ["p2"] * 4
    whole = graded_command("--forms", "eval", "--stage", "policy", source="run", out="whole.jsonl")
    assert "1  incomplete lines left out" in whole.out
    for arguments, source, message in (
        (("--step", "9"), "run", "no group is left of 1 file(s) with --step 9"),
        (("--stage", "polcy"), "run", 'Did you mean "policy"'),
        (("--stage", "policy"), "solved.jsonl", "--stage selects a file of a run folder"),
        (("--kind", "train"), "solved.jsonl", "which has no step or kind"),
        (("--step", "3-1"), "run", "cannot read --step '3-1'"),
    ):
        refused = graded_command(*arguments, source=source, out="no.jsonl")
        assert (refused.status, message in refused.err) == (2, True), refused.err


def test_a_hostile_line_is_a_bad_row(serving: Serving) -> None:
    good, bad = to_json(group_of(solved(1)[0])), to_json(group_of(solved(1)[0]))
    bad["rollouts"][0]["text"] = 5
    deep = '{"prompt": 1, "rollouts": ' + "[" * 5000 + "]" * 5000 + "}"
    Path("bad.jsonl").write_text("\n".join([json.dumps(good), json.dumps(bad), deep]) + "\n")
    refused = graded_command(source="bad.jsonl")
    assert refused.status == 2
    assert "bad.jsonl, line 2" in refused.err
    assert "Rollout.text" in refused.err
    assert "bad.jsonl, line 3" in refused.err
    assert graded_command("--skip-bad", source="bad.jsonl").status == 0


def test_rubrics_are_written_for_generated_answers_which_stay(serving: Serving) -> None:
    rows = [{**row, "responses": ["one", "two"]} for row in problems(3)]
    write_rows(Path("generated.jsonl"), [to_json(group_of(row)) for row in rows])
    assert rubric_command(source="generated.jsonl", out="rubrics.jsonl").status == 0
    assert graded_command(source="rubrics.jsonl", out="graded.jsonl").status == 0
    assert [row["id"] for row in read_rows("graded.jsonl")] == [f"p{i}#{j}" for i in range(3) for j in range(2)]


def test_pairs_come_from_scores_that_did_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_folder(tmp_path / "run")
    row = {**problems(1)[0], "responses": ["a", "b", "c"]}
    lines = [record(scored_group(row, [None, 2.0, 0.5])), record(scored_group(row, [None, None, 1.0]), step=2)]
    write_rows(run / "rollouts" / "greedy.jsonl", lines)
    pairs = ("prepare", "preferences", str(run), "pairs.jsonl", "--stage", "greedy")
    done = call(*pairs, "--kind", "train", "--json")
    assert done.status == 0
    assert json.loads(done.out)["counts"]["groups with fewer than two scores left out"] == 1
    ((pair),) = read_rows("pairs.jsonl")
    assert (pair["chosen"], pair["rejected"], pair["margin"]) == ("b", "c", 1.5)
    write_rows(tmp_path / "generated.jsonl", [to_json(group_of(row))])
    refused = call("prepare", "preferences", "generated.jsonl", "no.jsonl")
    assert (refused.status, "the rollouts have no scores: `rewardsmith score" in refused.err) == (2, True)


def test_a_teacher_is_named_by_its_address(serving: Serving) -> None:
    done = call("prepare", "graded", "solved.jsonl", "out.jsonl", "--teacher", serving.server.url, "--limit", "2")
    assert (done.status, len(read_rows("out.jsonl"))) == (0, 8)
