"""Stored rollouts in all their forms, and what is said of those that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rewardsmith import RolloutGroup, UserError
from rewardsmith.records import to_json
from rewardsmith.runs.stored_rollouts import ResponseColumns, StoredRollouts
from tests.runs.scoring.groups import record, run_folder, scored, some, write


def ids(path: Path, **wanted: Any) -> list[str]:
    found = StoredRollouts(str(path), **wanted)
    names = [stored.group.prompt.id for stored in found]
    if names:
        assert found.count() == len(names)  # the quick look and the reading agree
    return names


def refused(path: Path, **wanted: Any) -> str:
    with pytest.raises(UserError) as caught:
        _read(path, wanted)
    return str(caught.value)


def _read(path: Path, wanted: dict[str, Any]) -> None:
    found = StoredRollouts(str(path), **wanted)
    found.count()
    list(found)


# ---- records and nouns -------------------------------------------------------------------------------------------


def test_a_run_is_read_stage_by_stage_with_its_old_scores(tmp_path: Path) -> None:
    found = list(StoredRollouts(str(run_folder(tmp_path, 5))))
    assert [s.group.prompt.id for s in found] == ["p0", "p1", "p0", "p1", "p2", "p3", "p4"]  # greedy, policy
    assert found[2].scores == tuple(some(1)[0].scores)
    assert found[2].place.endswith("policy.jsonl, line 1")
    assert found[3].record is not None
    assert (found[3].record.step, found[3].record.kind) == (1, "train")


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"stage": "greedy"}, ["p0", "p1"]),
        ({"stage": "policy", "kind": "validation"}, ["p0", "p4"]),
        ({"stage": "policy", "steps": (1, 1)}, ["p1", "p4"]),
        ({"stage": "policy", "steps": (1, 2), "kind": "train"}, ["p1", "p2", "p5"]),
        ({"limit": 3}, ["p0", "p1", "p0"]),
    ],
)
def test_groups_of_a_run_are_chosen(tmp_path: Path, wanted: dict[str, Any], names: list[str]) -> None:
    assert ids(run_folder(tmp_path, 6), **wanted) == names


def test_scored_groups_and_groups_are_read_as_they_are(tmp_path: Path) -> None:
    groups = some(3)
    (first, *_) = StoredRollouts(str(write(tmp_path / "scored.jsonl", groups)))
    assert (first.group, first.scores, first.record) == (groups[0].group, tuple(groups[0].scores), None)
    (first, *_) = StoredRollouts(str(write(tmp_path / "plain.jsonl", [g.group for g in groups])))
    assert (first.group, first.scores) == (groups[0].group, None)


def test_new_scores_keep_the_form_and_lose_the_advantages(tmp_path: Path) -> None:
    groups = some(1)
    new = scored("p0", [r.text for r in groups[0].group.rollouts], [9.0, 8.0])
    (found,) = StoredRollouts(str(write(tmp_path / "r.jsonl", [record(groups[0], step=3, dropped="too_easy")])))
    assert to_json(found.rescored(new)) == record(new, step=3, dropped="too_easy") | {"advantages": [None, None]}
    (found,) = StoredRollouts(str(write(tmp_path / "s.jsonl", groups)))
    assert found.rescored(new) == new


def test_the_line_that_a_stopped_run_has_not_finished_is_left_out_and_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, 3)
    file = folder / "rollouts" / "policy.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    found = StoredRollouts(str(folder), stage="policy")
    assert [s.group.prompt.id for s in found] == ["p0", "p1"]
    assert len(found.incomplete) == 1
    assert "policy.jsonl, line 3 is incomplete" in found.incomplete[0]
    # A file that somebody names is another matter: it should be whole.
    assert "policy.jsonl, line 3: not JSON" in refused(file)


BAD = [
    (["{"], "line 1: not JSON"),
    (["[1]"], "line 1: the line holds an array"),
    (['{"step": 1, "step": 2}'], "line 1: the key step is there twice"),
    (
        [record(some(1)[0]), {"prompt": "x", "response": "y"}],
        "line 2: this is a row of a table, but the first line is a",
    ),
    ([record(some(1)[0]) | {"scored": {"grop": 1}}], "line 1: GroupRecord.scored has an unknown field 'grop'"),
    ([record(some(1)[0]) | {"step": -1}], "line 1: GroupRecord.step is -1"),
    ([record(some(1)[0]) | {"kind": 5}], "line 1: GroupRecord.kind is of type int"),
    ([record(some(1)[0]) | {"extra": 1}], "line 1: GroupRecord has an unknown field 'extra'"),
    ([{"group": {}, "scores": []}], "line 1: ScoredGroup.group has no field 'prompt'"),
    ([{"prompt": {"id": "a", "messages": []}, "rollouts": []}], "line 1: RolloutGroup.prompt: Prompt.messages"),
    ([json.dumps({"prompt": "p", "rollouts": [{"text": "\ud800"}]})], "line 1: RolloutGroup.prompt is 'p'"),
    (['{"prompt": "p", "responses": ["\\ud800"]}'], "line 1: Rollout.text has a lone surrogate"),
    (['{"step": 1, "kind": "a", "scored": ' + "[" * 5000 + "]" * 5000 + "}"], "nested too deeply"),
]


@pytest.mark.parametrize(("rows", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    found = refused(file)
    assert message in found
    assert str(file) in found


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
    assert "has no folder rollouts, so it is no run" in refused(tmp_path / "other")
    (tmp_path / "other" / "rollouts").mkdir()
    (tmp_path / "other" / "rollouts" / "policy.jsonl").touch()
    assert "has no rollouts: the run has not reached" in refused(tmp_path / "other")
    assert 'Did you mean "greedy"? Known: greedy, policy' in refused(run, stage="greed")
    assert "--stage selects a file of a run folder" in refused(run / "rollouts/policy.jsonl", stage="policy")
    assert "with --kind train --step 77" in refused(run, kind="train", steps=(77, 77))
    assert "no step or kind" in refused(write(tmp_path / "s.jsonl", some(1)), kind="train")
    (tmp_path / "empty.jsonl").touch()
    assert "has no rows" in refused(tmp_path / "empty.jsonl")


# ---- tables ------------------------------------------------------------------------------------------------------

ROW = {
    "prompt": [{"role": "user", "content": "1+1?"}],
    "data_source": "sums",
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "extra_info": {"split": "test", "index": 4},
}


def groups_of(path: Path, **columns: str) -> list[RolloutGroup]:
    return [stored.group for stored in StoredRollouts(str(path), columns=ResponseColumns(**columns))]


def texts(group: RolloutGroup) -> list[str]:
    return [rollout.text for rollout in group.rollouts]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_table_with_a_list_of_responses(tmp_path: Path, suffix: str) -> None:
    rows = [ROW | {"responses": ["2", "3"]}, ROW | {"responses": ["two"], "extra_info": {"split": "test", "index": 5}}]
    file = tmp_path / f"answers{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        write(file, rows)
    first, second = groups_of(file)
    assert (first.prompt.id, first.prompt.source, first.prompt.answer) == ("sums-test-4", "sums", "2")
    assert first.prompt.info == {"reward_model": {"style": "rule"}, "extra_info": {"split": "test", "index": 4}}
    assert (texts(first), texts(second)) == (["2", "3"], ["two"])


def test_rows_with_one_response_each_are_gathered_by_id_and_else_by_prompt(tmp_path: Path) -> None:
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
    assert found[0].prompt.info == {"seconds": 3}  # what else the first row has
    assert ids(tmp_path / "rows.jsonl", limit=2) == ["a", "rows-2"]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"prompt": "1?", "out": ["a"], "gold": "b", "response": "not this"}])
    (group,) = groups_of(file, responses="out", answers="gold")
    assert (texts(group), group.prompt.answer) == (["a"], "b")
    assert group.prompt.info == {"response": "not this"}


NESTED = {"extra_info": {"question": "1+1?", "outputs": ["2", "3"], "gold": "2", "index": 7}, "prompt": "not this"}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_columns_may_be_dotted_paths(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([NESTED]), file)
    else:
        write(file, [NESTED])
    columns = {"prompts": "extra_info.question", "responses": "extra_info.outputs", "answers": "extra_info.gold"}
    (group,) = groups_of(file, **columns)
    assert [message.content for message in group.prompt.messages] == ["1+1?"]
    assert (texts(group), group.prompt.answer) == (["2", "3"], "2")
    assert group.prompt.info == {"extra_info": {"index": 7}, "prompt": "not this"}


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"prompts": "extra_info.qestion"}, ["--prompts NAME", 'Did you mean "extra_info.question"?']),
        ({"prompts": "question"}, ["there is no question", "--prompts NAME"]),
        ({"responses": "extra_info.output"}, ["--responses NAME", 'Did you mean "extra_info.outputs"?']),
    ],
)
def test_a_column_that_is_not_there_is_named_with_its_option(
    columns: dict[str, str], parts: list[str], tmp_path: Path
) -> None:
    file = write(tmp_path / "t.jsonl", [NESTED])
    with pytest.raises(UserError) as caught:
        StoredRollouts(str(file), columns=ResponseColumns(**{"responses": "extra_info.outputs"} | columns)).count()
    for part in parts:
        assert part in str(caught.value)


def test_a_column_of_answers_that_no_row_has_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "1?", "responses": ["a"], "gold": "b"}, {"prompt": "2?", "responses": ["a"]}]
    file = write(tmp_path / "t.jsonl", rows)
    with pytest.raises(UserError, match=r'there is no glod: --answers NAME .* Did you mean "gold"'):
        StoredRollouts(str(file), columns=ResponseColumns(answers="glod")).count()
    assert StoredRollouts(str(file), columns=ResponseColumns(answers="gold")).count() == 2  # a row may lack it
    assert StoredRollouts(str(file)).count() == 2  # who names none may have none


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "x", "respones": ["y"]}], 'there is no responses and no response: --responses NAME'),
        ([{"prompt": "x", "respones": ["y"]}], 'Did you mean "respones"? There is: prompt, respones'),
        ([{"prompt": "x", "responses": []}], "responses is an empty list"),
        ([{"prompt": "x", "responses": ["a", None]}], "responses holds null"),
        ([{"prompt": "x", "responses": {"a": 1}}], "responses holds dict"),
        ([{"prompt": "x", "response": 3}], "response holds int"),
        ([{"prompt": "x", "responses": ["a"]}, {"prompt": "y", "responses": "b"}], "a list in some rows and text in"),
        ([{"responses": ["a"]}], "there is no prompt"),
        ([{"id": "a", "prompt": "x", "response": "1"}, {"id": "a", "prompt": "y", "response": "1"}], "another prompt"),
    ],
)  # fmt: skip
def test_a_bad_row_of_a_table_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    found = refused(write(tmp_path / "t.jsonl", rows))
    assert message in found
    assert f"t.jsonl, line {len(rows)}" in found


def test_responses_have_no_scores_of_their_own(tmp_path: Path) -> None:
    (found,) = StoredRollouts(str(write(tmp_path / "t.jsonl", [ROW | {"responses": [""]}])))
    assert found.scores is None
    assert texts(found.group) == [""]  # an empty answer is an answer
