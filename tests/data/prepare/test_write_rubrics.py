"""`rewardsmith prepare rubric` with a faulty server: rows, revisions, failures, resume, bad input."""

import asyncio
import json
from pathlib import Path

import pytest

from rewardsmith import Message, Rollout, RolloutGroup
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.prepare.write_rubrics import revised_prompt
from rewardsmith.rewards.judges.graders import Rubric
from rewardsmith.text.judge_replies import Unparsable
from tests.data.prepare.jobs import names, read_rows, write_rows
from tests.data.prepare.serving import CRITERIA, Serving, problems, reply_to, rubric, rubric_command
from tests.engines.faulty import said
from tests.rewards.judges.scripted_judges import connected


def test_every_row_gets_criteria(serving: Serving) -> None:
    ended = rubric_command("--limit", "11")
    assert (ended.status, rubric_command().status) == (0, 0)
    assert len(serving.prompts) == 12  # nothing is requested twice
    rows = read_rows("out.jsonl")
    assert [row["id"] for row in rows] == [f"p{i}" for i in range(12)]  # the order of the input
    for before, row in zip(problems(12), rows, strict=True):
        assert {key: row[key] for key in before} == before
        assert row["extra_info"]["criteria"] == CRITERIA
        made_by = row["extra_info"]["criteria_made_by"]
        assert '"model": "tiny"' in made_by["model"]
        assert (made_by["template"], made_by["parser"], made_by["tries"]) == ("write_rubric", "written-rubric-2", 1)
        assert made_by["parts"] == ["strategy", "computation", "synthesis", "conclusion"]
        assert len(made_by["template_sha256"]) == 64
    facts = json.loads(Path("out.jsonl.provenance.json").read_text())
    assert (facts["command"], facts["written"], facts["failed"]) == ("prepare rubric", {"out.jsonl": 12}, 0)
    assert (facts["resumed"], facts["counts"]["with a right answer"]) == (11, 12)
    assert (facts["inputs"][0]["rows"], facts["settings"]["max_tokens"]) == (12, 4096)
    assert json.loads(facts["identity"])["model"] == "tiny"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_rubric_reward_uses_what_was_written(serving: Serving, suffix: str) -> None:
    assert rubric_command(out=f"out{suffix}").status == 0
    source = (Jsonl if suffix == ".jsonl" else Parquet)(path=f"out{suffix}", shuffle=False)
    source.check()
    for prompt in source.prompts(0):
        reward, model = connected(Rubric, ["Total Score: 5/10"])
        reward.require(prompt)
        (score,) = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout("an answer")])))
        assert score.value == 0.5
        assert "1. (points: 2) Names a method" in model.seen[0]


def test_faults_of_the_server_change_nothing(serving: Serving) -> None:
    assert rubric_command(out="calm.jsonl").status == 0
    serving.server.plan("500", "429-after", "reset", "half", "502", "reset-midway", "schema", "empty", "503")
    assert rubric_command().status == 0
    assert read_rows("out.jsonl") == read_rows("calm.jsonl")


def test_an_incomplete_rubric_is_revised(serving: Serving) -> None:
    write_rows(Path("problems.jsonl"), problems(1))
    short = rubric(criteria=rubric()["criteria"][:2])
    serving.server.plan(said(json.dumps(short)), said("cut", finish="length"))
    assert rubric_command().status == 0
    first, second, third = serving.server.bodies
    assert [len(body["messages"]) for body in (first, second, third)] == [1, 3, 1]
    assert "at least 4 items" in second["messages"][-1]["content"]
    assert "could not be used" in third["messages"][-1]["content"]
    assert [body["temperature"] for body in (first, second, third)] == [0.0, 0.3, 0.6]
    assert read_rows("out.jsonl")[0]["extra_info"]["criteria_made_by"]["tries"] == 3


def test_a_revision_shows_the_last_reply_alone_without_role_tokens_and_not_in_full() -> None:
    first = (Message("system", "s"), Message("user", "A rubric?"))
    *start, reply, wrong = revised_prompt(first, "<|im_end|>" + "x" * 1_000_000, Unparsable("no <|im_end|>"))
    assert (tuple(start), reply.role, wrong.role) == (first, "assistant", "user")
    assert reply.content.startswith("< |im_end|>x")
    assert len(reply.content) < 21_000
    assert "< |im_end|>" in wrong.content
    assert [message.role for message in revised_prompt(first, " ", Unparsable("truncated"))] == ["system", "user"]


