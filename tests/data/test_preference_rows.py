"""Pairs from files: the forms of TRL, UltraFeedback and RewardBench, margins, ties, and what is refused."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Message, Preference, Prompt, UserError
from rewardsmith.data import Jsonl
from tests.data.rows import BOTH, write, write_lines, wrong


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


def chat(*said: str) -> list[dict[str, str]]:
    """Return messages; each begins with S, U or A for its role."""
    roles = {"S": "system", "U": "user", "A": "assistant"}
    return [{"role": roles[text[0]], "content": text[1:]} for text in said]


def said(prompt: Prompt) -> str:
    return " ".join(f"{m.role[0].upper()}{m.content}" for m in prompt.messages)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "q", "chosen": "good", "rejected": "bad"}, "Uq"),
    ({"prompt": chat("Ss", "Uq"), "chosen": "good", "rejected": "bad"}, "Ss Uq"),
    ({"prompt": chat("Uq"), "chosen": chat("Agood"), "rejected": chat("Abad")}, "Uq"),
    ({"chosen": chat("Uq", "Agood"), "rejected": chat("Uq", "Abad")}, "Uq"),
    ({"chosen": chat("Ua", "Ab", "Uq", "Agood"), "rejected": chat("Ua", "Ab", "Uq", "Abad")}, "Ua Ab Uq"),
    ({"prompt": "q", "chosen": chat("Uq", "Agood"), "rejected": chat("Uq", "Abad")}, "Uq"),
    ({"prompt": "q\n", "chosen": chat("Ss", "Uq", "Agood"), "rejected": chat("Ss", "Uq", "Abad")}, "Ss Uq"),
    (
        {"prompt": "a", "chosen": chat("Ua", "Ab", "Uq", "Agood"), "rejected": chat("Ua", "Ab", "Uq", "Abad")},
        "Ua Ab Uq",
    ),
    ({"prompt": chat("Ss", "Uq"), "chosen": chat("Uq", "Agood"), "rejected": chat("Uq", "Abad")}, "Ss Uq"),
    ({"prompt": chat("Uq"), "chosen": chat("Ss", "Uq", "Agood"), "rejected": chat("Ss", "Uq", "Abad")}, "Ss Uq"),
]


@BOTH
@pytest.mark.parametrize(("row", "asked"), FORMS, ids=[str(i) for i in range(len(FORMS))])
def test_every_form_is_the_same_pair(kind: type, row: dict[str, Any], asked: str, tmp_path: Path) -> None:
    source = kind(path=str(write(kind, tmp_path, [row])))
    source.check(of="preferences")
    (pair,) = source.preferences(seed=0)
    assert (said(pair.prompt), pair.chosen, pair.rejected, pair.margin, pair.tied) == (asked, "good", "bad", 0.0, False)
    assert pair.prompt.info == {}


def test_a_row_of_ultrafeedback(jsonl: Callable[..., Jsonl]) -> None:
    row = {
        "prompt": "q",
        "prompt_id": "f0e3",
        "chosen": chat("Uq", "Agood"),
        "rejected": chat("Uq", "Abad"),
        "messages": chat("Uq", "Agood"),
        "score_chosen": 8.5,
        "score_rejected": 6.0,
    }
    columns = {"chosen_score": "score_chosen", "rejected_score": "score_rejected"}
    (pair,) = jsonl(row, columns=columns, id_column="prompt_id").preferences(0)
    assert (pair.prompt.id, pair.margin, pair.tied) == ("f0e3", 2.5, False)
    assert pair.prompt.info["score_chosen"] == 8.5


def test_rows_of_rewardbench_keep_their_subset_and_ids_repeat_between_subsets(jsonl: Callable[..., Jsonl]) -> None:
    rows = [
        {"prompt": subset, "chosen": "good", "rejected": "bad", "chosen_model": "m", "subset": subset, "id": 1}
        for subset in ("hep-cpp", "hep-go")
    ]
    source = jsonl(*rows, shuffle=False)
    source.check(of="preferences")
    first, second = source.preferences(0)
    assert first == Preference(
        Prompt(
            "hep-cpp-1",
            [Message("user", "hep-cpp")],
            source="hep-cpp",
            info={"chosen_model": "m", "subset": "hep-cpp"},
        ),
        "good",
        "bad",
    )
    assert (second.prompt.id, second.prompt.source) == ("hep-go-1", "hep-go")
    (named,) = jsonl(rows[0] | {"data_source": "rb"}).preferences(0)
    assert (named.prompt.source, named.prompt.id) == ("rb", "hep-cpp-1")


MARGINS: list[tuple[dict[str, Any], float, bool]] = [
    ({}, 0.0, False),
    ({"margin": 2}, 2.0, False),
    ({"margin": None, "tied": None}, 0.0, False),
    ({"tied": True}, 0.0, True),
    ({"tied": 1, "margin": 0}, 0.0, True),
    ({"tied": False, "margin": 0.5}, 0.5, False),
]


def test_margins_and_ties(jsonl: Callable[..., Jsonl]) -> None:
    for row, margin, tied in MARGINS:
        (pair,) = jsonl({"prompt": "q", "chosen": "a", "rejected": "b", **row}).preferences(0)
        assert (pair.margin, pair.tied, pair.prompt.info) == (margin, tied, {})


RATINGS: list[tuple[float, float, float, bool]] = [(0.3, 0.1, 0.2, False), (5, 5, 0.0, True), (-1.0, -6.0, 5.0, False)]


def test_ratings_become_a_margin_and_equal_ratings_a_tie(jsonl: Callable[..., Jsonl]) -> None:
    for chosen, rejected, margin, tied in RATINGS:
        row = {"prompt": "q", "chosen": "a", "rejected": "b", "r": {"c": chosen, "r": rejected}, "margin": 99}
        (pair,) = jsonl(row, columns={"chosen_score": "r.c", "rejected_score": "r.r"}).preferences(0)
        assert (pair.margin, pair.tied) == (margin, tied)


def test_columns_can_be_named_and_then_no_other_is_looked_at(jsonl: Callable[..., Jsonl]) -> None:
    row = {"q": "?", "good": "a", "bad": "b", "chosen": "not this"}
    source = jsonl(row, prompt_column="q", columns={"chosen": "good", "rejected": "bad"})
    (pair,) = source.preferences(0)
    assert (pair.chosen, pair.rejected, pair.prompt.info) == ("a", "b", {"chosen": "not this"})
    assert "there is no good: columns.chosen says" in wrong(
        jsonl({"q": "?", "chosen": "a", "rejected": "b"}, prompt_column="q", columns={"chosen": "good"}),
        of="preferences",
    )


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "q", "rejected": "b"}, "there is no chosen: columns.chosen says where a row has the better answer."),
    ({"prompt": "q", "chosen": "a", "rejcted": "b"}, "there is no rejected: columns.rejected says where a row has the"),
    (PAIR | {"chosen": None}, "chosen is null: columns.chosen"),
    (PAIR | {"chosen": 5}, "chosen is 5: it must be text, or a list of messages"),
    (PAIR | {"chosen": []}, "chosen is empty"),
    (PAIR | {"chosen": chat("Uq")}, 'the role of the last of chosen is "user": an answer is the assistant\'s'),
    ({"chosen": "a", "rejected": "b"}, "there is no prompt and no messages in chosen before the answer"),
    ({"chosen": chat("Aa"), "rejected": chat("Ab")}, "there is no prompt and no messages in chosen before the answer"),
    (
        {"chosen": chat("Uq", "Aa"), "rejected": chat("Ur", "Ab")},
        "chosen and rejected differ before their last message: a pair is two answers to one prompt",
    ),
    ({"chosen": chat("Uq", "Aa"), "rejected": "b"}, "chosen and rejected differ before their last message"),
    (
        {"prompt": "other", "chosen": chat("Uq", "Aa"), "rejected": chat("Uq", "Ab")},
        "chosen begins with other messages than prompt: leave one of the two out",
    ),
    (PAIR | {"margin": -1}, "margin is -1: by how much the chosen is better, at least 0; swap the answers"),
    (PAIR | {"margin": "big"}, 'margin is "big": it must be a number'),
    (PAIR | {"margin": True}, "margin is true: it must be a number"),
    (PAIR | {"margin": 10**400}, "margin is an integer of 1329 bits: it must be a finite number"),
    (PAIR | {"tied": "yes"}, 'tied is "yes": it must be true or false'),
    (PAIR | {"tied": True, "margin": 1}, "the pair: Preference.margin is 1.0 in a tied pair"),
    (PAIR | {"chosen": "\ud800"}, "the pair: Preference.chosen has a lone surrogate"),
    (PAIR | {"prompt": [*chat("Uq"), {"role": "user"}]}, "prompt[1] has no content"),
]


def test_a_bad_pair_is_named_with_its_line(jsonl: Callable[..., Jsonl]) -> None:
    for row, message in BAD:
        source = jsonl(PAIR, row, shuffle=False)
        told = wrong(source, of="preferences")
        assert told.startswith("1 of 2 rows cannot be used:")
        assert "line 2" in told
        assert message in told
        with pytest.raises(UserError, match="line 2"):
            list(source.preferences(0))


def test_several_pairs_may_have_one_id_if_they_have_one_prompt(jsonl: Callable[..., Jsonl]) -> None:
    rows = [PAIR | {"id": "x"}, PAIR | {"id": "x", "rejected": "c"}]
    source = jsonl(*rows)
    source.check(of="preferences")
    assert len(list(source.preferences(0))) == 2
    assert 'the id "x" is also that of' in wrong(source)  # of prompts each is there once
    other = jsonl(*rows, PAIR | {"id": "x", "prompt": "another"})
    assert "line 1, which has another prompt: make the ids unique" in wrong(other, of="preferences")
