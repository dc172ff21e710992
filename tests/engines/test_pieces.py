"""Where tokens lie in the text: for every way in which tokenizers write text as tokens, and for hostile ones."""

import asyncio
import unicodedata
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
from rewardsmith.engines.embedded.token_offsets import _BYTES, TokenOffsets
from rewardsmith.engines.protocol import Sampling
from tests.engines.running import answer, ask, open_engine, shared_engine

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


def composing() -> Any:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


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


def spaced() -> Any:
    """No decoder: the names of the tokens with a space between them."""
    return wrapped(Tokenizer(models.WordLevel({"a": 0, "b": 1, " ": 2, "é🙂": 3}, unk_token="a")))


MAKERS: dict[str, Callable[[], Any]] = {
    "byte level": byte_level,
    "composing": composing,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "word pieces": word_pieces,
    "spaced": spaced,
    "written in Python": ByT5Tokenizer,  # leaves out bytes that are no text
    "characters": lambda: make_tiny("tiny-llama", seed=0)[1],
    "bytes": lambda: make_tiny("tiny-llama-bytes", seed=0)[1],
    "qwen2 bytes": lambda: make_tiny("tiny-qwen2", seed=0)[1],
}
every_tokenizer = pytest.mark.parametrize("name", MAKERS)


@cache
def tokenizer_of(name: str) -> Any:
    return MAKERS[name]()


@cache
def pieces_of(name: str) -> TokenOffsets:
    return TokenOffsets(tokenizer_of(name))


def decode(name: str, tokens: Any) -> str:
    return str(tokenizer_of(name).decode(list(map(int, tokens)), skip_special_tokens=True))


def check(name: str, tokens: list[int], text: str | None = None) -> np.ndarray:
    """Compare with what the tokenizer says of the first tokens, for each number of them that splits no character."""
    full = decode(name, tokens)
    text = full if text is None else text
    ends = pieces_of(name).token_char_ends(np.array(tokens, dtype=np.int32), text)
    assert ends.dtype == np.int32
    assert len(ends) == len(tokens)
    assert (np.diff(ends) >= 0).all()
    assert all(0 <= end <= len(text) for end in ends)
    for i, end in enumerate(ends):
        said = decode(name, tokens[: i + 1])
        if full.startswith(said):
            assert text[:end] == said[: len(text)], (i, tokens, said)
    return ends


@every_tokenizer
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tokens_lie_where_the_tokenizer_says(name: str, data: st.DataObject) -> None:
    # Models write any tokens: halves of characters, special tokens in the middle, ids that no token has.
    ids = st.integers(0, len(tokenizer_of(name)) + (2 if tokenizer_of(name).is_fast else -1))
    tokens = data.draw(st.lists(ids, max_size=24))
    full = decode(name, tokens)
    check(name, tokens)
    check(name, tokens, full[: data.draw(st.integers(0, len(full)))])


@every_tokenizer
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from(sorted(set("".join(LINES)) | set("ab.,é\u0301")))))
def test_the_tokens_of_any_text_lie_in_it(name: str, text: str) -> None:
    tokens = tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]
    check(name, [*tokens, tokenizer_of(name).eos_token_id])


@every_tokenizer
def test_nothing_lies_in_nothing(name: str) -> None:
    end = tokenizer_of(name).eos_token_id
    assert pieces_of(name).token_char_ends(np.empty(0, np.int32), "").tolist() == []
    assert pieces_of(name).token_char_ends(np.array([end], np.int32), "").tolist() == [0]


@pytest.mark.parametrize("name", ["byte level", "bytes", "byte fallback"])
def test_a_character_counts_from_its_first_byte_on(name: str) -> None:
    tokenizer = tokenizer_of(name)
    tokens = tokenizer("x🙃y", add_special_tokens=False)["input_ids"]
    ends = check(name, tokens).tolist()
    assert ends[-1] == 3
    assert sorted(set(ends)) == [0, 1, 2, 3] if name == "byte fallback" else [1, 2, 3]
    assert ends.count(2) > 1  # 🙃 takes several tokens
    assert ends == sorted(ends)


BYTES = [
    (b"a\xe2\x82\xacb", [1, 2, 2, 2, 3]),
    (b"a\x80\x80b", [1, 2, 3, 4]),  # each a mark
    (b"\xe2\x82", [1, 1]),  # cut off: one mark
    (b"\xe2\x82a", [1, 1, 2]),
    (b"\xe2a\xac", [1, 2, 3]),
    (b"\xc0\xaf\xff", [1, 2, 3]),
    (b"\xe0\x80\x80", [1, 2, 3]),  # no character begins so
    (b"\xed\xba\x04", [1, 2, 3]),  # half of a surrogate pair
    (b"\xef\xbf\xbd\xff", [1, 1, 1, 2]),  # the mark itself, written
]


@pytest.mark.parametrize(("written", "ends"), BYTES)
def test_bytes_that_are_no_text_are_marks(written: bytes, ends: list[int]) -> None:
    tokenizer = tokenizer_of("bytes")
    letters = {byte: letter for letter, byte in byte_letters().items()}
    tokens = [tokenizer.convert_tokens_to_ids(letters[byte]) for byte in written]
    assert decode("bytes", tokens) == written.decode(errors="replace")
    assert check("bytes", tokens).tolist() == ends


FALLEN = [
    ([0xE2, 0x82, 0xAC, 0xC3, 0xA9], "€é", [1, 1, 1, 2, 2]),
    ([0x80, 0xC3, 0x80, 0x80], "\ufffd" * 4, [1, 2, 3, 4]),  # one byte too many spoils the whole run
    ([0xC3, 0x80, 0x80], "\ufffd" * 3, [1, 1, 3]),  # the first two would be a character
]


