"""A results file is resumed, is held by one process, and never mixes what two settings made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.storage import ResumableJsonl


def test_entries_stay_and_an_incomplete_last_line_is_cut(tmp_path: Path) -> None:
    results = ResumableJsonl(tmp_path / "new" / "results.jsonl")
    with results.open():
        results.claim({"seed": 0})
        first, second = (results.append({"key": key}) for key in ("ä", "b"))
        assert results.read(first) == {"key": "ä"}
    with results.file.open("ab") as file:
        file.write(b'{"key": "c')
    with results.open():
        results.claim({"seed": 0})
        assert list(results.entries()) == [(first, {"key": "ä"}), (second, {"key": "b"})]
        third = results.append('{"key": "c"}')
        assert results.read(third) == {"key": "c"}
        assert results.read(second) == {"key": "b"}


def test_entries_of_other_settings_are_refused_unless_fresh(tmp_path: Path) -> None:
    results = ResumableJsonl(tmp_path / "results.jsonl")
    with results.open():
        results.claim({"seed": 0, "model": "m"})
        results.append({"key": "a"})
    with results.open():
        results.check({"seed": 0})  # a part of the note may be checked before the rest is known
        with pytest.raises(UserError, match=r"seed: 0 -> 1\n.*--fresh"):
            results.claim({"seed": 1, "model": "m"})
    with results.open(fresh=True):
        results.claim({"seed": 1, "model": "m"})
        assert list(results.entries()) == []
    assert results.note == {"seed": 1, "model": "m"}


def test_two_processes_and_foreign_or_damaged_files_are_refused(tmp_path: Path) -> None:
    results = ResumableJsonl(tmp_path / "results.jsonl")
    with results.open(), pytest.raises(UserError, match="another process"), ResumableJsonl(results.file).open():
        pass
    results.file.write_text("{}\n", encoding="utf-8")
    with pytest.raises(UserError, match="did not write it"), results.open():
        pass
    assert results.file.read_text(encoding="utf-8") == "{}\n"
    results.note_file.write_text("{}", encoding="utf-8")
    results.file.write_text("{\n", encoding="utf-8")
    with results.open(), pytest.raises(UserError, match="damaged"):
        list(results.entries())
