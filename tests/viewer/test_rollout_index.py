"""The index of rollouts: complete, incremental, and right after a run was resumed; pages, filters and searches."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Failure, Message, Prompt, Rollout, Score
from rewardsmith.errors import UserError
from rewardsmith.viewer import rollout_index, rollout_query
from rewardsmith.viewer.rollout_index import RolloutIndex, index_file, remove_unused
from rewardsmith.viewer.rollout_query import RolloutFilter, RolloutPages
from tests.runs.fake_run import by_letter, line, record, write_fake_run, write_lines

STAGE = "policy"


def indexed(folder: Path, path: Path | None = None) -> RolloutPages:
    pages = RolloutPages(RolloutIndex(folder, path or folder.parent / "index.sqlite"))
    while pages.index.update() < 1:
        pass
    return pages


def rows_of(pages: RolloutPages, **changes: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pages.page(RolloutFilter(stage=STAGE, **changes))["rows"]
    return found


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    write_lines(folder / "rollouts" / f"{STAGE}.jsonl", rows)
    return folder


def add(folder: Path, text: str) -> None:
    with (folder / "rollouts" / f"{STAGE}.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_fake_run(tmp_path / "run", steps=8, prompts=3)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "rollouts" / "policy.jsonl").read_text().splitlines()]


# ---- the index -------------------------------------------------------------------------------------------------------


def test_every_group_and_rollout_has_a_row(run: Path) -> None:
    pages, lines = indexed(run), lines_of(run)
    (stage,) = pages.stages()
    assert (stage["groups"], stage["rollouts"]) == (len(lines), 4 * len(lines))
    found = rows_of(pages, limit=200)
    assert [row["line"] for row in found] == sorted(range(len(lines)), key=lambda i: (lines[i]["step"], i))
    for row in found:
        scores = lines[row["line"]]["scored"]["scores"]
        values = [score["value"] for score in scores if score["value"] is not None]
        assert row["reward"] == pytest.approx(sum(values) / len(values), rel=1e-5)
        assert row["failure"] == sum(score["failure"] is not None for score in scores)
        assert row["length"] == 2  # tokens
    failed = sum(part["failure"] is not None for one in lines for s in one["scored"]["scores"] for part in [s])
    assert dict.fromkeys([("", "timeout"), ("judge", "timeout")], failed) == {
        (part, kind): count for part, kind, count in stage["failures"]
    }


def test_a_growing_file_is_continued_and_an_incomplete_line_waits(tmp_path: Path, monkeypatch: Any) -> None:
    folder = write(tmp_path / "run", [line("a", Score(1.0))])
    pages = indexed(folder)
    parsed: list[bytes] = []
    original = rollout_index.parse_line
    monkeypatch.setattr(rollout_index, "parse_line", lambda text: parsed.append(text) or original(text))
    text = json.dumps(line("b", Score(0.5), step=2)) + "\n"
    add(folder, text[:40])
    assert pages.index.update() == 1.0
    assert (len(rows_of(pages)), parsed) == (1, [])
    add(folder, text[40:])
    assert pages.index.update() == 1.0
    assert [row["step"] for row in rows_of(pages)] == [1, 2]
    assert len(parsed) == 1


@pytest.mark.parametrize("regrown", [False, True])
def test_a_run_that_was_resumed_is_indexed_again(tmp_path: Path, regrown: bool) -> None:
    folder = write(tmp_path / "run", [line(f"old {i}", Score(0.0), step=i) for i in range(6)])
    pages = indexed(folder)
    assert [row["line"] for row in rows_of(pages, text="old 5")] == [5]
    write(folder, [line(f"new {i}", Score(1.0), step=i) for i in range(20 if regrown else 3)])
    while pages.index.update() < 1:
        pass
    assert {row["reward"] for row in rows_of(pages)} == {1}
    assert len(rows_of(pages)) == (20 if regrown else 3)
    assert rows_of(pages, text="old 5") == []
    assert rows_of(pages, text="new 2")[0]["line"] == 2


def test_the_index_is_kept_outside_of_the_run_and_used_again(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    path = index_file(run)
    assert len(rows_of(indexed(run, path), limit=200)) == len(lines_of(run))
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before
    monkeypatch.setattr(rollout_index, "parse_line", lambda text: pytest.fail("nothing is read again"))
    again = RolloutPages(RolloutIndex(run, path))
    assert again.index.update() == 1.0
    assert len(rows_of(again, limit=200)) == len(lines_of(run))


def test_what_is_no_index_is_made_again(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    path.write_bytes(b"not a database " * 200)
    assert rows_of(indexed(run, path))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    assert rows_of(indexed(run, path))


def test_unused_indexes_are_removed(tmp_path: Path) -> None:
    import os

    for name in ("old.sqlite", "new.sqlite"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "old.sqlite", (0, 0))
    remove_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.sqlite"]


def test_a_large_file_is_indexed_in_steps(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_index, "STEP_BYTES", 5_000)
    pages = RolloutPages(RolloutIndex(run, run.parent / "index.sqlite"))
    shares = [pages.index.update()]
    while shares[-1] < 1:
        assert len(rows_of(pages, limit=200)) > 0
        shares.append(pages.index.update())
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert len(rows_of(pages, limit=200)) == len(lines_of(run))


def test_a_long_line_that_was_cut_is_not_waited_for(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_index, "STEP_BYTES", 5_000)
    complete = lines_of(run)
    add(run, '{"step": "' + "x" * 20_000)
    index = RolloutIndex(run, run.parent / "index.sqlite")
    size = (run / "rollouts" / "policy.jsonl").stat().st_size
    updates = next(i for i in range(size // 5_000 + 2) if index.update() == 1.0)
    assert updates > 3
    assert len(rows_of(RolloutPages(index), limit=200)) == len(complete)
    add(run, '"}\n' + json.dumps(complete[0]) + "\n")
    (stage,) = indexed(run).stages()
    assert (stage["groups"], stage["unread"]) == (len(complete) + 1, 1)


def test_lines_that_hold_no_group_are_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [line("a", Score(1.0)), {"step": 1}, {"scored": []}, line("b", Score(0.0))])
    add(folder, "{ broken\n\n")
    pages = indexed(folder)
    (stage,) = pages.stages()
    assert (stage["groups"], stage["unread"], stage["lines"]) == (2, 3, 6)
    assert [row["line"] for row in rows_of(pages)] == [0, 3]
    with pytest.raises(UserError, match="not there"):
        pages.record(STAGE, 1)
    assert pages.record(STAGE, 3).scored.group.rollouts[0].text == "b"


def damaged(path: str, value: Any) -> str:
    """Return a line in which the value at a path is another one."""
    row: Any = line("damaged", Score(1.0, parts={"rule": Score(failure=Failure("timeout", "late"))}))
    *outer, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    inner = row
    for key in outer:
        inner = inner[key]
    inner[last] = value
    return json.dumps(row)


@pytest.mark.parametrize(
    "text",
    [
        "null", "5", "[1, 2]", '"ab"', "[" * 100_000, "{ cut", damaged("step", "1"), damaged("step", 2**63),
        damaged("kind", None), damaged("scored.group.prompt.messages", []), damaged("scored.group.rollouts.0.text", 5),
        damaged("scored.group.prompt.messages.0.content", None), damaged("scored.scores.0.parts", [1]),
        damaged("scored.scores.0.failure", "timeout"), damaged("scored.group.rollouts.0.stop_reason", {}),
    ],
)  # fmt: skip
def test_a_damaged_line_is_counted_and_nothing_of_it_is_kept(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "run", [line("a", Score(1.0))])
    add(folder, f"{text}\n{json.dumps(line('b', Score(0.0)))}\n")
    pages = indexed(folder)
    (stage,) = pages.stages()
    assert (stage["groups"], stage["rollouts"], stage["unread"], stage["failures"]) == (2, 2, 1, [])
    assert [row["line"] for row in rows_of(pages)] == [0, 2]
    with pages.index.connection() as db:
        assert db.execute("SELECT COUNT(*) FROM endings").fetchone() == (2,)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.797693e308, 10**400, "1", {}, None])
def test_values_that_are_no_numbers_are_rows_without_them(tmp_path: Path, value: Any) -> None:
    folder = tmp_path / "run"
    write_lines(folder / "rollouts" / f"{STAGE}.jsonl", [])
    add(folder, damaged("scored.scores.0.value", value) + "\n" + damaged("advantages", [value]) + "\n")
    add(folder, damaged("scored.scores.0.feedback", value) + "\n")
    pages = indexed(folder)
    assert len(rows_of(pages, text="damaged", by="rollouts")) in (2, 3)  # feedback that is no text is not searched
    json.dumps([rows_of(pages), pages.stages(), pages.validations(), list(pages.all_rows(STAGE))], allow_nan=False)


def test_text_that_is_not_unicode_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_lines(folder / "rollouts" / f"{STAGE}.jsonl", [])
    add(folder, damaged("scored.group.rollouts.0.text", "\ud800x") + "\n")
    assert [row["ending"] for row in rows_of(indexed(folder), by="rollouts")] == ["?x"]


# ---- filters, order, pages -------------------------------------------------------------------------------------------


@pytest.fixture
def varied(tmp_path: Path) -> RolloutPages:
    timeout = Failure("timeout", "no reply within 30 s")
    part = Score(0.5, parts={"judge": Score(failure=Failure("refused", "policy")), "rule": Score(0.5)})
    other = Prompt("other", [Message("user", "Wie geht's?")], source="talk")
    rows = [
        record([Rollout("zero"), by_letter("one, longer")], [Score(0.0), Score(1.0)], 1, advantages=[-1.0, 1.0]),
        record([Rollout("half")], [part], 2, advantages=[0.1]),
        record([Rollout("none")], [Score(failure=timeout)], 3, advantages=[None]),
        record([Rollout("ÄPFEL <b>")], [Score(0.25, feedback="Gut gemacht")], 4, other, kind="validation"),
        record([Rollout("dropped")], [Score(1.0)], 4, dropped="too_easy"),
    ]
    return indexed(write(tmp_path / "run", rows))


@pytest.mark.parametrize(
    ("chosen", "lines"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"kind": "validation"}, [3]),
        ({"source": "talk"}, [3]),
        ({"prompt": "other"}, [3]),
        ({"dropped": "yes"}, [4]),
        ({"dropped": "no"}, [0, 1, 2, 3]),
        ({"failure": "any"}, [1, 2]),
        ({"failure": "refused"}, [1]),
        ({"failure": "time"}, []),
        ({"step_min": 2, "step_max": 3}, [1, 2]),
        ({"reward_min": 0.6}, [0, 4]),
        ({"reward_max": 0.1}, [0]),
        ({"reward_min": 0.2, "reward_max": 0.6}, [1, 3]),
        ({"sort": "reward", "order": "down"}, [4, 1, 0, 3, 2]),
        ({"sort": "reward"}, [3, 0, 1, 4, 2]),
        ({"sort": "advantage", "order": "down", "limit": 2}, [0, 4]),
        ({"limit": 2, "offset": 2}, [2, 3]),
        ({"limit": 2, "find": 3}, [2, 3]),
        ({"limit": 2, "find": 99}, [0, 1]),
        ({"text": "äpfel"}, [3]),
        ({"text": "GUT"}, [3]),
        ({"text": "no reply"}, [2]),
        ({"text": "<b>"}, [3]),
        ({"text": "wie geht's?"}, [3]),
        ({"text": "zzz"}, []),
        ({"text": "o", "kind": "train", "step_max": 2}, [0, 1]),
    ],
)
def test_filters_choose_groups(varied: RolloutPages, chosen: dict[str, Any], lines: list[int]) -> None:
    assert [row["line"] for row in rows_of(varied, **chosen)] == lines


def test_rollouts_are_listed_one_by_one(varied: RolloutPages) -> None:
    found = rows_of(varied, by="rollouts", sort="length", order="down", limit=1)
    assert [(row["line"], row["place"], row["length"], row["ending"]) for row in found] == [(0, 1, 12, "one, longer")]
    found = rows_of(varied, by="rollouts", text="zero")
    assert [(row["line"], row["place"]) for row in found] == [(0, 0)]
    page = varied.page(RolloutFilter(stage=STAGE, by="rollouts", reward_min=0.0))
    assert page["total"] == 5


def test_base64_of_tokens_is_no_text(tmp_path: Path) -> None:
    row = record([by_letter("abcdefgh")], [Score(1.0)])
    encoded = row["scored"]["group"]["rollouts"][0]["tokens"]["int32"]
    assert rows_of(indexed(write(tmp_path / "run", [row])), text=encoded[:10]) == []


def test_a_search_goes_on_with_the_next_request(run: Path, monkeypatch: Any) -> None:
    pages = indexed(run)
    whole = pages.page(RolloutFilter(stage=STAGE, text="+", limit=200))
    assert whole["searched"] == 1.0
    ticks = iter(range(10**6))
    monkeypatch.setattr(rollout_query.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(rollout_query, "SEARCH_SECONDS", 5.0)
    shares, again = [], RolloutPages(pages.index)
    while not shares or shares[-1] < 1:
        page = again.page(RolloutFilter(stage=STAGE, text="+", limit=200))
        shares.append(page["searched"])
    assert len(shares) > 3
    assert page["rows"] == whole["rows"]


def test_a_search_keeps_a_bounded_number_of_hits(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rollout_query, "MAX_HITS", 10)
    page = indexed(run).page(RolloutFilter(stage=STAGE, by="rollouts", text="="))
    assert 10 <= page["total"] < 20
    assert page["full"]
    assert page["searched"] == 1.0


@pytest.mark.parametrize(
    "query",
    [
        {"step_min": "x"},
        {"offset": "9" * 20},
        {"step_max": f"-{2**63}"},
        {"find": "9" * 400},
        {"reward_max": "nan"},
        {"sort": "id; DROP TABLE groups"},
        {"by": "x"},
        {"limit": "1e3"},
    ],
)
def test_what_is_no_filter_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(UserError, match=next(iter(query))):
        RolloutFilter.parse(query)


def test_values_of_a_filter_are_never_sql(varied: RolloutPages) -> None:
    for name in ("stage", "kind", "source", "prompt", "failure", "text"):
        chosen = RolloutFilter.parse({"stage": STAGE, name: "x' OR 1=1 --"})
        assert varied.page(chosen)["rows"] == []
    assert RolloutFilter.parse({"limit": "100000", "offset": "-5"}).limit == rollout_query.MAX_PAGE


def test_validations_at_both_ends(run: Path) -> None:
    (found,) = indexed(run).validations()
    assert [end["step"] for end in found["ends"]] == [0, 8]
    first, last = (end["cases"] for end in found["ends"])
    assert [case["prompt"] for case in first] == [case["prompt"] for case in last]
    assert {case["count"] for case in first} == {4}
