"""Rows of pairs and groups: their form, margins, limits, parts of groups, and where a row says it comes from."""

from collections import Counter
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Ranking, UserError
from rewardsmith.data.preferences import Builder, Building, Pairing, source_of
from rewardsmith.data.rows import RowError


def ranking(
    scores: list[float], texts: list[str] | None = None, *, name: str = "p", asked: str = "q", **info
) -> Ranking:
    candidates = texts or [f"text {i}" for i in range(len(scores))]
    prompt = Prompt(name, [Message("user", asked)], source="s", info=info)
    return Ranking(prompt, candidates, scores)  # type: ignore[arg-type]


def test_a_row_of_a_pair() -> None:
    builder = Builder(Building())
    (row,) = builder.rows(ranking([1.0, 3.5]), "f.jsonl, line 3")
    assert row == {
        "id": "p-1-0",
        "data_source": "s",
        "prompt": "q",
        "chosen": "text 1",
        "rejected": "text 0",
        "margin": 2.5,
        "tied": False,
        "extra_info": {
            "group": "p",
            "row": "f.jsonl, line 3",
            "chosen_score": 3.5,
            "rejected_score": 1.0,
            "chosen_places": [1],
            "rejected_places": [0],
            "chosen_system": "",
            "rejected_system": "",
            "src_text": "",
            "trg_text": "",
            "src_lang": "",
            "trg_lang": "",
        },
    }


def test_messages_in_the_form_that_trl_reads() -> None:
    (row,) = Builder(Building(chat=True)).rows(ranking([1.0, 3.5]), "")
    assert row["prompt"] == [{"role": "user", "content": "q"}]
    assert row["chosen"] == [{"role": "assistant", "content": "text 1"}]
    assert row["rejected"] == [{"role": "assistant", "content": "text 0"}]


