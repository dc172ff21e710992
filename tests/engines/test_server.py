"""A model behind servers: what is sent, what is read, and what is shown to nobody."""

import asyncio
import gc
import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

import rewardsmith
from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.client.replies import parse_completion
from rewardsmith.engines.model_settings import ClientSettings, ServerSettings
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.llm import ChatRequest
from rewardsmith.recipe import parse_recipe
from rewardsmith.types import Message
from tests.engines.asked import client, kind_of, outcome, question, run_async
from tests.engines.faulty import FAULTS, KEY, FaultyServer, completion, error, raw, said, status


def test_importing_the_client_loads_no_torch() -> None:
    code = "import sys, rewardsmith.engines.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@run_async
async def test_a_question_is_sent_as_it_is_and_counted(server: FaultyServer) -> None:
    model = client(server, price_in=2.0, price_out=10.0, body={"chat_template_kwargs": {"thinking": False}})
    asked = ChatRequest(
        [Message("system", "be brief"), Message("user", "hi é \U0001f600")],
        temperature=0.5,
        top_p=0.9,
        max_tokens=77,
        stop=("###",),
        seed=5,
        logprobs=True,
    )
    answer = await model.chat(asked)
    assert answer.text == "echo: hi é \U0001f600"
    assert (answer.truncated, answer.attempts, answer.prompt_tokens, answer.tokens) == (False, 1, 11, 3)
    assert answer.logprobs == (-0.5, -1.5)
    [(path, headers, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert headers["User-Agent"] == f"rewardsmith/{rewardsmith.__version__}"
    assert "Authorization" not in headers
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi é \U0001f600"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 77,
        "stop": ["###"],
        "seed": 5,
        "logprobs": True,
        "chat_template_kwargs": {"thinking": False},
    }
    usage = model.usage
    assert (usage.calls, usage.retries, usage.failed) == (1, 0, 0)
    assert (usage.prompt_tokens, usage.tokens) == (11, 3)
    assert usage.cost == pytest.approx((11 * 2.0 + 3 * 10.0) / 1e6)
    assert usage.seconds > 0


@run_async
async def test_a_text_is_continued(server: FaultyServer) -> None:
    answer = await client(server).chat(ChatRequest("once upon", logprobs=True))
    assert answer.text == "echo: once upon"
    assert answer.logprobs == (-0.5, -1.5)
    [(path, _, body)] = server.requests
    assert path == "/v1/completions"
    # Greedy: a seed, a stop and a share of probability would have no effect, and some servers refuse them.
    assert body == {
        "model": "tiny",
        "prompt": "once upon",
        "temperature": 0.0,
        "max_tokens": 1024,
        "logprobs": 1,
    }


CHAT = {"messages": []}


@pytest.mark.parametrize(
    ("body", "text", "thought", "truncated"),
    [
        (completion(CHAT, "yes"), "yes", "", False),
        (completion(CHAT, "ye", finish="length"), "ye", "", True),
        (completion(CHAT, "yes", message={"reasoning_content": "hm"}), "yes", "hm", False),
        (completion(CHAT, None, finish="length", message={"reasoning": "hm"}), "", "hm", True),
        (completion(CHAT, None, message={"content": [{"type": "text", "text": "a"}]}), "a", "", False),
        (json.loads('{"choices": [{"message": {"content": "\\ud800 ok"}}]}'), "? ok", "", False),
    ],
)
def test_answers_that_are_read(body: dict, text: str, thought: str, truncated: bool) -> None:
    found = parse_completion(body, chat=True, logprobs=False)
    assert (found.text, found.thought, found.truncated) == (text, thought, truncated)
    found.text.encode()  # whatever came, it is text now


@run_async
async def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    async with FaultyServer(key=KEY) as server:
        env = {"JUDGE_KEY": f"{KEY}\n", "WRONG": f"{KEY}-wrong", "ODD": "sk\r\nx: y"}
        told = []

        def model(variable: str | None, **more: Any) -> ServedModel:
            how = ClientSettings(api_key_env=variable, **more)
            return ServedModel(how, [server.url], model="tiny", name="judge", get_key=env.get)

        right = model("JUDGE_KEY")
        await right.check()
        assert (await right.chat(question())).text == "echo: hi"
        leaks = [status(400, f"your key {KEY} is fine, the rest is not"), raw(f"<p>{KEY}</p>".encode())]
        leaks += [raw(json.dumps(each).encode()) for each in ({"error": {"message": KEY}}, {"your key": KEY})]
        for n in range(200, 300, 7):  # where an error's text is cut
            text = "x" * n + KEY
            leaks += [status(400, text), raw(json.dumps({"error": {"message": text}}).encode())]
            leaks += [raw(json.dumps({"error": text + "y" * 400}).encode()), raw(json.dumps([text]).encode())]
            leaks += [raw(json.dumps({"error": "y" * 400 + text[::-1][:9] + KEY + "z" * (n // 2)}).encode())]
            leaks += [said("", message={"refusal": f"{server.url} {text}"})]
        server.plan(*leaks)
        one_try = model("JUDGE_KEY", retries=0)
        told += [str(await outcome(one_try, question())) for _ in leaks]
        parts = [KEY[i : i + 7] for i in range(len(KEY) - 6)]
        assert not [text for text in told if any(part in text for part in parts)]
        assert not server._plan
        told += [repr(right), repr(vars(right)), await right.identity()]
        for variable, remedy in [("MISSING", "MISSING is not set"), ("WRONG", "WRONG"), (None, "api_key_env")]:
            with pytest.raises(UserError, match=remedy) as raised:
                await model(variable).check()
            told.append(str(raised.value))
            result = await outcome(model(variable), question())
            assert kind_of(result) == "refused"
            told.append(str(result))
        with pytest.raises(UserError, match="ODD"):
            await model("ODD").check()
        assert not [text for text in [*told, caplog.text] if KEY in text]


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:hunter2@h/v1",
        "http://ann:hunter2@[::1",
        "https://h/v1?%6bey=hunter2",
        "https://h/v1?api-version=2024-10-21&hunter2=1",
        "https://h/v1#hunter2",
        "https://h/hf_hunter2hunter2hunter2/v1",
    ],
)
def test_a_secret_in_an_address_is_refused_and_shown_nowhere(url: str) -> None:
    """What a recipe says goes to the run's folder, its report and the trackers."""
    with pytest.raises(UserError) as by_hand:
        client(url)
    with pytest.raises(ValidationError) as in_settings:
        ServerSettings(urls=[url])
    table = {"models": {"judge": {"type": "server", "urls": ["http://h/v1", url]}}, "stages": []}
    with pytest.raises(RecipeError) as in_recipe:
        parse_recipe(table)
    assert "models.judge.urls.1" in str(in_recipe.value)
    with pytest.raises(RecipeError) as no_list:
        parse_recipe({"models": {"judge": {"type": "server", "urls": url}}, "stages": []})
    assert "must be a list" in str(no_list.value)
    for told in (by_hand, in_settings, in_recipe, no_list):
        assert "hunter2" not in str(told.value)
        assert told is no_list or "htt" in str(told.value) or "api_key_env" in str(told.value)


@run_async
async def test_a_server_that_knows_the_limit_by_another_name(server: FaultyServer) -> None:
    async def strict(server: FaultyServer, request: object, body: dict) -> object:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return await FAULTS["ok"](server, request, body)  # type: ignore[arg-type]

    server.plan(*[strict] * 9)
    model = client(server, retries=0)
    answers = await asyncio.gather(*(model.chat(question(max_tokens=9)) for _ in range(3)))
    assert [answer.attempts for answer in answers] == [2, 2, 2]
    assert (await model.chat(question(max_tokens=9))).attempts == 1
    assert server.bodies[-1]["max_completion_tokens"] == 9
    assert "max_tokens" not in server.bodies[-1]
    stubborn = client(server, body={"max_tokens": 5})  # the recipe insists: the server's word is final
    assert kind_of(await outcome(stubborn, question())) == "refused"


@run_async
async def test_log_probabilities_that_do_not_come_are_a_failure(server: FaultyServer) -> None:
    silent = raw(json.dumps(completion({"messages": []}, "yes")).encode())
    server.plan(silent, said("yes", logprobs=(float("nan"),)))
    model = client(server, retries=0)
    assert kind_of(await outcome(model, question(logprobs=True))) == "refused"
    assert kind_of(await outcome(model, question(logprobs=True))) == "unparsable"


def test_the_model_is_used_in_one_event_loop_after_the_other() -> None:
    model = client("http://127.0.0.1:1/v1")

    async def once() -> None:
        async with FaultyServer() as server:
            model.replace_urls([server.url])
            answers = await asyncio.gather(*(model.chat(question(str(i))) for i in range(3)))
            assert [answer.text for answer in answers] == ["echo: 0", "echo: 1", "echo: 2"]

    for _ in range(3):
        asyncio.run(once())  # nothing is closed: connections end with their event loop, without a warning
        gc.collect()
    assert model.usage.calls == 9
