"""`rewardsmith evaluate` as a user meets it, in a process of its own where that matters."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardsmith.text.rankings import write_ranking
from tests.command_line import call
from tests.data.prepare.serving import Serving
from tests.engines.faulty import last_text
from tests.rewards.judges.ranked import BLOCK
from tests.runs.evaluate.commands import GRADES, GROUPS, PAIRS, evaluate, measured, write

NUMBERS = ("--reward", "numbers.toml")


def test_rankings_are_measured_and_shown(place: Path) -> None:
    bad = {"prompt": "q", "candidates": ["1", "[red]\x1b[2Jevil"], "scores": [1, 2]}
    data = write(place / "groups.jsonl", *GROUPS, bad)
    ended = evaluate("rankings", data, *NUMBERS, "--orders", "2", "--repeats", "2")
    assert ended.status == 0
    row = next(line for line in ended.out.splitlines() if line.startswith("│ accuracy  "))
    assert [cell.strip() for cell in row.split("│")[1:6]] == ["accuracy", "1.000", "1.000", "1.000", "4"]
    assert "1 of 5 groups could not be scored" in ended.out
    assert r"reward unparsable, the first: [red]\x1b[2Jevil is no number" in ended.out
    assert "\x1b" not in ended.out
    assert "position bias" in ended.out


def test_each_kind_of_data_in_its_files(place: Path) -> None:
    found = measured("rankings", write(place / "groups.jsonl", *GROUPS), *NUMBERS, "scale=-1.0")
    assert (found["kind"], found["metrics"]["accuracy"]) == ("rankings", 0.0)
    assert found["tables"][0]["rows"][0][:2] == ["accuracy", 0.0]
    found = measured("grades", write(place / "graded.jsonl", *GRADES), *NUMBERS, "--threshold", "0.2")["metrics"]
    assert (found["mad"], found["f1"], found["f1_best"]) == (pytest.approx(0.1), 0.0, 1.0)
    pq.write_table(pa.Table.from_pylist(PAIRS), place / "bench.parquet")
    found = measured("pairs", "bench.parquet", *NUMBERS)["metrics"]
    assert found["score"] == found["section/reasoning"] == pytest.approx(164 / (164 + 984))
    assert found["accuracy"] == 0.5


def test_other_columns_fewer_items_folders_and_sources_of_a_recipe(place: Path) -> None:
    rows = [{"prompt": "q", "texts": texts, "human": [1, 2]} for texts in (["1", "2"], ["2", "1"])]
    columns = ("--source", "columns.candidates=texts", "--source", "columns.scores=human")
    found = measured("rankings", write(place / "odd.jsonl", *rows), *columns, *NUMBERS, "--items", "1")["metrics"]
    assert (found["accuracy"], found["groups"]) == (1.0, 1)
    (place / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        write(place / "data" / name, *GROUPS)
    assert measured("rankings", "data", *NUMBERS)["metrics"]["groups"] == 8
    write(place / "groups.jsonl", *GROUPS)
    (place / "recipe.toml").write_text(RECIPE)
    assert measured("rankings", "recipe.toml:held", "--reward", "recipe.toml")["metrics"]["groups"] == 4
    assert measured("rankings", "recipe.toml:words", *NUMBERS, "--items", "3", "--fail-above", "1")["metrics"]


RECIPE = """
[data.held]
type = "jsonl"
path = "groups.jsonl"
[data.sums]
type = "arithmetic"
[data.words]
type = "tests.trainers.evaluate.rewards:Endless"
[[stages]]
type = "evaluate_reward"
kind = "rankings"
data = "held"
reward = "tests.trainers.evaluate.rewards:Numbers"
"""


MISTAKES = [
    (("rankings", "grups.jsonl"), ["groups.jsonl"]),
    (("rankings", "groups.txt"), ["is no JSONL or Parquet file"]),
    (("rankings", "groups.jsonl", "--source", "shufle=true"), ["shuffle"]),
    (("rankings", "recipe.toml"), ["recipe.toml:held", "Known: held, sums, words"]),
    (("rankings", "recipe.toml:hold"), ["'hold'", "Known: held, sums, words"]),
    (("rankings", "recipe.toml:sums"), ["has no rankings"]),
    (("grades", "groups.jsonl"), ["there is no response", "candidates, prompt, scores"]),
    (("rankings", "late.jsonl"), ["rows cannot be used", "line 5"]),
    (("grades", "groups.jsonl", "--threshold", "nan"), ["--threshold"]),
    (("pairs", "groups.jsonl", "--ties", "haf"), ["half"]),
]


def test_a_mistake_is_reported_with_its_remedy(place: Path) -> None:
    write(place / "groups.jsonl", *GROUPS)
    write(place / "late.jsonl", *GROUPS, PAIRS[0])
    (place / "groups.txt").write_text("x")
    (place / "recipe.toml").write_text(RECIPE)
    for arguments, words in MISTAKES:
        ended = evaluate(*arguments, *NUMBERS)
        assert (ended.status, ended.out) == (2, "")
        for word in words:
            assert word in ended.err, arguments


def test_the_status_is_1_if_too_little_was_scored(place: Path) -> None:
    bad = {"prompt": "q", "candidates": ["a", "1"], "scores": [1, 2]}
    data = write(place / "groups.jsonl", *GROUPS[:3], bad)
    for share, status in (("1", 0), ("0.25", 0), ("0.1", 1)):
        assert evaluate("rankings", data, *NUMBERS, "--fail-above", share).status == status
    assert evaluate("rankings", write(place / "bad.jsonl", bad), *NUMBERS).status == 1  # without any it always is


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


def test_a_run_is_measured_with_what_it_trained_and_its_recipe_with_a_warning(place: Path) -> None:
    data = write(place / "pairs.jsonl", *({"prompt": f"{i}+1", "chosen": "1", "rejected": "2 3"} for i in range(8)))
    (place / "small.toml").write_text(LEARNED)
    assert call("run", "small.toml").status == 0
    kept = json.loads((place / "runs/small/evaluations/judged.json").read_text())["metrics"]
    ended = evaluate("pairs", data, "--reward", "runs/small:judged", "--json")
    found = json.loads(ended.out)["metrics"]
    assert kept["accuracy"] == 1
    assert (found["accuracy"], found["margin"]) == (1, pytest.approx(kept["margin"], rel=1e-4))
    assert "loading judge: runs/small/models/judge" in ended.err
    assert "warning" not in ended.err
    ended = evaluate("pairs", data, "--reward", "runs/small/recipe.toml:judged", "--json")
    assert json.loads(ended.out)["metrics"]["margin"] == 0  # an untrained head
    assert "warning: models.judge is as before the stage learn" in ended.err
    assert "--reward runs/small:judged" in ended.err


def ranked(body: dict, sign: int = 1) -> str:
    """Rank the candidates that a request shows by their numbers."""
    texts = [text for _, _, text in BLOCK.findall(last_text(body))]
    if not texts:
        return f"whatever, times {sign}"
    scores = {letter: 5 + sign * float(text) for letter, text in zip("ABC", texts, strict=False)}
    return write_ranking(scores, "So.", "both")


JUDGED = """
type = "ranking"
model = "judge"
extract = "codeblock"
[models.judge]
type = "server"
urls = ["%s"]
"""


def test_an_evaluation_without_a_call_ends_with_an_error_and_its_remedy(place: Path) -> None:
    same = {"prompt": "q", "candidates": ["1", "1 "], "scores": [0, 5]}  # one distinct candidate: nothing to compare
    data = write(place / "data.jsonl", same)
    with Serving() as serving:
        (place / "judge.toml").write_text(JUDGED % serving.server.url)
        ended = evaluate("rankings", data, "--reward", "judge.toml")
    assert (ended.status, ended.out) == (2, "")
    assert "models.judge: not called for any item" in ended.err


def test_other_weights_behind_the_same_name_are_measured_and_not_their_old_verdicts(place: Path) -> None:
    data = write(place / "data.jsonl", *GROUPS)
    arguments = ("rankings", data, "--reward", "judge.toml")
    with Serving() as serving:
        serving.server.say = ranked
        (place / "judge.toml").write_text(JUDGED % serving.server.url)
        found = [measured(*arguments) for _ in range(2)]
        assert [(one["models"]["judge"]["calls"], one["metrics"]["accuracy"]) for one in found] == [(4, 1.0), (0, 1.0)]
        serving.server.say = lambda body: ranked(body, -1)
        ended = evaluate(*arguments, "--json")
    assert json.loads(ended.out)["metrics"]["accuracy"] == 0.0
    assert "models.judge.version" in " ".join(ended.err.split())
