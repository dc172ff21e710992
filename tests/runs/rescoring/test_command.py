"""`rewardsmith score` as a user meets it, in a process of its own where that matters."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.cli import main
from tests.runs.rescoring.groups import REWARDS, lines, run_folder, scored, some, write
from tests.test_cli import QUICKSTART
from tests.test_imports import BLOCK

LIMIT = 120.0
SERVER = Path(__file__).parents[2] / "engines" / "small_server.py"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, a file of groups, rewards of our own and a reward table for one of them."""
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "run")
    write(tmp_path / "groups.jsonl", some(40))
    (tmp_path / "own_rewards_5f.py").write_text(REWARDS)
    (tmp_path / "length.toml").write_text('type = "own_rewards_5f:Length"\n')
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "score", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def command(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", "score", *arguments],
        cwd=place, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


# ---- what it says ------------------------------------------------------------------------------------------------


def test_the_table_and_the_comparison(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "run", "--reward", "length.toml", "--compare") == 0
    printed = capsys.readouterr()
    assert "│ reward    │" in printed.out
    count = sum(len(group.scores) for group in (*some(12), *some(2)))
    assert f"changed: 0 of {count} rollouts that both scored ({count} in all)" in printed.out
    assert "order over all: Spearman 1.000, Kendall τ_b 1.000" in printed.out
    assert "advantage: 0 change sign, 0 become 0, 0 were 0" in printed.out
    assert "14 groups;" in printed.out
    assert "score: 14 groups" in printed.err  # progress never mixes with the result


def test_turned_rollouts_are_listed_and_cannot_steer_the_terminal(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["\x1b[2Jlong [red]and[/red] evil\u202e\n" + "x" * 500, "short"]
    write(place / "evil.jsonl", [scored("p[bold]\x1b", texts, [0.0, 1.0])])
    assert run(monkeypatch, "evil.jsonl", "--reward", "length.toml", "--compare", "--show", "1") == 0
    out = capsys.readouterr().out
    assert "the 1 largest of 2 changes of sign" in out
    row = next(line for line in out.splitlines() if "p[bold]" in line)
    assert "\\x1b[2Jlong [red]and[/red] evil\\u202e\\nx" in row
    assert f"0.000 → {len(texts[0])}.000" in row
    assert f"-0.5 → +{(len(texts[0]) - 5) / 2:.3g}" in row
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) < 210


def test_json_holds_all_of_it(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "sum.toml").write_text(
        'type = "sum"\nparts.long = { type = "own_rewards_5f:Length" }\n'
        'parts.picky = { type = "own_rewards_5f:Picky", weight = 0.5, failure = { min_failures = 500 } }\n'
    )
    assert run(monkeypatch, "groups.jsonl", "--reward", "sum.toml", "--compare", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    groups = some(40)
    lengths = [len(r.text) for group in groups for r in group.group.rollouts]
    assert (found["groups"], found["resumed"]) == (40, 0)
    assert found["reward"]["rollouts"] == found["compared"]["rollouts"] == len(lengths)
    assert found["parts"]["long"]["mean"] == pytest.approx(sum(lengths) / len(lengths))
    share = sum(n <= 2 for n in lengths) / len(lengths)
    assert found["parts"]["picky"]["failed"] == {"timeout": pytest.approx(share)}
    assert found["reward"]["failed"] == {"timeout": pytest.approx(share)}
    assert found["compared"]["new_failed"] == {"timeout": sum(n <= 2 for n in lengths)}
    assert found["compared"]["changed"] == sum(n > 2 for n in lengths)
    assert set(found["reward"]["seconds_per_group"]) == {"p50", "p90", "p99", "max"}


def test_the_table_shows_failures_by_cause(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "picky.toml").write_text('type = "own_rewards_5f:Picky"\nfailure = { min_failures = 500 }')
    assert run(monkeypatch, "groups.jsonl", "--reward", "picky.toml") == 0
    lengths = [len(r.text) for group in some(40) for r in group.group.rollouts]
    assert f"│ timeout {sum(n <= 2 for n in lengths) / len(lengths):.1%} │" in capsys.readouterr().out


def test_help_teaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert "rewardsmith score runs/quickstart --reward recipes/quickstart.toml:policy" in said
    for option in ("--out", "--compare", "--fresh", "--kind", "--step", "--responses", "--json", "--show"):
        assert option in said


MISTAKES = [
    (["nowhere", "--reward", "length.toml"], 'there is no file "nowhere"'),
    (["run", "--reward", "lenght.toml"], 'Did you mean "length.toml"?'),
    (["run", "--reward", QUICKSTART + ":polcy"], 'Did you mean "policy"?'),
    (["run", "--reward", "length.toml", "scael=2"], 'Did you mean "scale"?'),
    (["run", "--reward", "length.toml", "--kind", "training"], 'must be train or validation. Did you mean "train"?'),
    (["run", "--reward", "length.toml", "--step", "5-3"], "cannot read --step '5-3'"),
    (["run", "--reward", "length.toml", "--step", "x"], "cannot read --step 'x'"),
    (["run", "--reward", "length.toml", "--fresh"], "--fresh is about the file of --out"),
    (["run", "--reward", "length.toml", "--stage", "polcy"], 'Did you mean "policy"?'),
    (["run"], "--reward"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_prints_its_message_and_exits_2(
    arguments: list[str],
    message: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_reward_that_halts_ends_the_command_with_its_message(place: Path) -> None:
    (place / "halts.toml").write_text('type = "own_rewards_5f:Halts"')
    ended = command(place, "groups.jsonl", "--reward", "halts.toml", "--out", "new.jsonl", "--at-once", "1")
    assert ended.returncode == 2
    assert "error: the judge is gone\nThat was after 2 groups. The same command goes on" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(lines(place / "new.jsonl")) == 2


def test_a_reward_table_needs_no_torch(place: Path) -> None:
    code = BLOCK.format(blocked={"torch", "transformers"}) + (
        "from rewardsmith.cli import main\n"
        "sys.argv = ['rewardsmith', 'score', 'groups.jsonl', '--reward', 'length.toml', '--compare']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "changed: 0 of" in done.stdout


# ---- stopped in the middle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_command_that_was_stopped_goes_on_and_ends_with_the_same_file(place: Path, blow: signal.Signals) -> None:
    arguments = ["groups.jsonl", "--reward", "length.toml", "--at-once", "3", "--json", "--out"]
    whole = command(place, *arguments, "whole.jsonl")
    assert whole.returncode == 0, whole.stderr
    for strike in (9, 11):  # it is struck twice, and each time goes on
        stopped = command(place, *arguments, "new.jsonl", STRIKE_AT=str(strike), STRIKE=str(int(blow)))
        assert stopped.returncode == (-9 if blow is signal.SIGKILL else 130), stopped.stderr
        assert "Traceback" not in stopped.stderr
        if blow is not signal.SIGKILL:
            assert "The same command goes on; new.jsonl has what is scored" in stopped.stderr
    before = (place / "new.jsonl").read_bytes().count(b"\n")
    assert 0 < before < 40
    done = command(place, *arguments, "new.jsonl", CALLS=str(place / "calls.txt"))
    assert done.returncode == 0, done.stderr
    assert (place / "new.jsonl").read_bytes() == (place / "whole.jsonl").read_bytes()
    assert len((place / "calls.txt").read_text().split()) == 40 - before
    assert _untimed(json.loads(done.stdout)) == _untimed(json.loads(whole.stdout))


def _untimed(found: dict[str, Any]) -> dict[str, Any]:
    reward = {name: value for name, value in found["reward"].items() if name != "seconds_per_group"}
    return {"groups": found["groups"], "reward": reward, "parts": found["parts"]}


def test_stopping_without_a_file_says_how_to_keep_something(place: Path) -> None:
    stopped = command(place, "groups.jsonl", "--reward", "length.toml", STRIKE_AT="5", STRIKE=str(int(signal.SIGINT)))
    assert stopped.returncode == 130
    assert "Nothing was kept: with --out FILE the same command goes on" in stopped.stderr
    assert stopped.stdout == ""


def test_a_pipe_gets_whole_numbers_and_the_cause_of_failures(tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": "?", "responses": ["1", "2"]} for i in range(3)]  # no answer to compare with
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.toml").write_text('type = "clip"\nlow = 0.0\nreward = { type = "rule", rule = "exact" }\n')
    done = command(tmp_path, "rows.jsonl", "--reward", "reward.toml")
    assert done.returncode == 1, done.stderr  # nothing has a score
    assert done.stdout.endswith("\n6 of 6 rollouts have no score\n")
    assert "invalid 100%" in done.stdout
    assert "…" not in done.stdout
    assert "raw invalid, the first: the prompt '0' has no answer to compare with" in done.stdout


@pytest.mark.parametrize(("allowed", "status"), [("0", 1), ("0.49", 1), ("0.5", 0), ("1", 0), (None, 0)])
def test_a_share_without_a_score_may_be_too_much(
    allowed: str | None, status: int, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "half.jsonl", [scored("p", ["long enough", "s"], [1.0, 1.0])])
    (place / "picky.toml").write_text('type = "own_rewards_5f:Picky"\n')
    arguments = ["half.jsonl", "--reward", "picky.toml", *(["--fail-above", allowed] if allowed else [])]
    assert run(monkeypatch, *arguments) == status
    printed = capsys.readouterr()
    assert printed.out.endswith("\n1 of 2 rollouts has no score\n")
    assert "score: 1 group\n" in printed.err
    assert "\n1 group; " in printed.out
    assert run(monkeypatch, *arguments, "--json") == status
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["rollouts"], json.loads(printed.out)["unscored"]) == (2, 1)
    assert printed.err.endswith("1 of 2 rollouts has no score\n")


def test_a_served_judge_needs_no_torch_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "reward.toml").write_text(
        'type = "judge"\nmodel = "far"\n[models.far]\ntype = "server"\nurls = ["http://127.0.0.1:9/v1"]\n'
        '[models.near]\ninit = "tiny-llama"\n'
    )
    code = BLOCK.format(blocked={"torch", "transformers", "peft"}) + (
        "from rewardsmith.runs.rescoring.choice import find_reward\n"
        "from rewardsmith.runs.rescoring.models import models_of\n"
        "print(models_of(find_reward('reward.toml'), print)('far').name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("far\n", 0), done.stderr


def test_a_judge_of_this_process_without_an_adapter_needs_no_peft(tmp_path: Path) -> None:
    (tmp_path / "reward.toml").write_text('type = "judge"\nmodel = "near"\n[models.near]\ninit = "tiny-llama"\n')
    code = (
        "import sys\n"
        "from rewardsmith.runs.rescoring.choice import find_reward\n"
        "from rewardsmith.runs.rescoring.models import models_of\n"
        "models_of(find_reward('reward.toml'), lambda _: None)('near')\n"
        "print(sorted({'torch', 'peft'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("['torch']\n", 0), done.stderr


@pytest.mark.parametrize(("says", "status", "left"), [("Score: 7", 0, []), ("", 2, ["judge.log"])])
def test_the_log_of_a_server_stays_only_if_something_went_wrong(
    tmp_path: Path, says: str, status: int, left: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "?", "responses": ["1", "2"]}) + "\n")
    words = [sys.executable, str(SERVER), "--model", "m", "--host", "{host}", "--port", "{port}"]
    words += ["--says", says] if says else ["--fail", "broken"]
    (tmp_path / "reward.toml").write_text(
        f'type = "judge"\nmodel = "judge"\n[models.judge]\ntype = "managed"\nmodel = "m"\ncommand = {json.dumps(words)}'
    )
    (tmp_path / "temporary").mkdir()
    done = command(
        tmp_path, "rows.jsonl", "--reward", "reward.toml",
        TMPDIR=str(tmp_path / "temporary"), REWARDSMITH_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    folders = list((tmp_path / "temporary").iterdir())
    assert [file.name for folder in folders for file in folder.iterdir()] == left
    assert all(str(folder) in done.stderr.replace("\n", "") for folder in folders)


def test_a_reward_that_stops_shows_what_was_scored(tmp_path: Path) -> None:
    rows = [{"id": str(i), "prompt": "?", "responses": ["1"] * 8} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.toml").write_text('type = "rule"\nrule = "exact"\n')
    done = command(tmp_path, "rows.jsonl", "--reward", "reward.toml", "--at-once", "1")
    assert done.returncode == 2
    assert "failure.share" in done.stderr
    assert "reward invalid, the first: the prompt" in done.stdout


def test_the_columns_of_a_table_are_named_by_options(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "t.jsonl", [{"extra_info": {"question": "1+1?", "gold": "2"}, "out": {"texts": ["2", "3"]}}])
    (place / "exact.toml").write_text('type = "rule"\nrule = "exact"\n')
    columns = ("--prompts", "extra_info.question", "--responses", "out.texts", "--answers", "extra_info.gold")
    assert run(monkeypatch, "t.jsonl", "--reward", "exact.toml", "--json", *columns) == 0
    assert json.loads(capsys.readouterr().out)["reward"]["mean"] == 0.5
    assert run(monkeypatch, "t.jsonl", "--reward", "exact.toml", "--json", *columns[2:]) == 2
    assert "--prompts NAME says which column has the prompt" in capsys.readouterr().err
