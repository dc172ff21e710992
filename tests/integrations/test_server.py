"""The reward server over real HTTP: forms, limits, hostile bodies, and no number where there is no score."""

import asyncio
import json
import math
from typing import Any

import jsonschema
import pytest

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.integrations.openrlhf_reward import END_TOKENS, answer_in_query
from rewardsmith.integrations.server import BODIES_IN_FLIGHT
from rewardsmith.integrations.server_openapi import EXAMPLES, STATUS, openapi
from rewardsmith.integrations.server_protocols import score_json
from rewardsmith.records import from_json, to_json
from tests.engines.faulty import FaultyServer, said
from tests.integrations.serving import MATH, Served, serving

SLOW = "tests.integrations.slow_rewards:Slow"
FAILS = {"type": "tests.integrations.slow_rewards:Fails"}
TEMPLATE = "<|im_start|>user\n6 · 7?<|im_end|>\n<|im_start|>assistant\n"
GROUP = {"prompt": "6 · 7?", "answer": "42", "responses": ["\\boxed{42}", "\\boxed{41}"]}


def values(reply: Any) -> list[float | None]:
    return [score["value"] for score in reply["scores"]]


# ---- our own form --------------------------------------------------------------------------------------------------


async def own_form() -> None:
    messages = [{"role": "user", "content": "6 · 7?"}]
    prompt = {"id": "p1", "messages": messages, "source": "s", "answer": "42", "info": {"level": 1}}
    async with serving(MATH) as served:
        assert await served.post("/score", GROUP) == (200, await scored(served, GROUP))
        for given in ("6 · 7?", messages):
            assert values(await scored(served, GROUP | {"prompt": given})) == [1.0, 0.0]
        reply = await scored(served, {"prompt": prompt, "responses": ["\\boxed{42}"]})
        assert reply["id"] == "p1"
        assert reply["scores"] == [{"value": 1.0, "failure": None, "parts": {}, "feedback": "", "label": ""}]
        group = RolloutGroup(Prompt("p2", [Message("user", "?")], answer="42"), [Rollout("42", tokens=[1, 2])])
        several = await scored(served, {"groups": [GROUP, to_json(group)], "deadline": 30})
        assert [values(one) for one in several["groups"]] == [[1.0, 0.0], [1.0]]
        assert several["groups"][1]["id"] == "p2"


async def scored(served: Served, body: Any) -> Any:
    status, reply = await served.post("/score", body)
    assert status == 200, reply
    return reply


def test_our_own_form() -> None:
    asyncio.run(own_form())


def test_a_score_survives_the_wire() -> None:
    failed = Score(failure=Failure("timeout", "no reply", attempts=3))
    parts = {"a": Score(2.5, feedback="é", label="wrong-form"), "b": Score(failure=failed.failure, parts={"c": failed})}
    score = Score(1.5, parts=parts, token_values=[0.5, 1.0], token_support=[True, False])
    line = json.dumps(score_json(score))
    assert from_json(Score, json.loads(line)) == score
    assert json.loads(line)["parts"]["b"]["value"] is None


def test_failures_have_kind_detail_and_attempts_and_no_value() -> None:
    async def run() -> None:
        table = {"type": "sum", "parts": {"bad": FAILS, "good": MATH}}
        async with serving(table) as served:
            for score in (await scored(served, GROUP))["scores"]:
                assert score["value"] is None
                assert score["failure"]["kind"] == "refused"
                assert score["failure"]["attempts"] == 3
                assert score["parts"]["bad"]["failure"] == {"kind": "refused", "detail": 'no "credits"', "attempts": 3}
                assert score["parts"]["good"]["value"] in (0.0, 1.0)
            _, text = await served.get("/metrics")
            assert 'rewardsmith_failures_total{part="bad",kind="refused",process="0"} 2' in text
            assert 'rewardsmith_failures_total{part="reward",kind="refused",process="0"} 2' in text
            assert 'rewardsmith_scores_total{process="0"} 0' in text
            assert 'rewardsmith_requests_total{endpoint="/score",status="200",process="0"} 1' in text
            assert 'rewardsmith_request_seconds_bucket{endpoint="/score",le="+Inf",process="0"} 1' in text

    asyncio.run(run())


