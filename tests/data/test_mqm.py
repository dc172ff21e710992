"""MQM tables: weights, averages over raters, spans, quotation marks, and lines that cannot be used."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import UserError
from rewardsmith.data.mqm import Annotations, penalty_of, read_annotations
from rewardsmith.data.prepare.preference_data import PreferencesJob, mqm_rankings
from rewardsmith.data.rows import BadRows, RowError
from tests.data.mqm_tables import PENALTIES, lines, write_annotations

JOB = PreferencesJob(input="mqm.tsv", out=Path("pairs.jsonl"), labels="mqm")


def read(path: Path, *, skip: bool = False) -> tuple[Annotations, BadRows]:
    bad = BadRows(skip=skip)
    return read_annotations(path, bad), bad


def penalties(annotations: Annotations) -> dict[tuple[str, str], float]:
    return {(name, s.id): penalty for s in annotations.segments for name, penalty in s.penalties().items()}


def test_what_an_error_costs() -> None:
    for category, severity, weight in [
        ("Accuracy/Mistranslation", "Major", 5.0),
        ("Fluency/Punctuation", "Major", 5.0),
        ("Non-translation!", "Major", 25.0),
        ("Accuracy/Mistranslation", "Minor", 1.0),
        (" fluency/punctuation", "minor ", 0.1),
        ("Style/Awkward", "Neutral", 0.0),
        ("No-error", "no-error", 0.0),
        ("Found", "HOTW-test", None),
    ]:
        assert penalty_of(category, severity) == weight
    with pytest.raises(RowError, match='severity is "Majr": one of Major'):
        penalty_of("Accuracy", "Majr")


def test_penalties_are_summed_over_errors_and_averaged_over_raters(tmp_path: Path) -> None:
    annotations, bad = read(write_annotations(tmp_path))
    assert penalties(annotations) == PENALTIES
    assert (bad.count, annotations.lines, annotations.left_out) == (0, 9, 0)
    assert annotations.systems == ["a", "b", "c"]
    first, second = annotations.segments
    assert (first.source, second.source) == ("Ausgang", "Ja.")
    assert [output.text for output in first.outputs.values()] == ["Exit.", 'The "way out', "Way out"]


def test_another_header_and_another_order_of_lines(tmp_path: Path) -> None:
    head, *rows = lines()
    head = head.replace("doc_id\tseg_id", "docSegId\tglobalSegId") + "\tmetadata"
    given = [head, *(f"{row}\t{{}}" for row in rows[::-1])]
    path = tmp_path / "mqm.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(given).encode() + b"\r\n\r\n")
    annotations, bad = read(path)
    assert (penalties(annotations), bad.count) == (PENALTIES, 0)


def test_segments_of_two_documents_may_have_one_number(tmp_path: Path) -> None:
    annotations, bad = read(write_annotations(tmp_path, [*lines("one"), *lines("two")[1:]]))
    assert (len(annotations.segments), bad.count) == (4, 0)
    ids = [ranking.prompt.id for ranking in mqm_rankings(annotations, "t", JOB)]
    assert ids == ["t-one-1", "t-one-2", "t-two-1", "t-two-2"]


BAD = [
    ("a\ttalk.2\t1\t1\tr1\tAusgang", "6 fields, but the header has 9: a tab within a text, or a line cut short"),
    ("a\ttalk.2\t1\t1\tr1\tAus\tgang\tExit.\tX\tMajor", "10 fields, but the header has 9"),
    ("a\ttalk.2\t1\t1\tr1\tAusgang\tExit.\tX\tHuge", 'severity is "Huge": one of Major'),
    ("a\ttalk.2\t1\t1\tr1\tEingang\tExit.\tX\tMajor", 'source is "Eingang", but an earlier line has "Ausgang"'),
    ("a\ttalk.2\t1\t1\tr1\tAusgang\tDoor\tX\tMajor", 'target is "Door", but an earlier line has "Exit."'),
    ("a\ttalk.2\t1\t1\tr1\t \tExit.\tX\tMajor", "source is empty"),
    ("a\ttalk.2\t1\t1\tr1\tAusgang\tEx\udcffit.\tX\tMajor", "not UTF-8 text: byte 26 of the line is 0xff"),
]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("line", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_the_translation_of_a_bad_line_is_left_out_for_it_would_look_too_good(
    line: str, message: str, first: bool, tmp_path: Path
) -> None:
    head, *rows = lines()
    given = [head, *rows, line] if not first else [head, line, *rows]
    path = tmp_path / "mqm.tsv"
    path.write_bytes("\n".join(given).encode("utf-8", "surrogateescape"))
    annotations, bad = read(path, skip=True)
    if not first or ("Eingang" not in line and "Door" not in line):  # of two that differ, the first counts
        assert message in str(bad)
        assert bad.count == 1
        assert penalties(annotations) == {key: p for key, p in PENALTIES.items() if key != ("a", "1")}
        assert annotations.left_out == 1
    assert ("a", "1") not in penalties(annotations)
    fresh = BadRows(skip=False)
    read_annotations(path, fresh)
    with pytest.raises(UserError, match=r"mqm\.tsv, lines? "):
        fresh.settle(10)


def test_files_that_hold_no_annotations(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    for text, message in [
        ("", "has no column category, rater, seg_id, severity, source, system, target"),
        ("system\tdoc\n", "has no column category, rater, seg_id, severity, source, target: a file of annotations is"),
        (lines()[0] + "\n\n", "has no lines below"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read(path)
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "no.tsv")


def test_unknown_systems_are_named(tmp_path: Path) -> None:
    annotations, _ = read(write_annotations(tmp_path))
    for changes in ({"reference": "bb"}, {"exclude_systems": ["bb"]}):
        with pytest.raises(UserError, match=r"no system 'bb'.*a, b, c"):
            list(mqm_rankings(annotations, "t", JOB.model_copy(update=changes)))


@given(line=st.binary(max_size=60).filter(lambda line: b"\n" not in line))
def test_no_line_breaks_the_reader(line: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("mqm") / "x.tsv"
    path.write_bytes("\n".join(lines()).encode() + b"\n" + line + b"\n")
    _, bad = read(path, skip=True)
    assert all(part.isprintable() for part in str(bad).splitlines())
