"""`rewardsmith prepare rubric` as a user meets it, with a server that fails."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rewardsmith import Rollout, RolloutGroup
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.rewards.judges.rubric import Rubric
from tests.engines.faulty import said
from tests.rewards.judges.asked import connected
from tests.runs.preparing.commands import CRITERIA, models_file, problems, read, run, write
from tests.runs.preparing.serving import Serving, rubric, wrote

ASKED = ("--models", "models.toml", "--judge", "writer")


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server, and a folder with problems and a file that names it."""
    monkeypatch.chdir(tmp_path)
    with Serving() as served:
        models_file(tmp_path, served)
        write(tmp_path / "problems.jsonl", problems(12))
        yield served


def test_every_row_gets_criteria(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    models_file(Path(), serving, price_in=1e6, price_out=2e6)
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    rows = read("out.jsonl")
    assert [row["id"] for row in rows] == [f"p{i}" for i in range(12)]  # the order of the input
    for before, row in zip(problems(12), rows, strict=True):
        assert {key: row[key] for key in before} == before
        assert row["extra_info"]["criteria"] == CRITERIA
        made_by = row["extra_info"]["criteria_made_by"]
        assert '"model": "tiny"' in made_by["model"]
        assert (made_by["template"], made_by["parser"], made_by["tries"]) == ("write_rubric", "written-rubric-2", 1)
        assert len(made_by["template_sha256"]) == 64
    printed = capsys.readouterr()
    assert "12 problems: 12 have a right answer, 0 a reference solution" in printed.out
    assert "12 rubrics; written to out.jsonl" in printed.out
    assert "tries: 1 for 12" in printed.out
    assert "writer, now: 12 calls, 132 prompt and 36 completion tokens, cost 204" in printed.out
    assert "write: 12 rubrics" in printed.err
    facts = json.loads(Path("out.jsonl.provenance.json").read_text())
    assert (facts["command"], facts["rows"], facts["written"], facts["failed"]) == ("prepare rubric", 12, 12, 0)
    assert (facts["inputs"][0]["path"], facts["inputs"][0]["rows"]) == ("problems.jsonl", 12)
    assert facts["asking"]["max_tokens"] == 4096
    assert json.loads(facts["identity"])["model"] == "tiny"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_rubric_reward_uses_what_was_written(serving: Serving, monkeypatch: Any, suffix: str) -> None:
    assert run(monkeypatch, "rubric", "problems.jsonl", f"out{suffix}", *ASKED) == 0
    source = (Jsonl if suffix == ".jsonl" else Parquet)(path=f"out{suffix}", shuffle=False)
    source.check()
    for prompt in source.prompts(0):
        reward, model = connected(Rubric, ["Total Score: 5/10"])
        reward.require(prompt)
        (score,) = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout("an answer")])))
        assert score.value == 0.5
        assert "1. (points: 2) Names a method" in model.seen[0]


def test_faults_of_the_server_change_nothing(serving: Serving, monkeypatch: Any) -> None:
    assert run(monkeypatch, "rubric", "problems.jsonl", "calm.jsonl", *ASKED) == 0
    serving.server.plan("500", "429-after", "reset", "half", "502", "reset-midway", "schema", "empty", "503")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    assert read("out.jsonl") == read("calm.jsonl")


def test_a_bad_rubric_is_mended(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("problems.jsonl"), problems(1))
    short = rubric(criteria=rubric()["criteria"][:2])
    serving.server.plan(said(json.dumps(short)), said("cut", finish="length"))
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    first, second, third = serving.server.bodies
    assert [len(body["messages"]) for body in (first, second, third)] == [1, 3, 1]
    assert "criteria is a list of 2" in second["messages"][-1]["content"]
    assert "cut off" in third["messages"][-1]["content"]
    assert [body["temperature"] for body in (first, second, third)] == [0.0, 0.3, 0.6]
    assert read("out.jsonl")[0]["extra_info"]["criteria_made_by"]["tries"] == 3
    assert "tries: 3 for 1" in capsys.readouterr().out