def test_no_budget_ends_the_server_and_a_policy_that_stops_is_a_503() -> None:
    async def run() -> None:
        async with serving(FAILS | {"failure": {"min_failures": 1, "window": 4}}) as served:
            for _ in range(20):
                assert values(await scored(served, GROUP)) == [None, None]
        async with serving(FAILS | {"failure": {"do": "stop"}}) as served:
            for body in (GROUP, {"groups": [GROUP, GROUP]}):
                status, reply = await served.post("/score", body)
                assert (status, reply["error"]["kind"]) == (503, "stopped")
                assert 'failure.do is "stop"' in reply["error"]["message"]

    asyncio.run(run())


# ---- the forms of others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        (f"{TEMPLATE}yes<|im_end|>", "yes"),
        (f"<|endoftext|><|endoftext|>{TEMPLATE}yes\n<|im_end|>\n<|endoftext|> ", "yes\n"),
        (f"<s> {TEMPLATE}a</s> b</s>", "a</s> b"),
        (f"{TEMPLATE}{TEMPLATE}x", f"{TEMPLATE}x"),  # an answer that repeats the prompt
        (TEMPLATE, ""),
        (TEMPLATE + "x" + " " * 200_000 + "y", "x" + " " * 200_000 + "y"),  # in linear time
        (TEMPLATE + "".join(END_TOKENS) * 5_000, ""),
    ],
)
def test_the_answer_of_a_query(query: str, answer: str) -> None:
    assert answer_in_query(query, TEMPLATE) == answer


def test_openrlhf() -> None:
    def body(*answers: str) -> dict[str, Any]:
        count = len(answers)
        queries = [f"{TEMPLATE}{answer}<|im_end|>" for answer in answers]
        return {"query": queries, "prompts": [TEMPLATE] * count, "labels": ["42"] * count}

    async def run() -> None:
        parts = {"score": MATH, "never": {"type": "gate", "rule": MATH, "judge": {"type": SLOW, "seconds": 0.0}}}
        async with serving({"type": "sum", "parts": parts}) as served:
            status, reply = await served.post("/get_reward", body("\\boxed{42}"))
            assert status == 200
            assert reply["rewards"] == reply["scores"] == 1.0 + 10.0
            assert reply["extra_logs"]["part/score"] == 1.0
            status, reply = await served.post("/get_reward?source=x", body("no", "\\boxed{42}"))
            assert reply["rewards"] == reply["scores"] == [0.0, 11.0]
            assert math.isnan(reply["extra_logs"]["part/never.judge"][0])  # it was not computed
            assert reply["extra_logs"]["part/never.judge"][1] == 10.0
            assert set(reply["extra_logs"]) == {"part/score", "part/never", "part/never.rule", "part/never.judge"}
            wrong = body("x") | {"prompts": ["another prompt"]}
            status, reply = await served.post("/get_reward", wrong)
            assert status == 400
            assert "does not begin with prompts[0]" in reply["error"]["message"]
            status, _ = await served.post("/get_reward", body("x") | {"labels": ["1", "2"]})
            assert status == 400
        async with serving(FAILS) as served:
            status, reply = await served.post("/get_reward", body("x"))
            assert status == 503
            assert "rewards" not in reply
            assert reply["error"]["failures"][0]["kind"] == "refused"

    asyncio.run(run())