@pytest.mark.parametrize(("tokens", "text", "ends"), FALLEN)
def test_runs_of_bytes_that_are_no_text_are_marks_too(tokens: list[int], text: str, ends: list[int]) -> None:
    assert decode("byte fallback", tokens) == text
    assert check("byte fallback", tokens).tolist() == ends


def test_where_a_later_token_changes_what_was_said() -> None:
    tokens = [0, 7, 7, 1]  # words are joined with spaces, and the space between two quotes is taken away again
    assert decode("word pieces", tokens) == "[UNK]'' a"
    assert decode("word pieces", tokens[:2]) == "[UNK] '"
    assert check("word pieces", tokens).tolist() == [5, 5, 7, 9]


def test_spaces_of_which_some_were_cut_off_or_dropped() -> None:
    three = tokenizer_of("bytes")("   ", add_special_tokens=False)["input_ids"]
    assert check("bytes", three, " ").tolist() == [1, 1, 1]  # cut off behind the first
    marks = [tokenizer_of("byte fallback").convert_tokens_to_ids("▁")] * 3
    assert check("byte fallback", marks).tolist() == [0, 1, 2]  # the first one dropped
    assert check("byte fallback", marks, " ").tolist() == [0, 1, 1]


def byte_letters() -> dict[str, int]:
    """Ask the library which letter stands for which byte; bytes that no text has are the rest, in order."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found: dict[str, int] = {}
    for text in [
        *map(chr, range(0x800)),
        *map(chr, range(0xE000, 0x110000, 0x400)),
        *map(chr, range(0x800, 0xD800, 64)),
    ]:
        ((letters, _),) = split.pre_tokenize_str(text)
        found |= dict(zip(letters, text.encode(), strict=True))
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(found))
    return found | dict(zip(rest, sorted(set(range(256)) - set(found.values())), strict=True))


def test_the_alphabet_of_byte_level_tokenizers() -> None:
    assert byte_letters() == _BYTES


@pytest.mark.parametrize("name", ["byte fallback", "metaspace"])
def test_the_space_that_is_dropped_counts_for_nothing(name: str) -> None:
    tokenizer = tokenizer_of(name)
    tokens = tokenizer("the step", add_special_tokens=False)["input_ids"]
    assert decode(name, tokens) == "the step"
    assert check(name, tokens)[-1] == 8
    again = [tokenizer.eos_token_id, *tokens]
    assert check(name, again)[0] == 0


def test_an_added_token_that_is_not_special_is_text() -> None:
    for name in ("byte level", "byte fallback"):
        token = tokenizer_of(name).convert_tokens_to_ids("<tool call>")
        assert check(name, [token, token]).tolist() == [11, 22]


def test_a_text_that_was_composed_is_found_by_its_own_characters() -> None:
    text = "cafe\u0301s und u\u0308ber"
    assert unicodedata.normalize("NFC", text) != text
    tokenizer = tokenizer_of("composing")
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    ends = pieces_of("composing").token_char_ends(np.array(ids, np.int32), text)
    assert ends[-1] == ends[-2] == len(text)
    for i in range(len(ids)):
        said = decode("composing", ids[: i + 1])
        if "\ufffd" not in said:  # a mark that was composed into its letter may count for either token
            assert letters_of(text[: ends[i]]) == letters_of(said)


def letters_of(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter))


def test_the_last_token_may_be_one_that_ends_the_answer() -> None:
    tokenizer = tokenizer_of("characters")
    tokens = tokenizer("7+5;", add_special_tokens=False)["input_ids"]
    assert check("characters", tokens, "7+5").tolist() == [1, 2, 3, 3]
    euro = tokenizer_of("bytes")("a€", add_special_tokens=False)["input_ids"]
    ends = pieces_of("bytes").token_char_ends(np.array(euro, np.int32), decode("bytes", euro[:-1]))
    assert ends.tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "spaced"])  # that one reads all words alike
def test_a_text_that_the_tokens_do_not_say_is_refused(name: str) -> None:
    tokens = np.array(tokenizer_of(name)("ab", add_special_tokens=False)["input_ids"], np.int32)
    for text in ("b a", "ab and more", "é"):
        with pytest.raises(ValueError, match="another tokenizer"):
            pieces_of(name).token_char_ends(tokens, text)


def test_a_long_answer_of_an_unknown_kind_is_asked_for_in_small_parts() -> None:
    tokenizer = word_pieces()
    asked: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def decode(self, tokens: list[int], **settings: Any) -> str:
            asked.append(len(tokens))
            return str(tokenizer.decode(tokens, **settings))

    tokens = np.array([1, 3, 2, 5, 1, 4] * 200, np.int32)
    text = str(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))
    ends = TokenOffsets(Counting()).token_char_ends(tokens, text)
    assert ends[-1] == len(text)
    assert [text[:end] for end in ends[:12]] == [tokenizer.decode(tokens[: i + 1].tolist()) for i in range(12)]
    assert sum(count > 8 for count in asked) == 1  # the whole answer, once


# ---- the engine ------------------------------------------------------------------------------------------------------


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
            said = engine.tokenizer.decode(rollout.tokens[: i + 1].tolist(), skip_special_tokens=True)
            if full.startswith(said):
                assert rollout.text[:end] == said[: len(rollout.text)]


def test_rollouts_say_nothing_about_it_unless_asked() -> None:
    (group,) = answer(open_engine("tiny-llama"), ["7"], Sampling(max_tokens=3))
    assert group.rollouts[0].ends is None
