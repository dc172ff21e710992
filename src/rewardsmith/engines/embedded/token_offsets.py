"""Where tokens end in the text that they decode to.

A character may take several tokens, a special token takes no character, and the first space may be dropped. So the
bytes of each token of the vocabulary are joined and compared with the text; where the two differ, the tokenizer decodes
small parts of the response instead.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"  # sentencepiece's form of a space
_INVALID = "\ufffd"  # the decoded form of bytes that are no character

# Byte-level tokenizers print printable bytes as themselves, and the others, in order, as the letters from 256 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_TO_LATIN_1 = {256 + i: byte for i, byte in enumerate(_OTHERS)} | dict.fromkeys(_OTHERS, _INVALID)


class TokenOffsets:
    """Finds the tokens of responses in their texts; `tokenizer` is a Hugging Face one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def token_char_ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Return how many characters of the text there are up to the end of each token, int32 [T].

        A character that is spread over several tokens counts from the first of them on. Tokens without text end where
        the token before them does. The text is what the tokens decode to, without special tokens; or its beginning; or
        a text that is encoded as these tokens; else this is a `ValueError`.
        """
        spelled, ends = self._spell(tokens)
        dropped = _indent(spelled) - _indent(text)
        # In a text that is all spaces it is unknown which of them were dropped.
        if dropped >= 0 and spelled.startswith(text, dropped) and not (dropped and text and text.isspace()):
            return np.clip(ends - dropped, 0, len(text)).astype(np.int32)
        for used in (tokens, tokens[:-1]):
            full = self._decode(used)
            if full.startswith(text):
                found = self._by_windows(used, full)
                found = np.minimum(self._by_prefixes(used, full) if found is None else found, len(text))
                return np.append(found, [len(text)] * (len(tokens) - len(used))).astype(np.int32)
        by_encoding = self._by_encoding(tokens, text)
        if by_encoding is None:
            raise ValueError("the tokens do not decode to the text: they are from another tokenizer")
        return by_encoding

    def _decode(self, tokens: NDArray[np.int32]) -> str:
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True))

    @cached_property
    def _vocabulary(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """The UTF-8 bytes of each token, and how many characters begin in each; empty for ids beyond the vocabulary."""
        tokenizer = self._tokenizer
        size = 1 + max(tokenizer.get_vocab().values(), default=-1)
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        to_bytes = _token_to_bytes(tokenizer)
        names = tokenizer.convert_ids_to_tokens(list(range(size)))
        pieces = [b"" if name is None or i in special else to_bytes(name) for i, name in enumerate(names)]
        pieces.append(b"")
        begins = np.frombuffer(b"".join(pieces), dtype=np.uint8) & 0xC0 != 0x80  # whether a character begins at a byte
        begun = np.append(0, np.cumsum(begins))[np.cumsum([0, *map(len, pieces)])]
        return pieces, np.diff(begun)

    def _spell(self, tokens: NDArray[np.int32]) -> tuple[str, NDArray[np.int64]]:
        """Return the text of the tokens' bytes, and where each token ends in it."""
        vocabulary, begun = self._vocabulary
        ids = np.minimum(tokens, len(begun) - 1)
        pieces = [vocabulary[i] for i in ids.tolist()]
        try:
            return b"".join(pieces).decode(), np.cumsum(begun[ids])
        except UnicodeDecodeError:
            return _decode_invalid(pieces)

    def _by_windows(self, tokens: NDArray[np.int32], full: str) -> NDArray[np.int64] | None:
        """Decode each token after the few before it; None where that does not lead to the whole text."""
        ends = np.zeros(len(tokens), dtype=np.int64)
        first = known = base = 0  # the tokens up to `known` decode to full[:base]; those from `first` on are context
        context = ""
        for i in range(len(tokens)):
            window = self._decode(tokens[first : i + 1])
            added = window[len(context) :]
            if window.startswith(context) and full.startswith(added, base):
                ends[i] = base + len(added)
                if added and not added.endswith(_INVALID):  # bytes that follow may change what these are
                    first, known, base = known, i + 1, int(ends[i])
                    context = self._decode(tokens[first:known])
            else:
                ends[i] = base  # the token splits a character, or what follows changes its text
        return np.maximum.accumulate(ends) if len(tokens) and ends[-1] == len(full) else None

    def _by_prefixes(self, tokens: NDArray[np.int32], full: str) -> NDArray[np.int64]:
        """Decode the first tokens, for each number of them."""
        texts = [self._decode(tokens[: i + 1]) for i in range(len(tokens))]
        ends = np.array([len(text) if full.startswith(text) else 0 for text in texts], dtype=np.int64)
        return np.maximum.accumulate(ends)

    def _by_encoding(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32] | None:
        """Encode the text again, for a tokenizer that composes or replaces characters; None if the tokens differ."""
        if not getattr(self._tokenizer, "is_fast", False):
            return None
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
        rest = tokens[len(ids) :]
        if tokens[: len(ids)].tolist() != ids or self._decode(rest):
            return None
        return np.maximum.accumulate(np.array([*ends, *[len(text)] * len(rest)], dtype=np.int32))


def _indent(text: str) -> int:
    """Return how many spaces a text begins with."""
    return len(text) - len(text.lstrip(" "))


def _decode_invalid(pieces: Sequence[bytes]) -> tuple[str, NDArray[np.int64]]:
    """Return the text of bytes that are no UTF-8, with a mark for what is invalid, and where each piece ends."""
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


def _token_to_bytes(tokenizer: Any) -> Callable[[str], bytes]:
    """Return the function from a token to its bytes; it may be wrong for some, since the result is checked."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.decoder is None:
        return lambda name: f" {name}".encode()  # tokens are joined with spaces; the first space is dropped
    try:
        decoder = f"{_SPACE} ByteFallback" if backend is None else backend.decoder.__getstate__().decode()
    except Exception:  # noqa: BLE001 there is none, or one written in Python
        decoder = ""
    if '"ByteLevel"' in decoder:
        return _byte_level
    has_spaces, has_bytes = _SPACE in decoder or "\\u2581" in decoder, "ByteFallback" in decoder

    def from_name(name: str) -> bytes:
        if has_bytes and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        return (name.replace(_SPACE, " ") if has_spaces else name).encode()

    return from_name


def _byte_level(name: str) -> bytes:
    try:
        return name.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:  # it is written as it is
        return name.encode()
