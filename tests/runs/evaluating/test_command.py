"""`rewardsmith evaluate` as a user meets it, in a process of its own where that matters."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardsmith.cli import main
from rewardsmith.text.rankings import write_ranking
from tests.engines.faulty import last_text
from tests.rewards.judges.ranked import BLOCK
from tests.runs.evaluating.commands import GRADES, GROUPS, PAIRS, measured, run, write
from tests.runs.test_served_judges import Serving
from tests.test_imports import BLOCK as BLOCK_TORCH


def test_rankings_are_measured_and_shown(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {"prompt": "q", "candidates": ["1", "[red]\x1b[2Jevil"], "scores": [1, 2]}
    data = write(place / "groups.jsonl", *GROUPS, bad)
    assert run(monkeypatch, "rankings", data, "--reward", "numbers.toml", "--orders", "2", "--repeats", "2") == 0
    printed = capsys.readouterr()
    row = next(line for line in printed.out.splitlines() if line.startswith("│ accuracy  "))
    assert [cell.strip() for cell in row.split("│")[1:6]] == ["accuracy", "1.000", "1.000", "1.000", "4"]
    assert "1 of 5 groups could not be scored" in printed.out
    assert r"reward unparsable, the first: [red]\x1b[2Jevil is no number" in printed.out
    assert "\x1b" not in printed.out
    assert "liking for positions" in printed.out
    assert "evaluate: 20 groups" in printed.err  # once, once more, and in two orders; progress never mixes with tables


def test_json_has_it_all(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(place / "groups.jsonl", *GROUPS)
    found = measured(monkeypatch, capsys, "rankings", data, "--reward", "numbers.toml", "scale=-1.0")
    assert found["kind"] == "rankings"
    assert found["metrics"]["accuracy"] == 0.0
    assert found["made_with"]["reward"] == "numbers.toml"
    assert found["made_with"]["overrides"] == ["scale=-1.0"]
    assert found["tables"][0]["rows"][0][:2] == ["accuracy", 0.0]


def test_grades(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(place / "graded.jsonl", *GRADES)
    arguments = ("grades", data, "--reward", "numbers.toml", "--threshold", "0.2")
    found = measured(monkeypatch, capsys, *arguments)["metrics"]
    assert (found["mad"], found["f1"], found["f1_best"]) == (pytest.approx(0.1), 0.0, 1.0)


def test_pairs_in_the_form_of_rewardbench(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.Table.from_pylist(PAIRS), place / "bench.parquet")
    found = measured(monkeypatch, capsys, "pairs", "bench.parquet", "--reward", "numbers.toml")["metrics"]
    assert found["section/reasoning"] == pytest.approx(164 / (164 + 984))
    assert found["score"] == found["section/reasoning"]
    assert found["accuracy"] == 0.5


def test_other_columns_and_fewer_items(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": "q", "texts": ["1", "2"], "human": [1, 2]},
        {"prompt": "q", "texts": ["2", "1"], "human": [1, 2]},
    ]
    write(place / "odd.jsonl", *rows)
    columns = ("--data", "columns.candidates=texts", "--data", "columns.scores=human")
    found = measured(monkeypatch, capsys, "rankings", "odd.jsonl", *columns, "--reward", "numbers.toml", "--items", "1")
    assert (found["metrics"]["accuracy"], found["metrics"]["groups"]) == (1.0, 1)


def test_a_source_of_a_recipe_is_data_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "groups.jsonl", *GROUPS)
    (place / "recipe.toml").write_text(
        '[data.held]\ntype = "jsonl"\npath = "groups.jsonl"\n[[stages]]\ntype = "evaluate_reward"\nkind = "rankings"\n'
        'data = "held"\nreward = "own_rewards_7e:Numbers"\n'
    )
    found = measured(monkeypatch, capsys, "rankings", "recipe.toml:held", "--reward", "recipe.toml")
    assert found["metrics"]["groups"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rankings", "grups.jsonl"), ['Did you mean "groups.jsonl"?']),
        (("rankings", "groups.txt"), ["is no JSONL or Parquet file"]),
        (("rankings", "groups.jsonl", "--data", "shufle=true"), ['Did you mean "shuffle"?']),
        (("rankings", "groups.jsonl", "--data", "columns"), ["key.path=value"]),
        (("rankings", "recipe.toml"), ["recipe.toml:held", "Known: held, sums"]),
        (("rankings", "recipe.toml:hold"), ["recipe.toml has no data 'hold'", "Known: held, sums"]),
        (("rankings", "recipe.toml:sums"), ["has no rankings", '"arithmetic"']),
        (("grades", "groups.jsonl"), ["look like rankings", "rewardsmith evaluate rankings groups.jsonl"]),
        (("rankings", "pairs.jsonl"), ["look like pairs", "rewardsmith evaluate pairs pairs.jsonl"]),
        (("pairs", "graded.jsonl"), ["look like grades", "rewardsmith evaluate grades graded.jsonl"]),
        (("rankings", "late.jsonl"), ["rows cannot be used", "line 5"]),
        (("grades", "graded.jsonl", "--threshold", "nan"), ["--threshold is nan", "finite"]),
        (("policy", "groups.jsonl", "--right-from", "nan"), ["--right-from is nan", "finite"]),
        (("policy", "groups.jsonl", "--sound", "x", "--sound-from", "inf"), ["--sound-from is inf"]),
        (("pairs", "groups.jsonl", "--ties", "haf"), ['Did you mean "half"?']),
        (("rankings", "empty.jsonl"), ["has no rows"]),
        (("policy", "groups.jsonl", "--right", "nothing"), ["there is no responses"]),
    ],
)
def test_a_mistake_is_told_with_its_remedy(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    write(place / "groups.jsonl", *GROUPS)
    write(place / "empty.jsonl")
    write(place / "pairs.jsonl", *PAIRS)
    write(place / "graded.jsonl", *GRADES)
    write(place / "late.jsonl", *GROUPS, PAIRS[0])
    (place / "groups.txt").write_text("x")
    (place / "recipe.toml").write_text(
        '[data.held]\ntype = "jsonl"\npath = "groups.jsonl"\n[data.sums]\ntype = "arithmetic"\n[[stages]]\n'
        'type = "evaluate_reward"\nkind = "rankings"\ndata = "held"\nreward = "own_rewards_7e:Numbers"\n'
    )
    reward = () if arguments[0] == "policy" else ("--reward", "numbers.toml")
    assert run(monkeypatch, *arguments, *reward) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    for word in words:
        assert word in error


def test_a_folder_of_one_kind_of_files_is_data_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        write(place / "data" / name, *GROUPS)
    found = measured(monkeypatch, capsys, "rankings", "data", "--reward", "numbers.toml")
    assert found["metrics"]["groups"] == 8
    pq.write_table(pa.Table.from_pylist(GROUPS), place / "data" / "c.parquet")
    assert run(monkeypatch, "rankings", "data", "--reward", "numbers.toml") == 2
    assert "holds both JSON lines and Parquet files" in capsys.readouterr().err


@pytest.mark.parametrize(("share", "status"), [("1", 0), ("0.25", 0), ("0.1", 1)])
def test_the_status_tells_whether_enough_was_scored(
    place: Path, monkeypatch: pytest.MonkeyPatch, share: str, status: int
) -> None:
    data = write(place / "groups.jsonl", *GROUPS[:3], {"prompt": "q", "candidates": ["a", "1"], "scores": [1, 2]})
    assert run(monkeypatch, "rankings", data, "--reward", "numbers.toml", "--fail-above", share) == status


def test_without_any_score_it_is_never_enough(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(place / "groups.jsonl", {"prompt": "q", "candidates": ["a", "b"], "scores": [1, 2]})
    assert run(monkeypatch, "rankings", data, "--reward", "numbers.toml") == 1


def command(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", "evaluate", *arguments],
        cwd=place, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_ctrl_c_ends_it_with_a_word_and_no_traceback(place: Path, blow: signal.Signals) -> None:
    data = write(place / "groups.jsonl", *GROUPS)
    stopped = command(place, "rankings", data, "--reward", "numbers.toml", STRIKE=str(int(blow)))
    assert stopped.returncode == 130
    assert "stopped. Nothing was kept" in stopped.stderr
    assert "Traceback" not in stopped.stderr


def test_a_rule_is_measured_without_torch(place: Path) -> None:
    write(place / "groups.jsonl", *GROUPS)
    code = BLOCK_TORCH.format(blocked={"torch", "transformers"}) + (
        "from rewardsmith.cli import main\n"
        "sys.argv = ['rewardsmith', 'evaluate', 'rankings', 'groups.jsonl', '--reward', 'numbers.toml']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("name", ["rankings", "grades", "pairs", "policy"])
def test_the_help_of_each_command_has_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, name, "--help") == 0
    assert f"rewardsmith evaluate {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "why"), [(["--fail-above", "0.25"], "more than 0.25 of all"), (["--items", "1"], "everything")]
)
def test_too_few_scores_end_with_a_line_that_says_so(
    option: list[str], why: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(place / "pairs.jsonl", {"prompt": "q", "chosen": "x", "rejected": "y"}, PAIRS[0])
    assert run(monkeypatch, "pairs", data, "--reward", "numbers.toml", *option) == 1
    told = capsys.readouterr().err
    assert told.endswith(f"status 1, by --fail-above: {why} has no score\n")
    assert "groups" not in told.splitlines()[0]  # these are pairs


def test_unknown_data_of_a_recipe_is_told_in_one_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "small.toml").write_text(LEARNED)
    assert run(monkeypatch, "pairs", "small.toml:pars", "--reward", "numbers.toml") == 2
    assert "small.toml has no data 'pars'. Did you mean \"pairs\"? Known: pairs" in capsys.readouterr().err
    assert run(monkeypatch, "pairs", "small.toml", "--reward", "numbers.toml") == 2
    assert "say which data of small.toml is meant, as in small.toml:pairs. Known: pairs" in capsys.readouterr().err


# ---- the models of a run ---------------------------------------------------------------------------------------------

LEARNED = """
cache = ""
[models.judge]
init = "tiny-llama"
head = "scalar"
[data.pairs]
type = "jsonl"
path = "pairs.jsonl"
[[stages]]
type = "reward_model"
name = "learn"
model = "judge"
data = "pairs"
steps = 8
batch_size = 4
optimizer = { lr = 1e-2, warmup = 0 }
[[stages]]
type = "evaluate_reward"
name = "judged"
kind = "pairs"
data = "pairs"
reward = { type = "classifier", model = "judge" }
"""


def test_a_run_is_measured_with_what_it_trained_and_its_recipe_with_a_warning(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(place / "pairs.jsonl", *({"prompt": f"{i}+1", "chosen": "1", "rejected": "2 3"} for i in range(8)))
    (place / "small.toml").write_text(LEARNED)
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "run", "small.toml"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code, capsys.readouterr().err
    kept = json.loads((place / "runs/small/evaluations/judged.json").read_text())["metrics"]
    capsys.readouterr()
    assert run(monkeypatch, "pairs", data, "--reward", "runs/small:judged", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)["metrics"]
    assert kept["accuracy"] == 1
    assert (found["accuracy"], found["margin"]) == (1, pytest.approx(kept["margin"], rel=1e-4))
    assert "loading judge: runs/small/models/judge" in printed.err
    assert "warning" not in printed.err
    assert run(monkeypatch, "pairs", data, "--reward", "runs/small/recipe.toml:judged", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["metrics"]["margin"] == 0  # an untrained head
    assert "warning: models.judge is as before the stage learn" in printed.err
    assert "--reward runs/small:judged\n" in printed.err


def ranked(body: dict, sign: int = 1) -> str:
    """Rank the candidates that a request shows by their numbers."""
    texts = [text for _, _, text in BLOCK.findall(last_text(body))]
    if not texts:
        return f"whatever, times {sign}"
    scores = {letter: 5 + sign * float(text) for letter, text in zip("ABC", texts, strict=False)}
    return write_ranking(scores, "So.", "both")


JUDGED = """
type = "{kind}"
model = "judge"
extract = "codeblock"
{more}
[models.judge]
type = "server"
urls = ["{url}"]
"""


@pytest.mark.parametrize("more", ["", "overlong = { limit = 100, buffer = 10, factor = 1.0 }"])
@pytest.mark.parametrize("command", ["rankings", "pairs"])
def test_a_recipe_that_extracts_from_code_blocks_measures_plain_candidates_with_its_judge(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, more: str
) -> None:
    data = write(place / "data.jsonl", *(GROUPS if command == "rankings" else PAIRS))
    with Serving() as serving:
        serving.server.say = ranked
        (place / "judge.toml").write_text(JUDGED.format(kind="ranking", url=serving.server.url, more=more))
        found = measured(monkeypatch, capsys, command, data, "--reward", "judge.toml")
        assert found["metrics"]["accuracy"] == (1.0 if command == "rankings" else 0.5)
        assert found["metrics"]["failed"] == 0.0
        assert found["models"]["judge"]["calls"] == (4 if command == "rankings" else 2)


def test_an_evaluation_without_a_call_ends_with_an_error_and_its_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"prompt": "q", "candidates": ["1", "1 "], "scores": [0, 5]}  # one distinct candidate: nothing to compare
    data = write(place / "data.jsonl", same)
    with Serving() as serving:
        (place / "judge.toml").write_text(JUDGED.format(kind="ranking", url=serving.server.url, more=""))
        assert run(monkeypatch, "rankings", data, "--reward", "judge.toml") == 2
    printed = capsys.readouterr()
    assert "models.judge: not called for any item" in printed.err
    assert "accuracy" not in printed.out


def test_other_weights_behind_the_same_name_are_measured_and_not_their_old_verdicts(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(place / "data.jsonl", *GROUPS)
    arguments = ("rankings", data, "--reward", "judge.toml")
    with Serving() as serving:
        serving.server.say = ranked
        (place / "judge.toml").write_text(JUDGED.format(kind="ranking", url=serving.server.url, more=""))
        found = [measured(monkeypatch, capsys, *arguments) for _ in range(2)]
        assert [(one["models"]["judge"]["calls"], one["metrics"]["accuracy"]) for one in found] == [(4, 1.0), (0, 1.0)]
        serving.server.say = lambda body: ranked(body, -1)
        assert run(monkeypatch, *arguments, "--json") == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["metrics"]["accuracy"] == 0.0
        assert "models.judge.version" in " ".join(printed.err.split())
