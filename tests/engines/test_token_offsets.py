"""Where tokens lie in the text: for every way in which tokenizers write text as tokens, and for hostile ones."""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.embedded.token_offsets import TokenOffsets
from rewardsmith.engines.protocol import Sampling
from tests.engines.running import ask, shared_engine

LINES = [
    "the first step is 7+5=12; the next one is 12-3=9; so the answer is #9",
    "ein schöner Tag, naïve cafés und Brücken über dem Fluß",
    "emoji 🙂🙃 and 👩‍👩‍👧 and flags 🇩🇪, then 漢字かな and кириллица",
    "  spaces   and\ttabs\n\nand lines \u00a0 and \ufffd",
]
SPECIAL = ["<|pad|>", "<|end|>"]


def wrapped(backend: Tokenizer, **settings: Any) -> Any:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken("<tool call>", normalized=False)])  # has a space, and is not special
    names = {"pad_token": SPECIAL[0], "eos_token": SPECIAL[1], "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(names | settings))


def byte_level() -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES * 3, trainer)
    return wrapped(backend)


def byte_fallback() -> Any:
    """As Llama 2: pieces with a mark for spaces, bytes for what is not in the vocabulary, the first space dropped."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=120, limit_alphabet=60, show_progress=False)
    backend.train_from_iterator([LINES[0], LINES[1]], trainer)
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<unk>": 256}
    learned = [token for token in backend.get_vocab() if token not in vocabulary]
    vocabulary |= {token: 257 + i for i, token in enumerate(sorted(learned))}
    backend.model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return wrapped(backend)


def metaspace() -> Any:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(LINES * 3, trainer)
    return wrapped(backend)


def word_pieces() -> Any:
    """A decoder that TokenOffsets does not know: it joins words with spaces, and takes some of them away again."""
    names = ["[UNK]", "a", "b", "##a", "##b", ".", ",", "'", "s", "##é"]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    return wrapped(backend, clean_up_tokenization_spaces=True)


def words() -> Any:
    """No decoder at all: tokens are joined with spaces."""
    names = ["[UNK]", "a", "b", "ab", ".", "é", "a b", " "]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrapped(backend)


MAKERS: dict[str, Callable[[], Any]] = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "word pieces": word_pieces,
    "words": words,
    "written in Python": ByT5Tokenizer,  # leaves out bytes that are no text
    "characters": lambda: make_tiny("tiny-llama", seed=0)[1],
    "bytes": lambda: make_tiny("tiny-llama-bytes", seed=0)[1],
    "qwen2 bytes": lambda: make_tiny("tiny-qwen2", seed=0)[1],
}


@cache
def tokenizer_of(name: str) -> Any:
    return MAKERS[name]()


@cache
def offsets_of(name: str) -> TokenOffsets:
    return TokenOffsets(tokenizer_of(name))


def decode(name: str, tokens: Any) -> str:
    return str(tokenizer_of(name).decode(list(map(int, tokens)), skip_special_tokens=True))


def check(name: str, tokens: list[int], text: str | None = None) -> np.ndarray:
    """Compare with what the tokenizer decodes of the first tokens, for each number of them that splits no character."""
    full = decode(name, tokens)
    text = full if text is None else text
    ends = offsets_of(name).token_char_ends(np.array(tokens, dtype=np.int32), text)
    assert ends.dtype == np.int32
    assert len(ends) == len(tokens)
    assert (np.diff(ends) >= 0).all()
    assert all(0 <= end <= len(text) for end in ends)
    for i, end in enumerate(ends):
        prefix = decode(name, tokens[: i + 1])
        if full.startswith(prefix):
            assert text[:end] == prefix[: len(text)], (i, tokens, prefix)
    return ends


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_tokens_lie_where_the_tokenizer_says(name: str, data: st.DataObject) -> None:
    # Models write any tokens: halves of characters, special tokens in the middle, ids that no token has.
    ids = st.integers(0, len(tokenizer_of(name)) + (2 if tokenizer_of(name).is_fast else -1))
    tokens = data.draw(st.lists(ids, max_size=24))
    full = decode(name, tokens)
    check(name, tokens)
    check(name, tokens, full[: data.draw(st.integers(0, len(full)))])


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace", "words", "characters", "qwen2 bytes"])
def test_common_tokenizers_need_no_decoding_token_by_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.array(tokenizer_of(name)("ab a ab b", add_special_tokens=False)["input_ids"], np.int32)
    text = decode(name, tokens)
    monkeypatch.setattr(offsets_of(name), "_decode", lambda tokens: pytest.fail("decoded again"))
    assert offsets_of(name).token_char_ends(tokens, text)[-1] == len(text)


def test_a_text_of_other_tokens_is_refused() -> None:
    for name in MAKERS:
        tokens = np.array(tokenizer_of(name)("ab", add_special_tokens=False)["input_ids"], np.int32)
        for text in ("b a", "ab and more", "é"):
            with pytest.raises(ValueError, match="another tokenizer"):
                offsets_of(name).token_char_ends(tokens, text)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama-bytes"])
@pytest.mark.parametrize("stop", [(), ("a", "7", "e", " "), ("<|eos|>",)])
def test_generated_rollouts_say_where_their_tokens_lie(name: str, stop: tuple[str, ...]) -> None:
    engine = shared_engine(name)
    sampling = Sampling(max_tokens=40, stop=stop)

    async def run() -> list[Any]:
        stream = engine.generate([ask("7"), ask("8")], sampling, n=4, seeds=[0, 1], ends=True)
        return [rollout async for _, group in stream for rollout in group.rollouts]

    rollouts = asyncio.run(run())
    assert len(rollouts) == 8
    for rollout in rollouts:
        full = engine.tokenizer.decode(rollout.tokens.tolist(), skip_special_tokens=True)
        assert full.startswith(rollout.text)
        for i, end in enumerate(rollout.ends):
            prefix = engine.tokenizer.decode(rollout.tokens[: i + 1].tolist(), skip_special_tokens=True)
            if full.startswith(prefix):
                assert rollout.text[:end] == prefix[: len(rollout.text)]
