"""Models built on the spot."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewardsmith.engines.embedded.tiny import MAX_LENGTH, TINY, make_tiny
from rewardsmith.errors import UserError

NAMES = list(TINY)
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
CHARACTERS = make_tiny("tiny-llama", seed=0)[1]
BYTES = make_tiny("tiny-llama-bytes", seed=0)[1]
CHAT = [
    {"role": "system", "content": " be  brief\n"},
    {"role": "user", "content": "7+5-3?"},
    {"role": "assistant", "content": "7+5=12;12-3=9;#9"},
    {"role": "user", "content": "again"},
]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (make_tiny(name, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in first.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_tiny_is_small_and_fits_its_tokenizer(name: str) -> None:
    model, tokenizer = make_tiny(name, seed=0)
    assert sum(p.numel() for p in model.parameters()) < 500_000
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) == model.config.vocab_size
    assert model.config.max_position_embeddings == MAX_LENGTH
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)


@given(st.text(ALPHABET))
def test_one_character_is_one_token(text: str) -> None:
    tokens = CHARACTERS.encode(text)
    assert CHARACTERS.decode(tokens) == text
    if "<|" not in text:  # a marker that is spelt out in a text is one token
        assert len(tokens) == len(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_text_survives_in_bytes(text: str) -> None:
    tokens = BYTES.encode(text)
    assert BYTES.decode(tokens) == text
    if "<|" not in text:
        assert len(tokens) == len(text.encode())


@pytest.mark.parametrize("name", NAMES)
def test_the_chat_template_costs_two_tokens(name: str) -> None:
    tokenizer = make_tiny(name, seed=0)[1]
    text = tokenizer.apply_chat_template(CHAT[1:2], tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>7+5-3?<|assistant|>"
    tokens = tokenizer.apply_chat_template(CHAT[1:2], add_generation_prompt=True, return_dict=False)
    assert len(tokens) == len("7+5-3?") + 2
    assert tokens == tokenizer.encode(text)


def test_an_answer_ends_with_eos_and_continues_its_prompt() -> None:
    prompt = CHARACTERS.apply_chat_template(CHAT[:2], add_generation_prompt=True, return_dict=False)
    answer = [*CHARACTERS.encode(CHAT[2]["content"]), CHARACTERS.eos_token_id]
    assert CHARACTERS.apply_chat_template(CHAT[:3], return_dict=False) == prompt + answer
    assert CHARACTERS.decode(answer, skip_special_tokens=True) == CHAT[2]["content"]
    whole = CHARACTERS.apply_chat_template(CHAT, tokenize=False)
    assert whole.startswith("<|system|> be  brief\n<|user|>")


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_tiny_is_an_ordinary_folder(name: str, tmp_path: Path) -> None:
    model, tokenizer = make_tiny(name, seed=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model_again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    tokenizer_again = AutoTokenizer.from_pretrained(tmp_path)

    tokens = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert tokenizer_again.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False) == tokens
    for text in (ALPHABET, " a  b .\n\n c 's n't <|x <|eos|> |>~ ", "Grüße, 世界"):
        again = tokenizer_again.encode(text)
        assert again == tokenizer.encode(text)
        assert tokenizer_again.decode(again) == tokenizer.decode(again)
    assert tokenizer_again.decode(tokenizer_again.encode(ALPHABET)) == ALPHABET
    assert tokenizer_again.all_special_tokens == tokenizer.all_special_tokens
    assert type(model_again) is type(model)
    assert model_again.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model_again.generation_config.pad_token_id == tokenizer.pad_token_id
    ids = torch.tensor([tokens])
    torch.testing.assert_close(model_again(ids).logits, model(ids).logits)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r'unknown tiny model "tiny-lama"\. Did you mean "tiny-llama"\? Known: tiny-'):
        make_tiny("tiny-lama", seed=0)
