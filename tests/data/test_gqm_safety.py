"""Ranking data: where they come from, and that nothing is lost or half-written."""

import hashlib
import json
from pathlib import Path

import pytest

from rewardsmith import UserError
from rewardsmith.data.gqm import GqmSettings, prepare_gqm
from tests.data.gqm_rows import prepare, row, write_rows

FULL = {"subgroups": 4, "shuffles": 4}


def test_the_provenance_says_how_a_file_was_made(tmp_path: Path) -> None:
    prepare(
        tmp_path, [row(i) for i in range(8)], held_out=0.5, held_out_out=tmp_path / "test.jsonl", shuffles=1, seed=3
    )
    for name in ("out", "test"):
        facts = json.loads((tmp_path / f"{name}.jsonl.provenance.json").read_text(encoding="utf-8"))
        assert facts["command"] == "prepare gqm-rl"
        assert facts["settings"]["seed"] == 3
        assert facts["settings"]["template"] == "ranking_translation"
        assert len(facts["settings"]["template_sha256"]) == 64
        assert facts["settings"]["parser"].startswith("ranking-")
        data = (tmp_path / "in.jsonl").read_bytes()
        expected = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "rows": 8}
        assert facts["inputs"] == [{"path": str(tmp_path / "in.jsonl"), **expected}]
        out = (tmp_path / f"{name}.jsonl").read_bytes()
        assert facts["output"]["sha256"] == hashlib.sha256(out).hexdigest()
        assert facts["output"]["rows"] == out.count(b"\n")
        assert facts["counts"]["read"] == 8


def test_a_file_that_is_there_stays_and_nothing_else_is_left(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [row(0)])
    out = tmp_path / "out.jsonl"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="is there already: use --overwrite"):
        prepare_gqm(str(source), out, GqmSettings(form="rl"))
    assert out.read_text(encoding="utf-8") == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    with pytest.raises(UserError, match=r"does not end in \.jsonl or \.parquet"):
        prepare_gqm(str(source), tmp_path / "out.csv", GqmSettings(form="rl"))


def test_the_input_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    source, link = write_rows(folder / "in.jsonl", [row(i) for i in range(9)]), tmp_path / "link.jsonl"
    before = source.read_bytes()
    link.symlink_to(source)
    for path in (str(source), str(folder)):
        for out in (source, link, folder / ".." / "given" / "in.jsonl"):
            with pytest.raises(UserError, match="is one of the files that are read: name another"):
                prepare_gqm(path, out, GqmSettings(form="rl"), overwrite=True)
            settings = GqmSettings(form="rl", held_out=3)
            with pytest.raises(UserError, match="is one of the files that are read: name another"):
                prepare_gqm(path, tmp_path / "new.jsonl", settings, held_out_out=out, overwrite=True)
    assert source.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"given", "link.jsonl"}


def test_two_at_once_with_one_name_do_not_mix(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", [row(i, 4) for i in range(600)]), tmp_path / "out" / "out.jsonl"
    settings = GqmSettings(form="rl", **FULL)
    begun = []

    def meanwhile(stage: str, done: int, total: int) -> None:
        if not begun:
            begun.append(stage)
            prepare_gqm(str(source), out, settings, overwrite=True)

    prepare_gqm(str(source), out, settings, overwrite=True, watch=meanwhile)
    mixed = out.read_bytes()
    prepare_gqm(str(source), out, settings, overwrite=True)
    assert begun
    assert out.read_bytes() == mixed
    assert {path.name for path in out.parent.iterdir()} == {"out.jsonl", "out.jsonl.provenance.json"}


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [row(i, 4) for i in range(600)])

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_gqm(str(source), tmp_path / "out.parquet", GqmSettings(form="rl", **FULL), watch=stop)
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


def test_progress_is_told(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", [row(i) for i in range(1100)])
    told: list[tuple[str, int, int]] = []
    prepare_gqm(str(source), tmp_path / "o.jsonl", GqmSettings(form="rl"), watch=lambda *now: told.append(now))
    assert told[:3] == [("reading", 500, 1100), ("reading", 1000, 1100), ("reading", 1100, 1100)]
    assert told[-1] == ("writing", 1100, 1100)
