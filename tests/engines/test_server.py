"""A model behind servers: what is sent, what is read, and what is shown to nobody."""

import asyncio
import gc
import json
import subprocess
import sys
from typing import Any

import pytest

import rewardsmith
from rewardsmith.asking import Question
from rewardsmith.engines.server import ServedModel
from rewardsmith.engines.server.replies import written
from rewardsmith.engines.settings import ClientSettings, ServerSettings
from rewardsmith.errors import UserError
from rewardsmith.types import Message
from tests.engines.asked import client, kind_of, outcome, question
from tests.engines.faulty import FAULTS, KEY, FaultyServer, completion, error, last_text, raw, said, status


def test_importing_the_client_loads_no_torch() -> None:
    code = "import sys, rewardsmith.engines.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_question_is_sent_as_it_is_and_counted() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            model = client(server, price_in=2.0, price_out=10.0, body={"chat_template_kwargs": {"thinking": False}})
            asked = Question(
                [Message("system", "be brief"), Message("user", "hi é \U0001f600")],
                temperature=0.5,
                top_p=0.9,
                max_tokens=77,
                stop=("###",),
                seed=5,
                logprobs=True,
            )
            answer = await model.ask(asked)
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

    asyncio.run(main())


def test_a_text_is_continued() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            answer = await client(server).ask(Question("once upon", logprobs=True))
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

    asyncio.run(main())


def test_a_question_of_megabytes() -> None:
    async def main() -> None:
        async with FaultyServer(say=lambda body: str(len(last_text(body)))) as server:
            server.plan("500")
            model = client(server)
            assert (await model.ask(question("é\U0001f600x" * 1_000_000))).text == "3000000"
            assert server.requests[1][1]["Content-Type"] == "application/json"
            await model.close()

    asyncio.run(main())


CHAT = {"messages": []}


