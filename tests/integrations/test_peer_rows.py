"""Rows of other trainers become prompts and answers."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import numpy as np
import pytest

from rewardsmith import Failure, Score, UserError
from rewardsmith.integrations.peer_rows import PeerColumns, completion_text, logged_parts, messages_of, part_values


def test_text_and_conversations() -> None:
    assert [(one.role, one.content) for one in messages_of("2+2?")] == [("user", "2+2?")]
    parts = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert [(one.role, one.content) for one in messages_of(chat)] == [("system", "be brief"), ("user", "What is this?")]
    with pytest.raises(UserError, match="empty"):
        messages_of([])


def test_an_answer_is_what_the_assistant_wrote() -> None:
    turns = [
        {"role": "assistant", "content": "I look.", "tool_calls": []},
        {"role": "tool", "content": "a page that says: the answer is 5"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "It is 4."},
    ]
    assert completion_text(turns) == "I look.\n\nIt is 4."
    assert completion_text("broken \udc80") == "broken ?"


def test_columns_of_a_row() -> None:
    row = {"solution": None, "answer": np.int64(4), "data_source": "sums", "picture": object(), "rubric": ["a"]}
    prompt = PeerColumns().prompt("2+2?", row)
    assert (prompt.answer, prompt.source) == (4, "sums")
    assert set(prompt.info) == {"solution", "answer", "data_source", "rubric"}
    assert prompt.id == PeerColumns().prompt("2+2?", {}).id != PeerColumns().prompt("2+3?", {}).id
    with pytest.raises(UserError, match="truth"):
        PeerColumns(answer="truth").prompt("2+2?", row)
    with pytest.raises(UserError, match="object"):
        PeerColumns(answer="picture").prompt("2+2?", row)


def test_parts_as_columns() -> None:
    failed = Score(failure=Failure("timeout"))
    score = Score(1.0, parts={"sum": Score(1.0, parts={"a": Score(0.5), "b": failed})})
    assert part_values(score) == {"sum": 1.0, "sum.a": 0.5, "sum.b": None}
    assert np.isnan(logged_parts(score)["sum.b"])


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_a_missing_peer_is_named_with_its_extra() -> None:
    with pytest.raises(UserError, match=r"rewardsmith\[verl\]"):
        import rewardsmith.integrations.verl_manager  # noqa: F401


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed")
def test_a_missing_verifiers_is_named_with_its_extra() -> None:
    from rewardsmith.rewards.verifiers_tasks import VerifiersTasks

    with pytest.raises(UserError, match=r"rewardsmith\[verifiers\]"):
        asyncio.run(VerifiersTasks(taskset="gsm8k").check())
