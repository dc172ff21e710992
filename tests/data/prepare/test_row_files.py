"""Files of rows: complete or absent, nothing lost in Parquet, bad rows in one report, provenance."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rewardsmith import UserError
from rewardsmith.data.prepare import row_files
from rewardsmith.data.prepare.prepare_job import Preparation, PrepareJob, ReadRow
from rewardsmith.data.prepare.row_files import open_outputs, require_outputs
from tests.data.prepare.jobs import names, read_rows, write_rows

BOTH = pytest.mark.parametrize("suffix", ["jsonl", "parquet"])


def a_row(i: int) -> dict[str, Any]:
    return {"id": f"r{i}", "n": i, "messages": [{"role": "user", "content": "ü\n\u2028" * (i % 5)}], "info": {"a": [i]}}


def write_all(path: Path, rows: list[dict[str, Any]]) -> None:
    with open_outputs([path]) as (write,):
        for row in rows:
            write(row)
        assert not path.exists() or path.read_text() == "old"


@BOTH
def test_an_error_leaves_nothing_behind_and_an_old_file_as_it_was(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    path.write_text("old")

    def stop_half_way() -> None:
        with open_outputs([path, tmp_path / "other.jsonl"]) as (write, _):
            for i in range(1000):
                write(a_row(i))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert (names(tmp_path), path.read_text()) == ({path.name}, "old")
    write_all(path, [a_row(0)])
    assert read_rows(path) == [a_row(0)]


@BOTH
def test_a_full_disk_is_a_user_error(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"the disk of .* is full"):
        write_all(tmp_path / f"o.{suffix}", [a_row(0)])
    assert names(tmp_path) == set()


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    source, link = write_rows(tmp_path / "in.jsonl", [a_row(0)]), tmp_path / "link.jsonl"
    link.symlink_to(source)
    (tmp_path / "folder.jsonl").mkdir()
    for out, message in [
        ("out.json", r"does not end in \.jsonl or \.parquet.*Did you mean"),
        ("folder.jsonl", "is a folder"),
        ("in.jsonl", "is one of the input files"),
        ("link.jsonl", "is one of the input files"),
        ("folder.jsonl/../in.jsonl", "is one of the input files"),
    ]:
        with pytest.raises(UserError, match=message):
            require_outputs([tmp_path / out], [source], replace=True)
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(UserError, match="exists: use --fresh"):
        require_outputs([tmp_path / "out.jsonl"], [source], replace=False)
    with pytest.raises(UserError, match="two outputs have one name"):
        require_outputs([tmp_path / "out.jsonl"] * 2, [source], replace=True)
    with pytest.raises(UserError, match="cannot write"):
        write_all(tmp_path / "out.jsonl" / "x.jsonl", [a_row(0)])


def test_parquet_takes_the_types_from_many_rows_and_writes_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "GROUP_BYTES", 200_000)
    rows: list[dict[str, Any]] = [{"text": f"{i}" * 100, "tags": [], "level": None} for i in range(2000)]
    rows[200] |= {"tags": [{"name": "hard"}], "level": 5, "more": {"index": 3}}
    write_all(tmp_path / "o.parquet", rows)
    found = read_rows(tmp_path / "o.parquet")
    assert found == [{"more": None, **row} for row in rows]
    assert pq.read_metadata(tmp_path / "o.parquet").num_row_groups == 3


def test_parquet_loses_no_field_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "GROUP_BYTES", 1)  # the types are decided by the first rows
    first = [{"a": {"b": 1}, "m": [{"role": "u"}]}] * row_files.BATCH_ROWS
    for odd in (
        {"a": {"b": 1, "c": 2}, "m": []},
        {"a": {"b": 1}, "m": [{"role": "x", "tool": "y"}]},
        {"a": {"b": "text"}, "m": []},
        {"a": {"b": 1}, "m": [], "more": 1},
    ):
        with pytest.raises(UserError, match=r"do not fit one table.*JSON lines"):
            write_all(tmp_path / "o.parquet", [*first, odd])
        assert names(tmp_path) == set()


def test_files_of_both_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "n": i} for i in range(5)]
    for suffix in ("jsonl", "parquet"):
        write_rows(tmp_path / f"rows.{suffix}", rows)
    write_rows(tmp_path / "other.jsonl", [{"prompt": "x"}, b"broken"])

    def read(path: str, **options: Any) -> tuple[list[ReadRow], Preparation]:
        job = PrepareJob(input=str(tmp_path / path), out=tmp_path / "out.jsonl", skip_bad=True)
        prepared = Preparation(job, **options)
        return asyncio.run(prepared.read(lambda row: [row])), prepared

    found, _ = read("rows.parquet", limit=4)
    assert [one.row for one in found] == rows[:4]
    assert [one.where.rpartition(", ")[2] for one in found] == ["row 1", "row 2", "row 3", "row 4"]
    found, prepared = read("*.jsonl")
    assert [one.number for one in found] == [1, 1, 2, 3, 4, 5]
    assert (prepared.counts["rows read"], prepared.bad.count, list(prepared.columns)) == (7, 1, ["prompt", "n"])
    assert len(read("")[0]) == 11
    for path in ("nowhere.jsonl", "no/x.jsonl"):
        with pytest.raises(UserError, match=r"there is no file|cannot look"):
            read(path)
