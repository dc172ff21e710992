"""Seeded draws and the train/held-out split: both depend on the content of a row, never on the rows around it.

All commands share the split, so that what one of them holds out no other trains on. A hash of the source text decides;
neither the seed nor the order of the rows plays a part, and a larger share holds out the same sources and more.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable

from rewardsmith.text.judge_prompts import question_of
from rewardsmith.types import Prompt

KEYS = 2**64


def source_text(prompt: Prompt) -> str:
    """Return the text that decides the split of a prompt: what is translated, or the question."""
    text = prompt.info.get("src_text")
    return text if isinstance(text, str) and text.strip() else question_of(prompt)


def source_key(text: str) -> int:
    """Return a number below `KEYS` for a source text; case, width and white space play no part."""
    normalised = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    digest = hashlib.blake2b(normalised.encode("utf-8", "surrogatepass"), digest_size=8, person=b"source text")
    return int.from_bytes(digest.digest(), "big")


def held_out_limit(held_out: float, keys: Callable[[], Iterable[int]]) -> int:
    """Return the key below which sources are held out, by a share below 1 or a number, which needs all `keys`."""
    if held_out < 1:
        return int(held_out * KEYS)
    lowest = sorted(set(keys()))[: int(held_out)]
    return lowest[-1] + 1 if lowest else 0


def digest_of(*parts: object) -> str:
    """Return 32 hexadecimal digits that depend on all parts: text, numbers, messages, and lists of them."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=lambda m: [m.role, m.content])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


__all__ = ["KEYS", "digest_of", "held_out_limit", "source_key", "source_text"]
