"""A bundle: every group in small files, the page without a server, and no file outside of the folder."""

import json
from pathlib import Path

import pytest

from rewardsmith import Score
from rewardsmith.viewer import bundle
from rewardsmith.viewer.rollout_view import IN_VIEWER, group_view
from rewardsmith.viewer.run_list import RunList
from tests.command_line import call
from tests.runs.fake_run import line, write_fake_run, write_lines
from tests.viewer.judged_run import HOSTILE, write_judged_run


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))


def test_every_group_is_in_a_file_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "ROWS", 7)
    monkeypatch.setattr(bundle, "GROUPS", 4)
    folder = write_fake_run(tmp_path / "runs" / "one", steps=8, prompts=2)
    with (folder / "rollouts" / "policy.jsonl").open("a") as file:
        file.write('{"broken": 1}\n')
    write_judged_run(tmp_path / "runs" / "two")
    runs = RunList([tmp_path / "runs"])
    count = bundle.write_bundle(runs, tmp_path / "site")
    data = tmp_path / "site" / "data"
    names = [run["name"] for run in json.loads((data / "runs.json").read_text())["runs"]]
    assert names == ["one", "two"]
    (stage,) = json.loads((data / "r0" / "stages.json").read_text())["stages"]
    assert count == stage["groups"] + 4
    rows = {
        row["line"]: row
        for k in range(-(-stage["lines"] // 7))
        for row in json.loads((data / "r0" / "s0" / f"rows-{k}.json").read_text())
        if row["line"] // 7 == k
    }
    assert len(rows) == stage["groups"] == stage["lines"] - 1
    pages = runs.run("one").pages
    for at, row in rows.items():
        record = pages.record("policy", at)
        shown = json.loads((data / "r0" / "s0" / f"groups-{at // 4}.json").read_text())[str(at)]
        assert shown == json.loads(json.dumps(group_view(record, IN_VIEWER)))
        values = [score.value for score in record.scored.scores]
        assert [one["reward"] is None for one in row["rollouts"]] == [value is None for value in values]
        assert [one["reward"] or 0 for one in row["rollouts"]] == pytest.approx([v or 0 for v in values], rel=1e-5)


def test_a_group_that_cannot_be_read_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [line("a", Score(1.0)), line("b", Score(1.0)), line("c", Score(1.0)), line("d", Score(1.0))]
    rows[1]["scored"]["scores"][0]["unknown"] = 1
    rows[2]["advantages"] = 5
    write_lines(tmp_path / "run" / "rollouts" / "policy.jsonl", rows)
    assert bundle.write_bundle(RunList([tmp_path / "run"]), tmp_path / "site") == 2
    data = tmp_path / "site" / "data" / "r0"
    (stage,) = json.loads((data / "stages.json").read_text())["stages"]
    assert (stage["groups"], stage["unread"], stage["lines"]) == (2, 2, 4)
    assert [row["line"] for row in json.loads((data / "s0" / "rows-0.json").read_text())] == [0, 3]
    assert list(json.loads((data / "s0" / "groups-0.json").read_text())) == ["0", "3"]


def test_names_of_runs_and_stages_are_no_paths(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "∕")
    write_lines(tmp_path / "runs" / name / "rollouts" / "..evil &<b>.jsonl", [line(HOSTILE, Score(1.0))])
    bundle.write_bundle(RunList([tmp_path / "runs"]), tmp_path / "site")
    files = sorted(str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site" / "data").rglob("*.json"))
    assert files == [
        "data/r0/overview.json", "data/r0/s0/groups-0.json", "data/r0/s0/rows-0.json", "data/r0/stages.json",
        "data/r0/validations.json", "data/runs.json",
    ]  # fmt: skip
    page = (tmp_path / "site" / "index.html").read_text()
    assert "unsafe" not in page
    assert "default-src 'none'" in page


def test_the_command_writes_a_bundle_into_an_empty_folder_only(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "runs" / "one", steps=8, prompts=2)
    site = tmp_path / "site"
    done = call("view", str(tmp_path / "runs"), "--bundle", str(site))
    assert done.status == 0, done.err
    assert "1 run" in done.out
    again = call("view", str(tmp_path / "runs"), "--bundle", str(site))
    assert again.status == 2
    assert "not empty" in again.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing-here"], "there is no folder"),
        (["--port", "99999", "."], "port"),
        (["--port", "1", "--host", "192.0.2.1", "."], "listen"),
    ],
)
def test_mistakes_of_the_command_line_are_messages(arguments: list[str], why: str) -> None:
    done = call("view", *arguments)
    assert done.status == 2
    assert why in done.err
    assert "Traceback" not in done.err
