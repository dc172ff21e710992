"""Pairs and groups from scores, rankings and MQM tables: rows, margins, limits, parts, splits, and bad input."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rewardsmith import Message, Prompt, Ranking, UserError
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.prepare.gqm import GqmRl
from rewardsmith.data.prepare.preference_data import PreferenceBuilder, PreferencesJob
from rewardsmith.data.rows import RowError
from rewardsmith.jobs import Result
from tests.data.mqm_tables import PENALTIES, lines, write_annotations
from tests.data.prepare.jobs import names, read_rows, run_job, write_rows

GROUPS: list[dict[str, Any]] = [
    {"prompt": f"question {i}", "candidates": [f"good {i}", f"bad {i}", f"fair {i}"], "scores": [9, 1, 5]}
    for i in range(20)
]
LANGUAGES = {"source_language": "de", "target_language": "en"}


class Builder:
    """Builds the rows of rankings, and counts."""

    def __init__(self, **settings: Any) -> None:
        self.counts: Counter[str] = Counter()
        self._builder = PreferenceBuilder(
            PreferencesJob(input="in.jsonl", out=Path("out.jsonl"), **settings), self.counts
        )

    def rows(self, ranking: Ranking, where: str = "") -> list[Any]:
        return [row for group in self._builder.groups(ranking, where) for row in self._builder.rows(group)]


def ranking(
    scores: list[float], texts: list[str] | None = None, *, name: str = "p", question: str = "q", **info: Any
) -> Ranking:
    candidates = texts or [f"text {i}" for i in range(len(scores))]
    return Ranking(Prompt(name, [Message("user", question)], source="s", info=info), candidates, scores)  # type: ignore[arg-type]


def prepare(path: Path, out: str = "out.jsonl", *, fresh: bool = True, **settings: Any) -> Result:
    return run_job(PreferencesJob(input=str(path), out=path.parent / out, **settings), fresh=fresh)


# ---- rows of pairs ------------------------------------------------------------------------------------------------


@given(
    scores=st.lists(st.integers(-2, 2).map(float), min_size=2, max_size=7),
    pairs=st.sampled_from(["all", "adjacent", "best-worst"]),
    unit=st.sampled_from([1.0, 5.0]),
)
def test_every_row_agrees_with_its_scores(scores: list[float], pairs: str, unit: float) -> None:
    for row in Builder(pairs=pairs, keep_ties=True, margin_unit=unit).rows(ranking(scores), ""):
        info = row["extra_info"]
        difference = info["chosen_score"] - info["rejected_score"]
        assert difference >= 0
        assert row["tied"] == (difference == 0)
        assert row["margin"] == pytest.approx(difference / unit)
        texts = tuple(f"text {info[f'{side}_places'][0]}" for side in ("chosen", "rejected"))
        assert (row["chosen"], row["rejected"]) == texts


def test_a_group_that_was_there_before_is_refused_in_whatever_order() -> None:
    made = Builder()
    list(made.rows(ranking([1.0, 2.0]), "line 1"))
    for again in (
        ranking([2.0, 1.0], ["text 1", "text 0"], name="other"),
        ranking([1.0, 2.0, 1.0], ["text 0", "text 1", "text 0"]),
    ):
        with pytest.raises(RowError, match="the same prompt, candidates and scores as in line 1"):
            list(made.rows(again, "line 2"))
    assert list(made.rows(ranking([1.0, 2.5]), "line 3"))  # another judgement of the same group
    talk = Builder(labels="mqm")  # a short sentence comes twice in a talk
    assert [len(list(talk.rows(ranking([1.0, 2.0]), f"line {i}"))) for i in range(3)] == [1, 0, 0]
    assert talk.counts["repeated groups"] == 2


# ---- rows of groups -----------------------------------------------------------------------------------------------


def test_a_row_of_a_group_and_the_two_kinds_do_not_mix() -> None:
    info = {"src_text": "你好", "trg_text": "Hello", "src_lang": "zh", "trg_lang": "en"}
    (row,) = Builder(write="groups").rows(ranking([-1.0, 0.0], ["Hi", "Hey"], **info, systems=["one", "two"]), "line 1")
    assert row == {
        "id": "p",
        "data_source": "s",
        "prompt": "q",
        **info,
        "mt_texts": ["Hi", "Hey"],
        "scores": [-1.0, 0.0],
        "analysis": "",
        "extra_info": {"group": "p", "row": "line 1", "places": [[0], [1]], "systems": ["one", "two"]},
    }
    made = Builder(write="groups")
    (row,) = made.rows(ranking([1.0, 2.0]), "")
    assert list(row) == ["id", "data_source", "prompt", "candidates", "scores", "analysis", "extra_info"]
    with pytest.raises(RowError, match="some rows have a src_text and others have none"):
        list(made.rows(ranking([1.0, 3.0], src_text="x"), ""))


@given(count=st.integers(2, 30), size=st.integers(2, 26), seed=st.integers(0, 2))
def test_parts_of_a_group(count: int, size: int, seed: int) -> None:
    made = Builder(write="groups", group_size=size, seed=seed)
    rows = list(made.rows(ranking([float(i) for i in range(count)]), ""))
    places = [place for row in rows for (place,) in row["extra_info"]["places"]]
    assert len(places) == len(set(places)) == count - (count % size == 1)
    assert len(rows) == count // size + (count % size > 1)
    assert all(2 <= len(row["candidates"]) <= size for row in rows)
    assert all(row["candidates"][k] == f"text {int(s)}" for row in rows for k, s in enumerate(row["scores"]))
    assert len({row["id"] for row in rows}) == len(rows)
    assert made.counts["left over"] == (count % size == 1)


# ---- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pairs_are_read_back(kind: str, tmp_path: Path) -> None:
    result = prepare(write_rows(tmp_path / f"groups.{kind}", GROUPS), f"made/pairs.{kind}", chat=True)
    assert result.facts["counts"] == {"rows read": 20, "groups": 20, "candidates": 60, "pairs": 60}
    source = (Jsonl if kind == "jsonl" else Parquet)(path=str(tmp_path / "made" / f"pairs.{kind}"))
    source.check(of="preferences")
    pairs = {(p.prompt.messages[0].content, p.chosen, p.rejected, p.margin) for p in source.preferences(0)}
    assert pairs == {
        (f"question {i}", f"{better} {i}", f"{worse} {i}", margin)
        for i in range(20)
        for better, worse, margin in [("good", "bad", 8.0), ("good", "fair", 4.0), ("fair", "bad", 4.0)]
    }
    facts = json.loads((tmp_path / "made" / f"pairs.{kind}.provenance.json").read_text())
    assert (facts["command"], facts["settings"]["pairs"], facts["inputs"][0]["rows"]) == (
        "prepare preferences",
        "all",
        20,
    )


def test_pairs_from_rankings(tmp_path: Path) -> None:
    for order in ("A > C > B", ["A", "C", "B"], [1, 3, 2]):
        rows = [{"q": "?", "out": ["a", "b", "c"], "scores": [0, 9, 0], "o": order}]
        given = write_rows(tmp_path / "in.jsonl", rows)
        prepare(given, labels="rankings", prompt_column="q", columns={"candidates": "out", "ranking": "o"})
        found = {(row["chosen"], row["rejected"], row["margin"]) for row in read_rows(tmp_path / "out.jsonl")}
        assert found == {("a", "c", 1.0), ("a", "b", 2.0), ("c", "b", 1.0)}


def test_groups_become_ranking_data(tmp_path: Path) -> None:
    translated = {"src_lang": "zh", "trg_lang": "en", "candidates": ["a", "b"], "scores": [1, 2]}
    given = write_rows(tmp_path / "in.jsonl", [{"source": f"text {i}", **translated} for i in range(3)])
    prepare(given, "groups.jsonl", write="groups", columns={"source_text": "source"})
    first = read_rows(tmp_path / "groups.jsonl")[0]
    assert (first["src_text"], first["src_lang"], first["trg_lang"], first["mt_texts"]) == (
        "text 0",
        "zh",
        "en",
        ["a", "b"],
    )
    result = run_job(GqmRl(input=str(tmp_path / "groups.jsonl"), out=tmp_path / "rl.jsonl"))
    assert result.metrics["rows"] == 3
    prepare(write_rows(tmp_path / "plain.jsonl", GROUPS), "plain-groups.jsonl", write="groups")
    job = GqmRl(input=str(tmp_path / "plain-groups.jsonl"), out=tmp_path / "plain-rl.jsonl", template="ranking")
    assert run_job(job).metrics["rows"] == 20


# ---- MQM tables ---------------------------------------------------------------------------------------------------


def test_pairs_from_annotations(tmp_path: Path) -> None:
    prepare(write_annotations(tmp_path), labels="mqm", margin_unit=5, instruction="Into English: {source}")
    rows = read_rows(tmp_path / "out.jsonl")
    assert {(r["prompt"], r["chosen"], r["rejected"]): r["margin"] for r in rows} == {
        ("Into English: Ausgang", 'The "way out', "Exit."): pytest.approx(5.1 / 5),
        ("Into English: Ausgang", 'The "way out', "Way out"): pytest.approx(13 / 5),
        ("Into English: Ausgang", "Exit.", "Way out"): pytest.approx((13 - 5.1) / 5),
        ("Into English: Ja.", "Yes.", "Yeah"): pytest.approx((1 + 5) / 2 / 5),  # two systems wrote it
    }
    assert {row["extra_info"]["rejected_system"] for row in rows} == {"a", "c", "b, c"}


def test_groups_from_annotations_are_ranking_data(tmp_path: Path) -> None:
    prepare(write_annotations(tmp_path), labels="mqm", write="groups", **LANGUAGES)
    source = Jsonl(path=str(tmp_path / "out.jsonl"), shuffle=False)
    source.check(of="rankings")
    first, second = source.rankings(0)
    assert first.scores.tolist() == [-PENALTIES[system, "1"] for system in "abc"]
    assert (second.candidates, second.scores.tolist()) == (("Yes.", "Yeah"), [0.0, -3.0])
    job = GqmRl(input=str(tmp_path / "out.jsonl"), out=tmp_path / "rl.jsonl", min_score=-25, max_score=0, decimals=True)
    run_job(job)
    truths = [json.loads(row["reward_model"]["ground_truth"]) for row in read_rows(tmp_path / "rl.jsonl")]
    assert sorted(truths, key=len) == [{"A": 0, "B": -3}, {"A": -5.1, "B": 0, "C": -13}]
    prepare(tmp_path / "mqm_deen.tsv", "ref.parquet", labels="mqm", write="groups", reference="b", **LANGUAGES)
    first, _ = Parquet(path=str(tmp_path / "ref.parquet"), shuffle=False).rankings(0)
    assert (first.candidates, first.prompt.info["trg_text"]) == (("Exit.", "Way out"), 'The "way out')


def test_documents_are_not_mixed_and_repeated_sentences_are_taken_once(tmp_path: Path) -> None:
    given = write_annotations(tmp_path, [*lines("one"), *lines("two")[1:]])
    counts = prepare(given, labels="mqm").facts["counts"]
    assert (counts["groups"], counts["repeated groups"], counts["pairs"]) == (2, 2, 4)


def test_a_translation_with_a_bad_line_is_left_out(tmp_path: Path) -> None:
    given = write_annotations(tmp_path, [*lines(), "a\ttalk.2\t1\t1\tr1\tAusgang\tExit.\tX\tHuge"])
    with pytest.raises(UserError, match='line 11\n    severity is "Huge"'):
        prepare(given, labels="mqm")
    assert prepare(given, labels="mqm", skip_bad=True).facts["left_out"] == 1
    assert not any("Exit." in (row["chosen"], row["rejected"]) for row in read_rows(tmp_path / "out.jsonl"))


# ---- bad input ----------------------------------------------------------------------------------------------------

BAD: list[tuple[Any, str]] = [
    ({"prompt": "q", "candidates": ["a", "b"], "scores": [1]}, "scores has 1 for 2 answers"),
    ({"candidates": ["a", "b"], "scores": [1, 2]}, "there is no prompt and no messages and no src_text"),
    (GROUPS[0] | {"id": "again"}, "the same prompt, candidates and scores as in"),
    (GROUPS[1] | {"id": "groups-1"}, "is also that of"),
    (b"\xff", "not UTF-8 text"),
    (b'{"prompt": NaN}', "NaN is no JSON"),
]


def test_bad_rows_are_listed_and_nothing_is_written_unless_they_are_skipped(tmp_path: Path) -> None:
    given = write_rows(tmp_path / "groups.jsonl", [*GROUPS, *(row for row, _ in BAD)])
    with pytest.raises(UserError) as caught:
        prepare(given)
    assert str(caught.value).startswith(f"{len(BAD)} of {20 + len(BAD)} rows cannot be used:")
    for number, (_, message) in enumerate(BAD, start=21):
        assert f"line {number}\n" in str(caught.value)
        assert message in str(caught.value)
    assert names(tmp_path) == {"groups.jsonl"}
    result = prepare(given, skip_bad=True)
    assert (result.facts["bad"]["rows"], len(read_rows(tmp_path / "out.jsonl"))) == (len(BAD), 60)


def test_settings_that_do_not_fit() -> None:
    for settings, message in (
        ({"labels": "mqm", "write": "groups"}, "needs source_language and target_language"),
        ({"labels": "mqm", "source_language": "xq"}, "not a known language"),
        ({"labels": "mqm", "instruction": "Translate."}, "instruction"),
        ({"margin_unit": 0.0}, "margin_unit"),
        ({"group_size": 27}, "group_size"),
    ):
        with pytest.raises(ValidationError, match=message):
            Builder(**settings)
