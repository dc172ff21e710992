"""Keys and passwords: refused in a recipe, and kept out of what servers send back."""

import json
from typing import Any

import pytest

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.model_settings import ClientSettings, ManagedSettings
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import override, parse_recipe
from tests.engines.asked import question, run_async
from tests.engines.faulty import KEY, FaultyServer, raw


@pytest.mark.parametrize("first_token_timeout", [None, 20.0])  # in one piece, or streamed
@pytest.mark.parametrize(
    "written", [KEY, json.dumps(KEY)[1:-1], "".join(f"\\u{ord(c):04x}" for c in KEY)], ids=["plain", "json", "escaped"]
)
@run_async
async def test_a_key_that_a_server_repeats_in_its_reply_is_taken_out(
    server: FaultyServer, first_token_timeout: float | None, written: str
) -> None:
    """Replies go to rollouts, report, cache and log."""

    token = "tok/en+" + "9" * 12
    body = {"metadata": {"token": {"env": "BODY_TOKEN"}}}
    how = ClientSettings(api_key_env="JUDGE_KEY", first_token_timeout=first_token_timeout, body=body)
    env = {"JUDGE_KEY": KEY, "BODY_TOKEN": token}
    model = ServedModel(how, [server.url], model="tiny", name="judge", get_key=env.get)
    server.say = lambda body: f"You sent {KEY} and {body['metadata']['token']}. Score: 7"
    texts = [(await model.chat(question())).text]
    thought = f'{{"choices": [{{"message": {{"content": "Score: 7", "reasoning_content": "x {written} y"}}}}]}}'
    server.plan(raw(thought.encode()))
    answer = await model.chat(question())
    texts += [answer.text, answer.thought]
    assert server.bodies[0]["metadata"] == {"token": token}
    assert all("Score: 7" in text or "x " in text for text in texts)
    assert not [text for text in texts if KEY in text or token in text]
    assert token not in await model.identity()
    await model.close()


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
