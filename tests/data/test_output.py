"""Files of rows: whole or absent, one schema, constant memory; bad rows; records sorted on disk."""

import errno
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import UserError, __version__
from rewardsmith.data.preparing import (
    BadRows,
    Skipped,
    all_rows_to,
    file_facts,
    output,
    provenance_path,
    rows_to,
    write_provenance,
)
from rewardsmith.data.preparing.shuffling import Shuffle

BOTH = pytest.mark.parametrize("suffix", ["jsonl", "parquet"])


def a_row(i: int) -> dict[str, Any]:
    return {
        "id": f"r{i}",
        "n": i,
        "x": i / 2,
        "messages": [{"role": "user", "content": "ü\n\u2028" * (i % 5)}],
        "info": {"a": [i]},
    }


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def _write_all(write: output.Write, rows: list[dict[str, Any]]) -> None:
    for one in rows:
        write(one)


def _fail_after(write: output.Write, one: dict[str, Any]) -> None:
    write(one)
    raise UserError("no")


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


# ---- what is written ----------------------------------------------------------------------------------------------


@BOTH
def test_rows_come_back_and_folders_are_made(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / "deeper" / f"out.{suffix}"
    rows = [a_row(i) for i in range(600)]
    with rows_to(path) as write:
        for one in rows:
            write(one)
        assert not path.exists()
    assert read(path) == rows
    assert names(path.parent) == [path.name]


def test_json_lines_are_plain_utf8_one_row_each(tmp_path: Path) -> None:
    with rows_to(tmp_path / "o.jsonl") as write:
        write({"a": "ü\n\u2028", "b": None})
    assert (tmp_path / "o.jsonl").read_bytes() == '{"a":"ü\\n\u2028","b":null}\n'.encode()


def test_parquet_is_written_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "GROUP_BYTES", 100_000)
    with rows_to(tmp_path / "o.parquet") as write:
        for i in range(2000):
            write({"text": f"{i}" * 100})
    metadata = pq.read_metadata(tmp_path / "o.parquet")
    assert metadata.num_rows == 2000
    assert metadata.num_row_groups > 3
    assert [one["text"] for one in read(tmp_path / "o.parquet")] == [f"{i}" * 100 for i in range(2000)]


@BOTH
def test_an_error_leaves_nothing_behind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"

    def half() -> None:
        with rows_to(path) as write:
            for i in range(1000):
                write(a_row(i))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert names(tmp_path) == []


@BOTH
def test_a_file_that_is_there_is_refused_before_anything_is_done_and_kept_when_it_fails(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"out.{suffix}"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(UserError, match="is there already: use --overwrite"), rows_to(path):
        pytest.fail("the block must not be entered")
    with pytest.raises(UserError), rows_to(path, overwrite=True) as write:
        _fail_after(write, a_row(0))
    assert path.read_text(encoding="utf-8") == "old"
    with rows_to(path, overwrite=True) as write:
        write(a_row(0))
    assert read(path) == [a_row(0)]
    assert names(tmp_path) == [path.name]


@BOTH
def test_two_writers_of_one_name_do_not_mix_and_what_others_left_is_not_touched(tmp_path: Path, suffix: str) -> None:
    path, left = tmp_path / f"out.{suffix}", tmp_path / f".out.{suffix}.part"
    left.write_text("of a dead process", encoding="utf-8")
    with rows_to(path, overwrite=True) as write:
        write(a_row(0))
        with rows_to(path, overwrite=True) as other:
            write(a_row(1))
            other(a_row(2))
        assert read(path) == [a_row(2)]
    assert read(path) == [a_row(0), a_row(1)]
    assert names(tmp_path) == [left.name, path.name]
    assert left.read_text(encoding="utf-8") == "of a dead process"


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path: Path) -> None:
    path = tmp_path / f"{'長' * 80}.jsonl"  # 246 bytes of 255
    with rows_to(path) as write:
        write(a_row(0))
    assert names(tmp_path) == [path.name]


def test_a_file_that_comes_while_we_write_is_not_replaced(tmp_path: Path) -> None:
    def race() -> None:
        with rows_to(tmp_path / "o.jsonl") as write:
            write(a_row(0))
            (tmp_path / "o.jsonl").write_text("other", encoding="utf-8")

    with pytest.raises(UserError, match="is there already"):
        race()
    assert (tmp_path / "o.jsonl").read_text(encoding="utf-8") == "other"


