"""In which orders a group is shown to find out whether its judge likes a position."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from math import factorial


def spread_orders(n: int, count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Return up to `count` distinct orders of n candidates, in which positions are spread as evenly as can be.

    They are rotations of drawn orders: each n of them put every candidate into every position once.

    Args:
        n: candidates, numbers from 0.
        count: how many orders; there are n! at most.
        rng: draws them.
    """
    return list(islice(_rotations(n, rng), min(count, factorial(min(n, 12)))))


def _rotations(n: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    seen: set[tuple[int, ...]] = set()
    while len(seen) < factorial(max(0, min(n, 12) - 1)):
        rest = list(range(1, n))
        rng.shuffle(rest)
        ring = (0, *rest)[:n]
        if ring in seen:  # rotations of one ring are those of no other
            continue
        seen.add(ring)
        shifts = list(range(n))
        rng.shuffle(shifts)
        yield from (ring[shift:] + ring[:shift] for shift in shifts)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return at which position of an order each candidate stands."""
    places = [0] * len(order)
    for place, candidate in enumerate(order):
        places[candidate] = place
    return tuple(places)
