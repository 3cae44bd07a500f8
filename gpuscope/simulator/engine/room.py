"""The room on the SMs: which are free, and which hold blocks that leave room for others."""

from __future__ import annotations

import functools
import math
import operator

WHOLE = 8
"""Room is counted in eighths of an SM: its threads, registers and shared memory are one number."""


def eighths(share: float) -> int:
    """Return how many eighths of an SM a block takes that takes such a share of it."""
    return max(1, min(WHOLE, math.ceil(share * WHOLE - 1e-9)))


class Room:
    """Bit masks of SMs by the room that they have left.

    Attributes
    ----------
    free
        The SMs that hold no block.
    partial
        Those that hold some, and have room for more.
    """

    __slots__ = ("_left", "free", "partial")

    def __init__(self, sms: int) -> None:
        self.free = sms
        self.partial = 0
        self._left = [0] * WHOLE  # eighths that are left of SMs in part taken -> these SMs

    def usable(self, needed: int) -> int:
        """Return the SMs that have so many eighths left."""
        if not self.partial or needed == WHOLE:
            return self.free
        return functools.reduce(operator.or_, self._left[needed:], self.free)

    def take(self, usable: int, count: int, needed: int) -> int:
        """Take so many eighths of ``count`` of the usable SMs, the emptiest; returns these."""
        if needed == WHOLE:
            taken = lowest(usable, count)
            self.free &= ~taken
            return taken
        taken = 0
        for some in (self.free, *reversed(self._left[needed:])):
            few = some & usable
            missing = count - taken.bit_count()
            taken |= few if few.bit_count() <= missing else lowest(few, missing)
        self._move(taken, -needed)
        return taken

    def give(self, sms: int, needed: int) -> None:
        """Give so many eighths of each of these SMs back."""
        if needed == WHOLE:
            self.free |= sms
        else:
            self._move(sms, needed)

    def _move(self, sms: int, step: int) -> None:
        left = [*self._left, self.free]
        moving = [(before, some & sms) for before, some in enumerate(left) if some & sms]
        for before, some in moving:
            left[before] &= ~some
        for before, some in moving:
            left[before + step] |= some
        self.free = left.pop()
        self._left = left
        self.partial = functools.reduce(operator.or_, left[1:])


@functools.lru_cache(1024)
def lowest(mask: int, count: int) -> int:
    """Return the ``count`` lowest set bits of ``mask``, which has as many."""
    below, above = -1, mask.bit_length()  # that many bits have too few, that many have enough
    while above - below > 1:
        middle = (below + above) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            below = middle
        else:
            above = middle
    return mask & ((1 << above) - 1)