def test_several_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.parquet"]
    with all_rows_to(paths) as (one, other):
        one(a_row(1))
        other(a_row(2))
    assert [read(path) for path in paths] == [[a_row(1)], [a_row(2)]]

    def fail_at_the_end() -> None:
        with all_rows_to([tmp_path / "c.jsonl", tmp_path / "d.parquet"]) as (one, _):
            one(a_row(1))  # the Parquet file has no rows, and so no columns

    with pytest.raises(UserError, match=r"no rows for .*d\.parquet"):
        fail_at_the_end()
    with pytest.raises(UserError, match="two outputs have one name"), all_rows_to([paths[0], paths[0]], overwrite=True):
        pytest.fail("the block must not be entered")
    assert names(tmp_path) == ["a.jsonl", "b.parquet"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("out.json", r"does not end in \.jsonl or \.parquet.*Did you mean"),
        ("out", "does not end in"),
        ("out.jsonl/x.jsonl", "cannot write"),
    ],
)
def test_names_that_cannot_be_written(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "out.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=told), rows_to(tmp_path / name):
        pytest.fail("the block must not be entered")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").mkdir()
    with pytest.raises(UserError, match="is a folder"), rows_to(tmp_path / "out.jsonl", overwrite=True):
        pytest.fail("the block must not be entered")


@BOTH
def test_a_full_disk_is_told_plainly(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_one() -> None:
        with rows_to(tmp_path / f"o.{suffix}") as write:
            write(a_row(0))
            monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(UserError, match=r"the disk of .* is full"):
        write_one()
    assert names(tmp_path) == []


# ---- one schema ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("odd", [{"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_rows_of_other_fields_are_refused(tmp_path: Path, suffix: str, odd: dict[str, Any]) -> None:
    with rows_to(tmp_path / f"fine.{suffix}") as write:
        write({"a": 1, "b": 2})
        write({"b": 1, "a": 2})  # the order plays no part
    assert read(tmp_path / f"fine.{suffix}") == [{"a": 1, "b": 2}, {"a": 2, "b": 1}]
    with pytest.raises(UserError, match="differs from the first"), rows_to(tmp_path / f"o.{suffix}") as write:
        _write_all(write, [{"a": 1, "b": 2}, odd])


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"a": {"b": 1, "c": 2}, "m": []}, "no a.c in the rows before"),
        ({"a": {"b": 1}, "m": [{"role": "x", "tool": "y"}]}, "no m.tool in the rows before"),
        ({"a": {"b": "text"}, "m": []}, "do not fit one table"),
    ],
)
def test_parquet_loses_no_field_without_a_word(tmp_path: Path, odd: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told), rows_to(tmp_path / "o.parquet") as write:
        _write_all(write, [*([{"a": {"b": 1}, "m": [{"role": "u"}]}] * output.BATCH_ROWS), odd])
    assert names(tmp_path) == []


@pytest.mark.parametrize(("suffix", "value"), [("jsonl", "\ud800"), ("jsonl", float("nan")), ("parquet", "\ud800")])
def test_values_that_no_file_can_hold(tmp_path: Path, suffix: str, value: object) -> None:
    with pytest.raises(UserError, match=r"is no JSON|do not fit"), rows_to(tmp_path / f"o.{suffix}") as write:
        write({"a": value})
    assert names(tmp_path) == []


