"""Answers on disk: found again, cut where a process died, never mixed with those of another question."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.errors import UserError
from rewardsmith.runs.preparing.kept import KeptAnswers

MAKER: dict[str, Any] = {"model": {"init": "m"}, "asking": {"temperature": 0.0}}


def kept(folder: Path, maker: dict[str, Any] | None = None, **settings: Any) -> KeptAnswers:
    out = folder / "deep" / "out.jsonl"
    return KeptAnswers(out, maker or MAKER, [out], **settings)


def fill(folder: Path) -> Path:
    answers = kept(folder)
    with answers.open():
        answers.identify("m-1")
        answers.add("a", {"n": 1, "text": "é\ud800"})
        answers.add("b", {"n": 2})
    return answers.file


def test_they_are_found_again(tmp_path: Path) -> None:
    fill(tmp_path)
    again = kept(tmp_path)
    with again.open():
        assert "a" in again
        assert "c" not in again
        assert again["b"] == {"n": 2}
        assert again["a"]["n"] == 1
        again.add("c", 3)
        assert (again["c"], again["a"]["n"]) == (3, 1)
    with kept(tmp_path).open():
        pass


@pytest.mark.parametrize("cut", range(1, 28))
def test_a_line_that_is_not_complete_is_cut_off(tmp_path: Path, cut: int) -> None:
    file = fill(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    again = kept(tmp_path)
    with again.open():
        assert "a" in again
        assert "b" not in again
        again.add("b", {"n": 2})
    assert file.read_bytes() == whole


def test_a_file_that_was_killed_before_its_first_line_was_complete(tmp_path: Path) -> None:
    file = fill(tmp_path)
    file.write_bytes(file.read_bytes()[:10])
    again = kept(tmp_path)
    with again.open():
        again.identify("m-2")
    assert json.loads(file.read_text()) == {"maker": {**MAKER, "identity": "m-2"}}


def test_those_of_another_model_are_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    other = {"model": {"init": "n"}, "asking": {"temperature": 0.0}}
    with pytest.raises(UserError, match=r'model\.init: "m" -> "n"') as caught, kept(tmp_path, other).open():
        pass
    assert "add --fresh to start anew" in str(caught.value)
    anew = kept(tmp_path, other, fresh=True)
    with anew.open():
        assert "a" not in anew


def test_those_of_another_model_behind_the_same_settings_are_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    again = kept(tmp_path)
    with again.open():
        assert again.maker["identity"] == "m-1"  # known without asking the model
        again.identify("m-1")
        with pytest.raises(UserError, match=r'identity: "m-1" -> "m-2"') as caught:
            again.identify("m-2")
    assert "add --fresh to start anew" in str(caught.value)


def test_where_there_is_no_answer_yet_another_model_may_begin(tmp_path: Path) -> None:
    for name in ("m-1", "m-2"):
        answers = kept(tmp_path)
        with answers.open():
            answers.identify(name)
    assert json.loads(answers.file.read_text()) == {"maker": {**MAKER, "identity": "m-2"}}


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b'{"x": 1}\n', b"\xff\xfe\n", b"[" * 50_000 + b"\n"])
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, line: bytes) -> None:
    file = fill(tmp_path)
    for content in (line, file.read_bytes() + line):
        file.write_bytes(content)
        with pytest.raises(UserError, match="this command did not write that"), kept(tmp_path).open():
            pass


def test_an_output_of_somebody_else_is_refused(tmp_path: Path) -> None:
    answers = kept(tmp_path)
    answers.file.parent.mkdir()
    (answers.file.parent / "out.jsonl").write_text("precious")
    with pytest.raises(UserError, match="is there already: add --fresh"), answers.open():
        pass
    assert not answers.file.exists()


def test_two_processes_cannot_write_at_once(tmp_path: Path) -> None:
    with (
        kept(tmp_path).open(),
        pytest.raises(UserError, match="another process is writing"),
        kept(tmp_path).open(),
    ):
        pass


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("a file")
    with pytest.raises(UserError, match="cannot write to"), kept(tmp_path).open():
        pass