def test_a_row_without_a_rubric_is_listed_and_asked_about_again(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent_about_5(body: dict[str, Any]) -> str:
        return "I would rather not." if "How much is 5 + 5?" in body["messages"][0]["content"] else wrote(body)

    serving.server.say = silent_about_5
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    out = capsys.readouterr().out
    assert "1 has no rubric that can be used:" in out
    assert "problems.jsonl, line 6: unparsable after 3 tries: no object" in out
    assert [row["id"] for row in read("out.jsonl")] == [f"p{i}" for i in range(12) if i != 5]
    assert json.loads(Path("out.jsonl.provenance.json").read_text())["failures"][0]["kind"] == "unparsable"
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--fail-above", "0.05") == 1
    serving.server.say = wrote
    serving.server.requests.clear()
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    assert len(serving.asked) == 1
    assert [row["id"] for row in read("out.jsonl")] == [f"p{i}" for i in range(12)]
    assert "12 rubrics, 11 of them from an earlier start" in capsys.readouterr().out


def test_without_any_rubric_nothing_is_written(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    serving.server.say = lambda body: "no"
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--tries", "1") == 1
    assert not Path("out.jsonl").exists()
    assert "nothing is written" in capsys.readouterr().out


def test_nothing_is_asked_twice(serving: Serving, monkeypatch: Any) -> None:
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--limit", "7") == 0
    assert len(read("out.jsonl")) == 7
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    assert (len(read("out.jsonl")), len(serving.asked)) == (12, 12)
    before = Path("out.jsonl").read_bytes()
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--at-once", "1") == 0
    assert (Path("out.jsonl").read_bytes(), len(serving.asked)) == (before, 12)
    # More tokens or tries, or another seed, are no other rubrics; another temperature is.
    more = ("--max-tokens", "9000", "--tries", "5", "--seed", "3", "--deadline", "5")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, *more) == 0
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--temperature", "1") == 2
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--temperature", "1", "--fresh") == 0
    assert len(serving.asked) == 24


def test_another_served_model_needs_a_fresh_start(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--limit", "7") == 0
    serving.server.models = ["another"]
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 2
    told = capsys.readouterr().err
    assert "were made in another way" in told
    assert "--fresh" in told
    assert len(serving.asked) == 7
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--fresh") == 0
    assert {json.loads(row["extra_info"]["criteria_made_by"]["model"])["model"] for row in read("out.jsonl")} == {
        "another"
    }
    assert json.loads(json.loads(Path("out.jsonl.provenance.json").read_text())["identity"])["model"] == "another"


def test_what_only_late_rows_have_fits_into_parquet(serving: Serving, monkeypatch: Any) -> None:
    rows: list[dict[str, Any]] = [{**row, "tags": [], "level": None} for row in problems(300)]
    rows[-1] |= {"tags": ["hard"], "level": 5, "extra_info": {"index": 3}}
    write(Path("problems.jsonl"), rows)
    whole = rubric(not_applicable={})
    whole["criteria"][0]["checks"] += ["neglected-premises", "coincidence"]

    def nothing_excepted(body: dict[str, Any]) -> str:
        return wrote(body) if "How much is 299 + 299?" in body["messages"][0]["content"] else json.dumps(whole)

    serving.server.say = nothing_excepted
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.parquet", *ASKED) == 0
    first, *_, last = pq.read_table("out.parquet").to_pylist()
    assert (first["tags"], first["level"], first["extra_info"]["index"]) == ([], None, None)
    assert (last["tags"], last["level"], last["extra_info"]["index"]) == (["hard"], 5, 3)
    excepted = [row["extra_info"]["criteria_made_by"]["not_applicable"] for row in (first, last)]
    assert [len(one) for one in excepted] == [0, 2]


def test_the_verdict_cache_is_used(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    models_file(Path(), serving, cache="cache")
    assert run(monkeypatch, "rubric", "problems.jsonl", "one.jsonl", *ASKED) == 0
    assert run(monkeypatch, "rubric", "problems.jsonl", "two.jsonl", *ASKED) == 0
    assert len(serving.asked) == 12
    assert "writer, now: 0 calls, 12 answers from the cache" in capsys.readouterr().out
    assert read("one.jsonl") == read("two.jsonl")


def test_json_and_shown_prompts(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ("--json", "--show-prompts", "1", "--limit", "2")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, *shown) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["written"], told["failed"], told["tries"], told["models"]["writer"]["calls"]) == (2, 0, {"1": 2}, 2)
    assert "--- 1, writer is asked" in printed.err
    assert "How much is 0 + 0?" in printed.err


def test_columns_and_references(serving: Serving, monkeypatch: Any) -> None:
    rows = [{"question": f"{i} + 1?", "answer": f"{i} + 1 is it\n#### {i + 1}", "extra_info": None} for i in range(3)]
    write(Path("gsm.jsonl"), rows)
    columns = ("--prompt-column", "question", "--answer-column", "answer", "--solution-column", "answer")
    assert run(monkeypatch, "rubric", "gsm.jsonl", "out.jsonl", *ASKED, *columns) == 0
    assert all("## Reference" in asked and "is it\n#### " in asked for asked in serving.asked)
    assert run(monkeypatch, "rubric", "gsm.jsonl", "blind.jsonl", *ASKED, *columns, "--no-reference") == 0
    assert not any("## Reference" in asked for asked in serving.asked[3:])


BAD_ROWS = [
    (
        '{"promt": "x"}',
        "there is no prompt and no messages: --prompt-column says where a row has its prompt. Did you mean",
    ),
    ('{"prompt": "How much is 1 + 1?", "reward_model": {"ground_truth": "2"}}', "this is the same problem as in"),
    ('{"prompt": "new", "id": "p1"}', 'the id "p1" is also that of problems.jsonl, line 2'),
    ('{"prompt": "old", "criteria": ["a"]}', "the row has criteria already"),
    (
        '{"prompt": "new", "id": []}',
        "id is a list of 0: it must be text or a whole number, and not empty; leave it out",
    ),
    ('{"prompt": "new", "extra_info": [1]}', "extra_info is a list of 1"),
    ("[1, 2]", "the line holds an array"),
    ("not json", "not JSON"),
    ('{"prompt": "\\ud800"}', "prompt"),
]


@pytest.mark.parametrize(("line", "message"), BAD_ROWS)
def test_bad_rows_are_told_before_anything_is_asked(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    with Path("problems.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 2
    told = capsys.readouterr().err
    assert "1 of 13 rows cannot be used:\n  problems.jsonl, line 13\n" in told
    assert message in told
    assert "--skip-bad" in told
    assert serving.asked == []
    assert sorted(path.name for path in Path().iterdir()) == ["models.toml", "problems.jsonl"]
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, "--skip-bad") == 0
    assert len(read("out.jsonl")) == 12
    assert "1 of 13 rows left out" in capsys.readouterr().out


def test_wrong_encoding(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("problems.jsonl").open("ab") as file:
        file.write('{"prompt": "café"}\n'.encode("latin-1"))
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 2
    assert "not UTF-8 text" in capsys.readouterr().err


MISTAKES: list[tuple[list[str], str]] = [
    (["problms.jsonl", "out.jsonl", *ASKED], 'Did you mean "problems.jsonl"?'),
    (["problems.jsonl", "out.json", *ASKED], "does not end in .jsonl or .parquet"),
    (["problems.jsonl", "problems.jsonl", *ASKED], "is one of the files that are read"),
    (["problems.jsonl", "models.toml", *ASKED], "does not end in .jsonl or .parquet"),
    (["problems.jsonl", "out.jsonl", "--models", "models.toml", "--judge", "wirter"], 'Did you mean "writer"?'),
    (["problems.jsonl", "out.jsonl", "--models", "model.toml", "--judge", "writer"], 'Did you mean "models.toml"?'),
    (["problems.jsonl", "out.jsonl", *ASKED, "--template", "write_rubrik"], 'Did you mean "write_rubric"?'),
    (["problems.jsonl", "out.jsonl", "models.writer.tries=3", *ASKED], "Here that is retries"),
    (["problems.jsonl", "out.jsonl", *ASKED, "--tries", "0"], "--tries"),
    (["problems.jsonl", "out.jsonl", *ASKED, "--answer-column", "rewardmodel"], 'Did you mean "reward_model"?'),
    (["problems.jsonl", "out.jsonl", *ASKED, "--answer-column", "reward_model.answer"], "no row has the right answer"),
    (["problems.jsonl", "out.jsonl", *ASKED, "--solution-column", "extra_info.s"], "no row has a reference solution"),
    (["problems.jsonl", "out.jsonl", "--models", "models.toml"], "--judge"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(monkeypatch, "rubric", *arguments) == 2
    assert message in capsys.readouterr().err
    assert serving.asked == []


def test_a_file_of_somebody_else_is_not_touched(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out.jsonl").write_text("precious")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 2
    assert "is there already" in capsys.readouterr().err
    assert Path("out.jsonl").read_text() == "precious"


def test_rows_that_fit_no_table_keep_their_rubrics(
    serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "level": i if i % 2 else "hard"} for i, row in enumerate(problems(4))]
    write(Path("problems.jsonl"), rows)
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.parquet", *ASKED) == 2
    assert "do not fit one table" in capsys.readouterr().err
    assert not Path("out.parquet").exists()
    assert serving.asked == []
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED) == 0
    assert [row["level"] for row in read("out.jsonl")] == ["hard", 1, "hard", 3]
    assert len(serving.asked) == 4


def test_a_model_that_is_not_there(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    serving.do(serving.server.stop())
    gone = ("models.writer.retries=0", "models.writer.connect_timeout=1.0")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *gone, *ASKED) == 2
    assert "models.writer" in capsys.readouterr().err


def test_help_teaches(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("rubric", "graded"):
        assert run(monkeypatch, command, "--help") == 0
        said = capsys.readouterr().out
        assert f"rewardsmith prepare {command}" in said
        for option in ("--models", "--limit", "--at-once", "--fail-above", "--fresh", "--skip-bad", "--show-prompts"):
            assert option in said


def test_a_model_of_this_process(serving: Serving, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("models.toml").write_text('cache = ""\n[models.writer]\ninit = "tiny-llama"\ndevice = "cpu"\n')
    Path("own.txt").write_text("A rubric for {{question}}:")
    short = ("--limit", "2", "--tries", "1", "--max-tokens", "8", "--template", "own.txt")
    assert run(monkeypatch, "rubric", "problems.jsonl", "out.jsonl", *ASKED, *short) == 1
    printed = capsys.readouterr()
    assert "loading writer: tiny-llama" in printed.err
    assert "2 have no rubric that can be used" in printed.out  # it has not learned to write yet
    assert "writer, now: 2 calls" in printed.out