def test_a_schema_may_be_given_for_columns_that_begin_with_nulls(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    rows = [{"a": i, "b": None if i < 400 else {"c": "x"}} for i in range(500)]
    with rows_to(tmp_path / "o.parquet", schema=schema) as write:
        for one in rows:
            write(one)
    assert read(tmp_path / "o.parquet") == rows
    with rows_to(tmp_path / "none.parquet", schema=schema):
        pass  # a file without rows has columns all the same
    assert pq.read_schema(tmp_path / "none.parquet").names == ["a", "b"]


# ---- where it came from ---------------------------------------------------------------------------------------------


def test_provenance_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"abc")
    facts = {"command": "c", "inputs": [file_facts(tmp_path / "in.jsonl", 3)]}
    place = write_provenance(tmp_path / "o.parquet", facts)
    assert place == provenance_path(tmp_path / "o.parquet") == tmp_path / "o.parquet.provenance.json"
    kept = json.loads(place.read_text(encoding="utf-8"))
    expected = {"path": str(tmp_path / "in.jsonl"), "bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest(), "rows": 3}
    assert kept == {"rewardsmith": __version__, "command": "c", "inputs": [expected]}
    with pytest.raises(UserError, match="cannot read"):
        file_facts(tmp_path / "none")


# ---- bad rows -----------------------------------------------------------------------------------------------------


def test_bad_rows_end_in_one_error_that_lists_them() -> None:
    bad = BadRows(skip=False)
    assert not bad.fatal
    for i in range(12):
        bad.note(f"f, line {i}", ValueError("same" if i < 11 else "other"))
    assert bad.fatal
    with pytest.raises(UserError) as caught:
        bad.settle(20)
    told = str(caught.value).split("\n")
    assert told[0] == "12 of 20 rows cannot be used; the first 10:"
    assert told[1:3] == ["  f, lines 0-9", "    same"]
    assert told[3] == "Mend them, or use --skip-bad to leave them out"


def test_bad_rows_of_one_reason_are_told_by_where_they_begin_and_end() -> None:
    bad = BadRows(skip=True)
    for where in ("f, line 1", "f, line 2", "f, line 4", "g, line 5", "g, row 6", "g, row 7", "segment 8", "segment 8"):
        bad.note(where, "no")
    told = str(bad.settle(99)).split("\n  ")[1:-1]
    assert told == ["f, lines 1-2", "f, line 4", "g, line 5", "g, rows 6-7", "segment 8", "segment 8"]


def test_bad_rows_may_be_skipped() -> None:
    bad = BadRows(skip=True)
    bad.note("f, line 3", "\x1b[31m broken")
    assert not bad.fatal
    skipped = bad.settle(4)
    assert skipped == Skipped(1, 4, (("f, line 3", "\\x1b[31m broken"),))
    assert str(skipped) == "1 of 4 rows left out:\n  f, line 3\n    \\x1b[31m broken"
    assert skipped.as_json() == {"rows": 1, "of": 4, "first": [{"where": "f, line 3", "why": "\\x1b[31m broken"}]}
    assert str(BadRows(skip=True).settle(4)) == ""
    for _ in range(2000):
        bad.note("w", "e")
    assert len(bad.settle(3000).first) == 1000
    with pytest.raises(UserError, match="none of the 2,001 rows can be used"):
        bad.settle(2001)


# ---- sorting on disk ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(st.tuples(st.integers(0, 2**64 - 1) | st.integers(0, 3), st.binary(max_size=40)), max_size=200),
    most=st.sampled_from([1, 300, 2000, 10**6]),
)
def test_records_come_by_their_keys_whatever_fits_into_memory(
    records: list[tuple[int, bytes]], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shuffle") / "files"
    with Shuffle(folder, most_bytes=most) as shuffle:
        for key, record in records:
            shuffle.add(key, record)
        assert shuffle.count == len(records)
        assert list(shuffle.sorted()) == [record for _, record in sorted(records)]
    assert not folder.exists()


def test_a_shuffle_that_fails_leaves_no_files(tmp_path: Path) -> None:
    def fail() -> None:
        with Shuffle(tmp_path / "files", most_bytes=100) as shuffle:
            for i in range(1000):
                shuffle.add(random.Random(i).getrandbits(64), b"x" * 50)
            for _ in shuffle.sorted():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == []


MEMORY = """
import resource, sys
from rewardsmith.data.preparing import rows_to
from rewardsmith.data.preparing.shuffling import Shuffle
from pathlib import Path
import hashlib, pyarrow.parquet
rows, out = int(sys.argv[1]), Path(sys.argv[2])
with rows_to(out) as write, Shuffle(out.with_name("files")) as shuffle:
    for i in range(rows):
        key = hashlib.sha256(str(i).encode()).digest()
        shuffle.add(int.from_bytes(key[:8], "big"), key * 100)
    for record in shuffle.sorted():
        write({"text": record.hex()})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        command = [sys.executable, "-c", MEMORY, str(rows), str(tmp_path / f"{rows}.parquet")]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # 64 and 256 MB of records; holding them would add 192 MB and more.
    assert peak(80_000) - peak(20_000) < 60
