"""How answers of models are kept as bytes, and read back.

Numbers and vectors come back bit for bit, and text as it was, even if it is no valid Unicode.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.llm import ChatReply

V = TypeVar("V")

LONG = 512
"""Bytes from which on an answer is compressed."""

MOST = 16 * 2**20
"""Bytes of the largest answer that is kept."""

# Not as ASCII: two halves of a surrogate pair would become the same escapes as the letter that they make.
_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def encoded(value: object) -> bytes:
    """Return a value as canonical JSON."""
    return _JSON.encode(value).encode("utf-8", "surrogatepass")


class Unpackable(Exception):  # noqa: N818 nobody made a mistake
    """What is kept is not what was kept once."""


@dataclass(frozen=True)
class Verb(Generic[V]):
    """How answers of one kind are kept: as bytes that begin with a letter for their form."""

    name: str
    pack: Callable[[V], bytes | None]
    unpack: Callable[[bytes], V]


def _pack(value: object) -> bytes | None:
    data = encoded(value)
    if len(data) > MOST:
        return None
    return b"z" + zlib.compress(data, 1) if len(data) >= LONG else b"j" + data


def _unpack(packed: bytes) -> Any:
    try:
        data = packed[1:]
        if packed[:1] == b"z":
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(data, MOST + 1)  # no more than was ever kept
            if not unpacking.eof:
                raise Unpackable
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except (zlib.error, ValueError, RecursionError) as error:
        raise Unpackable from error


def _pack_answer(answer: ChatReply) -> bytes | None:
    kept = {
        "text": answer.text,
        "truncated": bool(answer.truncated),
        "thought": answer.thought,
        "prompt_tokens": int(answer.prompt_tokens),
        "tokens": int(answer.tokens),
        "logprobs": [float(number) for number in answer.logprobs],
    }
    return _pack(kept)


def _unpack_answer(packed: bytes) -> ChatReply:
    try:
        fields = _unpack(packed)
        answer = ChatReply(**{**fields, "logprobs": tuple(fields["logprobs"])}, cached=True)
    except (TypeError, KeyError) as error:
        raise Unpackable from error
    if not isinstance(answer.text, str) or not isinstance(answer.thought, str):
        raise Unpackable
    return answer


def _pack_number(number: float) -> bytes | None:
    return _pack(float(number)) if math.isfinite(number) else None


def _unpack_number(packed: bytes) -> float:
    number = _unpack(packed)
    if not isinstance(number, float):
        raise Unpackable
    return number


def _pack_vector(vector: NDArray[np.float32]) -> bytes | None:
    return b"v" + vector.astype("<f4").tobytes() if np.isfinite(vector).all() and vector.nbytes < MOST else None


def _unpack_vector(packed: bytes) -> NDArray[np.float32]:
    if packed[:1] != b"v" or len(packed) % 4 != 1:
        raise Unpackable
    return np.frombuffer(packed, "<f4", offset=1).astype(np.float32)


ASK = Verb("chat", _pack_answer, _unpack_answer)
RATE = Verb("rate", _pack_number, _unpack_number)
EMBED = Verb("embed", _pack_vector, _unpack_vector)
