"""Where tokens lie in the text that they stand for.

A reward for a part of a text belongs on the tokens of that part, and a tokenizer tells only what all tokens say
together: a character may take several tokens, a special token takes no character, and the first space may be dropped.
So every token of the vocabulary is known here by its bytes. What the bytes of an answer say is compared with its text;
where the two differ, the tokenizer is asked for the text of small parts of the answer instead.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"  # how sentencepiece writes a space
_UNREADABLE = "\ufffd"  # what a tokenizer writes for bytes that are no character


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens by their ids.

    Attributes:
        pieces: what each token adds to a text, in UTF-8; a character may be spread over several. The last one is empty,
            for ids beyond the vocabulary.
        begun: int64 [V + 1], how many characters begin in each.
    """

    pieces: Sequence[bytes]
    begun: NDArray[np.int64]


class Pieces:
    """Finds the tokens of answers in their texts.

    Args:
        tokenizer: of a Hugging Face model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Return how many characters of the text there are up to the end of each token, int32 [T].

        A character that is spread over several tokens counts from the first of them on. Tokens without text, such as
        the one that ends the sequence, end where the token before them does.

        Args:
            tokens: int32 [T].
            text: what they say, special tokens left out; or the beginning of that, where a stop text was cut off, or
                the last token is one that ends an answer. Or else a text that is encoded as these tokens.

        Raises:
            ValueError: it is none of these.
        """
        said, ends = self._spelled(tokens)
        dropped = _indent(said) - _indent(text)
        # Of a text that is all spaces nobody can tell which of them were dropped.
        if dropped >= 0 and said.startswith(text, dropped) and not (dropped and text and text.isspace()):
            return np.clip(ends - dropped, 0, len(text)).astype(np.int32)
        for used in (tokens, tokens[:-1]):
            full = self._decode(used)
            if full.startswith(text):
                slow = self._by_windows(used, full)
                found = np.minimum(self._by_prefixes(used, full) if slow is None else slow, len(text))
                return np.append(found, [len(text)] * (len(tokens) - len(used))).astype(np.int32)
        found_by_text = self._encoded(tokens, text)
        if found_by_text is None:
            raise ValueError("the text is not what these tokens say: another tokenizer made them")
        return found_by_text

    def _spelled(self, tokens: NDArray[np.int32]) -> tuple[str, NDArray[np.int64]]:
        """Return what the bytes of the tokens say, and where each token ends in it."""
        vocabulary = self._vocabulary
        ids = np.minimum(tokens, len(vocabulary.begun) - 1)
        pieces = [vocabulary.pieces[i] for i in ids.tolist()]
        try:
            return b"".join(pieces).decode(), np.cumsum(vocabulary.begun[ids])
        except UnicodeDecodeError:
            return _mended(pieces)

    def _decode(self, tokens: NDArray[np.int32]) -> str:
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True))

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        tokenizer = self._tokenizer
        size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        silent = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        to_bytes = _reading(tokenizer)
        names = tokenizer.convert_ids_to_tokens(list(range(size)))
        pieces = [b"" if name is None or i in silent else to_bytes(name) for i, name in enumerate(names)]
        begun = [sum(byte & 0xC0 != 0x80 for byte in piece) for piece in pieces]
        return _Vocabulary([*pieces, b""], np.array([*begun, 0], dtype=np.int64))

    def _by_windows(self, tokens: NDArray[np.int32], full: str) -> NDArray[np.int64] | None:
        """Ask what each token adds to the few before it; None where that does not lead to the whole text."""
        ends = np.zeros(len(tokens), dtype=np.int64)
        first = known = base = 0  # the text of the tokens up to `known` is full[:base]; those from `first` on are shown
        context = ""
        for i in range(len(tokens)):
            seen = self._decode(tokens[first : i + 1])
            added = seen[len(context) :]
            if seen.startswith(context) and full.startswith(added, base):
                ends[i] = base + len(added)
                if added and not added.endswith(_UNREADABLE):  # bytes that follow may change what these are
                    first, known, base = known, i + 1, int(ends[i])
                    context = self._decode(tokens[first:known])
            else:
                ends[i] = base  # the token splits a character, or what follows it changes what it says
        return np.maximum.accumulate(ends) if len(tokens) and ends[-1] == len(full) else None

    def _by_prefixes(self, tokens: NDArray[np.int32], full: str) -> NDArray[np.int64]:
        """Ask what the first tokens say, for each number of them."""
        said = [self._decode(tokens[: i + 1]) for i in range(len(tokens))]
        ends = np.array([len(text) if full.startswith(text) else 0 for text in said], dtype=np.int64)
        return np.maximum.accumulate(ends)

    def _encoded(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32] | None:
        """Return where tokens end in the text that they were made of; None where that is another text.

        A tokenizer may compose or replace characters, so that its tokens no longer say the text.
        """
        if not getattr(self._tokenizer, "is_fast", False):
            return None
        made = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, behind = made["input_ids"], [end for _, end in made["offset_mapping"]]
        rest = tokens[len(ids) :]
        if tokens[: len(ids)].tolist() != ids or self._decode(rest):
            return None
        return np.maximum.accumulate(np.array([*behind, *[len(text)] * len(rest)], dtype=np.int32))


def _indent(text: str) -> int:
    """Return how many spaces a text begins with."""
    return len(text) - len(text.lstrip(" "))


def _mended(pieces: Sequence[bytes]) -> tuple[str, NDArray[np.int64]]:
    """Return the text of bytes that are no UTF-8, with a mark for what cannot be read, and where each piece ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    ends: list[int] = []
    length = 0
    for piece in pieces:
        parts.append(decoder.decode(piece))
        length += len(parts[-1])
        waiting = decoder.getstate()[0]  # for more bytes: a character that has begun, or what never becomes one
        ends.append(length + len(waiting.decode(errors="replace")))
    parts.append(decoder.decode(b"", final=True))
    return "".join(parts), np.minimum(np.array(ends, dtype=np.int64), length + len(parts[-1]))


def _reading(tokenizer: Any) -> Any:
    """Return how the name of a token becomes the bytes that it stands for.

    This need not be right for every tokenizer: what it leads to is compared with what the tokenizer says.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    try:
        told = f"{_SPACE} ByteFallback" if backend is None else backend.decoder.__getstate__().decode()
    except Exception:  # noqa: BLE001 there is none, or one written in Python
        told = ""
    if '"ByteLevel"' in told:
        return _byte_level
    spaced, by_bytes = _SPACE in told or "\\u2581" in told, "ByteFallback" in told

    def plain(name: str) -> bytes:
        if by_bytes and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        return (name.replace(_SPACE, " ") if spaced else name).encode()

    return plain


def _alphabet() -> dict[str, int]:
    """Return the letter that a byte-level tokenizer writes for each byte, the other way round.

    Bytes that can be printed stand for themselves; the others, in order, for the letters from 256 on.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _alphabet()


def _byte_level(name: str) -> bytes:
    found = [_BYTES.get(letter, -1) for letter in name]
    return name.encode() if -1 in found else bytes(found)


__all__ = ["Pieces"]
