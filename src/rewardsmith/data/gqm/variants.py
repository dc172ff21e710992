"""The groups that one group gives: itself, parts of it, and each of these in other orders.

    for variant in variants_of(4, subgroups=4, shuffles=4, rng=random.Random(0)):
        variant.picked            # which candidates it shows: (0, 2, 3)
        variant.order             # in which order: (3, 0, 2)

The semantics and counts are those of GRRM's data preparation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from typing import Literal

Kind = Literal["original", "shuffled", "subgroup", "shuffled subgroup"]
"""What was done to a group."""

_FEW = 1_000  # so many parts or orders are listed to draw from; of more, one draws until they differ


@dataclass(frozen=True)
class Variant:
    """Some candidates of a group in some order.

    Attributes:
        picked: the indices of the candidates that are shown, ascending.
        order: the same, in the order in which they are shown.
        kind: what was done to the group.
    """

    picked: tuple[int, ...]
    order: tuple[int, ...]
    kind: Kind

    @property
    def permutation(self) -> tuple[int, ...]:
        """For each place the rank among those picked: `order[i] == picked[permutation[i]]`."""
        return tuple(map(self.picked.index, self.order))


def variants_of(count: int, *, subgroups: int, shuffles: int, rng: random.Random) -> Iterator[Variant]:
    """Yield the group as it is, then what is made of it; no order of the same candidates comes twice.

    Args:
        count: candidates of the group, at least 2.
        subgroups: how many parts of 2 to `count` - 1 candidates are drawn, all where there are fewer; in a part the
            candidates keep their order.
        shuffles: how many further orders the group and each of its parts get, all where there are fewer.
        rng: decides what is drawn.
    """
    whole = tuple(range(count))
    for picked in (whole, *_parts(count, subgroups, rng)):
        part = len(picked) < count
        yield Variant(picked, picked, "subgroup" if part else "original")
        for order in _orders(picked, shuffles, rng):
            yield Variant(picked, order, "shuffled subgroup" if part else "shuffled")


def _parts(count: int, wanted: int, rng: random.Random) -> list[tuple[int, ...]]:
    total = 2**count - count - 2
    if total <= max(2 * wanted, _FEW):
        return rng.sample(_every_part(count), min(wanted, total))
    found: dict[tuple[int, ...], None] = {}  # there may be far more than can be listed
    while len(found) < wanted:
        bits = rng.getrandbits(count)
        if 2 <= bits.bit_count() < count:
            found[tuple(i for i in range(count) if bits >> i & 1)] = None
    return list(found)


def _orders(picked: tuple[int, ...], wanted: int, rng: random.Random) -> list[tuple[int, ...]]:
    total = math.factorial(len(picked)) - 1
    if total <= max(2 * wanted, _FEW):
        drawn = rng.sample(_every_order(len(picked)), min(wanted, total))
        return [tuple([picked[i] for i in order]) for order in drawn]
    found: dict[tuple[int, ...], None] = {}
    while len(found) < wanted:
        order = tuple(rng.sample(picked, len(picked)))
        if order != picked:
            found[order] = None
    return list(found)


@lru_cache(maxsize=32)
def _every_part(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(part for size in range(2, count) for part in combinations(range(count), size))


@lru_cache(maxsize=32)
def _every_order(count: int) -> tuple[tuple[int, ...], ...]:
    """Return all orders but the first, in which nothing has moved."""
    return tuple(permutations(range(count)))[1:]


__all__ = ["Kind", "Variant", "variants_of"]