def test_nemo_gym() -> None:
    example: dict[str, Any] = EXAMPLES["/verify"]["one rollout"]

    async def run() -> None:
        async with serving({"type": "sum", "parts": {"answer": MATH}}) as served:
            assert await served.post("/seed_session", {}) == (200, {})
            assert await served.get("/reverify_mode") == (200, '"stateless"')
            status, reply = await served.post("/verify", example)
            assert status == 200
            assert reply == {**example, "reward": 1.0, "reward_components": {"answer": 1.0}}
            thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "\\boxed{42}"}]}
            other = example | {"response": {"output": [thinking]}}  # only the answer counts
            assert (await served.post("/verify", other))[1]["reward"] == 0.0
            rows = [{"_ng_task_index": 0, "reward": 1.0, "ok": True}, {"_ng_task_index": 1, "reward": 0.5, "ok": False}]
            failed = {"_ng_task_index": 1, "reward": 0.0, "_ng_failure_class": "judge_failed"}
            status, reply = await served.post("/aggregate_metrics", {"verify_responses": [*rows, failed]})
            assert reply["key_metrics"] == {"mean/reward": 0.75, "mean/ok": 0.5}
            assert [one["mean/reward"] for one in reply["group_level_metrics"]] == [1.0, 0.5]
            assert (await served.post("/verify", {"response": {}}))[0] == 400
        async with serving(FAILS) as served:
            status, reply = await served.post("/verify", example)
            assert status == 503
            assert "reward" not in reply

    asyncio.run(run())


