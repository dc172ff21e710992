"""Stored rollouts in all their forms, and the messages about those that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rewardsmith import RolloutGroup, UserError
from rewardsmith.records import to_json
from rewardsmith.runs.stored_rollouts import RolloutJob, StoredRollouts
from tests.runs.scoring.groups import record, run_folder, scored, some, write


def stored(path: Path, **selected: Any) -> StoredRollouts:
    return StoredRollouts(RolloutJob(rollouts=str(path), **selected))


def groups_of(path: Path, **selected: Any) -> list[RolloutGroup]:
    found = stored(path, **selected)
    groups = [one.group for one in found]
    assert found.count() == len(groups)
    return groups


def texts(group: RolloutGroup) -> list[str]:
    return [rollout.text for rollout in group.rollouts]


def refused(path: Path, **selected: Any) -> str:
    with pytest.raises(UserError) as caught:
        _read(path, selected)
    return str(caught.value)


def _read(path: Path, selected: dict[str, Any]) -> None:
    found = stored(path, **selected)
    found.count()
    list(found)


# ---- records and groups ----------------------------------------------------------------------------------------------


def test_a_run_is_read_stage_by_stage_with_its_old_scores(tmp_path: Path) -> None:
    found = list(stored(run_folder(tmp_path, 5)))
    assert [s.group.prompt.id for s in found] == ["p0", "p1", "p0", "p1", "p2", "p3", "p4"]  # greedy, policy
    assert found[2].scores == tuple(some(1)[0].scores)
    assert found[2].place.endswith("policy.jsonl, line 1")
    assert found[3].record is not None
    assert (found[3].record.step, found[3].record.kind) == (1, "train")


def test_groups_of_a_run_are_selected(tmp_path: Path) -> None:
    run = run_folder(tmp_path, 6)
    for selected, names in (
        ({"stage": "greedy"}, ["p0", "p1"]),
        ({"stage": "policy", "kind": "validation"}, ["p0", "p4"]),
        ({"stage": "policy", "step": "1"}, ["p1", "p4"]),
        ({"stage": "policy", "step": "1-2", "kind": "train"}, ["p1", "p2", "p5"]),
        ({"limit": 3}, ["p0", "p1", "p0"]),
    ):
        assert [group.prompt.id for group in groups_of(run, **selected)] == names


def test_scored_groups_and_groups_are_read_and_new_scores_keep_the_form(tmp_path: Path) -> None:
    (group,) = some(1)
    new = scored("p0", texts(group.group), [9.0, 8.0])
    (found,) = stored(write(tmp_path / "plain.jsonl", [group.group]))
    assert (found.group, found.scores) == (group.group, None)
    (found,) = stored(write(tmp_path / "scored.jsonl", [group]))
    assert (found.group, found.scores, found.record) == (group.group, tuple(group.scores), None)
    assert found.rescored(new) == new
    (found,) = stored(write(tmp_path / "record.jsonl", [record(group, step=3, dropped="too_easy")]))
    assert to_json(found.rescored(new)) == record(new, step=3, dropped="too_easy") | {
        "advantages": [None, None],
        "token_advantages": [],
        "token_values": [],
        "token_kl": [],
    }


def test_the_line_that_a_stopped_run_has_not_finished_is_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 3)
    file = folder / "rollouts" / "policy.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    found = stored(folder, stage="policy")
    assert [s.group.prompt.id for s in found] == ["p0", "p1"]
    assert "policy.jsonl, line 3 is incomplete" in found.incomplete[0]
    assert "policy.jsonl, line 3: not JSON" in refused(file)  # a file that the user names must be complete


BAD: list[tuple[list[Any], str]] = [
    (["{"], "line 1: not JSON"),
    (["[1]"], "line 1: the line holds an array"),
    (['{"step": 1, "step": 2}'], "line 1: the key step is there twice"),
    ([record(some(1)[0]), {"prompt": "x", "response": "y"}], "line 2: this is a row of a table"),
    ([record(some(1)[0]) | {"scored": {"grop": 1}}], "line 1: GroupRecord.scored has an unknown field 'grop'"),
    ([record(some(1)[0]) | {"step": -1}], "line 1: GroupRecord: GroupRecord.step is -1"),
    ([record(some(1)[0]) | {"kind": 5}], "line 1: GroupRecord: GroupRecord.kind is of type int"),
    ([{"group": {}, "scores": []}], "line 1: ScoredGroup.group has no field 'prompt'"),
    (['{"prompt": "p", "responses": ["\\ud800"]}'], "line 1: Rollout.text has a lone surrogate"),
    (['{"step": 1, "kind": "a", "scored": ' + "[" * 5000 + "]" * 5000 + "}"], "nested too deeply"),
    ([{"prompt": "x", "respones": ["y"]}], 'Did you mean "respones"'),
    ([{"prompt": "x", "responses": []}], "responses is an empty list"),
    ([{"prompt": "x", "responses": ["a", None]}], "responses has null"),
    ([{"prompt": "x", "response": 3}], "response has 3"),
    ([{"prompt": "x", "responses": ["a"]}, {"prompt": "y", "responses": "b"}], "a list in some rows and text in"),
    ([{"responses": ["a"]}], "there is no prompt"),
    ([{"id": "a", "prompt": "x", "response": "1"}, {"id": "a", "prompt": "y", "response": "1"}], "another prompt"),
]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    for rows, message in BAD:
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        found = refused(file)
        assert message in found
        assert f"{file}, line {len(rows)}" in found


def test_hostile_text_in_a_message_cannot_steer_the_terminal(tmp_path: Path) -> None:
    row = record(some(1)[0])
    row["scored"]["group"]["prompt"]["\x1b[2J"] = 1
    message = refused(write(tmp_path / "bad.jsonl", [row]))
    assert "\x1b" not in message
    assert len(message) < 1000


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    assert "Did you mean" in refused(tmp_path / "runn")
    (tmp_path / "other").mkdir()
    assert "name a run folder" in refused(tmp_path / "other")
    (tmp_path / "other" / "rollouts").mkdir()
    assert "has no rollouts" in refused(tmp_path / "other")
    assert 'Did you mean "greedy"? Known: greedy, policy' in refused(run, stage="greed")
    assert "--stage selects a file of a run folder" in refused(run / "rollouts/policy.jsonl", stage="policy")
    assert "with --kind train --step 77" in refused(run, kind="train", step="77")
    assert "no step or kind" in refused(write(tmp_path / "s.jsonl", some(1)), kind="train")
    (tmp_path / "empty.jsonl").touch()
    assert "has no rows" in refused(tmp_path / "empty.jsonl")


# ---- tables ----------------------------------------------------------------------------------------------------------

ROW = {
    "prompt": [{"role": "user", "content": "1+1?"}],
    "data_source": "sums",
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "extra_info": {"split": "test", "index": 4},
}
COLUMNS = {"prompt_column": "question", "response_column": "outputs", "answer_column": "gold"}
NESTED = {"extra_info": {"question": "1+1?", "outputs": ["2", "3"], "gold": "2", "index": 7}, "prompt": "not this"}


def table(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file
    return write(file, rows)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_table_with_lists_of_responses(tmp_path: Path, suffix: str) -> None:
    rows = [ROW | {"responses": ["2", "3"]}, ROW | {"responses": [""], "extra_info": {"split": "test", "index": 5}}]
    first, second = groups_of(table(tmp_path / f"answers{suffix}", rows))
    assert (first.prompt.id, first.prompt.source, first.prompt.answer) == ("sums-test-4", "sums", "2")
    assert first.prompt.info == {"reward_model": {"style": "rule"}, "extra_info": {"split": "test", "index": 4}}
    assert (texts(first), texts(second)) == (["2", "3"], [""])
    columns = {name: f"extra_info.{at}" for name, at in COLUMNS.items()}
    (group,) = groups_of(table(tmp_path / f"nested{suffix}", [NESTED]), **columns)
    assert [message.content for message in group.prompt.messages] == ["1+1?"]
    assert (texts(group), group.prompt.answer) == (["2", "3"], "2")
    assert group.prompt.info == {"extra_info": {"index": 7}, "prompt": "not this"}


def test_rows_with_one_response_each_are_grouped_by_id_and_else_by_prompt(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "1?", "response": "1", "seconds": 3},
        {"prompt": "2?", "response": "x"},
        {"id": "b", "prompt": "1?", "response": "2"},
        {"id": "a", "prompt": "1?", "response": "3", "seconds": 4},
        {"prompt": "2?", "response": "y"},
        {"prompt": "2?", "response": "z", "reward_model": {"ground_truth": "5"}},
    ]
    found = groups_of(write(tmp_path / "rows.jsonl", rows))
    assert [(group.prompt.id, texts(group)) for group in found] == [
        ("a", ["1", "3"]),
        ("rows-2", ["x", "y"]),
        ("b", ["2"]),
        ("rows-6", ["z"]),  # the same question, another right answer
    ]
    assert found[0].prompt.info == {"seconds": 3}  # the other columns of the first row
    assert [group.prompt.id for group in groups_of(tmp_path / "rows.jsonl", limit=2)] == ["a", "rows-2"]


def test_a_column_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"question": "1+1?", "outputs": ["2"]}])
    for column, hint in (("prompt_column", "question"), ("response_column", "outputs")):
        message = refused(file, **COLUMNS | {column: f"{hint}s"})
        assert column in message
        assert f'Did you mean "{hint}"?' in message
