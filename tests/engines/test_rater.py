"""Ratings of an embedded scalar model: those of Hugging Face, and shared prefixes are read once."""

import asyncio
import copy
import json
import re
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rewardsmith import Message
from rewardsmith.engines import ModelSettings
from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
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


@pytest.mark.parametrize("name", [*TINY, "no-padding"])
def test_numbers_are_those_of_transformers(folders: Path, name: str) -> None:
    conversations = [chat("7+5-3?", answer) for answer in ANSWERS]
    conversations += [chat("2*2?", "4"), [Message("system", "be brief"), *chat("7?", "7", "sure?", "yes")]]
    ratings = rate(shared_rater(folders / name), conversations)
    assert ratings == pytest.approx(plain(folders / name, conversations), abs=1e-5)
    assert len({round(rating, 3) for rating in ratings}) == len(conversations) - 1  # "12" is there twice


def test_a_rating_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    model = open_rater(write_folder("tiny-llama", tmp_path / "rm"))
    with torch.no_grad():
        model._engine.model.score.weight.fill_(float("nan"))
    with pytest.raises(ModelCallError, match="not finite") as caught:
        rate(model, [chat("7?", "7"), chat("7?", "8")])
    assert caught.value.kind == "invalid"


SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*SPECIAL, "<", "|", ">", "eos", "a", " ", "\n", "<|user|"]), max_size=12))
def test_no_text_opens_a_turn(folders: Path, pieces: list[str]) -> None:
    model = shared_rater(folders / "tiny-qwen3")
    text = "".join(pieces)
    tokens = model._encode(chat(text, text)).tolist()
    special = set(model._engine.tokenizer.all_special_ids)
    found = [model._engine.tokenizer.convert_ids_to_tokens(token) for token in tokens if token in special]
    assert found == ["<|user|>", "<|assistant|>", "<|eos|>"]


def refusal(model: EmbeddedRater) -> str:
    with pytest.raises(UserError) as caught:
        asyncio.run(model.check())
    return str(caught.value)


def test_what_cannot_rate_is_refused_with_the_remedy(folders: Path, tmp_path: Path) -> None:
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


def scorer(**settings: Any) -> EmbeddedEngine:
    return EmbeddedEngine.open(ModelSettings(**{"init": "tiny-llama", "head": "scalar", "device": "cpu", **settings}))


def test_a_new_head_names_padding_that_ends_no_conversation_and_a_trained_one_is_left_alone() -> None:
    engine = scorer()
    assert engine.model.config.pad_token_id == engine.tokenizer.pad_token_id
    assert engine.model.config.problem_type == "regression"
    engine.tokenizer.pad_token = engine.tokenizer.eos_token
    ending = engine.copy(ModelSettings(copy_of="other", head="scalar"), name="ending")
    assert ending.model.config.pad_token_id is None
    chat = [Message("user", "7?"), Message("assistant", "7")]
    assert ending.encode_conversation(chat)[-1] == ending.tokenizer.eos_token_id
    engine.model.config.pad_token_id = 7
    engine.model.config.problem_type = None
    torch.nn.init.ones_(engine.model.score.weight)
    trained = engine.copy(ModelSettings(copy_of="other", head="scalar"), name="trained")
    assert (trained.model.config.pad_token_id, trained.model.config.problem_type) == (7, None)


def test_answers_to_one_prompt_share_it_and_numbers_stand_at_the_end() -> None:
    engine = scorer()
    torch.nn.init.normal_(engine.model.score.weight, generator=torch.Generator().manual_seed(0))
    talks = [[Message("user", "7?"), Message("assistant", text)] for text in ("7", "77", "7")]
    talks.append([Message("user", "8?"), Message("assistant", "8")])
    tokens = [engine.encode_conversation(conversation) for conversation in talks]
    rows = conversation_rows(talks, tokens)
    assert [len(row.prompt) for row in rows] == [len("<7?<7"), len("<7?<7"), len("<7?<7"), len("<8?<8>")]
    assert [[*row.prompt, *row.response[:-1]] for row in rows] == [each.tolist() for each in tokens]
    assert tokens_read(rows) == len("<7?<7") + (1 + 2 + 1) + len("<8?<8>")
    found = ratings(engine.values(rows), rows)
    for row, number in zip(rows, found, strict=True):
        whole = torch.from_numpy(np.concatenate([row.prompt, row.response[:-1]]).astype(np.int64))[None]
        engine.model.set_attn_implementation("eager")
        assert float(number) == pytest.approx(engine.model(input_ids=whole).logits.item(), abs=1e-5)
        engine.model.set_attn_implementation("rewardsmith")