def test_a_judge_that_fails_gives_no_number_in_any_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real client, real faults: half of the replies are no verdicts."""
    from rewardsmith.engines.client import ServedModel
    from rewardsmith.engines.model_settings import ClientSettings

    async def run() -> None:
        async with FaultyServer(say=lambda body: "Total Score: 7/10") as judge:
            settings = ClientSettings(retries=0, backoff=0.01, max_backoff=0.02, deadline=5.0)
            model = ServedModel(settings, [judge.url], model=judge.model)
            table = {"type": "rubric", "model": "judge", "request": {"tries": 1}, "failure": {"wait": 0.0}}
            table |= {"criteria": "10 points for a good answer"}
            info = {
                "prompt": {"id": "p", "messages": GROUP_MESSAGES, "info": {"rubric": "10 points for a good answer"}}
            }
            async with serving(table, models={"judge": model}) as served:
                assert values(await scored(served, info | {"responses": ["a"]})) == [0.7]
                for fault in ("401", "half", "empty", "html", "filtered", said("the weather is fine")):
                    judge.plan(fault)
                    (score,) = (await scored(served, info | {"responses": ["a"]}))["scores"]
                    assert score["value"] is None
                    assert score["failure"]["kind"] in ("refused", "unparsable")
                    judge.plan(fault)
                    body = {"query": ["?x"], "prompts": ["?"], "labels": [""]}
                    assert (await served.post("/get_reward", body))[0] == 503
            await model.close()

    asyncio.run(run())


GROUP_MESSAGES = [{"role": "user", "content": "?"}]


# ---- limits --------------------------------------------------------------------------------------------------------


def test_the_token() -> None:
    async def run() -> None:
        async with serving(MATH, token="s3cret-token") as served:
            for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret-token"},
                           {"Authorization": "Bearer s3cret-tokén"}):  # fmt: skip
                status, reply = await served.post("/score", GROUP, **header)
                assert (status, reply["error"]["kind"]) == (401, "unauthorised")
            for path in ("/metrics", "/openapi.json", "/docs", "/reverify_mode"):
                assert (await served.get(path))[0] == 401
            for path in ("/health", "/ready"):
                assert (await served.get(path))[0] == 200
            assert (await served.post("/score", GROUP, Authorization="bearer s3cret-token"))[0] == 200
            assert (await served.get("/metrics", Authorization="Bearer s3cret-token"))[0] == 200

    asyncio.run(run())


def test_bodies_that_are_too_large_or_of_another_type() -> None:
    async def run() -> None:
        async with serving(MATH, max_body=2_000, max_in_flight=3) as served:
            for raw in (b"x" * 3_000, json.dumps(GROUP | {"responses": ["x" * 3_000]}).encode()):
                status, reply = await served.post("/score", raw=raw)
                assert (status, reply["error"]["kind"]) == (413, "too_large")

            async def chunks() -> Any:
                for _ in range(30):
                    yield b"[" * 100

            headers = {"Content-Type": "application/json"}
            async with served.session.post(f"{served.url}/score", data=chunks(), headers=headers) as reply:
                assert reply.status == 413
            status, reply = await served.post("/score", GROUP | {"responses": ["x"] * 4})
            assert status == 413
            assert "--max-in-flight" in reply["error"]["message"]
            assert (await served.post("/score", GROUP, Content_Type="text/plain"))[0] == 415
            assert (await served.post("/score", GROUP, Content_Encoding="gzip"))[0] == 415
            assert (await served.get("/score"))[0] == 405
            assert (await served.get("/nothing"))[0] == 404
            assert values(await scored(served, GROUP)) == [1.0, 0.0]

    asyncio.run(run())


def test_more_than_it_can_take_is_refused_with_a_time_to_come_back() -> None:
    async def run() -> None:
        async with serving({"type": SLOW, "seconds": 0.5}, max_in_flight=4, concurrency=1) as served:
            first = [asyncio.create_task(served.post("/score", GROUP)) for _ in range(2)]
            while served.server._rollouts < 4:
                await asyncio.sleep(0.01)
            assert (served.server._scoring, served.server._queued) == (1, 1)
            headers = {"Content-Type": "application/json"}
            async with served.session.post(f"{served.url}/score", json=GROUP, headers=headers) as reply:
                assert reply.status == 429
                assert int(reply.headers["Retry-After"]) >= 1
            assert [status for status, _ in await asyncio.gather(*first)] == [200, 200]
            assert (await served.post("/score", GROUP))[0] == 200
            _, text = await served.get("/metrics")
            assert 'rewardsmith_requests_total{endpoint="/score",status="429",process="0"} 1' in text

    asyncio.run(run())


async def unfinished(served: Served, header: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the first byte of a body, and no more."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{header}\r\n\r\n"
    writer.write(head.encode() + (b"1\r\n{\r\n" if "chunked" in header else b"{"))
    while served.server._body_bytes == 0:
        await asyncio.sleep(0.01)
    return reader, writer


@pytest.mark.parametrize("header", ["Transfer-Encoding: chunked", "Content-Length: 2000"])
def test_uploads_that_stand_still_lock_nobody_out(header: str) -> None:
    async def run() -> None:
        async with serving(MATH, max_body=2_000) as served:
            idle = [await unfinished(served, header) for _ in range(BODIES_IN_FLIGHT)]
            assert values(await scored(served, GROUP)) == [1.0, 0.0]
            for _, writer in idle:
                writer.close()
            while served.server._body_bytes:
                await asyncio.sleep(0.01)
        async with serving(MATH, body_pause=0.2) as served:
            reader, writer = await unfinished(served, header)
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            assert served.server._body_bytes == 0
            writer.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_bodies_that_are_too_large_together_are_refused() -> None:
    async def run() -> None:
        async with serving(MATH, max_body=2_000) as served:
            served.server.reserve(BODIES_IN_FLIGHT * 2_000 - 10)
            status, reply = await served.post("/score", GROUP)
            assert (status, reply["error"]["kind"]) == (429, "busy")
            served.server.release(100)
            assert values(await scored(served, GROUP)) == [1.0, 0.0]

    asyncio.run(run())


def test_what_is_not_scored_in_time_is_a_timeout_and_the_rest_is_kept() -> None:
    async def run() -> None:
        routes = {"slow": {"type": SLOW, "seconds": 60.0}, "fast": {"type": SLOW, "seconds": 0.0}}
        async with serving({"type": "route", "routes": routes}, deadline=50.0) as served:
            groups = [GROUP | {"source": source} for source in ("fast", "slow")]
            fast, slow = (await scored(served, {"groups": groups, "deadline": 0.3}))["groups"]
            assert values(fast) == [10.0, 10.0]
            assert values(slow) == [None, None]
            assert slow["scores"][0]["failure"]["kind"] == "timeout"
            assert served.server._rollouts == served.server._scoring == 0
            body = {"query": ["?x"], "prompts": ["?"], "labels": [""], "deadline": 1}
            served.server.limits = type(served.server.limits)(deadline=0.2)
            status, _ = await served.post("/get_reward?source=slow", body)
            assert status == 503

    asyncio.run(run())


def test_a_service_that_is_waited_for_until_the_deadline_is_unreachable() -> None:
    async def run() -> None:
        table = {"type": "tests.rewards.stubs:Flaky", "after": 10**6, "failure": {"wait": 300.0}}
        async with serving(table) as served:
            (score,) = (await scored(served, {"prompt": "?", "responses": ["{}"], "deadline": 0.3}))["scores"]
            assert score["failure"]["kind"] == "unreachable"

    asyncio.run(run())


def test_a_client_that_goes_away_frees_its_place() -> None:
    async def run() -> None:
        async with serving({"type": SLOW, "seconds": 60.0}, max_in_flight=2) as served:
            gone = asyncio.create_task(served.post("/score", GROUP))
            while served.server._scoring < 1:
                await asyncio.sleep(0.01)
            gone.cancel()
            while served.server._rollouts or served.server._scoring or served.server.requests:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_before_the_reward_is_ready() -> None:
    async def run() -> None:
        async with serving(None) as served:
            assert (await served.get("/health"))[0] == 200
            assert (await served.get("/ready"))[0] == 503
            status, reply = await served.post("/score", GROUP)
            assert (status, reply["error"]["kind"]) == (503, "not_ready")

    asyncio.run(run())


# ---- hostile bodies ------------------------------------------------------------------------------------------------

HOSTILE = {
    "deep": b"[" * 500_000,
    "deep in a field": b'{"prompt": "?", "responses": ["x"], "info": ' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001,
    "nan": b'{"prompt": "?", "responses": ["x"], "answer": NaN}',
    "infinite deadline": b'{"prompt": "?", "responses": ["x"], "deadline": 1e999}',
    "huge integer": b'{"prompt": "?", "responses": ["x"], "policy_version": ' + b"9" * 5_000 + b"}",
    "large integer": b'{"prompt": "?", "responses": ["x"], "policy_version": 99999999999999999999}',
    "duplicate keys": b'{"prompt": "?", "prompt": "!", "responses": ["x"]}',
    "surrogate in an answer": b'{"prompt": "?", "responses": ["\\ud800"]}',
    "surrogate in a name": b'{"prompt": "?", "responses": ["x"], "\\ud800": 1}',
    "surrogate in a prompt": b'{"prompt": "\\udfff", "responses": ["x"]}',
    "not utf-8": b'{"prompt": "\xff", "responses": ["x"]}',
    "empty": b"",
    "text": b'"text"',
    "null": b"null",
    "list": b"[1, 2]",
    "no prompt": b'{"responses": ["x"]}',
    "no responses": b'{"prompt": "?"}',
    "empty responses": b'{"prompt": "?", "responses": []}',
    "both": b'{"prompt": "?", "responses": ["x"], "rollouts": [{"text": "x"}]}',
    "number as answer": b'{"prompt": "?", "responses": [1]}',
    "null as answer": b'{"prompt": "?", "responses": [null]}',
    "text as responses": b'{"prompt": "?", "responses": "x"}',
    "empty messages": b'{"prompt": [], "responses": ["x"]}',
    "odd message": b'{"prompt": [{"role": 1, "content": "x"}], "responses": ["x"]}',
    "number as prompt": b'{"prompt": 5, "responses": ["x"]}',
    "odd source": b'{"prompt": "?", "source": 5, "responses": ["x"]}',
    "odd id": b'{"prompt": "?", "id": "", "responses": ["x"]}',
    "unknown field": b'{"prompt": "?", "respones": ["x"], "responses": ["x"]}',
    "odd rollout": b'{"prompt": "?", "rollouts": [{"text": "x", "tokens": [-1]}]}',
    "odd tokens": b'{"prompt": "?", "rollouts": [{"text": "x", "tokens": {"int32": "!!"}}]}',
    "negative deadline": b'{"prompt": "?", "responses": ["x"], "deadline": -1}',
    "boolean deadline": b'{"prompt": "?", "responses": ["x"], "deadline": true}',
    "empty groups": b'{"groups": []}',
    "odd groups": b'{"groups": [[]]}',
    "field next to groups": b'{"groups": [{"prompt": "?", "responses": ["x"]}], "answer": 1}',
}


OUTPUT = b'"response": {"output": [{"type": "message", "content": "x", "logprobs": %s}]}'
NOT_FINITE = [
    *(("/verify", b'{"responses_create_params": {"input": "?"}, ' + OUTPUT % number + b"}")
      for number in (b"NaN", b"-Infinity", b"1e999")),
    ("/verify", b'{"responses_create_params": {"input": "?", "temperature": NaN}, ' + OUTPUT % b"0" + b"}"),
    ("/aggregate_metrics", b'{"verify_responses": [{"r": 1e308}, {"r": 1e308}]}'),
    ("/aggregate_metrics", b'{"verify_responses": [{"r": 1e308}, {"r": 1e308}, {"r": -1e308}]}'),
    ("/aggregate_metrics", b'{"verify_responses": [{"r": 1.7e308}, {"r": -1.7e308}]}'),
]  # fmt: skip


def test_hostile_bodies_are_refused_and_the_server_goes_on() -> None:
    async def run() -> None:
        async with serving(MATH) as served:
            for name, raw in HOSTILE.items():
                for path in ("/score", "/get_reward", "/verify", "/aggregate_metrics"):
                    status, reply = await served.post(path, raw=raw)
                    assert (status, reply["error"]["kind"]) == (400, "bad_request"), (name, path)
                    assert len(reply["error"]["message"]) < 1_000
            for path, raw in NOT_FINITE:
                status, reply = await served.post(path, raw=raw)
                assert (status, reply["error"]["kind"]) == (400, "bad_request"), raw
            assert values(await scored(served, GROUP)) == [1.0, 0.0]

    asyncio.run(run())


# ---- the document --------------------------------------------------------------------------------------------------


def test_the_openapi_document_is_consistent_and_its_examples_are_accepted() -> None:
    document = openapi("test")
    json.dumps(document)
    references = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                references.add(value["$ref"])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    schemas = document["components"]["schemas"]
    assert references == {f"#/components/schemas/{name}" for name in schemas if name != "none"}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def check(value: Any, schema: Any) -> None:
        jsonschema.validate(value, {**schema, "components": document["components"]})

    async def run() -> None:
        async with serving(MATH) as served:
            for path, examples in EXAMPLES.items():
                operation = document["paths"][path]["post"]
                assert set(operation["responses"]) == {"200", *STATUS}
                for body in examples.values():
                    check(body, operation["requestBody"]["content"]["application/json"]["schema"])
                    status, reply = await served.post(path, body)
                    assert status == 200, reply
                    check(reply, operation["responses"]["200"]["content"]["application/json"]["schema"])
            for path, methods in document["paths"].items():
                if "get" in methods:
                    assert (await served.get(path))[0] == 200
            _, text = await served.get("/openapi.json")
            assert json.loads(text)["openapi"] == "3.1.0"
            _, page = await served.get("/docs")
            assert "<script" not in page
            assert "http://" not in page.replace("http://127.0.0.1", "")
            status, reply = await served.post("/score", {"prompt": "?"})
            check(
                reply, document["paths"]["/score"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
            )

    asyncio.run(run())


def test_scored_groups_in_a_reply_are_those_of_the_types() -> None:
    async def run() -> None:
        async with serving(MATH) as served:
            reply = await scored(served, GROUP)
            group = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout(text) for text in GROUP["responses"]])
            assert ScoredGroup(group, [from_json(Score, one) for one in reply["scores"]]).scores[0].value == 1.0

    asyncio.run(run())
