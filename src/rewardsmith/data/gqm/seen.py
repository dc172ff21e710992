"""Which row had something first, for millions of rows: 32 to 64 bytes for each, where a dictionary takes 130."""

from __future__ import annotations

from array import array

_LEAST = 1 << 12


class Seen:
    """A table from keys of 64 random bits to numbers, which only grows: open addressing, at most half full."""

    def __init__(self) -> None:
        self._keys = array("Q", bytes(8 * _LEAST))
        self._numbers = array("Q", bytes(8 * _LEAST))  # 0 where there is none
        self._count = 0

    def first(self, key: int, number: int) -> int:
        """Return the number that a key was first given with, which is this one if it is new.

        Args:
            key: below 2^64.
            number: at least 1.
        """
        place = self._place(key)
        if not self._numbers[place]:
            self._keys[place], self._numbers[place] = key, number
            self._count += 1
            if 2 * self._count > len(self._keys):
                self._grow()
            return number
        return self._numbers[place]

    def _place(self, key: int) -> int:
        """Return where a key is, or the free place where it belongs."""
        last = len(self._keys) - 1
        place = key & last
        while self._numbers[place] and self._keys[place] != key:
            place = place + 1 & last
        return place

    def _grow(self) -> None:
        keys, numbers = self._keys, self._numbers
        self._keys, self._numbers = (array("Q", bytes(16 * len(keys))) for _ in range(2))
        for key, number in zip(keys, numbers, strict=True):
            if number:
                place = self._place(key)
                self._keys[place], self._numbers[place] = key, number


__all__ = ["Seen"]
