"""Pairs, groups and grades from rows of files: every form, margins and ties, columns, and what is refused."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Graded, Message, Preference, Prompt, Ranking, UserError
from rewardsmith.data import Jsonl
from tests.data.rows import BOTH, write, write_lines, wrong

ROLES = {"S": "system", "U": "user", "A": "assistant"}


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


def chat(*messages: str) -> list[dict[str, str]]:
    return [{"role": ROLES[text[0]], "content": text[1:]} for text in messages]


# ---- pairs --------------------------------------------------------------------------------------------------------

PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, "Uq"),
    ({"prompt": chat("Uq"), "chosen": chat("Aa"), "rejected": chat("Ab")}, "Uq"),
    ({"chosen": chat("Ux", "Ay", "Uq", "Aa"), "rejected": chat("Ux", "Ay", "Uq", "Ab")}, "Ux Ay Uq"),
    ({"prompt": "q\n", "chosen": chat("Ss", "Uq", "Aa"), "rejected": chat("Ss", "Uq", "Ab")}, "Ss Uq"),
    ({"prompt": chat("Ss", "Uq"), "chosen": chat("Uq", "Aa"), "rejected": chat("Uq", "Ab")}, "Ss Uq"),
]


@BOTH
def test_every_form_is_the_same_pair(kind: type, tmp_path: Path) -> None:
    for row, expected in FORMS:
        source = kind(path=str(write(kind, tmp_path, [row])))
        source.check(of="preferences")
        (pair,) = source.preferences(seed=0)
        messages = " ".join(f"{m.role[0].upper()}{m.content}" for m in pair.prompt.messages)
        assert (messages, pair.chosen, pair.rejected, pair.margin, pair.tied) == (expected, "a", "b", 0.0, False)
        assert pair.prompt.info == {}


def test_rows_of_rewardbench_keep_their_subset_and_ids_repeat_between_subsets(jsonl: Callable[..., Jsonl]) -> None:
    rows = [{"prompt": subset, "chosen": "a", "rejected": "b", "subset": subset, "id": 1} for subset in ("cpp", "go")]
    source = jsonl(*rows, shuffle=False)
    source.check(of="preferences")
    first, second = source.preferences(0)
    prompt = Prompt("cpp-1", [Message("user", "cpp")], source="cpp", info={"subset": "cpp"})
    assert first == Preference(prompt, "a", "b")
    assert (second.prompt.id, second.prompt.source) == ("go-1", "go")


def test_margins_ties_and_ratings(jsonl: Callable[..., Jsonl]) -> None:
    for row, margin, tied in [
        ({"margin": 2}, 2.0, False),
        ({"margin": None, "tied": None}, 0.0, False),
        ({"tied": 1, "margin": 0}, 0.0, True),
    ]:
        (pair,) = jsonl({**PAIR, **row}).preferences(0)
        assert (pair.margin, pair.tied, pair.prompt.info) == (margin, tied, {})
    for chosen, rejected, margin, tied in [(0.3, 0.1, 0.2, False), (5, 5, 0.0, True)]:
        row = {**PAIR, "r": {"c": chosen, "r": rejected}, "margin": 99}
        (pair,) = jsonl(row, columns={"chosen_score": "r.c", "rejected_score": "r.r"}).preferences(0)
        assert (pair.margin, pair.tied) == (margin, tied)


def test_columns_can_be_named_and_then_no_other_is_used(jsonl: Callable[..., Jsonl]) -> None:
    columns = {"chosen": "good", "rejected": "bad"}
    (pair,) = jsonl({"q": "?", "good": "a", "bad": "b", "chosen": "x"}, prompt_column="q", columns=columns).preferences(
        0
    )
    assert (pair.chosen, pair.rejected, pair.prompt.info) == ("a", "b", {"chosen": "x"})
    assert "there is no good: columns.chosen" in wrong(jsonl(PAIR, columns=columns), of="preferences")


def test_several_pairs_may_have_one_id_if_they_have_one_prompt(jsonl: Callable[..., Jsonl]) -> None:
    rows = [PAIR | {"id": "x"}, PAIR | {"id": "x", "rejected": "c"}]
    source = jsonl(*rows)
    source.check(of="preferences")
    assert len(list(source.preferences(0))) == 2
    assert 'the id "x" is also that of' in wrong(source)  # of prompts each is there once
    other = jsonl(*rows, PAIR | {"id": "x", "prompt": "another"})
    assert "line 1: make the ids unique" in wrong(other, of="preferences")


# ---- groups -------------------------------------------------------------------------------------------------------

GROUP = {"prompt": "q", "candidates": ["a", "b", "c"], "scores": [8, 2.5, 8]}
UNRANKED = {"prompt": "q", "candidates": ["a", "b", "c"]}


@BOTH
def test_a_row_becomes_a_ranking(kind: type, tmp_path: Path) -> None:
    for name in ("candidates", "mt_texts", "responses"):
        row = {"prompt": "q", name: ["a", "b"], "scores": [8, 2], "analysis": "A is better.", "id": "x", "kept": 1}
        source = kind(path=str(write(kind, tmp_path, [row])))
        source.check(of="rankings")
        prompt = Prompt("x", [Message("user", "q")], info={"kept": 1})
        assert list(source.rankings(0)) == [Ranking(prompt, ["a", "b"], [8.0, 2.0], "A is better.")]  # type: ignore[arg-type]


def test_a_source_text_is_the_prompt_and_called_src_text_whatever_its_column(jsonl: Callable[..., Jsonl]) -> None:
    for row, column in (({"src_text": "x"}, "src_text"), ({"text": {"zh": "x"}}, "text.zh")):
        for prompt in ({}, {"prompt": "Translate: x"}):
            given = {"candidates": ["a", "b"], "scores": [1, 2], "src_lang": "zh", **row, **prompt}
            (group,) = jsonl(given, columns={"source_text": column}).rankings(0)
            assert group.prompt.info == {"src_text": "x", "src_lang": "zh"}
            assert group.prompt.messages[0].content == prompt.get("prompt", "x")


def test_rankings_of_every_form(jsonl: Callable[..., Jsonl]) -> None:
    for ranking, scores in [
        ("B > A = C", [0, 1, 0]),
        ("**Ranking:** B > C > A", [0, 2, 1]),
        (["B", ["A", "C"]], [0, 1, 0]),
        ([["A", "B", "C"]], [0, 0, 0]),
        ([1, 2, 3], [2, 1, 0]),
        ([1.5, 1.5, 3], [1, 1, 0]),
    ]:
        source = jsonl({**UNRANKED, "ranking": ranking})
        source.check(of="rankings")
        (group,) = source.rankings(0)
        assert (group.scores.tolist(), group.prompt.info) == (scores, {})


# ---- grades -------------------------------------------------------------------------------------------------------

GRADED = {"prompt": "7+5?", "response": "12", "grade": 0.75}


@BOTH
def test_a_row_becomes_a_graded_answer(kind: type, tmp_path: Path) -> None:
    criteria = [{"name": "sum", "points": 10}]
    row = GRADED | {"id": "x", "right": True, "sound": False, "extra_info": {"criteria": criteria}}
    source = kind(path=str(write(kind, tmp_path, [row])))
    source.check(of="graded")
    prompt = Prompt("x", [Message("user", "7+5?")], info={"extra_info": {"criteria": criteria}})
    assert list(source.graded(0)) == [Graded(prompt, "12", 0.75, right=True, sound=False)]


def test_grades_and_points(jsonl: Callable[..., Jsonl]) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], float]] = [
        ({"grade": 1}, {}, 1.0),
        ({"model": {"is_correct": False}}, {"columns": {"grade": "model.is_correct"}}, 0.0),
        ({"points": 7, "out_of": 14}, {"out_of": 10}, 0.5),
        ({"points": 7}, {"out_of": 10}, 0.7),
        ({"grade": 1, "marks": 3, "total": 4}, {"columns": {"grade": "marks", "out_of": "total"}}, 0.75),
    ]
    for row, settings, grade in rows:
        source = jsonl({"prompt": "q", "response": "r", **row}, **settings)
        source.check(of="graded")
        assert [graded.grade for graded in source.graded(0)] == [grade]


# ---- bad rows -----------------------------------------------------------------------------------------------------

POINTS = GRADED | {"grade": None}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("preferences", {"prompt": "q", "rejected": "b"}, "there is no chosen: columns.chosen"),
    ("preferences", PAIR | {"chosen": None}, "chosen is null: columns.chosen"),
    ("preferences", PAIR | {"chosen": chat("Uq")}, 'the role of the last of chosen is "user"'),
    ("preferences", {"chosen": "a", "rejected": "b"}, "there is no prompt and no messages in chosen"),
    ("preferences", {"chosen": chat("Uq", "Aa"), "rejected": chat("Ur", "Ab")}, "differ before their last message"),
    ("preferences", {**PAIR, "chosen": chat("Ur", "Aa"), "rejected": chat("Ur", "Ab")}, "other messages than prompt"),
    ("preferences", PAIR | {"margin": -1}, "margin is -1"),
    ("preferences", PAIR | {"margin": True}, "margin is true: it must be a finite number"),
    ("preferences", PAIR | {"tied": "yes"}, 'tied is "yes": it must be true or false'),
    ("preferences", PAIR | {"tied": True, "margin": 1}, "the pair: Preference.margin is 1.0 in a tied pair"),
    ("preferences", PAIR | {"chosen": "\ud800"}, "the pair: Preference.chosen has a lone surrogate"),
    ("rankings", {"prompt": "q", "scores": [1, 2]}, "there is no candidates and no mt_texts and no responses"),
    ("rankings", UNRANKED, "there is no scores and no ranking: columns.scores"),
    ("rankings", GROUP | {"candidates": ["a", None, "c"]}, "candidates[1] is null: it must be text"),
    ("rankings", GROUP | {"candidates": ["a"], "scores": [1]}, "a group needs at least 2 answers"),
    ("rankings", GROUP | {"scores": [1, 2]}, "scores has 2 for 3 answers"),
    ("rankings", GROUP | {"scores": [1, "2", 2]}, 'scores[1] is "2": it must be a finite number'),
    ("rankings", GROUP | {"scores": [1, 1e999, 2]}, "Infinity is no JSON"),
    ("rankings", GROUP | {"analysis": ["x"]}, "analysis is a list of 1: it must be text"),
    ("rankings", {"candidates": ["a", "b"], "scores": [1, 2], "src_text": " "}, "it must be text, and not blank"),
    ("rankings", UNRANKED | {"ranking": "A > B"}, "missing candidate: C"),
    ("rankings", UNRANKED | {"ranking": "A < B < C"}, "ranking with <"),
    ("rankings", UNRANKED | {"ranking": {"A": 1}}, "ranking is a table: no ranking; it must be one line such as"),
    (
        "rankings",
        UNRANKED | {"ranking": ["best", "worst", "middle"]},
        "ranking is a list of 3",
    ),
    ("rankings", UNRANKED | {"ranking": [2, 0, 1]}, "ranks begin with 1, the best"),
    ("rankings", UNRANKED | {"ranking": "A > B > C\nC > B > A"}, "it must be one line"),
    ("rankings", {**GROUP, "candidates": ["x"] * 27, "scores": None, "ranking": "A > B"}, "27 candidates cannot"),
    ("graded", {"prompt": "q", "grade": 1}, "there is no response: response_column"),
    ("graded", {"prompt": "q", "response": "r", "grad": 1}, "there is no points and no grade: columns.grade"),
    ("graded", GRADED | {"response": ["r"]}, "response is a list of 1: it must be text"),
    ("graded", GRADED | {"grade": 7}, "grade is 7 out of 1: set out_of"),
    ("graded", GRADED | {"grade": "A"}, 'grade is "A": it must be a finite number'),
    ("graded", GRADED | {"sound": 2}, "sound is 2: it must be true or false"),
    ("graded", POINTS | {"points": 11, "out_of": 10}, "points is 11 out of 10"),
    ("graded", POINTS | {"points": 0, "out_of": 0}, "points is 0 out of 0"),
]


def test_a_bad_row_is_named_with_its_line_and_field(jsonl: Callable[..., Jsonl]) -> None:
    good = {"preferences": PAIR, "rankings": GROUP, "graded": GRADED}
    for of, row, message in BAD:
        source = jsonl(good[of], row, shuffle=False)
        refused = wrong(source, of=of)
        assert refused.startswith("1 of 2 rows cannot be used:")
        assert "line 2" in refused
        assert message in refused
        with pytest.raises(UserError, match="line 2"):
            list(getattr(source, of)(0))
