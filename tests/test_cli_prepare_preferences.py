"""`rewardsmith prepare preferences` as a user meets it: from scores, rankings and MQM tables to pairs and groups."""

import inspect
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.cli import main
from rewardsmith.cli.prepare.preferences import preferences
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.gqm import GqmSettings, GroupColumns, prepare_gqm
from rewardsmith.text.judge_prompts import RankingFormat
from tests.data.mqm_tables import PENALTIES, lines, write_annotations, write_averages
from tests.data.rows import write

Run = Callable[..., int]

GROUPS = [
    {"prompt": f"question {i}", "candidates": [f"good {i}", f"bad {i}", f"fair {i}"], "scores": [9, 1, 5]}
    for i in range(20)
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs the command in an empty folder and returns its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["rewardsmith", "prepare", "preferences", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return run


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def listed(folder: Path) -> set[str]:
    """Return what a folder holds, hidden files too."""
    return {path.name for path in folder.iterdir()}


# ---- from scores and rankings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Jsonl, Parquet])
@pytest.mark.parametrize("chat", [False, True])
def test_pairs_from_scores_are_read_back(
    kind: type, chat: bool, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(kind, tmp_path, GROUPS, "groups")
    out = f"made/here/pairs{given.suffix}"
    assert run(given, out, "--from", "scores", *(["--chat"] if chat else [])) == 0
    printed = capsys.readouterr().out
    assert "20  groups" in printed
    assert f"60  rows in {out}" in printed
    source = kind(path=out)
    source.check(of="preferences")
    pairs = {(p.prompt.messages[0].content, p.chosen, p.rejected, p.margin) for p in source.preferences(0)}
    assert pairs == {
        (f"question {i}", f"{better} {i}", f"{worse} {i}", margin)
        for i in range(20)
        for better, worse, margin in [("good", "bad", 8.0), ("good", "fair", 4.0), ("fair", "bad", 4.0)]
    }


def test_where_the_rows_come_from_is_written_beside_them(run: Run, tmp_path: Path) -> None:
    given = write(Jsonl, tmp_path, GROUPS, "groups")
    assert run(given, "pairs.jsonl", "--from", "scores", "--pairs", "adjacent", "--seed", 7) == 0
    facts = json.loads(Path("pairs.jsonl.provenance.json").read_text())
    assert facts["command"] == "prepare preferences"
    assert (facts["settings"]["pairing"]["which"], facts["settings"]["seed"]) == ("adjacent", 7)
    assert (facts["inputs"][0]["rows"], len(facts["inputs"][0]["sha256"])) == (20, 64)
    assert (facts["counts"]["pairs"], facts["outputs"], facts["this"]["rows"]) == (40, {"pairs.jsonl": 40}, 40)
    assert facts["skipped"] == {"rows": 0, "of": 20, "first": []}


@pytest.mark.parametrize("ranking", ["A > C > B", ["A", "C", "B"], [1, 3, 2]])
def test_pairs_from_rankings(ranking: Any, run: Run, tmp_path: Path) -> None:
    rows = [{"q": "?", "out": ["a", "b", "c"], "scores": [0, 9, 0], "order": ranking}]
    given = write(Jsonl, tmp_path, rows, "groups")
    named = ["--column", "prompt=q", "--column", "candidates=out", "--column", "ranking=order"]
    assert run(given, "pairs.jsonl", "--from", "rankings", *named) == 0
    assert {(row["chosen"], row["rejected"], row["margin"]) for row in rows_of("pairs.jsonl")} == {
        ("a", "c", 1.0),
        ("a", "b", 2.0),
        ("c", "b", 1.0),
    }


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--pairs", "all"], 60),
        (["--pairs", "adjacent"], 40),
        (["--pairs", "best-worst"], 20),
        (["--pairs", "sample:2"], 40),
        (["--least-margin", "4.5"], 20),
        (["--most-per-source", "1"], 20),
    ],
)
def test_which_pairs(options: list[str], count: int, run: Run, tmp_path: Path) -> None:
    given = write(Jsonl, tmp_path, GROUPS, "groups")
    assert run(given, "pairs.jsonl", "--from", "scores", *options) == 0
    assert len(rows_of("pairs.jsonl")) == count


def test_ties_are_kept_where_one_asks_for_them(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": "q", "candidates": ["a", "b", "c"], "scores": [1, 1, 0]}]
    given = write(Jsonl, tmp_path, rows, "groups")
    assert run(given, "pairs.jsonl", "--from", "scores", "--ties", "keep") == 0
    assert sorted((row["tied"], row["margin"]) for row in rows_of("pairs.jsonl")) == [(False, 1.0)] * 2 + [(True, 0.0)]
    assert sum(pair.tied for pair in Jsonl(path="pairs.jsonl").preferences(0)) == 1


def test_the_same_command_writes_the_same_bytes_and_the_order_of_the_rows_changes_no_pair(
    run: Run, tmp_path: Path
) -> None:
    options = ["--from", "scores", "--pairs", "sample:1", "--column", "id=key"]
    rows = [row | {"key": f"k{i}"} for i, row in enumerate(GROUPS)]
    given = write(Jsonl, tmp_path, rows, "groups")
    for out in ("one.jsonl", "two.jsonl"):
        assert run(given, out, *options) == 0
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()
    random.Random(0).shuffle(rows)
    assert run(write(Jsonl, tmp_path, rows, "shuffled"), "three.jsonl", *options) == 0
    assert run(given, "four.jsonl", *options, "--seed", 1) == 0
    one, three, four = ({(r["chosen"], r["rejected"]) for r in rows_of(f"{n}.jsonl")} for n in ("one", "three", "four"))
    assert one == three != four


@pytest.mark.parametrize(("held_out", "least", "most"), [("0.3", 1, 12), ("5", 5, 5)])
def test_no_source_is_on_both_sides(held_out: str, least: int, most: int, run: Run, tmp_path: Path) -> None:
    again = [row | {"candidates": [f"{c}!" for c in row["candidates"]]} for row in GROUPS]  # type: ignore[attr-defined]
    given = write(Jsonl, tmp_path, [*GROUPS, *again], "groups")
    assert run(given, "train.jsonl", "--from", "scores", "--held-out", held_out, "--held-out-out", "test.jsonl") == 0
    train, test = ({row["prompt"] for row in rows_of(name)} for name in ("train.jsonl", "test.jsonl"))
    assert not train & test
    assert len(train | test) == 20
    assert least <= len(test) <= most


def test_the_split_is_that_of_the_ranking_data(run: Run, tmp_path: Path) -> None:
    rows = [
        {"src_text": f"source {i}", "src_lang": "de", "trg_lang": "en", "mt_texts": ["a", "b"], "scores": [1, 2]}
        for i in range(30)
    ]
    given = write(Jsonl, tmp_path, rows, "groups")
    assert run(given, "train.jsonl", "--from", "scores", "--held-out", "0.3", "--held-out-out", "test.jsonl") == 0
    settings = GqmSettings(form="rl", held_out=0.3)
    prepare_gqm(str(given), tmp_path / "gqm.jsonl", settings, held_out_out=tmp_path / "gqm-test.jsonl")
    ours = {row["extra_info"]["src_text"] for row in rows_of("test.jsonl")}
    assert 0 < len(ours) < 30
    theirs = Path("gqm-test.jsonl").read_text(encoding="utf-8")
    assert ours == {f"source {i}" for i in range(30) if f"source {i}\\n" in theirs}


# ---- from MQM tables ----------------------------------------------------------------------------------------------


def test_pairs_from_annotations(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, averages = write_annotations(tmp_path), write_averages(tmp_path, {"c": "C-1"})
    options = ["--averages", averages, "--rename", "c=C-1", "--margin-unit", 5]
    assert run(given, "pairs.jsonl", "--from", "mqm", *options, "--instruction", "Into English: {source}") == 0
    assert "6  of 6 averages agree with INPUT" in capsys.readouterr().out
    found = {(r["prompt"], r["chosen"], r["rejected"]): r["margin"] for r in rows_of("pairs.jsonl")}
    assert found == {
        ("Into English: Ausgang", 'The "way out', "Exit."): pytest.approx(5.1 / 5),
        ("Into English: Ausgang", 'The "way out', "Way out"): pytest.approx(13 / 5),
        ("Into English: Ausgang", "Exit.", "Way out"): pytest.approx((13 - 5.1) / 5),
        ("Into English: Ja.", "Yes.", "Yeah"): pytest.approx((1 + 5) / 2 / 5),  # two systems said it
    }
    systems = {row["extra_info"]["rejected_system"] for row in rows_of("pairs.jsonl")}
    assert systems == {"a", "c", "b, c"}


def test_annotations_become_groups_that_the_other_commands_read(run: Run, tmp_path: Path) -> None:
    given = write_annotations(tmp_path)
    languages = ["--source-language", "de", "--target-language", "en"]
    assert run(given, "groups.jsonl", "--from", "mqm", "--to", "rankings", *languages) == 0
    source = Jsonl(path="groups.jsonl", shuffle=False)
    source.check(of="rankings")
    first, second = source.rankings(0)
    assert first.scores.tolist() == [-PENALTIES[system, "1"] for system in "abc"]
    assert (second.candidates, second.scores.tolist()) == (("Yes.", "Yeah"), [0.0, -3.0])
    assert first.prompt.info["src_lang"] == "de"
    settings = GqmSettings(form="rl", verdicts=RankingFormat("both", -25, 0, decimals=True))
    prepared = prepare_gqm("groups.jsonl", "rl.jsonl", settings)
    assert prepared.written == 2
    truth = {row["reward_model"]["ground_truth"] for row in rows_of("rl.jsonl")}
    assert {json.dumps(json.loads(text)) for text in truth} == {
        json.dumps({"A": -5.1, "B": 0, "C": -13}),
        json.dumps({"A": 0, "B": -3}),
    }


def test_a_reference_is_no_candidate(run: Run, tmp_path: Path) -> None:
    given = write_annotations(tmp_path)
    options = ["--reference", "b", "--source-language", "de", "--target-language", "en"]
    assert run(given, "groups.parquet", "--from", "mqm", "--to", "rankings", *options) == 0
    first, _ = Parquet(path="groups.parquet", shuffle=False).rankings(0)
    assert (first.candidates, first.prompt.info["trg_text"]) == (("Exit.", "Way out"), 'The "way out')


def test_a_sentence_that_comes_twice_in_a_talk_is_taken_once(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write_annotations(tmp_path, [*lines("one"), *lines("two")[1:]])
    assert run(given, "pairs.jsonl", "--from", "mqm", "--json") == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (counts["groups"], counts["repeated groups"], counts["pairs"]) == (2, 2, 4)


# ---- what is wrong ------------------------------------------------------------------------------------------------

BAD = [
    {"prompt": "q", "candidates": ["a", "b"], "scores": [1]},
    {"prompt": "q", "candidates": ["a"], "scores": [1]},
    {"prompt": "q", "candidates": ["a", "b"], "scores": [1, "x"]},
    {"candidates": ["a", "b"], "scores": [1, 2]},
    GROUPS[0],
]


def test_bad_rows_are_listed_and_nothing_is_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(Jsonl, tmp_path, [*GROUPS, *BAD], "groups")
    with given.open("ab") as file:
        file.write(b'\xff\n[1]\n{"prompt": NaN}\n')
    assert run(given, "pairs.jsonl", "--from", "scores") == 2
    told = capsys.readouterr().err
    assert "error: 8 of 28 rows cannot be used:" in told
    for message in (
        "line 21\n    scores has 1 for 2 answers",
        "line 22\n    candidates has 1: a group needs at least 2 answers",
        'line 23\n    scores[1] is "x": it must be a number',
        "line 24\n    there is no prompt and no messages and no src_text",
        "line 25\n    the same prompt, candidates and scores as in",
        "line 26\n    not UTF-8 text",
        "line 27\n    the line holds an array",
        "line 28\n    NaN is no JSON",
        "use --skip-bad to leave them out",
    ):
        assert message in told
    assert listed(tmp_path) == {"groups.jsonl"}


def test_bad_rows_can_be_left_out_and_are_counted(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = write(Jsonl, tmp_path, [*BAD[:4], *GROUPS], "groups")
    assert run(given, "pairs.jsonl", "--from", "scores", "--skip-bad") == 0
    assert "4 of 24 rows left out:" in capsys.readouterr().err
    assert len(rows_of("pairs.jsonl")) == 60
    facts = json.loads(Path("pairs.jsonl.provenance.json").read_text())
    assert facts["skipped"]["rows"] == 4
    assert "scores has 1 for 2 answers" in facts["skipped"]["first"][0]["why"]


def test_a_translation_with_a_bad_line_is_left_out(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write_annotations(tmp_path, [*lines(), "a\ttalk.2\t1\t1\tr1\tAusgang\tExit.\tX\tHuge"])
    assert run(given, "pairs.jsonl", "--from", "mqm") == 2
    assert 'line 11\n    severity is "Huge"' in capsys.readouterr().err
    assert run(given, "pairs.jsonl", "--from", "mqm", "--skip-bad") == 0
    assert "1  translations left out for a bad line" in capsys.readouterr().out
    assert not any("Exit." in (row["chosen"], row["rejected"]) for row in rows_of("pairs.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "score"], "--from is 'score': it must be one of scores, rankings, mqm. Did you mean \"scores\"?"),
        (["--from", "scores", "--to", "pairs"], "--to is 'pairs': it must be one of preferences, rankings"),
        (["--from", "scores", "--ties", "no"], "--ties is 'no': it must be one of keep, drop"),
        (["--from", "scores", "--margins", "raws"], "--margins is 'raws'"),
        (["--from", "scores", "--pairs", "best"], "pairs is 'best': it must be one of all, adjacent, best-worst"),
        (["--from", "scores", "--group-size", "4"], "--to preferences writes no groups: leave --group-size out"),
        (["--from", "scores", "--to", "rankings", "--ties", "keep"], "--to rankings writes no pairs: leave --ties out"),
        (["--from", "scores", "--reference", "x"], "--from scores is not about MQM: leave --reference out"),
        (["--from", "scores", "--column", "scores"], "--column is 'scores': write it as KEY=NAME"),
        (["--from", "scores", "--column", "score=x"], "there is no column for 'score' here. Did you mean \"scores\"?"),
        (["--from", "scores", "--column", "chosen=x"], "there is no column for 'chosen' here"),
        (["--from", "scores", "--column", "id=a", "--column", "id=b"], "--column says twice what 'id' is"),
        (["--from", "scores", "--column", "candidates=outputs"], "there is no outputs: --column candidates=NAME says"),
        (
            ["--from", "rankings"],
            "there is no ranking: --column ranking=NAME says where a row has the ranking of the a",
        ),
        (
            ["--from", "scores", "--column", "prompt=q"],
            "there is no q: --column prompt=NAME says where a row has its pr",
        ),
        (["--from", "scores", "--column", "id=scores"], "--column id=NAME says where else it is"),
        (
            ["--from", "mqm", "--rename", "a=b"],
            "--rename says what a system is called in --averages: give both, or none",
        ),
        (["--from", "scores", "--held-out", "nan", "--held-out-out", "x.jsonl"], "--held-out is nan: a share below 1"),
        (["--from", "scores", "--held-out", "0.1"], "--held-out says how much is held out, --held-out-out where it"),
        (["--from", "scores", "--held-out", "1.5", "--held-out-out", "x.jsonl"], "--held-out is 1.5: a share below"),
        (["--from", "scores", "--held-out", "0.1", "--held-out-out", "out.jsonl"], "two outputs have one name"),
        (
            ["--from", "scores", "--held-out", "99", "--held-out-out", "x.jsonl"],
            "no rows for out.jsonl: held out is 99",
        ),
        (["--from", "scores", "--least-margin", "100"], "nothing came of it (20 groups"),
        (["--from", "scores", "--margin-unit", "0"], "the unit of margins is 0.0"),
        (["--from", "mqm", "--column", "id=x"], "--from mqm knows its columns: leave --column out"),
        (["--from", "mqm", "--to", "rankings"], "say --source-language and --target-language"),
        (["--from", "mqm", "--source-language", "xq"], "'xq' is no language that we know"),
        (["--from", "mqm"], "has no column"),
    ],
)
def test_mistakes_end_with_a_message(
    arguments: list[str], message: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(Jsonl, tmp_path, GROUPS, "groups")
    assert run(given, "out.jsonl", *arguments) == 2
    assert message in capsys.readouterr().err
    assert listed(tmp_path) == {"groups.jsonl"}


@pytest.mark.parametrize("kind", ["scores", "mqm"])
@pytest.mark.parametrize("path", ["no.jsonl", "~no-such-user-here/x", "no/such/folder.tsv"])
def test_input_that_is_not_there(kind: str, path: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "out.jsonl", "--from", kind) == 2
    assert capsys.readouterr().err.startswith(("error: there is no file", "error: cannot"))


@pytest.mark.parametrize("kind", [Jsonl, Parquet])
def test_remedies_are_options_of_this_command(
    kind: type, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(kind, tmp_path, [{"id": "x", **GROUPS[0]}, {"id": "x", **GROUPS[1]}], "groups")
    assert run(given, "out.jsonl", "--from", "scores") == 2
    assert "make the ids unique, or say --column id=NAME for another column" in capsys.readouterr().err
    assert run(given, "out.jsonl", "--from", "scores", "--column", "candidates=texts") == 2
    told = capsys.readouterr().err
    assert "--column candidates=NAME says where a row has the answers" in told
    assert "columns." not in told


def test_what_is_read_is_never_replaced(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = write(Jsonl, tmp_path, GROUPS, "groups")
    before = given.read_bytes()
    held = ["new.jsonl", "--held-out", "3", "--held-out-out", given]
    for outs in ([given], ["./groups.jsonl"], held):
        assert run(given, *outs, "--from", "scores", "--overwrite") == 2
        assert 'groups.jsonl" is one of the files that are read: name another' in capsys.readouterr().err
    assert listed(tmp_path) == {"groups.jsonl"}
    assert given.read_bytes() == before


def test_groups_with_a_source_text_of_another_name_fit_the_ranking_data(run: Run, tmp_path: Path) -> None:
    translated = {"src_lang": "zh", "trg_lang": "en", "candidates": ["a", "b"], "scores": [1, 2]}
    given = write(Jsonl, tmp_path, [{"source": f"text {i}", **translated} for i in range(3)], "groups")
    assert run(given, "out.jsonl", "--from", "scores", "--to", "rankings", "--column", "source_text=source") == 0
    first = rows_of("out.jsonl")[0]
    assert [first[name] for name in ("src_text", "src_lang", "trg_lang", "mt_texts")] == [
        "text 0",
        "zh",
        "en",
        ["a", "b"],
    ]
    assert prepare_gqm("out.jsonl", "rl.jsonl", GqmSettings(form="rl")).written == 3
    assert run(write(Jsonl, tmp_path, GROUPS, "plain"), "plain-out.jsonl", "--from", "scores", "--to", "rankings") == 0
    asked = GqmSettings(form="rl", columns=GroupColumns(question="prompt"))
    assert prepare_gqm("plain-out.jsonl", "plain-rl.jsonl", asked).written == 20


def test_a_file_that_is_there_is_not_replaced_unless_one_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(Jsonl, tmp_path, GROUPS, "groups")
    Path("pairs.jsonl").write_text("mine\n")
    assert run(given, "pairs.jsonl", "--from", "scores") == 2
    assert '"pairs.jsonl" is there already: use --overwrite' in capsys.readouterr().err
    assert Path("pairs.jsonl").read_text() == "mine\n"
    assert run(given, "pairs.jsonl", "--from", "scores", "--overwrite") == 0
    assert len(rows_of("pairs.jsonl")) == 60


def test_the_document_names_every_option() -> None:
    page = (Path(__file__).parents[1] / "docs" / "preferences.md").read_text(encoding="utf-8")
    options = {"kind": "from"}
    for name in inspect.signature(preferences).parameters:
        assert name in ("input", "out") or f"--{options.get(name, name).replace('_', '-')}" in page, name
