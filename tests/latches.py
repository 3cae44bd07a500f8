"""Streams that are held until a test lets them go, on either device."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.device.device import Device
from gpuscope.device.stream import Stream

WATCHDOG_NS = 20_000_000_000
_SOURCE = r"""
extern "C" __global__ void latch(volatile unsigned long long* words, long long limit_ns) {
  unsigned long long begun, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if ((long long)(now - begun) > limit_ns) { words[1] = 1; return; }
  } while (!words[0]);
}
"""
_HELD = KernelModel(lambda _profile, grid, _args, _sm_count: KernelCost(grid, 50_000_000))


class Latch:
    """Holds streams until it is opened; what the host waits for before that gives up.

    A simulated GPU holds them for 50 ms of its virtual time, which passes when somebody waits.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._words = device.empty_pinned(2, "uint64")
        self._words[...] = 0
        self._kernel = device.compile(_SOURCE, "latch", model=_HELD)
        with device.create_stream() as stream:  # a kernel that is loaded waits for what runs
            self._words[0] = 1
            self.hold(stream)
            stream.synchronize()
        self._words[0] = 0

    def hold(self, stream: Stream) -> None:
        """Hold what is queued on ``stream`` from now on."""
        stream.launch(self._kernel, self._words.ctypes.data, WATCHDOG_NS, grid=1, block=1)

    def open(self) -> None:
        """Let all go."""
        self._words[0] = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.open()
        self._device.synchronize()
        assert not self._words[1], "a latch gave up: something waited for the stream it held"
