"""Keys and passwords: refused in a recipe, and kept out of what servers send back."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.model_settings import ClientSettings, ManagedSettings, ServerSettings
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import override, parse_recipe
from tests.engines.call_helpers import client, kind_of, outcome, question, run_async
from tests.engines.faulty import KEY, FaultyServer, raw, said, status


@run_async
async def test_a_key_that_a_server_repeats_in_its_reply_is_taken_out(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies go to rollouts, report, cache and log."""
    token = "tok/en+" + "9" * 12
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setenv("BODY_TOKEN", token)
    settings = ClientSettings(api_key_env="JUDGE_KEY", body={"metadata": {"token": {"env": "BODY_TOKEN"}}})
    model = ServedModel(settings, [server.url], model="tiny", name="judge")
    server.say = lambda body: f"You sent {KEY} and {body['metadata']['token']}. Score: 7"
    texts = [(await model.chat(question())).text]
    for written in (KEY, "".join(f"\\u{ord(c):04x}" for c in KEY)):
        thought = f'{{"choices": [{{"message": {{"content": "Score: 7", "reasoning_content": "x {written} y"}}}}]}}'
        server.plan(raw(thought.encode()))
        reply = await model.chat(question())
        texts += [reply.text, reply.thought]
    assert server.bodies[0]["metadata"] == {"token": token}
    assert all("Score: 7" in text or "x " in text for text in texts)
    assert not [text for text in texts if KEY in text or token in text]
    assert token not in await model.identity()
    await model.close()


@run_async
async def test_the_key_goes_to_the_server_and_nowhere_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultyServer(key=KEY) as server:
        for name, value in {"JUDGE_KEY": f"{KEY}\n", "WRONG": f"{KEY}-wrong", "ODD": "sk\r\nx: y"}.items():
            monkeypatch.setenv(name, value)
        texts = []

        def model(variable: str | None, **more: Any) -> ServedModel:
            settings = ClientSettings(api_key_env=variable, **more)
            return ServedModel(settings, [server.url], model="tiny", name="judge")

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
        single = model("JUDGE_KEY", retries=0)
        texts += [str(await outcome(single, question())) for _ in leaks]
        parts = [KEY[i : i + 7] for i in range(len(KEY) - 6)]
        assert not [text for text in texts if any(part in text for part in parts)]
        assert not server._plan
        texts += [repr(right), repr(vars(right)), await right.identity()]
        for variable, remedy in [("MISSING", "MISSING is not set"), ("WRONG", "WRONG"), (None, "api_key_env")]:
            with pytest.raises(UserError, match=remedy) as raised:
                await model(variable).check()
            texts.append(str(raised.value))
            result = await outcome(model(variable), question())
            assert kind_of(result) == "refused"
            texts.append(str(result))
        with pytest.raises(UserError, match="ODD"):
            await model("ODD").check()
        assert not [text for text in [*texts, caplog.text] if KEY in text]


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
    for raised in (by_hand, in_settings, in_recipe, no_list):
        assert "hunter2" not in str(raised.value)
        assert raised is no_list or "htt" in str(raised.value) or "api_key_env" in str(raised.value)


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("environment.HF_TOKEN", {"environment": {"HF_TOKEN": SECRET}}),
        ("environment.PLAIN", {"environment": {"PLAIN": f"hf_{SECRET}hunter2"}}),
        ("arguments.1", {"arguments": ["--api-key", SECRET]}),
        ("arguments.0", {"arguments": [f"--hf-token={SECRET}"]}),
        ("arguments.0", {"arguments": [f"--header=Authorization: Bearer {SECRET}"]}),
        ("command.2", {"command": ["serve", "--api-key", SECRET, "{port}"]}),
        ("body.api_key", {"body": {"api_key": SECRET}}),
        ("body.extra.0.Authorization", {"body": {"extra": [{"Authorization": SECRET}]}}),
        ("body.jwt", {"body": {"jwt": f"eyJhbGciOiJI.{SECRET}.{SECRET}"}}),
        ("api_key", {"api_key": SECRET}),  # no setting at all
        ("api_key_env", {"api_key_env": f"sk-{SECRET}-{SECRET}"}),
        ("body.token", {"body": {"token": {"env": f"{SECRET} is no name"}}}),
    ],
)
def test_a_secret_in_the_table_of_a_model_is_refused_and_shown_nowhere(path: str, table: dict[str, Any]) -> None:
    whole = {"type": "managed", "command": "vllm", "model": "m"} | table
    with pytest.raises(RecipeError) as caught:
        parse_recipe({"models": {"judge": whole}, "stages": []})
    assert f"models.judge.{path}" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    if path not in ("api_key", "api_key_env") and "is no name" not in str(table):
        assert "env" in str(caught.value)
    for wrong in (f"models.judge.0.{path}.x", path):  # an override that cannot be applied
        with pytest.raises(UserError) as refused:
            override({"models": {"judge": 1}, path.partition(".")[0]: 3}, f"{wrong}.api_key={SECRET}")
        assert "hunter2" not in str(refused.value)


def test_the_key_itself_is_refused_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    for table in ({"body": {"user": f"me:{SECRET}"}}, {"arguments": ["serve", SECRET]}, {"version": SECRET}):
        whole = {"type": "managed", "command": "vllm", "model": "m", "api_key_env": "JUDGE_KEY"} | table
        with pytest.raises(RecipeError, match=r"(?s)models\.judge.*JUDGE_KEY") as caught:
            parse_recipe({"models": {"judge": whole}, "stages": []})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        {"environment": {"TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "warning", "API_KEY": "EMPTY"}},
        {"arguments": ["--max-num-batched-tokens", "8192", "--tokenizer", "a/tokenizer", "--pad-token", "<padding>"]},
        {"body": {"max_tokens": 5, "prompt_cache_key": "rewardsmith", "eos_token": "end_of_text", "stop": ["<|end|>"]}},
        {"body": {"chat_template_kwargs": {"bos_token": "<begin_of_text>", "enable_thinking": False}, "env": {"a": 1}}},
    ],
)
def test_ordinary_settings_of_a_model_are_no_secrets(table: dict[str, Any]) -> None:
    ManagedSettings(**{"command": "vllm", "model": "m"} | table)
