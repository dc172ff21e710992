"""Chat templates that a recipe names, and the token that ends an answer under one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, GenerationConfig

from rewardsmith.engines.embedded.chat_template import end_token
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.types import Message, Prompt

PROMPT = Prompt("p", [Message("system", "Add."), Message("user", "7+5?")])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model: its vocabulary has the tokens of chatml, and it has no chat template."""
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = None
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def opened(folder: Path, **settings: Any) -> EmbeddedEngine:
    return EmbeddedEngine.open(ModelSettings(init=str(folder), **settings), name="judge")


def test_a_base_model_learns_chatml(base: Path, tmp_path: Path) -> None:
    engine = opened(base, chat="chatml")
    rendered = engine.tokenizer.decode(engine.encode(PROMPT).tolist())
    assert rendered == "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n7+5?<|im_end|>\n<|im_start|>assistant\n"
    end = engine.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert engine.encode_response("12").tolist()[-1] == end != engine.tokenizer.eos_token_id
    assert set(engine.stop_ids) == {end, engine.tokenizer.eos_token_id}  # it stops where demonstrations ended

    engine.publish(tmp_path / "published")  # and so does whoever serves it
    again = AutoTokenizer.from_pretrained(tmp_path / "published")
    chat = [{"role": m.role, "content": m.content} for m in PROMPT.messages]
    assert again.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == rendered
    assert end in GenerationConfig.from_pretrained(tmp_path / "published").eos_token_id
    assert opened(tmp_path / "published").encode_response("12").tolist()[-1] == end


def test_a_vocabulary_without_the_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r'models\.judge: chat = "chatml" needs the token <\|im_end\|>, <\|im_start\|>'):
        EmbeddedEngine.open(ModelSettings(init="tiny-llama", chat="chatml"), name="judge")


def test_a_file_may_be_the_template(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}", encoding="utf-8")
    assert opened(base, chat=str(file)).tokenizer.decode(opened(base, chat=str(file)).encode(PROMPT).tolist()) == (
        "[Add.][7+5?]"
    )
    with pytest.raises(UserError, match=r'chat = "chatlm" cannot be read.*Did you mean "chatml"'):
        opened(base, chat="chatlm")
    file.write_text("  ")
    with pytest.raises(UserError, match="it is no chat template"):
        opened(base, chat=str(file))


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}{{ m['content'] }}<|im_end|>\n{% endfor %}", "<|im_end|>"),
        ("{% for m in messages %}{{ m['content'] }}\n<|im_end|><|eos|>{% endfor %}", "<|im_end|>"),
        ("{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}", "<|eos|>"),  # text does not end an answer
        ("{{ messages[0]['content'] }}<|im_end|>", "<|eos|>"),  # it leaves the answer out
        (None, "<|eos|>"),
    ],
)
def test_an_answer_ends_as_the_template_says(base: Path, template: str | None, end: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = template
    assert tokenizer.convert_ids_to_tokens(end_token(tokenizer, {})) == end
