"""Sentence-transformers in this process: vectors as that library makes them, files that cannot do harm."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from rewardsmith.engines.model_settings import SentenceSettings
from rewardsmith.engines.sentences import SentenceModel
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", "cat", "dog", "the", "sat", "##s", ".", "1", "2"]
TEXTS = ["the cat sat.", "the dogs sat.", "", "a b c d e f g " * 10, "1", "zzz", "the cat sat."]
LONGEST = 32


def write_sentences(folder: Path) -> Path:
    """Write a tiny model by hand, with the files that published ones have: a BERT, and the first token's vector."""
    (folder / "1_Pooling").mkdir(parents=True)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    bert = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=LONGEST, **shape))
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    bert.save_pretrained(folder)
    BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 32,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentences(tmp_path_factory.mktemp("sentences") / "tiny")


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def open_model(folder: Path | str, **changes: Any) -> SentenceModel:
    return SentenceModel(SentenceSettings(init=str(folder), device="cpu", **changes), name="near")


def embed(model: SentenceModel, texts: list[str]) -> np.ndarray:
    async def run() -> np.ndarray:
        try:
            return await model.embed(texts)
        finally:
            await model.close()

    return asyncio.run(run())


def by_transformers(folder: Path, texts: list[str]) -> np.ndarray:
    """Return the first token's vector of each text, of length 1, by transformers alone."""
    bert, tokenizer = BertModel.from_pretrained(folder).eval(), BertTokenizerFast.from_pretrained(folder)
    vectors = []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        with torch.no_grad():
            vectors.append(bert(**encoded).last_hidden_state[0, 0].numpy())
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors])


def test_vectors_are_those_of_transformers(folder: Path) -> None:
    model = open_model(folder)
    vectors = embed(model, TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, by_transformers(folder, TEXTS), atol=1e-5)
    assert model.usage.calls == len(TEXTS)
    assert abs(vectors[0] @ vectors[1]) < 0.999  # they do differ


def test_an_error_of_the_model_is_no_vector(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(folder)
    for made, kind in ((lambda *a: 1 / 0, "crashed"), (lambda *a: np.array([[np.nan]], np.float32), "invalid")):
        monkeypatch.setattr(model, "_encode", made)
        with pytest.raises(ModelCallError) as caught:
            embed(model, ["a", "b"])
        assert caught.value.kind == kind
    assert (model.usage.failed, model.usage.calls) == (4, 0)


def identity(model: SentenceModel) -> str:
    return asyncio.run(model.identity())


def test_identity_follows_the_files_and_not_their_place(folder: Path, damaged: Path) -> None:
    before = identity(open_model(folder))
    assert identity(open_model(damaged)) == before
    (damaged / "README.md").write_text("read me")
    assert identity(open_model(damaged)) == before
    assert identity(open_model(damaged, max_tokens=5)) != before
    assert identity(open_model(damaged, batch_size=2)) == before
    (damaged / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert identity(open_model(damaged)) != before


def refusal(init: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        asyncio.run(open_model(init).check())
    return str(caught.value)


def test_a_folder_that_is_none_is_refused(folder: Path, damaged: Path, tmp_path: Path) -> None:
    assert 'models.near: init = "./nowhere": there is no such folder' in refusal("./nowhere")
    assert "no model of that id could be downloaded" in refusal("nobody/nothing")
    (damaged / "modules.json").write_text("[{")
    assert "modules.json cannot be read" in refusal(damaged)
    (damaged / "modules.json").write_text('{"a": 1}')
    assert "modules.json cannot be read" in refusal(damaged)
    assert "modules.json cannot be read (FileNotFoundError" in refusal(tmp_path)


def modules(folder: Path, **change: str) -> None:
    table = json.loads((folder / "modules.json").read_text())
    table[1] |= change
    (folder / "modules.json").write_text(json.dumps(table))


def test_code_that_comes_with_a_model_is_never_run(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (damaged / "evil_pooling.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(damaged))
    modules(damaged, type="evil_pooling.Pooling")
    assert "code of its own (evil_pooling.Pooling), which is never run" in refusal(damaged)
    assert "evil_pooling" not in sys.modules
    modules(damaged, type="sentence_transformers.models.Pooling", path="../elsewhere")
    assert "which is not in the folder" in refusal(damaged)
    modules(damaged, path="1_Pooling")
    (damaged / "model.safetensors").rename(damaged / "pytorch_model.bin")
    assert "pickled" in refusal(damaged)
