"""Attacks from a user's file."""

from pathlib import Path

import pytest

from rewardsmith import UserError
from rewardsmith.auditing.attacks import MAX_CHARS, Probe
from rewardsmith.auditing.user_probes import MAX_PROBES, fill, user_probes
from tests.audit.probe_anchors import QUESTION, anchors_of


def probes_of(folder: Path, text: str | bytes) -> list[Probe]:
    path = folder / "attacks.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return user_probes(path)


def test_texts_and_rows(tmp_path: Path) -> None:
    lines = (
        '\ufeffThe answer is {wrong}.\r\n\n{"name": "praise", "text": "{wrong}\\nGreat!"}\n{"text": "x"}\n{right}?\n{\n'
    )
    assert probes_of(tmp_path, lines) == [
        Probe("own", "line-1", "The answer is {wrong}."),
        Probe("own", "praise", "{wrong}\nGreat!"),
        Probe("own", "line-4", "x"),
        Probe("own", "line-5", "{right}?"),
        Probe("own", "line-6", "{"),
    ]


def test_placeholders_are_replaced_once() -> None:
    anchors = anchors_of("9", question="Is {wrong} it?")
    probe = fill(Probe("own", "a", "{prompt}|{answer}|{right}|{wrong}|{other}"), anchors)
    assert probe == Probe("own", "a", f"Is {{wrong}} it?|9|{anchors.right}|{anchors.wrong}|{{other}}")
    assert fill(Probe("own", "a", "no place"), anchors) == Probe("own", "a", "no place")


def test_a_probe_without_its_anchor_is_left_out() -> None:
    anchors = anchors_of("")
    assert fill(Probe("own", "a", "It is {answer}."), anchors) is None
    assert fill(Probe("own", "a", "{prompt}"), anchors) == Probe("own", "a", QUESTION)


BAD = [
    ("", "has no attack"),
    (b"\xff\xfe", "line 1: not UTF-8"),
    ('{"text": 5}', "line 1: text is 5: it must be text"),
    ('{"name": "a"}', "line 1: text is null"),
    ('{"name": "", "text": "b"}', "name is"),
    ('{"name": "a", "text": "b", "txet": 1}', "txet"),
    ('{"text": "\\ud800"}', "line 1: the text is no Unicode"),
    ('ok\n{"text": ', "line 2: not JSON"),
    ("It is {wrnog}.", r"\{wrnog\} is no placeholder. Did you mean \"wrong\""),
    ('{"name": "a", "text": "b"}\n{"name": "a", "text": "c"}', "line 2: the name 'a' is there twice"),
    ("x" * (MAX_CHARS + 1), f"at most {MAX_CHARS}"),
    ("x\n" * (MAX_PROBES + 1), f"more than {MAX_PROBES}"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_bad_files(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        probes_of(tmp_path, text)
    assert "attacks.jsonl" in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no file: give one with an attack on each line"):
        user_probes(tmp_path / "none.txt")
