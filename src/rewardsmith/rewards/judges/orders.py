"""In which order candidates are shown, and who is shown together: designs against a judge's liking for positions.

All are made from the candidates themselves, so that the same group is always asked the same questions, in whatever
order its rollouts came. Candidates are numbers here, from 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def drawn(key: str, texts: Sequence[str]) -> list[int]:
    """Return the candidates in an order drawn from their texts and a key, such as the id of the prompt.

    It does not depend on the order in which they are given, unless two are equal.
    """

    def lot(i: int) -> bytes:
        whole = f"{len(key)}:{key}{texts[i]}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(whole).digest()

    return sorted(range(len(texts)), key=lot)


def balanced(members: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return up to `count` orders of n candidates in which positions are spread evenly.

    They are rows of a Williams square (Williams 1949, Australian Journal of Scientific Research A 2), each followed by
    its mirror image: over an even number of orders every candidate has the same mean position, and so a liking for
    early or late ones cancels as far as it grows evenly. After n orders for an even n, and 2 n for an odd one, everyone
    has stood in every place, and right behind every other, equally often; there are no more than these.
    """
    n = len(members)
    rows: list[tuple[int, ...]] = []
    # The mirror image of a row is another row of the same square where n is even.
    for shift in range(n if n % 2 else n // 2):
        row = tuple(members[(place + shift) % n] for place in _zigzag(n))
        rows += [row, row[::-1]]
    return rows[:count]


def arranged(n: int) -> list[int]:
    """Return n candidates so that the first row which `balanced` makes of them is 0, 1, 2 and so on."""
    members = [0] * n
    for shown, place in enumerate(_zigzag(n)):
        members[place % n] = shown
    return members


def _zigzag(n: int) -> list[int]:
    return [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(n)]  # 0, 1, -1, 2, -2, …


def windows(members: Sequence[int], most: int, overlap: int) -> list[tuple[int, ...]]:
    """Return subgroups of `most` candidates that cover all; each shares at least `overlap` with the next, in a ring."""
    n = len(members)
    if n <= most:
        return [tuple(members)]
    count = -(-n // (most - overlap))
    starts = [i * n // count for i in range(count)]
    return [tuple(members[(start + place) % n] for place in range(most)) for start in starts]


def heats(members: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Return the candidates dealt into the fewest groups of at most `most`, whose sizes differ by one at most."""
    count = -(-len(members) // most)
    return [tuple(members[i::count]) for i in range(count)]


def ring(members: Sequence[int], opponents: int) -> list[tuple[int, int]]:
    """Return pairs in which everyone meets the next `opponents / 2` in a ring, and so that many on each side."""
    n = len(members)
    pairs = {
        frozenset((members[i], members[(i + step) % n])): None
        for step in range(1, opponents // 2 + 1)
        for i in range(n)
        if step % n
    }
    return sorted((min(pair), max(pair)) for pair in pairs)


def random_rings(key: str, texts: Sequence[str], opponents: int) -> list[tuple[int, int]]:
    """Return the pairs of `opponents / 2` rings, each of all candidates in an order drawn anew."""
    rounds = (ring(drawn(f"{key} ring {i}", texts), 2) for i in range(opponents // 2))
    return sorted({pair for pairs in rounds for pair in pairs})


def all_pairs(members: Sequence[int]) -> list[tuple[int, int]]:
    """Return every pair."""
    return [(a, b) for a in sorted(members) for b in sorted(members) if a < b]
