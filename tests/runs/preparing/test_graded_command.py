"""`rewardsmith prepare graded` as a user meets it: forms, bands, splits, votes, rules, bad input."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.preparing import rows_to
from rewardsmith.data.preparing.splitting import limit_of_share, source_key
from rewardsmith.data.rubrics.bands import band_of, sizes
from tests.engines.faulty import said
from tests.runs.preparing.commands import CRITERIA, models_file, read, run, solved, write
from tests.runs.preparing.serving import Serving, part_of, true_points, wrote

ASKED = ("--models", "models.toml", "--teacher", "writer")


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server, and a folder with solutions and a file that names it."""
    monkeypatch.chdir(tmp_path)
    with Serving() as served:
        models_file(tmp_path, served)
        write(tmp_path / "solved.jsonl", solved(10))
        yield served


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [text for row in rows for text in row["responses"]]


def test_three_forms_in_one_go(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    forms = ("--form", "sft", "--form", "rl", "--form", "eval")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *forms) == 0
    assert len(serving.asked) == 40
    sft, rl, measured = (read(f"out.{form}.jsonl") for form in ("sft", "rl", "eval"))
    assert not Path("out.jsonl").exists()
    assert [row["id"] for row in sft] == [row["id"] for row in rl] == [f"p{i}#{j}" for i in range(10) for j in range(4)]
    for text, a, b, c in zip(texts(solved(10)), sft, rl, measured, strict=True):
        points = true_points(text)
        assert part_of(a["messages"][0]["content"], "Answer") == text
        assert a["messages"][1]["content"] == f"I looked at {len(text)} characters.\n\nTotal Score: {points}/10"
        assert b["prompt"] == a["messages"][:1]
        assert (b["data_source"], b["ability"]) == ("grade", "grading")
        assert float(b["reward_model"]["ground_truth"]) == pytest.approx(points / 10)
        assert isinstance(b["reward_model"]["ground_truth"], str)
        assert (c["response"], c["grade"]) == (text, pytest.approx(points / 10))
        assert c["extra_info"]["criteria"] == CRITERIA
    facts = json.loads(Path("out.rl.jsonl.provenance.json").read_text())
    assert (facts["form"], facts["part"], facts["graded"], facts["parser"]) == ("rl", "train", 40, "grade-3")
    assert facts["files"] == {f"out.{form}.jsonl": 40 for form in ("sft", "rl", "eval")}
    assert "40 solutions have a grade" in capsys.readouterr().out
    for source in (Jsonl(path="out.sft.jsonl"), Jsonl(path="out.rl.jsonl")):
        source.check(of="demonstrations" if "sft" in str(source.path) else "prompts")


def test_other_forms_ask_nothing_again(serving: Serving, monkeypatch: Any) -> None:
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED) == 0
    assert run(monkeypatch, "graded", "solved.jsonl", "out.parquet", *ASKED, "--form", "eval", "--balance") == 0
    assert len(serving.asked) == 40
    assert len(list(Parquet(path="out.parquet").graded(0))) == 40


def test_bands_are_balanced(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("solved.jsonl"), solved(30, each=3))
    balanced = ("--balance", "--band-ratio", "1.5", "--band-repeats", "3", "--form", "rl", "--form", "eval")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *balanced) == 0
    every = Counter(band_of(true_points(text) / 10, 5) for text in texts(solved(30, each=3)))
    before = [every[band] for band in range(5)]
    after = sizes(before, 1.5, 3)
    assert after != before
    rows = read("out.rl.jsonl")
    assert Counter(row["extra_info"]["band"] for row in rows) == dict(
        zip(["0-2", "2-4", "4-6", "6-8", "8-10"], after, strict=True)
    )
    assert len({row["id"] for row in rows}) == len(rows)  # copies have names of their own
    assert max(row["extra_info"]["copy"] for row in rows) <= 2
    assert len(read("out.eval.jsonl")) == 90  # what measures a judge is as it is
    out = capsys.readouterr().out
    for name, one, other in zip(("0-2", "2-4", "4-6", "6-8", "8-10"), before, after, strict=True):
        assert [cell.strip() for cell in next(li for li in out.splitlines() if f" {name} " in li).split("│")[1:4]] == [
            name,
            str(one),
            str(other),
        ]
    first = Path("out.rl.jsonl").read_bytes()
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *balanced) == 0
    assert Path("out.rl.jsonl").read_bytes() == first
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *balanced, "--seed", "1") == 0
    assert Path("out.rl.jsonl").read_bytes() != first


