"""Scalar models in this process: the numbers are those of Hugging Face, shared beginnings are read once."""

import asyncio
import contextlib
import copy
import json
import re
import warnings
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rewardsmith import Message
from rewardsmith.engines import ModelSettings
from rewardsmith.engines.conversation_rows import last_word
from rewardsmith.engines.embedded.chat_model import EmbeddedRater
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import TINY, make_tiny
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation, ModelCallError

from .running import lively

ANSWERS = ["12", "12-3=9", "", "12-3=9;#9", "I do not know.", "x" * 70, "12"]


def write_folder(name: str, folder: Path, *, padding: bool = True, **changes: Any) -> Path:
    """Write a reward model with lively weights, as other systems publish them."""
    model, tokenizer = make_tiny(name, seed=0)
    config = copy.deepcopy(model.config)
    config.num_labels = changes.pop("num_labels", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scalar = lively(AutoModelForSequenceClassification.from_config(config))
        save_folder(scalar, tokenizer, folder)
    if not padding:
        drop(folder / "config.json", "pad_token_id")
        drop(folder / "tokenizer_config.json", "pad_token")
    return folder


def drop(file: Path, key: str) -> None:
    table = json.loads(file.read_text())
    del table[key]
    file.write_text(json.dumps(table))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reward-models")
    for name in TINY:
        write_folder(name, root / name)
    write_folder("tiny-llama", root / "no-padding", padding=False)
    return root


def open_rater(folder: Path | str, **changes: Any) -> EmbeddedRater:
    return EmbeddedRater(EmbeddedEngine.open(ModelSettings(init=str(folder), head="scalar", device="cpu", **changes)))


@cache
def shared_rater(folder: Path) -> EmbeddedRater:
    """Return a rater whose weights no test may change."""
    return open_rater(folder)


def chat(*contents: str) -> list[Message]:
    """Return a conversation in which user and assistant take turns."""
    return [Message("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]


def rate(model: EmbeddedRater, conversations: Sequence[Conversation]) -> list[float]:
    return asyncio.run(model.rate(conversations))


def plain(folder: Path, conversations: Sequence[Conversation]) -> list[float]:
    """Return what transformers says of each conversation alone, with its own attention."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    numbers = []
    for conversation in conversations:
        messages = [{"role": m.role, "content": m.content} for m in conversation]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            numbers.append(model(input_ids=ids).logits.item())
    return numbers


# ---- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TINY, "no-padding"])
def test_numbers_are_those_of_transformers(folders: Path, name: str) -> None:
    conversations = [chat("7+5-3?", answer) for answer in ANSWERS]
    conversations += [chat("2*2?", "4"), [Message("system", "be brief"), *chat("7?", "7", "sure?", "yes")]]
    ratings = rate(shared_rater(folders / name), conversations)
    assert ratings == pytest.approx(plain(folders / name, conversations), abs=1e-5)
    assert len({round(rating, 3) for rating in ratings}) == len(conversations) - 1  # "12" is there twice


def test_padding_that_ends_a_text_is_passed_over_as_transformers_does(folders: Path, tmp_path: Path) -> None:
    """A folder whose padding is the end token is read at the token before; one that names no padding, at the end."""
    folder = write_folder("tiny-llama", tmp_path / "same")
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "pad_token_id": table["eos_token_id"]}))
    conversations = [chat("7?", "7"), chat("7?", "8")]
    same, other = rate(open_rater(folder), conversations), rate(shared_rater(folders / "no-padding"), conversations)
    assert same == pytest.approx(plain(folder, conversations), abs=1e-5)
    assert same != pytest.approx(other, abs=1e-2)


@pytest.mark.parametrize(
    ("tokens", "padding", "at"),
    [([5, 6, 7], 0, 2), ([5, 6, 0, 0], 0, 1), ([5, 0, 7], 0, 2), ([5, 6, 0], None, 2), ([0, 0], 0, 0)],
)
def test_last_word(tokens: list[int], padding: int | None, at: int) -> None:
    import numpy as np

    assert last_word(np.array(tokens, dtype=np.int32), padding) == at


@settings(max_examples=15)
@given(st.permutations(range(len(ANSWERS))), st.integers(1, 6), st.sampled_from([64, 100_000]))
def test_neither_order_nor_batches_matter(
    folders_of_one: Path, order: list[int], size: int, tokens_per_pass: int
) -> None:
    conversations = [chat("7+5-3?", answer) for answer in ANSWERS]
    expected = rate(shared_rater(folders_of_one), conversations)
    model = EmbeddedRater(shared_engine(folders_of_one, tokens_per_pass))

    async def in_parts() -> list[float]:
        parts = [order[at : at + size] for at in range(0, len(order), size)]
        found = await asyncio.gather(*(model.rate([conversations[i] for i in part]) for part in parts))
        return [rating for part in found for rating in part]

    assert asyncio.run(in_parts()) == pytest.approx([expected[i] for i in order], abs=1e-5)


@pytest.fixture(scope="module")
def folders_of_one(folders: Path) -> Path:
    return folders / "tiny-qwen3"


@cache
def shared_engine(folder: Path, tokens_per_pass: int) -> EmbeddedEngine:
    found = ModelSettings(init=str(folder), head="scalar", device="cpu", tokens_per_pass=tokens_per_pass)
    return EmbeddedEngine.open(found)


def test_arguments_reach_the_chat_template(tmp_path: Path) -> None:
    folder = write_folder("tiny-llama", tmp_path / "rm")
    (folder / "chat_template.jinja").write_text("{{ mark }}{% for m in messages %}{{ m['content'] }}{% endfor %}")
    one, two = (open_rater(folder, template={"mark": mark}) for mark in ("a", "b"))
    assert rate(one, [chat("7?", "7")]) != pytest.approx(rate(two, [chat("7?", "7")]), abs=1e-3)
    assert asyncio.run(one.identity()) != asyncio.run(two.identity())


def test_identity_follows_the_weights(folders: Path, tmp_path: Path) -> None:
    names = [asyncio.run(shared_rater(folders / name).identity()) for name in ("tiny-llama", "tiny-qwen3")]
    again = asyncio.run(open_rater(write_folder("tiny-llama", tmp_path / "again")).identity())
    assert names[0] != names[1]
    assert again == names[0]


# ---- how much is read ------------------------------------------------------------------------------------------------


def test_a_shared_beginning_is_read_once(folders: Path) -> None:
    model = open_rater(folders / "tiny-llama")
    question, answers = "7" * 200, ["1", "22", "333", "22"]
    rate(model, [chat(question, answer) for answer in answers])
    # One token a character; the turns begin with one each, and the answer's ends with one.
    assert model.usage.prompt_tokens == 1 + len(question) + 1 + (1 + 2 + 3) + 3
    assert model.usage.calls == 4
    rate(model, [chat(question, "1"), chat("8", "1")])
    assert model.usage.prompt_tokens - 211 == (len(question) + 4) + (1 + 4)


def test_concurrent_calls_share_no_pass(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_rater(folders / "tiny-llama")
    passes: list[int] = []
    values = model._engine.values
    monkeypatch.setattr(model._engine, "values", lambda rows: passes.append(len(rows)) or values(rows))

    async def both() -> list[list[float]]:
        return await asyncio.gather(*(model.rate([chat(str(i), "1"), chat(str(i), "2")]) for i in range(8)))

    asyncio.run(both())
    assert passes == [2] * 8


def test_others_run_between_passes(folders: Path) -> None:
    model = EmbeddedRater(shared_engine(folders / "tiny-qwen3", 64))
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(model.usage.prompt_tokens)
            await asyncio.sleep(0)

    async def run() -> None:
        watching = asyncio.create_task(watch())
        await model.rate([chat("1" * 40 + str(i), "1") for i in range(6)])
        watching.cancel()

    asyncio.run(run())
    assert len(set(seen)) > 3


def test_no_conversations_have_no_numbers(folders: Path) -> None:
    assert rate(shared_rater(folders / "tiny-llama"), []) == []


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_conversation_that_is_too_long_is_refused_with_its_length(folders: Path) -> None:
    model = open_rater(folders / "tiny-llama")
    with pytest.raises(ModelCallError, match=r"1304 tokens, and model reads 1 to 1024") as caught:
        rate(model, [chat("7?", "7"), chat("7", "x" * 1300)])
    assert caught.value.kind == "refused"
    assert (model.usage.failed, model.usage.calls) == (2, 0)


def test_a_conversation_that_cannot_be_rendered_is_refused(folders: Path) -> None:
    with pytest.raises(ModelCallError, match="cannot render it: unknown role critic") as caught:
        rate(shared_rater(folders / "tiny-llama"), [[Message("critic", "no")]])
    assert caught.value.kind == "refused"


def test_a_number_that_is_not_finite_is_none(tmp_path: Path) -> None:
    model = open_rater(write_folder("tiny-llama", tmp_path / "rm"))
    with torch.no_grad():
        model._engine.model.score.weight.fill_(float("nan"))
    with pytest.raises(ModelCallError, match="nan") as caught:
        rate(model, [chat("7?", "7"), chat("7?", "8")])
    assert caught.value.kind == "invalid"


def test_an_engine_that_fails_fails_all_that_waited_and_goes_on(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_rater(folders / "tiny-llama")
    with monkeypatch.context() as patched:
        patched.setattr(model._engine, "values", lambda rows: 1 / 0)

        async def both() -> list[Any]:
            calls = (model.rate([chat(str(i), "1"), chat(str(i), "2")]) for i in range(2))
            return await asyncio.gather(*calls, return_exceptions=True)

        assert [error.kind for error in asyncio.run(both())] == ["crashed", "crashed"]
    assert len(rate(model, [chat("7?", "7")])) == 1


def test_who_goes_away_is_not_rated_and_others_are(folders: Path) -> None:
    model = open_rater(folders / "tiny-llama")
    expected = rate(model, [chat("2", "1")])
    before = model.usage.prompt_tokens

    async def run() -> list[float]:
        gone, stays = (asyncio.create_task(model.rate([chat(str(i), "1")])) for i in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert asyncio.run(run()) == pytest.approx(expected, abs=1e-5)
    assert model.usage.prompt_tokens == before + 5


def test_closing_ends_what_waits(folders: Path) -> None:
    model = EmbeddedRater(shared_engine(folders / "tiny-qwen3", 64))

    async def run() -> str:
        waiting = asyncio.create_task(model.rate([chat("1" * 40 + str(i), "1") for i in range(6)]))
        for _ in range(3):
            await asyncio.sleep(0)
        await model.close()
        with pytest.raises(ModelCallError) as caught:
            await waiting
        await model.close()
        return str(caught.value.kind)

    assert asyncio.run(run()) == "cancelled"
    assert len(rate(model, [chat("7?", "7")])) == 1


def test_the_engine_works_in_its_turn_only(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = shared_engine(folders / "tiny-qwen3", 64)
    inside: list[bool] = []

    @contextlib.asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        inside.append(True)
        yield
        inside.append(False)

    model = EmbeddedRater(engine, turn)
    values = engine.values
    monkeypatch.setattr(engine, "values", lambda rows: values(rows) if inside == [True] else 1 / 0)
    assert len(rate(model, [chat("7?", "7")])) == 1
    assert inside == [True, False]


# ---- hostile text ----------------------------------------------------------------------------------------------------

SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*SPECIAL, "<", "|", ">", "eos", "a", " ", "\n", "<|user|"]), max_size=12))
def test_no_text_opens_a_turn(folders_of_one: Path, pieces: list[str]) -> None:
    model = shared_rater(folders_of_one)
    text = "".join(pieces)
    tokens = model._encode(chat(text, text)).tolist()
    special = set(model._engine.tokenizer.all_special_ids)
    found = [model._engine.tokenizer.convert_ids_to_tokens(token) for token in tokens if token in special]
    assert found == ["<|user|>", "<|assistant|>", "<|eos|>"]


def test_plain_text_is_read_as_it_is(folders_of_one: Path) -> None:
    model = shared_rater(folders_of_one)
    text = "if a < b | c > d: <b>[x]</b> <|ok"
    assert model._engine.tokenizer.decode(model._encode(chat(text, "1"))) == f"<|user|>{text}<|assistant|>1<|eos|>"


# ---- before the first step -------------------------------------------------------------------------------------------


def refusal(model: EmbeddedRater) -> str:
    with pytest.raises(UserError) as caught:
        asyncio.run(model.check())
    return str(caught.value)


def test_a_reward_model_passes_the_check(folders: Path) -> None:
    for name in TINY:
        asyncio.run(shared_rater(folders / name).check())
    asyncio.run(open_rater("tiny-llama").check())  # of a built-in shape one knows that it is not trained


def test_what_cannot_rate_is_refused_with_the_remedy(folders: Path, tmp_path: Path) -> None:
    written = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu"), name="judge")
    assert refusal(EmbeddedRater(written)) == 'models.judge has a language head: a model that rates has head = "scalar"'
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "language")
    assert re.search("head is all zeros.*name a reward model", refusal(open_rater(tmp_path / "language")))
    silent = write_folder("tiny-llama", tmp_path / "silent")
    (silent / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert "leaves out the assistant" in refusal(open_rater(silent))
    (silent / "chat_template.jinja").write_text("{{ raise_exception('not today') }}")
    assert "cannot render it: not today" in refusal(open_rater(silent))
    (silent / "chat_template.jinja").unlink()
    assert "no chat template" in refusal(open_rater(silent))
    with pytest.raises(UserError, match=r"score.weight is \[3, 128\], not \[1, 128\]"):
        open_rater(write_folder("tiny-llama", tmp_path / "three", num_labels=3))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gemma2"])
def test_numbers_on_a_gpu(folders: Path, name: str) -> None:
    conversations = [chat("7+5-3?", answer) for answer in ANSWERS]
    expected = plain(folders / name, conversations)
    for dtype, allowed in (("float32", 1e-3), ("bfloat16", 0.1)):
        chosen = ModelSettings(init=str(folders / name), head="scalar", device="cuda", dtype=dtype)
        ratings = rate(EmbeddedRater(EmbeddedEngine.open(chosen)), conversations)
        spread = max(expected) - min(expected)
        assert ratings == pytest.approx(expected, abs=allowed * spread)
