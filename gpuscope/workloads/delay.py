"""A delay to plant in a program: a kernel that spins in a stream, or a wait of the host's."""

from __future__ import annotations

from functools import cached_property

from gpuscope.device.api import Kernel
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.device.stream import Stream
from gpuscope.workloads.spin import MODEL, SOURCE

_NAME = "planted_delay"
_POLL_NS = 100_000


class Delay:
    """A delay of one length, to be planted as often as needed.

    Parameters
    ----------
    device
        What the program runs on.
    length_ns
        0 is an empty kernel, or no wait.
    """

    def __init__(self, device: Device, length_ns: int) -> None:
        self._device = device
        self._length_ns = length_ns

    @cached_property
    def _kernel(self) -> Kernel:
        return self._device.compile(SOURCE.replace("spin_kernel", _NAME), _NAME, model=MODEL)

    def in_stream(self, stream: Stream) -> None:
        """Queue a kernel of one thread block that spins.

        A stream may be captured, by whomever, if a delay has run on the device before: a kernel
        that is captured must be loaded.
        """
        stream.launch(self._kernel, max(1, self._length_ns), grid=1, block=32)

    def of_host(self, until: Event | None = None) -> None:
        """Wait; where an event is given, no longer than until it is done."""
        end_ns = self._device.now_ns() + self._length_ns
        wait_until_ns = self._device.backend.wait_until_ns
        if until is None:
            wait_until_ns(end_ns)
            return
        while not until.is_done and self._device.now_ns() < end_ns:
            wait_until_ns(self._device.now_ns() + _POLL_NS)