def test_no_problem_is_in_both_parts(serving: Serving, monkeypatch: Any) -> None:
    rows = solved(40, each=2)
    again = [{**row, "id": f"again-{i}", "responses": ["another"]} for i, row in enumerate(rows)]
    again = [{**row, "prompt": row["prompt"].replace(" ", "  ").upper()} for row in again]  # only looks different
    write(Path("solved.jsonl"), rows + again)
    held = ("--held-out", "0.3", "--form", "sft", "--form", "eval", "--balance")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *held) == 0
    train, apart = read("out.eval.jsonl"), read("out.held-out.eval.jsonl")

    def asked(rows: list[dict[str, Any]]) -> set[str]:
        return {" ".join(row["prompt"][0]["content"].lower().split()) for row in rows}

    assert asked(train).isdisjoint(asked(apart))
    assert len(asked(train)) + len(asked(apart)) == 40
    assert 4 <= len(asked(apart)) <= 20
    assert len(train) + len(apart) == 120
    sft = read("out.held-out.sft.jsonl")
    assert [row["id"] for row in sft] == [row["id"] for row in apart]  # held out, and not balanced
    named = ("--held-out", "0.3", "--held-out-out", "other/apart.parquet", "--form", "eval")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *named) == 0
    assert len(list(Parquet(path="other/apart.parquet").graded(0))) == len(apart)
    assert json.loads(Path("other/apart.parquet.provenance.json").read_text())["part"] == "held-out"


@pytest.mark.parametrize(("share", "part"), [("0.01", "held-out"), ("0.99", "train")])
def test_a_part_that_would_be_empty_is_found_before_the_teacher_is_asked(
    share: str, part: str, serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("solved.jsonl"), solved(1))
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--held-out", share) == 2
    assert f"no problem belongs to the {part} part with --held-out {share}" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()
    assert not serving.asked


def test_votes(serving: Serving, monkeypatch: Any) -> None:
    serving.server.say = lambda body: f"Vote.\nTotal Score: {body['seed'] % 3 + 4}/10"
    write(Path("solved.jsonl"), solved(2, each=1))
    votes = ("--votes", "3", "--temperature", "0.7", "--tries", "1", "--form", "rl", "--form", "sft")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *votes) == 0
    assert len(serving.asked) == 6
    assert {row["reward_model"]["ground_truth"] for row in read("out.rl.jsonl")} == {"0.5"}
    assert {row["messages"][1]["content"] for row in read("out.sft.jsonl")} == {"Vote.\n\nTotal Score: 5/10"}
    assert sorted(read("out.rl.jsonl")[0]["extra_info"]["shares"]) == [0.4, 0.5, 0.6]


def test_a_rule_says_what_is_right(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = solved(3, each=2)
    rows[2].pop("reward_model")
    rows[0]["right"] = [False, True]  # the rule knows better
    rows[2]["right"] = [False, None]  # and here it cannot say
    write(Path("solved.jsonl"), rows)
    ruled = ("--form", "eval", "--rule", "numeric")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *ruled) == 0
    assert [row["right"] for row in read("out.jsonl")] == [True, False, True, False, False, None]
    assert "final answers: 2 right, 3 wrong, 1 unknown" in capsys.readouterr().out
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--form", "eval") == 0
    assert [row["right"] for row in read("out.jsonl")] == [False, True, None, None, False, None]


def test_rows_with_one_solution_each(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "p", "prompt": "6 · 7?", "criteria": "Be right.", "response": text, "sound": sound}
        for text, sound in (("42", True), ("43", None), ("42", True), (" ", None))
    ]
    write(Path("solved.jsonl"), rows)
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--form", "eval") == 0
    assert "left out: 1 blank, 1 there twice" in capsys.readouterr().out
    found = read("out.jsonl")
    assert [(row["id"], row["response"], row["sound"]) for row in found] == [("p#0", "42", True), ("p#1", "43", None)]
    assert found[0]["extra_info"]["criteria"] == "Be right."


