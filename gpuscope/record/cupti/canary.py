"""Canaries: tiny kernels whose records must arrive, or somebody else took the recording over."""

from __future__ import annotations

import numpy as np

from gpuscope.device.device import Device

NAME = "gpuscope_canary"
_SOURCE = r"""
extern "C" __global__ void gpuscope_canary(unsigned long long* out) {
  unsigned long long begin, end;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  if (blockIdx.x == 0 && threadIdx.x == 0) { out[0] = begin; out[1] = end; }
}
"""
FLIGHT = 7
"""Canaries at a time. All but the last are read: the tightest tells how %globaltimer stands
to CUPTI's time. What this thread does from the first to the last is the recording's own."""


class Canaries:
    """Canaries of one recording on one device.

    Parameters
    ----------
    tag
        Blocks of each canary, from 1: recordings that run at the same time tell theirs by it.
    """

    def __init__(self, device: Device, tag: int) -> None:
        self._backend = device.backend
        self.device = device.info.index
        self.tag = tag
        self.arrived = 0
        """How many have left a record."""
        self.sent: list[tuple[int, int]] = []
        """What each read of %globaltimer at its beginning and end, ns."""
        self._kernel = self._backend.compile(_SOURCE, NAME, None)
        self._out = self._backend.empty((2,), np.dtype(np.uint64))

    def send(self) -> None:
        """Launch a flight, on a stream of its own, and wait for it."""
        stream, handle = self._backend.make_stream(None, 0)
        try:
            for number in range(FLIGHT):
                self._backend.launch(stream, self._kernel, self.tag, 32, (self._out,), 0)
                self._backend.sync_stream(stream)
                if number < FLIGHT - 1:
                    begin, end = self._backend.to_host(self._out).tolist()
                    self.sent.append((begin, end))
        finally:
            self._backend.close_stream(stream, handle)
