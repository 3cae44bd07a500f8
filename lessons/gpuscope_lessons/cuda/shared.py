"""Page-locked memory that a learner's program shares with the simulated GPU."""

from __future__ import annotations

import mmap
import os

import numpy as np

from gpuscope.device import Device, PinnedArray
from gpuscope.errors import InvalidArgument
from gpuscope.extending import Untyped

BASE = 0x2080_0000_0000
"""Where it begins in the program."""
HEADING = 1 << 20
"""Bytes at its begin that hold the program's arguments."""
_PAGE = 4096


class SharedMemory:
    """Memory of a file without a name, given out once, in pages.

    Attributes
    ----------
    file
        Its descriptor.
    nbytes
        Its size.
    """

    def __init__(self, nbytes: int, device: Device) -> None:
        self.nbytes = nbytes
        self.file = os.memfd_create("gpuscope")
        os.ftruncate(self.file, nbytes)
        self._map = mmap.mmap(self.file, nbytes)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._next = HEADING
        self._device = device

    def close(self) -> None:
        """Let go of the file; arrays keep their memory."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def take(self, count: int) -> PinnedArray:
        """Return page-locked floats, zeros at first.

        Raises
        ------
        InvalidArgument
            There is not as much left.
        """
        nbytes = -(-max(1, 4 * count) // _PAGE) * _PAGE
        if self._next + nbytes > self.nbytes:
            raise InvalidArgument(
                f"{nbytes} bytes of page-locked memory are asked for, and "
                f"{self.nbytes - self._next} are left of those that an exercise has"
            )
        raw = self._bytes[self._next : self._next + nbytes]
        self._next += nbytes
        return self._array(raw, count)

    def _array(self, raw: Untyped, count: int) -> PinnedArray:
        return self._device.as_pinned(raw[: 4 * count].view(np.float32))

    def part(self, address: int, nbytes: int | None) -> PinnedArray | None:
        """Return what lies at an address of the program: so many bytes, or all that follow."""
        first = address - BASE
        if not 0 <= first < self.nbytes:
            return None
        last = self._next if nbytes is None else first + nbytes
        if last > self._next:
            raise InvalidArgument("this is more page-locked memory than was taken")
        raw = self._bytes[first:last]
        return self._array(raw, raw.nbytes // 4)

    def address_of(self, array: Untyped) -> int:
        """Return where an array of it lies in the program."""
        return BASE + int(array.ctypes.data) - int(self._bytes.ctypes.data)

    def holds(self, array: object) -> bool:
        """Whether an array lies in it."""
        return isinstance(array, np.ndarray) and 0 <= self.address_of(array) - BASE < self.nbytes

    def put(self, words: list[int]) -> None:
        """Write the program's arguments."""
        self._bytes[: 8 * len(words)] = np.array(words, np.uint64).view(np.uint8)
