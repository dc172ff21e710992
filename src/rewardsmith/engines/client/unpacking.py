"""The bytes of a reply, unpacked within a bound: a megabyte of gzip can hold a gigabyte."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

import aiohttp

from rewardsmith.engines.client.faults import Fault, excerpt, garbage

_PIECE = 1 << 18
"""Bytes that are unpacked at a time."""


async def unpacked(content: aiohttp.StreamReader, encoding: str, where: str, limit: int) -> AsyncIterator[bytes]:
    """Yield a reply in pieces, without its `Content-Encoding`.

    Args:
        content: of a response that was not unpacked yet.
        encoding: its header. We request none; some proxies use gzip or deflate nevertheless.
        where: the address, for errors.
        limit: bytes, of what was sent and of what comes out of it.

    Raises:
        Fault: it is packed in another way, is damaged, or goes beyond the limit.
    """
    packing = encoding.strip().lower()
    if packing not in ("", "identity", "gzip", "x-gzip", "deflate"):
        what = f"{where} packed its reply in a way that was not requested (Content-Encoding: {excerpt(encoding)})"
        raise Fault("unparsable", what, passing=False)
    unpacker = None if packing in ("", "identity") else _Unpacker(packing, where)
    received = size = 0
    async for part in content.iter_any():
        received += len(part)
        for piece in [part] if unpacker is None else unpacker.pieces(part):
            size += len(piece)
            if max(size, received) > limit:
                raise Fault("unparsable", f"{where} sent more than {limit >> 20} MiB", passing=False)
            yield piece


class _Unpacker:
    """Unpacks gzip, in one or several members, or deflate."""

    def __init__(self, packing: str, where: str) -> None:
        self._where = where
        self._bits = 0 if packing == "deflate" else 16 + zlib.MAX_WBITS  # 0: known with the first byte
        self._stream = None if packing == "deflate" else zlib.decompressobj(self._bits)
        self._ended = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            # Some send deflate without the header that it should have.
            self._bits = zlib.MAX_WBITS if data[:1] and data[0] & 0x0F == 8 else -zlib.MAX_WBITS
            self._stream = zlib.decompressobj(self._bits)
        while data and not self._ended:
            try:
                piece = self._stream.decompress(data, _PIECE)
            except zlib.error as error:
                raise garbage(f"{self._where} sent a reply that cannot be unpacked ({error})") from None
            if piece:
                yield piece
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data = self._stream.unused_data
                self._stream = zlib.decompressobj(self._bits)
                self._ended = not data.startswith(b"\x1f\x8b")  # what follows is padding


__all__ = ["unpacked"]