def test_what_is_left_out_is_counted(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = solved(1)
    write(Path("solved.jsonl"), [{**row, "responses": ["good", " ", "good", "bare", "fine"]}])
    serving.server.say = lambda body: (
        "Total Score: 3/10" if part_of(body["messages"][0]["content"], "Answer") == "bare" else wrote(body)
    )
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED) == 0
    assert "left out: 1 blank, 1 there twice, 1 without analysis" in capsys.readouterr().out
    assert [row["id"] for row in read("out.jsonl")] == ["p0#0", "p0#4"]
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--form", "rl", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["graded"], told["blank"], told["twice"], told["no_analysis"]) == (3, 1, 1, 0)


def test_faults_of_the_server_change_nothing(serving: Serving, monkeypatch: Any) -> None:
    assert run(monkeypatch, "graded", "solved.jsonl", "calm.jsonl", *ASKED) == 0
    serving.server.plan("500", "reset", said("Hm."), "429-after", said("Total Score: 11/10"), "half", "502", "empty")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED) == 0
    for calm, row in zip(read("calm.jsonl"), read("out.jsonl"), strict=True):
        assert calm["messages"] == row["messages"]
    assert sum(row["extra_info"]["tries"] for row in read("out.jsonl")) == 42


def test_a_solution_without_a_grade_is_listed(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    serving.server.say = lambda body: "No grade." if "0 + 0 is 1\n" in body["messages"][0]["content"] else wrote(body)
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--fail-above", "0.01") == 1
    out = capsys.readouterr().out
    assert "1 has no grade:" in out
    assert "solved.jsonl, line 1, solution 2: unparsable after 3 tries: no marker: there is no `Total Score`" in out
    assert len(read("out.jsonl")) == 39


def test_failures_stand_in_the_order_of_the_rows(serving: Serving, monkeypatch: Any) -> None:
    serving.server.say = lambda body: "No grade."
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--tries", "1") == 1
    serving.server.plan("500", "500", "500")  # the first are answered last
    serving.server.say = lambda body: wrote(body) if " is 1" in body["messages"][0]["content"] else "No grade."
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, "--tries", "1") == 0
    failed = json.loads(Path("out.jsonl.provenance.json").read_text())["failures"]
    assert len(failed) > 10
    places = [tuple(map(int, re.findall("[0-9]+", one["where"]))) for one in failed]
    assert places == sorted(places)


def test_solutions_that_are_all_blank(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("solved.jsonl"), [{**row, "responses": ["", " "]} for row in solved(2)])
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED) == 2
    assert "there is nothing to grade: 2 rows have 4 blank solutions" in capsys.readouterr().err


def test_what_only_late_rows_say_fits_into_parquet(serving: Serving, monkeypatch: Any) -> None:
    rows = solved(150, each=2)
    rows[-1] |= {"right": [True, False], "sound": [None, False]}
    del rows[0]["reward_model"]
    write(Path("solved.jsonl"), rows)
    forms = ("--form", "sft", "--form", "rl", "--form", "eval")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.parquet", *ASKED, *forms) == 0
    *_, before, last = pq.read_table("out.eval.parquet").to_pylist()
    assert [(row["right"], row["sound"]) for row in (before, last)] == [(True, None), (False, False)]
    for form in ("sft", "rl"):
        *_, last = pq.read_table(f"out.{form}.parquet").to_pylist()
        assert (last["extra_info"]["right"], last["extra_info"]["sound"]) == (False, False)
    # Files of which no row says anything have the same types.
    write(Path("solved.jsonl"), rows[:2])
    assert run(monkeypatch, "graded", "solved.jsonl", "few.parquet", *ASKED, "--form", "rl") == 0
    assert pq.read_schema("few.parquet").equals(pq.read_schema("out.rl.parquet"))