@pytest.mark.parametrize(
    ("body", "text", "thought", "truncated"),
    [
        (completion(CHAT, "yes"), "yes", "", False),
        (completion(CHAT, ""), "", "", False),
        (completion(CHAT, "yes", finish=None), "yes", "", False),
        (completion(CHAT, "ye", finish="length"), "ye", "", True),
        (completion(CHAT, "yes", message={"reasoning_content": "hm"}), "yes", "hm", False),
        (completion(CHAT, "yes", message={"reasoning": "hm", "refusal": None}), "yes", "hm", False),
        (completion(CHAT, None, message={"reasoning": "hm"}), "", "hm", False),
        (completion(CHAT, None, finish="length", message={"reasoning": "hm"}), "", "hm", True),
        (completion(CHAT, None, finish="length"), "", "", True),
        (
            completion(CHAT, None, message={"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            "ab",
            "",
            False,
        ),
        (json.loads('{"choices": [{"message": {"content": "\\ud800 ok"}}]}'), "? ok", "", False),
    ],
)
def test_answers_that_are_read(body: dict, text: str, thought: str, truncated: bool) -> None:
    found = written(body, chat=True, logprobs=False)
    assert (found.text, found.thought, found.truncated) == (text, thought, truncated)
    found.text.encode()  # whatever came, it is text now


def test_errors_say_the_status_the_address_and_what_the_server_said() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            server.plan(status(422, "the field is wrong " + "x" * 5000))
            result = await outcome(client(server), question())
            assert "status 422" in str(result)
            assert server.url in str(result)
            assert "the field is wrong" in str(result)
            assert len(str(result)) < 500
            server.plan("redirect")
            told = str(await outcome(client(server), question()))
            assert "elsewhere.test" in told
            assert "hush" not in told

    asyncio.run(main())


def test_the_key_goes_to_the_server_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FaultyServer(key=KEY) as server:
            env = {"JUDGE_KEY": f"{KEY}\n", "WRONG": f"{KEY}-wrong", "ODD": "sk\r\nx: y"}
            told = []

            def model(variable: str | None, **more: Any) -> ServedModel:
                how = ClientSettings(key_from=variable, **more)
                return ServedModel(how, [server.url], model="tiny", name="judge", get_key=env.get)

            right = model("JUDGE_KEY")
            await right.check()
            assert (await right.ask(question())).text == "echo: hi"
            leaks = [status(400, f"your key {KEY} is fine, the rest is not"), raw(f"<p>{KEY}</p>".encode())]
            leaks += [raw(json.dumps(each).encode()) for each in ({"error": {"message": KEY}}, {"your key": KEY})]
            leaks += [status(400, "x" * n + KEY) for n in range(200, 300, 7)]  # where an error's text is cut
            server.plan(*leaks)
            one_try = model("JUDGE_KEY", retries=0)
            told += [str(await outcome(one_try, question())) for _ in leaks]
            assert not any(KEY[:9] in text for text in told)
            assert not server._plan
            told += [repr(right), repr(vars(right)), await right.identity()]
            for variable, remedy in [("MISSING", "MISSING is not set"), ("WRONG", "WRONG"), (None, "key_from")]:
                with pytest.raises(UserError, match=remedy) as raised:
                    await model(variable).check()
                told.append(str(raised.value))
                result = await outcome(model(variable), question())
                assert kind_of(result) == "refused"
                told.append(str(result))
            with pytest.raises(UserError, match="ODD"):
                await model("ODD").check()
            assert not [text for text in [*told, caplog.text] if KEY in text]

    asyncio.run(main())


def test_credentials_in_the_address_are_used_and_not_shown() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            model = client(server.url.replace("http://", "http://me:hush@"))
            server.plan("ok", "400")
            await model.ask(question())
            assert server.requests[0][1]["Authorization"].startswith("Basic ")
            result = await outcome(model, question())
            assert "hush" not in str(result)
            assert server.url in str(result)

    asyncio.run(main())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "localhost:8000", "http://me:hush@[::1", "http://x:99999999/v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UserError, match="address") as raised:
        client(url)
    assert "hush" not in str(raised.value)
    with pytest.raises(UserError, match="at least one"):
        ServedModel(ClientSettings(), [])


def test_a_server_that_knows_the_limit_by_another_name() -> None:
    async def strict(server: FaultyServer, request: object, body: dict) -> object:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return await FAULTS["ok"](server, request, body)  # type: ignore[arg-type]

    async def main() -> None:
        async with FaultyServer() as server:
            server.plan(*[strict] * 9)
            model = client(server, retries=0)
            answers = await asyncio.gather(*(model.ask(question(max_tokens=9)) for _ in range(3)))
            assert [answer.attempts for answer in answers] == [2, 2, 2]
            assert (await model.ask(question(max_tokens=9))).attempts == 1
            assert server.bodies[-1]["max_completion_tokens"] == 9
            assert "max_tokens" not in server.bodies[-1]
            stubborn = client(server, body={"max_tokens": 5})  # the recipe insists: the server's word is final
            assert kind_of(await outcome(stubborn, question())) == "refused"

    asyncio.run(main())


def test_log_probabilities_that_do_not_come_are_a_failure() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            silent = raw(json.dumps(completion({"messages": []}, "yes")).encode())
            server.plan(silent, said("yes", logprobs=(float("nan"),)))
            model = client(server, retries=0)
            assert kind_of(await outcome(model, question(logprobs=True))) == "refused"
            assert kind_of(await outcome(model, question(logprobs=True))) == "unparsable"

    asyncio.run(main())


def test_the_model_is_used_in_one_event_loop_after_the_other() -> None:
    model = client("http://127.0.0.1:1/v1")

    async def once() -> None:
        async with FaultyServer() as server:
            model.replace_urls([server.url])
            answers = await asyncio.gather(*(model.ask(question(str(i))) for i in range(3)))
            assert [answer.text for answer in answers] == ["echo: 0", "echo: 1", "echo: 2"]

    for _ in range(3):
        asyncio.run(once())  # nothing is closed: connections end with their event loop, without a warning
        gc.collect()
    assert model.usage.calls == 9


def test_closing_is_not_the_end() -> None:
    async def main() -> None:
        async with FaultyServer() as server, client(server) as model:
            await model.close()
            await model.ask(question())
            await model.close()
            await model.close()
            assert (await model.ask(question())).text == "echo: hi"

    asyncio.run(main())


def test_from_the_table_of_a_recipe() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            model = ServedModel.of(ServerSettings(urls=[server.url]), name="judge")
            assert model.name == "judge"
            await model.check()
            assert (await model.ask(question())).text == "echo: hi"
            await model.close()

    asyncio.run(main())
