"""Groups with scores from files: scores, rankings in all forms, translations, and what is refused."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Message, Prompt, Ranking, UserError
from rewardsmith.data import Jsonl
from tests.data.rows import BOTH, write, write_lines, wrong


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


GROUP = {"prompt": "q", "candidates": ["a", "b", "c"], "scores": [8, 2.5, 8]}


@BOTH
@pytest.mark.parametrize("name", ["candidates", "mt_texts", "responses"])
def test_a_row_becomes_a_ranking(kind: type, name: str, tmp_path: Path) -> None:
    row = {"prompt": "q", name: ["a", "b"], "scores": [8, 2], "analysis": "A is better.", "id": "x", "kept": 1}
    source = kind(path=str(write(kind, tmp_path, [row])))
    source.check(of="rankings")
    prompt = Prompt("x", [Message("user", "q")], info={"kept": 1})
    assert list(source.rankings(0)) == [Ranking(prompt, ["a", "b"], [8.0, 2.0], "A is better.")]  # type: ignore[arg-type]


@BOTH
def test_a_row_of_translations_has_its_source_text_as_prompt_and_in_the_info(kind: type, tmp_path: Path) -> None:
    row = {
        "src_text": "你好",
        "trg_text": "Hello",
        "src_lang": "zh",
        "trg_lang": "en",
        "mt_texts": ["Hi", "Bye"],
        "scores": [9, 1],
    }
    source = kind(path=str(write(kind, tmp_path, [row])))
    source.check(of="rankings")
    (ranking,) = source.rankings(0)
    assert [(m.role, m.content) for m in ranking.prompt.messages] == [("user", "你好")]
    assert ranking.prompt.info == {"src_text": "你好", "trg_text": "Hello", "src_lang": "zh", "trg_lang": "en"}
    assert ranking.analysis == ""


@pytest.mark.parametrize(
    ("ranking", "scores"),
    [
        ("A > B > C", [2, 1, 0]),
        ("B > A = C", [0, 1, 0]),
        ("C = B = A", [0, 0, 0]),
        ("**Ranking:** B > C > A", [0, 2, 1]),
        (["B", "C", "A"], [0, 2, 1]),
        (["B", ["A", "C"]], [0, 1, 0]),
        ([["A", "B", "C"]], [0, 0, 0]),
        ([1, 2, 3], [2, 1, 0]),
        ([2, 1, 2], [0, 1, 0]),
        ([7, 7, 7], [0, 0, 0]),
        ([1.5, 1.5, 3], [1, 1, 0]),
    ],
)
def test_rankings_of_every_form(jsonl: Callable[..., Jsonl], ranking: Any, scores: list[int]) -> None:
    source = jsonl({"prompt": "q", "candidates": ["a", "b", "c"], "ranking": ranking})
    source.check(of="rankings")
    (group,) = source.rankings(0)
    assert group.scores.tolist() == scores
    assert group.prompt.info == {}


@pytest.mark.parametrize("asked", [{}, {"prompt": "Translate: x"}])
@pytest.mark.parametrize(("row", "column"), [({"source": "x"}, "source"), ({"text": {"zh": "x"}}, "text.zh")])
def test_a_source_text_is_called_src_text_whatever_its_column(
    jsonl: Callable[..., Jsonl], row: dict, column: str, asked: dict
) -> None:
    given = {"candidates": ["a", "b"], "scores": [1, 2], "src_lang": "zh", **row, **asked}
    (group,) = jsonl(given, columns={"source_text": column}).rankings(0)
    assert group.prompt.info == {"src_text": "x", "src_lang": "zh"}
    assert group.prompt.messages[0].content == asked.get("prompt", "x")


UNRANKED = {"prompt": "q", "candidates": ["a", "b", "c"]}

BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"prompt": "q", "scores": [1, 2]},
        "there is no candidates and no mt_texts and no responses: columns.candidates s",
    ),
    (UNRANKED, "there is no scores and no ranking: columns.scores says where a row has a score of each answer"),
    (GROUP | {"candidates": "a"}, 'candidates is "a": it must be a list'),
    (GROUP | {"candidates": ["a", None, "c"]}, "candidates[1] is null: it must be text"),
    (GROUP | {"candidates": ["a"], "scores": [1]}, "candidates has 1: a group needs at least 2 answers"),
    (GROUP | {"candidates": []}, "candidates has 0: a group needs at least 2 answers"),
    (GROUP | {"candidates": ["a", "\ud800", "c"]}, "candidates: Ranking.candidates[1] has a lone surrogate"),
    (GROUP | {"scores": [1, 2]}, "scores has 2 for 3 answers: one for each, in the same order"),
    (GROUP | {"scores": 5}, "scores is 5: it must be a list"),
    (GROUP | {"scores": [1, None, 2]}, "scores[1] is null: it must be a number"),
    (GROUP | {"scores": [1, "2", 2]}, 'scores[1] is "2": it must be a number'),
    (GROUP | {"scores": [1, True, 2]}, "scores[1] is true: it must be a number"),
    (GROUP | {"scores": [1, 1e999, 2]}, "Infinity is no JSON"),
    (GROUP | {"analysis": ["x"]}, "analysis is a list of 1: it must be text"),
    (GROUP | {"prompt": None}, "prompt is null: prompt_column"),
    ({"candidates": ["a", "b"], "scores": [1, 2]}, "there is no prompt and no messages and no src_text"),
    ({"candidates": ["a", "b"], "scores": [1, 2], "src_text": " "}, 'src_text is " ": it must be text, and not blank'),
    (UNRANKED | {"ranking": "A > B"}, 'ranking is "A > B": missing candidate: C; it must be text such as "A > B = C"'),
    (UNRANKED | {"ranking": "A > B > C > D"}, "unknown letter: D"),
    (UNRANKED | {"ranking": "A > B > A"}, "duplicate letter"),
    (UNRANKED | {"ranking": "A < B < C"}, "ranking with <"),
    (UNRANKED | {"ranking": "none"}, "no ranking line"),
    (UNRANKED | {"ranking": {"A": 1}}, "ranking is a table: it must be text such as"),
    (UNRANKED | {"ranking": [["A"], [1], ["C"]]}, "ranking is a list of 3: it must be text such as"),
    (UNRANKED | {"ranking": ["best", "worst", "middle"]}, "ranking is a list of 3: it must be text such as"),
    (UNRANKED | {"ranking": ["A", "B"]}, "ranking is a list of 2: missing candidate: C"),
    (UNRANKED | {"ranking": [1, 2]}, "ranking has 2 for 3 answers"),
    (UNRANKED | {"ranking": [2, 0, 1]}, "ranking has the rank 0: ranks begin with 1, the best"),
    (UNRANKED | {"ranking": [-1, -2, -3]}, "ranking has the rank -3: ranks begin with 1"),
    (
        UNRANKED | {"ranking": "A > B > C\nC > B > A"},
        "it has several lines; leave only the one with the ranking",
    ),
    ({"prompt": "q", "candidates": ["x"] * 27, "ranking": "A > B"}, "27 candidates cannot be ranked in one call"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_group_is_named_with_its_line(jsonl: Callable[..., Jsonl], row: dict[str, Any], message: str) -> None:
    source = jsonl(GROUP, row, shuffle=False)
    told = wrong(source, of="rankings")
    assert told.startswith("1 of 2 rows cannot be used:")
    assert "line 2" in told
    assert message in told
    with pytest.raises(UserError, match="line 2"):
        list(source.rankings(0))
