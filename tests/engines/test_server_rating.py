"""Served models that rate and embed: what is sent, and which answers are not believed."""

import json
import math
from typing import Any

import numpy as np
import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.types import Message
from tests.engines.asked import client, run_async
from tests.engines.faulty import FAULTS, FaultyServer, raw, status


def talk(answer: str, prompt: str = "why?") -> list[Message]:
    return [Message("system", "be brief"), Message("user", prompt), Message("assistant", answer)]


@run_async
async def test_a_classifier_reads_conversations(server: FaultyServer) -> None:
    model = client(server, serves="classify")
    await model.check()
    server.requests.clear()
    assert await model.rate([talk("a" * n) for n in (5, 1, 3)]) == [5.0, 1.0, 3.0]
    assert {path for path, _, _ in server.requests} == {"/classify"}
    assert server.bodies[0] == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "why?"},
            {"role": "assistant", "content": "aaaaa"},
        ],
        "use_activation": False,
    }
    assert model.usage.prompt_tokens == 7 * 5  # the check asked twice
    assert await model.rate([]) == []
    await model.close()


@run_async
async def test_a_cross_encoder_reads_pairs_in_batches(server: FaultyServer) -> None:
    model = client(server, serves="score", batch=2, body={"use_activation": True})
    await model.check()
    server.requests.clear()
    talks = [talk("a" * n, "b") for n in (20, 30, 40)]
    # The pair is what was said before, and the answer: len("be brief\n\nb") == 11.
    assert await model.rate(talks) == [9.0, 19.0, 29.0]
    assert [len(body["text_2"]) for body in server.bodies] == [2, 1]
    assert server.bodies[1] == {
        "model": "tiny",
        "text_1": ["be brief\n\nb"],
        "text_2": ["a" * 40],
        "use_activation": True,
    }
    await model.close()


@run_async
async def test_a_cross_encoder_refuses_a_conversation_that_does_not_end_with_the_answer(server: FaultyServer) -> None:
    """Whatever reward asks: the number would be that of the last message."""

    model = client(server, serves="score")
    with pytest.raises(ModelCallError) as error:
        await model.rate([talk("a"), [*talk("a"), Message("user", "a reviewer wrote: wrong")]])
    assert error.value.kind == "refused"
    assert 'serves = "classify"' in str(error.value)
    assert not [path for path, _, _ in server.requests if path == "/score"]
    assert model.usage.failed == 2
    await model.close()


@run_async
async def test_vectors_are_ordered_and_of_length_one(server: FaultyServer) -> None:
    model = client(server, serves="embed", batch=2)
    await model.check()
    texts = ["", "a", "bb", "ccc", "dddd"]
    found = await model.embed(texts)
    expected = np.array([[3.0 * (1 + len(text)), 4.0] for text in texts])
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    assert [len(body["input"]) for body in server.bodies] == [1, 2, 2, 1]
    assert (await model.embed([])).shape[0] == 0
    await model.close()


def body(**fields: Any) -> Any:
    return raw(json.dumps(fields).encode())


def row(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, **fields}


@pytest.mark.parametrize(
    ("serves", "answer", "kind"),
    [
        ("classify", body(data=[]), "unparsable"),
        ("classify", body(data=[row(0, probs=[0.4, 0.6])]), "refused"),
        ("classify", body(data=[row(0, probs=[math.nan])]), "unparsable"),
        ("classify", body(data=[row(0, probs=[True])]), "unparsable"),
        ("classify", body(data=[row(0, probs=[10**400])]), "unparsable"),
        ("score", body(data=[row(0, score=1.0)]), "unparsable"),
        ("score", body(data=[row(0, score=1.0), row(0, score=2.0)]), "unparsable"),
        ("score", body(data=[row(0, score=1.0), row(1, score=None)]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=[1.0, 2.0])]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=[0.0])]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=["x"])]), "unparsable"),
        ("embed", FAULTS["503"], "unreachable"),
    ],
)
@run_async
async def test_answers_that_are_not_believed(server: FaultyServer, serves: str, answer: Any, kind: str) -> None:
    server.plan(answer)
    model = client(server, serves=serves, retries=0)
    one_or_two = [talk("a")] if serves == "classify" else [talk("a"), talk("b")]
    asked = model.embed(["a", "b"]) if serves == "embed" else model.rate(one_or_two)
    with pytest.raises(ModelCallError) as raised:
        await asked
    assert raised.value.kind == kind
    await model.close()


@pytest.mark.parametrize(
    ("serves", "answer", "told"),
    [
        ("classify", status(404, "Not Found"), "does not rate conversations"),
        ("classify", body(data=[row(0, probs=[0.4, 0.6])]), "2 classes"),
        ("classify", body(data=[row(0, probs=[1.0])]), "rates everything 1"),
        ("score", status(404, "Not Found"), "does not score pairs"),
        ("embed", status(400, "no embeddings here"), "does not embed texts"),
    ],
)
@run_async
async def test_the_check_finds_a_server_that_does_something_else(
    server: FaultyServer, serves: str, answer: Any, told: str
) -> None:
    server.plan(answer, answer)
    with pytest.raises(UserError, match=told):
        await client(server, serves=serves).check()