def test_a_row_without_a_rubric_is_listed_and_requested_again(serving: Serving) -> None:
    serving.server.say = lambda body: (
        "No." if "How much is 5 + 5?" in body["messages"][0]["content"] else reply_to(body)
    )
    ended = rubric_command()
    assert ended.status == 0
    assert "problems.jsonl, line 6: unparsable after 3 tries" in ended.out
    assert [row["id"] for row in read_rows("out.jsonl")] == [f"p{i}" for i in range(12) if i != 5]
    assert json.loads(Path("out.jsonl.provenance.json").read_text())["failures"][0]["kind"] == "unparsable"
    assert rubric_command("--fail-above", "0.05").status == 1
    serving.server.say = reply_to
    serving.server.requests.clear()
    assert rubric_command().status == 0
    assert len(serving.prompts) == 1
    assert [row["id"] for row in read_rows("out.jsonl")] == [f"p{i}" for i in range(12)]


def test_replies_of_other_settings_or_another_model_need_a_fresh_start(serving: Serving) -> None:
    assert rubric_command("--limit", "7").status == 0
    # More tokens or tries, or another seed, are no other rubrics; another temperature is.
    assert rubric_command("--max-tokens", "9000", "--tries", "5", "--seed", "3", "--limit", "7").status == 0
    refused = rubric_command("--temperature", "1")
    assert (refused.status, len(serving.prompts)) == (2, 7)
    assert "request.temperature" in refused.err
    assert "--fresh" in refused.err
    serving.server.models = ["another"]
    refused = rubric_command()
    assert (refused.status, len(serving.prompts)) == (2, 7)
    assert "identity" in refused.err
    assert rubric_command("--fresh").status == 0
    assert {json.loads(row["extra_info"]["criteria_made_by"]["model"])["model"] for row in read_rows("out.jsonl")} == {
        "another"
    }


def test_columns_and_references(serving: Serving) -> None:
    rows = [{"question": f"{i} + 1?", "answer": f"{i} + 1 is it\n#### {i + 1}", "extra_info": None} for i in range(3)]
    write_rows(Path("gsm.jsonl"), rows)
    columns = ("--prompt-column", "question", "--answer-column", "answer", "--solution-column", "answer")
    assert rubric_command(*columns, source="gsm.jsonl").status == 0
    assert all("## Reference" in prompt and "is it\n#### " in prompt for prompt in serving.prompts)
    assert rubric_command(*columns, "--hide-reference", source="gsm.jsonl", out="blind.jsonl").status == 0
    assert not any("## Reference" in prompt for prompt in serving.prompts[3:])


BAD_ROWS = [
    (b'{"promt": "x"}', "there is no prompt and no messages: prompt_column"),
    (b'{"prompt": "How much is 1 + 1?", "reward_model": {"ground_truth": "2"}}', "the same problem as in"),
    (b'{"prompt": "new", "id": "p1"}', "the same id as in problems.jsonl, line 2"),
    (b'{"prompt": "old", "criteria": ["a"]}', "the row has criteria already: set replace"),
    (b'{"prompt": "  "}', "prompt is blank"),
    (b'{"prompt": "\\ud800"}', "prompt"),
]


def test_bad_rows_are_found_before_the_model_is_called(serving: Serving) -> None:
    write_rows(Path("problems.jsonl"), [*problems(12), *(line for line, _ in BAD_ROWS)])
    refused = rubric_command()
    assert refused.status == 2
    assert f"{len(BAD_ROWS)} of {12 + len(BAD_ROWS)} rows cannot be used:" in refused.err
    for number, (_, message) in enumerate(BAD_ROWS, start=13):
        assert f"problems.jsonl, line {number}\n" in refused.err
        assert message in refused.err
    assert serving.prompts == []
    assert names(Path()) == {"models.toml", "problems.jsonl", "solved.jsonl"}
    ended = rubric_command("--skip-bad")
    assert (ended.status, len(read_rows("out.jsonl"))) == (0, 12)
    assert f"{len(BAD_ROWS)} rows left out" in ended.out


MISTAKES: list[tuple[dict[str, str], list[str], str]] = [
    ({"out": "problems.jsonl"}, [], "is one of the input files"),
    ({"model": "storng"}, [], 'Did you mean "strong"?'),
    ({}, ["--template", "write_rubrik"], 'Did you mean "write_rubric"?'),
    ({}, ["--answer-column", "rewardmodel"], 'Did you mean "reward_model"?'),
    ({}, ["--solution-column", "extra_info.s"], "no row has the column of solution_column"),
]


def test_mistakes(serving: Serving) -> None:
    for place, arguments, message in MISTAKES:
        refused = rubric_command(*arguments, **place)
        assert (refused.status, message in refused.err) == (2, True), (message, refused.err)
    Path("out.jsonl").write_text("precious")
    assert "exists" in rubric_command().err
    assert Path("out.jsonl").read_text() == "precious"
    assert serving.prompts == []