def test_a_prompt_of_several_messages_needs_the_chat_form() -> None:
    group = Ranking(Prompt("p", [Message("system", "s"), Message("user", "q")]), ["a", "b"], [1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(RowError, match="the prompt has 2 messages: text is one of the user; use --chat"):
        list(Builder(Building()).rows(group, ""))
    (row,) = Builder(Building(chat=True)).rows(group, "")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("settings", "margins"),
    [
        ({}, [10.0, 8.0, 2.0]),
        ({"unit": 5.0}, [2.0, 1.6, 0.4]),
        ({"margins": "share"}, [1.0, 0.8, 0.2]),
        ({"margins": "none"}, [0.0, 0.0, 0.0]),
    ],
)
def test_margins(settings: dict, margins: list[float]) -> None:
    rows = Builder(Building(**settings)).rows(ranking([0.0, 2.0, 10.0]), "")
    assert sorted((row["margin"] for row in rows), reverse=True) == pytest.approx(margins)


@given(
    scores=st.lists(st.integers(-2, 2).map(float), min_size=2, max_size=7),
    which=st.sampled_from(["all", "adjacent", "best-worst"]),
    margins=st.sampled_from(["raw", "share", "none"]),
)
def test_every_row_agrees_with_its_scores(scores: list[float], which: str, margins: str) -> None:
    building = Building(Pairing(which, ties="keep"), margins=margins)  # type: ignore[arg-type]
    for row in Builder(building).rows(ranking(scores), ""):
        told = row["extra_info"]
        difference = told["chosen_score"] - told["rejected_score"]
        assert difference >= 0
        assert row["tied"] == (difference == 0)
        expected = {"raw": difference, "share": difference / ((max(scores) - min(scores)) or 1), "none": 0.0}
        assert row["margin"] == pytest.approx(expected[margins])
        assert (row["chosen"], row["rejected"]) == tuple(
            f"text {told[f'{side}_places'][0]}" for side in ("chosen", "rejected")
        )


def test_who_wrote_a_text_is_kept_and_copies_have_several_writers() -> None:
    group = ranking([1.0, 3.0, 2.0], ["x", "y", "x"], systems=["one", "two", "three"], src_text="你好", src_lang="zh")
    builder = Builder(Building())
    (row,) = builder.rows(group, "")
    told = row["extra_info"]
    assert (told["chosen_system"], told["rejected_system"], told["rejected_places"]) == ("two", "one, three", [0, 2])
    assert (told["rejected_score"], told["src_text"], told["src_lang"]) == (1.5, "你好", "zh")
    assert (builder.counts["candidates"], builder.counts["copies merged"]) == (3, 1)


@pytest.mark.parametrize("systems", [["one"], "one", [1, 2], None])
def test_writers_that_do_not_fit_are_nobody(systems: object) -> None:
    (row,) = Builder(Building()).rows(ranking([1.0, 3.0], systems=systems), "")
    assert row["extra_info"]["chosen_system"] == ""


def test_what_is_counted() -> None:
    builder = Builder(Building(Pairing(ties="keep")))
    for i, scores in enumerate([[1.0, 2.0], [3.0, 3.0], [1.0, 2.0, 2.0]]):
        list(builder.rows(ranking(scores, name=str(i)), ""))
    list(builder.rows(ranking([1.0, 2.0], ["same", "same"], asked="other"), ""))
    assert {name: count for name, count in builder.counts.items() if count} == {
        "groups": 4,
        "candidates": 9,
        "copies merged": 1,
        "pairs": 5,
        "ties": 2,
        "groups of one text": 1,
    }
    drops = Builder(Building())
    assert list(drops.rows(ranking([3.0, 3.0]), "")) == []
    assert (drops.counts["groups without a pair"], drops.counts["pairs"]) == (1, 0)


@given(most=st.integers(1, 12), groups=st.integers(1, 4), size=st.integers(2, 5))
def test_at_most_so_many_of_one_source_over_all_its_groups(most: int, groups: int, size: int) -> None:
    builder = Builder(Building(most_per_source=most))
    rows = [
        row
        for i in range(groups)
        for source in ("a", "b")
        for row in builder.rows(
            ranking([float(10 * i + k) for k in range(size)], asked=source, name=f"{source}{i}"), ""
        )
    ]
    found = Counter(row["prompt"] for row in rows)
    assert found == dict.fromkeys("ab", min(most, groups * comb(size, 2)))
    left_out = builder.counts["pairs above the most per source"]
    assert left_out + builder.counts["pairs"] == 2 * groups * comb(size, 2)


def test_a_group_that_was_there_before_is_refused_in_whatever_order() -> None:
    builder = Builder(Building())
    list(builder.rows(ranking([1.0, 2.0]), "line 1"))
    with pytest.raises(RowError, match="the same prompt, candidates and scores as in line 1"):
        list(builder.rows(ranking([2.0, 1.0], ["text 1", "text 0"], name="other"), "line 2"))
    with pytest.raises(RowError, match="as in line 1"):  # a copy more changes nothing
        list(builder.rows(ranking([1.0, 2.0, 1.0], ["text 0", "text 1", "text 0"]), "line 2"))
    assert list(builder.rows(ranking([1.0, 2.5]), "line 3"))  # another judgement of the same group
    talk = Builder(Building(), repeats=True)
    assert [len(list(talk.rows(ranking([1.0, 2.0]), ""))) for _ in range(3)] == [1, 0, 0]
    assert talk.counts["repeated groups"] == 2


def test_a_row_of_a_group_of_translations() -> None:
    info = {"src_text": "你好", "trg_text": "Hello", "src_lang": "zh", "trg_lang": "en", "systems": ["one", "two"]}
    (row,) = Builder(Building(to="rankings")).rows(ranking([-1.0, 0.0], ["Hi", "Hey"], **info), "line 1")
    assert row == {
        "id": "p",
        "data_source": "s",
        "prompt": "q",
        "src_text": "你好",
        "trg_text": "Hello",
        "src_lang": "zh",
        "trg_lang": "en",
        "mt_texts": ["Hi", "Hey"],
        "scores": [-1.0, 0.0],
        "analysis": "",
        "extra_info": {"group": "p", "row": "line 1", "places": [[0], [1]], "systems": ["one", "two"]},
    }


def test_a_row_of_another_group_has_candidates_and_the_two_kinds_do_not_mix() -> None:
    builder = Builder(Building(to="rankings"))
    (row,) = builder.rows(ranking([1.0, 2.0]), "")
    assert list(row) == ["id", "data_source", "prompt", "candidates", "scores", "analysis", "extra_info"]
    with pytest.raises(RowError, match="some rows have a src_text and others have none"):
        list(builder.rows(ranking([1.0, 3.0], src_text="x"), ""))


@given(count=st.integers(2, 30), size=st.integers(2, 26), seed=st.integers(0, 2))
def test_parts_of_a_group(count: int, size: int, seed: int) -> None:
    builder = Builder(Building(to="rankings", group_size=size, seed=seed))
    rows = list(builder.rows(ranking([float(i) for i in range(count)]), ""))
    places = [place for row in rows for (place,) in row["extra_info"]["places"]]
    assert len(places) == len(set(places)) == count - (1 if count % size == 1 else 0)
    assert len(rows) == count // size + (1 if count % size > 1 else 0)
    assert all(2 <= len(row["candidates"]) <= size for row in rows)
    assert all(row["candidates"][k] == f"text {int(s)}" for row in rows for k, s in enumerate(row["scores"]))
    assert len({row["id"] for row in rows}) == len(rows)
    assert builder.counts["left over"] == (count % size == 1)


def test_an_analysis_stays_with_the_whole_group() -> None:
    group = Ranking(Prompt("p", [Message("user", "q")]), list("abcd"), [1.0, 2.0, 3.0, 4.0], "D is best.")  # type: ignore[arg-type]
    (whole,) = Builder(Building(to="rankings")).rows(group, "")
    parts = list(Builder(Building(to="rankings", group_size=2)).rows(group, ""))
    assert (whole["analysis"], [part["analysis"] for part in parts]) == ("D is best.", ["", ""])


@pytest.mark.parametrize("candidates", [["good", "good", "bad"], ["good", " ", "bad"]])
def test_an_analysis_goes_when_letters_no_longer_fit(candidates: list[str]) -> None:
    prompt = Prompt("p", [Message("user", "q")])
    group = Ranking(prompt, candidates, [2.0, 2.0, 1.0], "A and B are good. C is bad.")  # type: ignore[arg-type]
    (row,) = Builder(Building(to="rankings")).rows(group, "")
    assert (row["candidates"], row["analysis"]) == (["good", "bad"], "")


def test_scores_that_rounding_makes_equal_are_counted() -> None:
    builder = Builder(Building(to="rankings"))
    (row,) = builder.rows(ranking([1000001.0, 1000002.0, 5.0]), "")
    assert row["scores"] == [1000000.0, 1000000.0, 5.0]
    assert builder.counts["scores made equal by rounding"] == 1
    list(builder.rows(ranking([1.0, 1.0, 2.0], name="x"), ""))
    assert builder.counts["scores made equal by rounding"] == 1  # they were equal before


@pytest.mark.parametrize("to", ["preferences", "rankings"])
def test_scores_at_the_end_of_the_numbers(to: str) -> None:
    builder = Builder(Building(to=to))  # type: ignore[arg-type]
    (row,) = builder.rows(ranking([1.7e308, 1.7e308, 0.0], ["a", "a", "b"]), "")
    assert 1.7e308 in ([row["margin"]] if to == "preferences" else row["scores"])
    with pytest.raises(RowError, match="so far apart that their difference is no number: scale them"):
        list(builder.rows(ranking([1.7e308, -1.7e308]), ""))
    with pytest.raises(RowError, match="scale them"):
        list(Builder(Building(unit=1e-300)).rows(ranking([1e10, 0.0]), ""))


def test_more_candidates_than_letters_are_refused_unless_they_are_cut() -> None:
    group = ranking([float(i) for i in range(27)])
    with pytest.raises(RowError, match="27 different candidates: at most 26 have a letter; use --group-size"):
        list(Builder(Building(to="rankings")).rows(group, ""))
    assert len(list(Builder(Building(to="rankings", group_size=9)).rows(group, ""))) == 3
    assert len(list(Builder(Building()).rows(group, ""))) == comb(27, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margins": "row"}, "margins is 'row': one of raw, share, none"),
        ({"unit": 0.0}, "the unit of margins is 0.0: a number above 0"),
        ({"unit": 2.0, "margins": "share"}, "margins = share has no unit"),
        ({"group_size": 27}, "the size of groups is 27: 2 to 26"),
        ({"most_per_source": 0}, "the most per source is 0"),
    ],
)
def test_settings_that_mean_nothing(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Building(**settings)


def test_blank_candidates_are_in_no_group_and_scores_are_as_short_as_a_judge_writes_them() -> None:
    builder = Builder(Building(to="rankings"))
    (row,) = builder.rows(ranking([-1.0, -5 / 3, 0.25], ["a", "b", " "]), "")
    assert (row["candidates"], row["scores"]) == (["a", "b"], [-1.0, -1.66667])
    assert row["extra_info"]["places"] == [[0], [1]]
    assert list(builder.rows(ranking([1.0, 2.0], ["a", ""], name="x"), "")) == []
    assert builder.counts["blank candidates"] == 2
    assert len(list(Builder(Building()).rows(ranking([1.0, 2.0], ["a", ""]), ""))) == 1  # a pair may have one


def test_the_source_is_the_text_to_translate_or_what_was_said() -> None:
    said = Prompt("a", [Message("system", "s"), Message("user", " q ")])
    assert source_of(said) == source_of(Prompt("b", [Message("user", "q")])) == "q"
    assert source_of(Prompt("c", [Message("user", "Translate: x")], info={"src_text": "x"})) == "x"
