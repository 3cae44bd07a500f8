"""A program in the process that records: for a GPU, whose work CUPTI tells of here only."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np

from gpuscope.device import Device, PinnedArray
from gpuscope.extending import Untyped
from gpuscope_lessons.attempt import Unmet
from gpuscope_lessons.cuda.separate import Answering

_WORDS = 1 << 12
"""Numbers and addresses that a program can be given."""


class _Request(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 40),
        ("line", ctypes.c_uint64),
        ("words", ctypes.c_uint64 * 6),
        ("nbytes", ctypes.c_uint64),
    )


class _Reply(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("kind", "status", "value", "nbytes"))


_TELL = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Request), ctypes.POINTER(_Reply))
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class PinnedMemory:
    """Page-locked memory of a device, by its addresses."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: list[PinnedArray] = []

    def take(self, count: int) -> PinnedArray:
        """Return page-locked floats, zeros at first."""
        array: PinnedArray = self._device.empty_pinned(max(1, count))  # type: ignore[assignment]
        array.view(np.ndarray)[:] = 0
        self._arrays.append(array)
        return array

    def holds(self, array: object) -> bool:
        """Whether an array is page-locked."""
        return isinstance(array, PinnedArray)

    def address_of(self, array: Untyped) -> int:
        """Return where an array lies; it is known from now on."""
        address = int(array.ctypes.data)
        if self.part(address, array.nbytes) is None:
            self._arrays.append(array)
        return address

    def part(self, address: int, nbytes: int | None) -> PinnedArray | None:
        """Return what is known to lie at an address: so many bytes, or to its end."""
        for array in self._arrays:
            first = (address - int(array.ctypes.data)) // 4
            last = array.size if nbytes is None else first + nbytes // 4
            if 0 <= first < last <= array.size:
                part: PinnedArray = array[first:last]
                return part
        return None


class Inside:
    """Runs a program that is compiled, in a thread of this process: a crash ends the process.

    Attributes
    ----------
    memory
        Page-locked memory.
    words_at
        Where the program has its lists of numbers and addresses.
    printed
        Empty: what it writes goes where this process writes.
    """

    printed = ""

    def __init__(self, path: Path, device: Device, answer: Answering, seconds: float) -> None:
        self._library = ctypes.CDLL(str(path))
        self._answer, self._seconds = answer, seconds
        self.memory = PinnedMemory(device)
        self._words = (ctypes.c_uint64 * _WORDS)()
        self.words_at = ctypes.addressof(self._words)
        self._of_thread = threading.local()
        self._raised: BaseException | None = None
        self._tell = _TELL(self._told)

    def run(self, words: list[int]) -> int:
        """Run it with numbers and addresses as arguments; returns what it returned.

        Raises
        ------
        Unmet
            It did not end.
        """
        for at, word in enumerate(words):
            self._words[at] = word
        self._raised = None
        value, ended = ctypes.c_uint64(), list[bool]()

        def run() -> None:
            ended.append(self._library.gpuscope_run(self._words, ctypes.byref(value), self._tell))

        thread = threading.Thread(target=run, name="CUDA C++", daemon=True)
        thread.start()
        try:
            thread.join(self._seconds)
        finally:
            if not ended:
                self._raised = self._raised or Unmet.late(self._seconds)  # its next call ends it
        if self._raised is not None:
            raise self._raised
        return value.value

    def _told(self, request: Untyped, reply: Untyped) -> None:
        """Do a call of the program's; what that raises ends the program."""
        asked, answered = request.contents, reply.contents
        if self._raised is None:
            inside = getattr(self._of_thread, "inside", False)
            name, numbers = asked.name.decode("ascii", "replace"), list(asked.words)
            try:
                payload = ctypes.string_at(numbers[5], asked.nbytes) if asked.nbytes else b""
                answered.status, answered.value, data = self._answer(
                    name, asked.line, numbers, payload, inside
                )
                if data:  # of a copy to memory that is not page-locked
                    ctypes.memmove(numbers[1], data, len(data))
            except BaseException as error:  # noqa: BLE001 - it is raised where the program was run
                self._raised = error
        answered.kind = self._raised is not None

    def call_back(self, function: int, data: int) -> None:
        """Call a function of the program's."""
        self._of_thread.inside = True
        try:
            _HOST_FUNCTION(function)(data)
        finally:
            self._of_thread.inside = False

    def stop(self) -> None:
        """End what a run left: nothing."""

    def close(self) -> None:
        """End what a run left: nothing."""