def test_rows_that_fit_no_table_are_told_before_anything_is_asked(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = solved(2)
    rows[1]["reward_model"] = {"ground_truth": 7}
    write(Path("solved.jsonl"), rows)
    assert run(monkeypatch, "graded", "solved.jsonl", "out.parquet", *ASKED, "--form", "eval") == 2
    assert "do not fit one table" in capsys.readouterr().err
    assert serving.asked == []


def test_the_same_problems_are_held_out_as_by_other_commands(serving: Serving, monkeypatch: Any) -> None:
    rows = solved(20, each=1)
    write(Path("solved.jsonl"), rows)
    for seed in ("0", "1"):
        held = ("--held-out", "0.3", "--form", "eval", "--seed", seed)
        assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *held) == 0
        apart = {row["prompt"][0]["content"] for row in read("out.held-out.jsonl")}
        assert apart == {row["prompt"] for row in rows if source_key(row["prompt"]) < limit_of_share(0.3)}


def test_folders_and_patterns(serving: Serving, monkeypatch: Any) -> None:
    Path("many").mkdir()
    rows = solved(4, each=1)
    with rows_to("many/a.parquet") as add:
        for row in rows[:2]:
            add(row)
    write(Path("many/b.jsonl"), rows[2:])
    for path in ("many", "many/*"):
        assert run(monkeypatch, "graded", path, "out.jsonl", *ASKED, "--form", "eval") == 0
        assert [row["extra_info"]["problem"] for row in read("out.jsonl")] == ["p0", "p1", "p2", "p3"]
    assert run(monkeypatch, "graded", "many/*.parquet", "few.jsonl", *ASKED, "--form", "eval") == 0
    assert len(read("few.jsonl")) == 2


BAD_ROWS = [
    ('{"prompt": "x", "responses": ["a"]}', "the row has no 'criteria'"),
    ('{"prompt": "x", "criteria": "y"}', "there is no responses and no response"),
    ('{"criteria": "y", "responses": ["a"]}', "there is no prompt"),
    ('{"prompt": "x", "criteria": "y", "responses": ["a", 1]}', "responses[1] is 1"),
    ('{"prompt": "x", "criteria": "y", "responses": ["a"], "right": [true, false]}', "right is a list of 2"),
    ('{"prompt": "x", "criteria": [{"text": "a", "points": 0}], "responses": ["a"]}', "has an entry of 0 points"),
]


@pytest.mark.parametrize(("line", "message"), BAD_ROWS)
def test_bad_rows(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with Path("solved.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED) == 2
    told = capsys.readouterr().err
    assert "1 of 11 rows cannot be used:\n  solved.jsonl, line 11\n" in told
    assert message in told
    assert serving.asked == []
    assert sorted(path.name for path in Path().iterdir()) == ["models.toml", "solved.jsonl"]


MISTAKES: list[tuple[list[str], str]] = [
    (["--form", "stf"], 'must be sft, rl, eval. Did you mean "sft"?'),
    (["--quoting", "fnce"], 'Did you mean "fence"?'),
    (["--rule", "mat"], 'Did you mean "math"?'),
    (["--votes", "2"], "--votes 2 needs a --temperature above 0"),
    (["--held-out-out", "x.jsonl"], "give --held-out a share"),
    (["--held-out", "0.5", "--held-out-out", "out.jsonl"], "give --held-out-out another name"),
    (["--held-out", "0.5", "--held-out-out", "x.json"], "does not end in"),
    (["--template", "rubrc"], 'Did you mean "rubric"?'),
    (["--teacher", "wirter"], 'Did you mean "writer"?'),
    (["--band-ratio", "inf"], "--band-ratio is inf"),
    (["--band-ratio", "nan"], "--band-ratio"),
    (["--answer-column", "reponses"], "no row has the right answer: there is no reponses: --answer-column says"),
    (["--prompt-column", "promt"], "there is no promt: --prompt-column says"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(monkeypatch, "graded", "solved.jsonl", "out.jsonl", *ASKED, *options) == 2
    assert message in capsys.readouterr().err
    assert serving.asked == []
