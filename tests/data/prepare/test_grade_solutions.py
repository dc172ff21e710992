"""`rewardsmith prepare graded`: forms, bands, splits, votes, rules, failures, bad input."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Rollout, RolloutGroup
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.prepare.grade_solutions import band_of, band_sizes
from rewardsmith.data.prepare.prepare_job import KEYS, source_key
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.judges.graders import Rubric
from tests.data.prepare.jobs import names, read_rows, write_rows
from tests.data.prepare.serving import CRITERIA, Serving, graded_command, part_of, solved, true_points
from tests.engines.faulty import said
from tests.rewards.judges.scripted_judges import connected

FORMS = ("--forms", "sft", "--forms", "rl", "--forms", "eval")


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [text for row in rows for text in row["responses"]]


def test_three_forms_at_once(serving: Serving) -> None:
    assert graded_command(*FORMS).status == 0
    assert len(serving.prompts) == 40
    sft, rl, measured = (read_rows(f"out.{form}.jsonl") for form in ("sft", "rl", "eval"))
    assert not Path("out.jsonl").exists()
    assert [row["id"] for row in sft] == [row["id"] for row in rl] == [f"p{i}#{j}" for i in range(10) for j in range(4)]
    for text, a, b, c in zip(texts(solved(10)), sft, rl, measured, strict=True):
        points = true_points(text)
        assert part_of(a["messages"][0]["content"], "Answer") == text
        assert a["messages"][1]["content"] == f"I looked at {len(text)} characters.\n\nTotal Score: {points}/10"
        assert b["prompt"] == a["messages"][:1]
        assert (b["data_source"], b["ability"]) == ("grade", "grading")
        assert float(b["reward_model"]["ground_truth"]) == pytest.approx(points / 10)
        assert isinstance(b["reward_model"]["ground_truth"], str)
        assert (c["response"], c["grade"]) == (text, pytest.approx(points / 10))
        assert c["extra_info"]["criteria"] == CRITERIA
    facts = json.loads(Path("out.rl.jsonl.provenance.json").read_text())
    assert (facts["counts"]["solutions with a grade"], facts["parser"]) == (40, "grade-3")
    assert facts["written"] == {f"out.{form}.jsonl": 40 for form in ("sft", "rl", "eval")}
    # Another form or format requests nothing again.
    assert graded_command("--forms", "eval", "--balance", out="out.parquet").status == 0
    assert len(serving.prompts) == 40
    assert len(list(Parquet(path="out.parquet").graded(0))) == 40


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_trainers_and_judges_read_what_is_written(serving: Serving, suffix: str) -> None:
    assert graded_command(*FORMS, out=f"out.{suffix}").status == 0
    sft, rl, measured = (
        (Jsonl if suffix == "jsonl" else Parquet)(path=f"out.{form}.{suffix}", shuffle=False)
        for form in ("sft", "rl", "eval")
    )
    for source, kind in ((sft, "demonstrations"), (rl, "prompts"), (measured, "graded")):
        source.check(of=kind)  # type: ignore[arg-type]
    prompt = next(iter(rl.prompts(0)))
    truth = float(prompt.answer)
    reward = make_reward({"type": "grade_accuracy"})
    answers = [f"Total Score: {10 * truth}/10", "no grade"]
    scores = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in answers])))
    assert [score.value for score in scores] == pytest.approx([1, 0], abs=1e-4)
    # The judge gets the prompt of the teacher.
    graded = next(iter(measured.graded(0)))
    judge, model = connected(Rubric, ["Total Score: 1"])
    asyncio.run(judge.score(RolloutGroup(graded.prompt, [Rollout(graded.response)])))
    assert tuple(model.asked[0].prompt) == tuple(next(iter(sft.demonstrations(0))).prompt.messages)


def test_bands_are_balanced(serving: Serving) -> None:
    write_rows(Path("solved.jsonl"), solved(30, each=3))
    balanced = ("--balance", "--band-ratio", "1.5", "--band-repeats", "3", "--forms", "rl", "--forms", "eval")
    assert graded_command(*balanced).status == 0
    every = Counter(band_of(true_points(text) / 10, 5) for text in texts(solved(30, each=3)))
    before = [every[band] for band in range(5)]
    after = band_sizes(before, 1.5, 3)
    assert after != before
    rows = read_rows("out.rl.jsonl")
    assert Counter(row["extra_info"]["band"] for row in rows) == dict(
        zip(["0-2", "2-4", "4-6", "6-8", "8-10"], after, strict=True)
    )
    assert len({row["id"] for row in rows}) == len(rows)  # copies have names of their own
    assert max(row["extra_info"]["copy"] for row in rows) <= 2
    assert len(read_rows("out.eval.jsonl")) == 90  # what measures a judge is as it is
    first = Path("out.rl.jsonl").read_bytes()
    assert graded_command(*balanced).status == 0
    assert Path("out.rl.jsonl").read_bytes() == first
    assert graded_command(*balanced, "--seed", "1").status == 0
    assert Path("out.rl.jsonl").read_bytes() != first


def test_no_problem_is_in_both_parts_and_the_split_is_that_of_other_commands(serving: Serving) -> None:
    rows = solved(40, each=2)
    again = [{**row, "id": f"again-{i}", "responses": ["another"]} for i, row in enumerate(rows)]
    again = [{**row, "prompt": row["prompt"].replace(" ", "  ").upper()} for row in again]  # only looks different
    write_rows(Path("solved.jsonl"), rows + again)
    held = ("--held-out", "0.3", "--held-out-file", "new/held.jsonl", "--forms", "sft", "--forms", "eval", "--balance")
    for seed in ("0", "1"):
        assert graded_command(*held, "--seed", seed).status == 0
        train, apart = read_rows("out.eval.jsonl"), read_rows("new/held.eval.jsonl")
        questions = [{row["prompt"][0]["content"] for row in part} for part in (train, apart)]
        assert {source_key(text) < 0.3 * KEYS for text in questions[0]} == {False}
        assert {source_key(text) < 0.3 * KEYS for text in questions[1]} == {True}
        assert len(train) + len(apart) == 120
    assert [row["id"] for row in read_rows("new/held.sft.jsonl")] == [row["id"] for row in apart]  # not balanced


def test_votes(serving: Serving) -> None:
    serving.server.say = lambda body: f"Vote.\nTotal Score: {body['seed'] % 3 + 4}/10"
    write_rows(Path("solved.jsonl"), solved(2, each=1))
    votes = ("--votes", "3", "--temperature", "0.7", "--tries", "1", "--forms", "rl", "--forms", "sft")
    assert graded_command(*votes).status == 0
    assert len(serving.prompts) == 6
    assert {row["reward_model"]["ground_truth"] for row in read_rows("out.rl.jsonl")} == {"0.5"}
    assert {row["messages"][1]["content"] for row in read_rows("out.sft.jsonl")} == {"Vote.\n\nTotal Score: 5/10"}
    assert sorted(read_rows("out.rl.jsonl")[0]["extra_info"]["shares"]) == [0.4, 0.5, 0.6]


def test_a_rule_checks_final_answers(serving: Serving) -> None:
    rows = solved(3, each=2)
    rows[2].pop("reward_model")
    rows[0]["right"] = [False, True]  # the rule comes first
    rows[2]["right"] = [False, None]  # here it has no verdict
    write_rows(Path("solved.jsonl"), rows)
    ended = graded_command("--forms", "eval", "--rule", "numeric")
    assert ended.status == 0
    assert [row["right"] for row in read_rows("out.jsonl")] == [True, False, True, False, False, None]
    assert re.search("2  final answers: right\n +3  final answers: wrong\n +1  final answers: unknown", ended.out)
    assert graded_command("--forms", "eval").status == 0
    assert [row["right"] for row in read_rows("out.jsonl")] == [False, True, None, None, False, None]


def test_faults_of_the_server_change_nothing(serving: Serving) -> None:
    assert graded_command(out="calm.jsonl").status == 0
    serving.server.plan("500", "reset", said("Hm."), "429-after", said("Total Score: 11/10"), "half", "502", "empty")
    assert graded_command().status == 0
    for calm, row in zip(read_rows("calm.jsonl"), read_rows("out.jsonl"), strict=True):
        assert calm["messages"] == row["messages"]
    assert sum(row["extra_info"]["tries"] for row in read_rows("out.jsonl")) == 42


BAD_ROWS = [
    ({"prompt": "x", "responses": ["a"]}, "the row has no 'criteria'"),
    ({"prompt": "x", "criteria": "y"}, "there is no responses and no response: response_column"),
    ({"prompt": "x", "criteria": "y", "responses": ["a", 1]}, "responses has 1: a response is text"),
    ({"prompt": "x", "criteria": "y", "responses": ["a"], "right": [True, False]}, "right is a list of 2"),
    ({"prompt": "x", "criteria": "y", "responses": ["a"], "sound": ["yes"]}, 'sound[0] is "yes"'),
    ({"prompt": "x", "criteria": [{"text": "a", "points": -1}, "b"], "responses": ["a"]}, "negative points"),
]


def test_bad_rows_are_found_before_the_teacher_is_called(serving: Serving) -> None:
    write_rows(Path("solved.jsonl"), [*solved(10), *(row for row, _ in BAD_ROWS)])
    refused = graded_command()
    assert refused.status == 2
    for number, (_, message) in enumerate(BAD_ROWS, start=11):
        assert f"solved.jsonl, line {number}\n" in refused.err
        assert message in refused.err
    assert serving.prompts == []
    assert names(Path()) == {"models.toml", "problems.jsonl", "solved.jsonl"}


MISTAKES: list[tuple[list[str], str]] = [
    (["--forms", "stf"], "sft"),
    (["--rule", "mat"], 'Did you mean "math"?'),
    (["--votes", "2"], "temperature above 0"),
    (["--held-out", "0.5", "--held-out-file", "out.jsonl"], "two outputs have one name"),
    (["--answer-column", "reponses"], "there is no reponses: no row has the column of answer_column"),
]


def test_mistakes(serving: Serving) -> None:
    for arguments, message in MISTAKES:
        refused = graded_command(*arguments)
        assert (refused.status, message in refused.err) == (2, True), (message, refused.err)
    assert 'Did you mean "strong"?' in graded_command(model="storng").err
    assert serving.prompts == []


# ---- rows and bands -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 500), max_size=8), st.floats(1, 10), st.integers(1, 6))
def test_what_holds_for_any_band_sizes(counts: list[int], ratio: float, repeats: int) -> None:
    found = band_sizes(counts, ratio, repeats)
    filled = [size for size in found if size]
    assert [bool(size) for size in found] == [bool(count) for count in counts]
    assert all(size <= repeats * count for size, count in zip(found, counts, strict=True))
    if filled:
        assert max(filled) <= ratio * min(filled) + 1e-6
        if max(counts) <= ratio * min(count for count in counts if count):
            assert found == counts
        assert band_sizes(found, ratio, 1) == found  # balanced is balanced
