"""Score bands, and how they are brought nearer to each other: few solutions are graded 4, and many 10.

    n_b = min(max(c_b, F), C)      F = min(repeats · min c, ⌈max c / ratio⌉)      C = ⌊ratio · F⌋

where c_b is how many a band has, over those that have any, and n_b how many it gets. No band is then more than `ratio`
times as large as the smallest, nothing is there more than `repeats` times, and bands that are near enough stay as they
are: first the small ones are raised, and only if that is not enough the large ones are cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardsmith.data.rubrics.problems import digest_of
from rewardsmith.text.judge_prompts import format_number

_ROUNDING = 1e-9
"""A share such as 0.6 lies on the edge of a band: a sum of votes may miss it by a rounding error."""


def band_of(share: float, bands: int) -> int:
    """Return the number of the band, from 0, of a share from 0 to 1; all but the last do not hold their upper end."""
    return min(bands - 1, int(share * bands + _ROUNDING))


def band_name(band: int, bands: int, total: float = 10.0) -> str:
    """Return the ends of a band in points, such as `2-4`."""
    low, high = (format_number(round(total * i / bands, 2)) for i in (band, band + 1))
    return f"{low}-{high}"


def sizes(counts: Sequence[int], ratio: float, repeats: int) -> list[int]:
    """Return how many each band gets; one that is empty stays so. See the formula above.

    Args:
        counts: how many each band has.
        ratio: how many times as large as the smallest band another may be, at least 1.
        repeats: how often the same may be there, at least 1.
    """
    filled = [count for count in counts if count]
    if not filled:
        return list(counts)
    floor = min(repeats * min(filled), math.ceil(max(filled) / ratio - _ROUNDING))
    ceiling = math.floor(ratio * floor + _ROUNDING)
    return [min(max(count, floor), ceiling) if count else 0 for count in counts]


@dataclass(frozen=True)
class Balance:
    """How bands are balanced.

    Attributes:
        bands: how many there are.
        ratio: see `sizes`.
        repeats: see `sizes`.
        seed: decides who is taken.
    """

    bands: int = 5
    ratio: float = 2.0
    repeats: int = 2
    seed: int = 0

    def copies(self, shares: Mapping[str, float]) -> dict[str, int]:
        """Return how often each is taken, from 0; who that is depends on the keys and the seed, not on the order.

        Args:
            shares: from 0 to 1, by a key that tells solutions apart.
        """
        members: list[list[str]] = [[] for _ in range(self.bands)]
        for key, share in shares.items():
            members[band_of(share, self.bands)].append(key)
        taken: dict[str, int] = {}
        for keys, size in zip(members, sizes([len(m) for m in members], self.ratio, self.repeats), strict=True):
            drawn = sorted(keys, key=lambda key: digest_of("balance", self.seed, key))
            often, more = divmod(size, len(drawn)) if drawn else (0, 0)
            taken |= {key: often + (place < more) for place, key in enumerate(drawn)}
        return taken


__all__ = ["Balance", "band_name", "band_of", "sizes"]
