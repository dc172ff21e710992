"""How a scalar model reads conversations, and what its configuration says of it to others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rewardsmith import Message
from rewardsmith.engines import ModelSettings
from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
from rewardsmith.engines.embedded.chat_template import may_end_with
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.protocol import Row


def scorer(**settings: Any) -> EmbeddedEngine:
    return EmbeddedEngine.open(ModelSettings(**{"init": "tiny-llama", "head": "scalar", "device": "cpu", **settings}))


@pytest.mark.parametrize(
    ("template", "token", "ends"),
    [
        ("{{ messages[-1]['content'] }}{{ eos_token }}", "<|eos|>", True),
        ("{{ messages[-1]['content'] }}{{ eos_token }}\n\n", "<|eos|>", False),
        ("{{ messages[-1]['content'] }}{{ eos_token }}\n\n", "\n", True),
        ("{{ messages[-1]['content'] }}<|tool|>", "<|eos|>", False),
        ("{{ messages[-1]['content'] }}{{ mark }}", "<|pad|>", True),
        ("{{ messages[-1]['content'] }}", "<|eos|>", True),  # nothing is known: to name no padding is safe
        ("{{ raise_exception('not today') }}", "<|eos|>", True),
        (None, "<|eos|>", True),
        (None, "<|pad|>", False),
    ],
)
def test_which_token_may_end_a_conversation(template: str | None, token: str, ends: bool) -> None:
    _, tokenizer = make_tiny("tiny-llama", seed=0)
    tokenizer.chat_template = template
    number = tokenizer.convert_tokens_to_ids(token)
    assert may_end_with(tokenizer, number, {"mark": "<|pad|>"}) == ends


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


def test_a_head_on_a_language_model_is_new(tmp_path: Path) -> None:
    language = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu"))
    language.model.config.pad_token_id = language.tokenizer.eos_token_id
    language.tokenizer.pad_token = language.tokenizer.eos_token
    critic = language.copy(ModelSettings(copy_of="policy", head="scalar"), name="critic")
    assert critic.model.config.pad_token_id is None
    assert language.model.config.pad_token_id == language.tokenizer.eos_token_id


def test_answers_to_one_prompt_share_it_and_numbers_stand_at_the_end() -> None:
    engine = scorer()
    torch.nn.init.normal_(engine.model.score.weight, generator=torch.Generator().manual_seed(0))
    said = [[Message("user", "7?"), Message("assistant", text)] for text in ("7", "77", "7")]
    said.append([Message("user", "8?"), Message("assistant", "8")])
    tokens = [engine.encode_conversation(conversation) for conversation in said]
    rows = conversation_rows(said, tokens)
    assert [len(row.prompt) for row in rows] == [len("<7?<7"), len("<7?<7"), len("<7?<7"), len("<8?<8>")]
    assert [[*row.prompt, *row.response[:-1]] for row in rows] == [each.tolist() for each in tokens]
    assert tokens_read(rows) == len("<7?<7") + (1 + 2 + 1) + len("<8?<8>")
    found = ratings(engine.values(rows), rows)
    for row, number in zip(rows, found, strict=True):
        whole = torch.from_numpy(np.concatenate([row.prompt, row.response[:-1]]).astype(np.int64))[None]
        engine.model.set_attn_implementation("eager")
        assert float(number) == pytest.approx(engine.model(input_ids=whole).logits.item(), abs=1e-5)
        engine.model.set_attn_implementation("rewardsmith")


def test_parts_are_the_passes_of_an_update() -> None:
    engine = scorer(tokens_per_pass=6)
    rows = [Row(np.array([5, 6, 7], dtype=np.int32), np.array([8] * n, dtype=np.int32)) for n in (4, 1, 2)]
    parts = engine.micro_batches(rows)
    assert sorted(i for part in parts for i in part) == [0, 1, 2]
    assert [outputs.rows.tolist() for _, outputs in engine._forward(rows, 1.0, None, entropy=True)] == parts
    assert len(parts) == 2
