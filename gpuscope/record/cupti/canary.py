"""Canaries: tiny kernels whose records must arrive, or somebody else took the recording over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope._types import Array
from gpuscope.device.device import Device
from gpuscope.record.clock import ClockFit, Sample
from gpuscope.record.cupti import tables
from gpuscope.record.cupti.tables import Columns
from gpuscope.record.rows import keep, together
from gpuscope.trace import joins
from gpuscope.trace.arrow import NONE

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
        self.globaltimer = ClockFit()
        """How %globaltimer stands to CUPTI's time."""
        self._sent: list[tuple[int, int]] = []  # what each read of it, at its beginning and end
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
                    self._sent.append((begin, end))
        finally:
            self._backend.close_stream(stream, handle)

    def keep(self) -> Callable[[], None]:
        """Return what undoes what :meth:`arrive` does next."""
        return together(keep(self, "arrived"), keep(self.globaltimer, "samples"))

    def arrive(self, start: int, stop: int) -> None:
        """Take the record of the next one, from start to stop in ns; it ran inside that."""
        number, self.arrived = self.arrived, self.arrived + 1
        flight, place = divmod(number, FLIGHT)
        sent = flight * (FLIGHT - 1) + place
        if place == FLIGHT - 1 or sent >= len(self._sent):
            return
        begin, end = self._sent[sent]
        half = max(0, (stop - start) - (end - begin)) // 2
        middle = (begin - start + end - stop) // 2
        self.globaltimer.add(Sample((start + stop) // 2, middle, half))


class Flights:
    """The flights that CUPTI's records tell of, of all recordings of the process."""

    def __init__(self) -> None:
        self._correlations: dict[tuple[int, int], list[int]] = {}

    def keep(self) -> Callable[[], None]:
        """Return what undoes what :meth:`note` does next."""
        known = {flight: list(numbers) for flight, numbers in self._correlations.items()}
        return lambda: vars(self).update(_correlations=known)

    def note(self, work: Columns, canaries: Array) -> None:
        """Take the records of canaries, a mask of ``work``."""
        numbers = (work["config"][:, 0], work["device"], work["correlation"])
        for tag, device, correlation in zip(
            *(one[canaries].tolist() for one in numbers), strict=True
        ):
            self._correlations.setdefault((tag, device), []).append(correlation)

    def latest(self, canaries: Canaries) -> int:
        """Return the correlation of the latest canary of a recording."""
        return max(self._correlations[canaries.tag, canaries.device])

    @property
    def under_way(self) -> int | None:
        """Correlation of the first canary of the flights that are not over, if there are any."""
        begun = [
            sorted(flight)[-(len(flight) % FLIGHT)]
            for flight in self._correlations.values()
            if len(flight) % FLIGHT
        ]
        return min(begun, default=None)

    def without(self, columns: Columns, apis: Columns | None) -> Columns:
        """Leave out what recordings did themselves: from a flight's first canary to its last.

        Parameters
        ----------
        apis
            API calls, which tell the thread; ``None`` where they are not recorded.
        """
        drop = np.zeros(len(columns["correlation"]), bool)
        for correlations in self._correlations.values():
            ordered = sorted(correlations)
            for first in range(0, len(ordered), FLIGHT):
                flight = ordered[first : first + FLIGHT]
                within = (columns["correlation"] >= flight[0]) & (
                    columns["correlation"] <= flight[-1]
                )
                if not within.any():
                    continue
                if apis is not None and len(apis["correlation"]):
                    at = joins.match(np.array([flight[0]], np.uint32), apis["correlation"])
                    if at[0] != NONE:
                        threads = joins.match(columns["correlation"], apis["correlation"])
                        same = apis["thread"][np.maximum(threads, 0)] == apis["thread"][at[0]]
                        within &= same | (threads == NONE)
                drop |= within
        return tables.select(columns, ~drop) if drop.any() else columns
