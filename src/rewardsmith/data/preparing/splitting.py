"""Which sources are held out: a hash of the source text decides, so that all rows of one source fall into one split.

All commands that hold something out use this, so that what one of them held out no other trains on. Neither the seed
nor the order of the rows plays a part. A larger share holds out the same sources and more.
"""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections.abc import Iterable

KEYS = 2**64
"""How many different keys there are."""


def source_key(text: str) -> int:
    """Return a number below `KEYS` for a source; case, width and white space play no part."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.blake2b(plain.encode("utf-8"), digest_size=8, person=b"source text").digest(), "big")


def limit_of_share(share: float) -> int:
    """Return the key below which a share of all sources lies."""
    return int(share * KEYS)


def limit_of_count(keys: Iterable[int], count: int) -> int:
    """Return the key below which `count` of these sources lie, all where there are fewer; holds `count` keys."""
    lowest: list[int] = []  # negated, the highest of them first
    held: set[int] = set()
    for key in keys:
        if key in held:
            continue
        if len(lowest) < count:
            heapq.heappush(lowest, -key)
            held.add(key)
        elif key < -lowest[0]:
            held.remove(-heapq.heappushpop(lowest, -key))
            held.add(key)
    return max(held) + 1 if held else 0


__all__ = ["KEYS", "limit_of_count", "limit_of_share", "source_key"]
