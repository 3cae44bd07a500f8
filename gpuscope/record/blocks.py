"""The blocks source: what traced kernels wrote about each of their thread blocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.record.clock import ClockFit, Sample
from gpuscope.record.rows import Batch, block_row, keep, move, partition_name, work_row
from gpuscope.trace import arrow

_SOURCE = r"""
extern "C" __global__ void gpuscope_globaltimer(unsigned long long* out) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  *out = now;
}
"""
_TRIES = 16


def globaltimer_fit(device: Device) -> ClockFit:
    """Compare %globaltimer with Unix time by host brackets around a tiny kernel."""
    backend = device.backend
    kernel = backend.compile(_SOURCE, "gpuscope_globaltimer", None)
    out = backend.empty((1,), np.dtype(np.uint64))
    stream, handle = backend.make_stream(None, 0)
    fit = ClockFit()
    try:
        for _ in range(_TRIES):
            before = time.time_ns()
            backend.launch(stream, kernel, 1, 1, (out,), 0)
            backend.sync_stream(stream)
            half = (time.time_ns() - before) // 2
            seen = int(backend.to_host(out)[0])
            fit.add(Sample(before + half, seen - before - half, half))
    finally:
        backend.close_stream(stream, handle)
    return fit


class BlockSource:
    """Keeps the records of traced launches until they can be read.

    Attributes
    ----------
    left_out
        Thread blocks of launches that it forgot.
    """

    def __init__(self, left_out: int = 0) -> None:
        self._new: deque[Call] = deque()
        self._launches: list[Call] = []
        self.left_out = left_out

    def take(self, call: Call) -> None:
        """Keep the records of a launch."""
        self._new.append(call)

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        move(self._new, self._launches)
        return keep(self, "_launches", "left_out")

    def forget(self, batches: Iterable[Batch]) -> None:
        """Forget the launches whose kernels have rows in these batches."""
        if not self._launches:
            return
        ids = [batch.spans.column("id").to_numpy() for batch in batches]
        rows = work_row(np.array([call.correlation for call in self._launches], np.int64))
        gone = np.isin(rows, np.concatenate(ids)) if ids else np.zeros(len(rows), bool)
        every, self._launches = self._launches, []
        for call, is_gone in zip(every, gone.tolist(), strict=True):
            if is_gone:
                assert call.blocks is not None  # noqa: S101 - of traced kernels
                self.left_out += call.blocks.shape[0]
            else:
                self._launches.append(call)

    @property
    def devices(self) -> set[str]:
        """Keys of the devices that traced kernels ran on."""
        return {call.device_key for call in self._every}

    @property
    def _every(self) -> list[Call]:
        return [*self._launches, *self._new.copy()]

    def read(self, devices: Mapping[str, Device], clocks: Mapping[str, ClockFit]) -> list[Batch]:
        """Return one row for each thread block; everything must have run.

        Parameters
        ----------
        clocks
            Device key → how its %globaltimer stands to the recording's clock.
        """
        batches = []
        for key in sorted(self.devices):
            calls = [call for call in self._every if call.device_key == key]
            batches.append(_rows(calls, devices[key], clocks.get(key) or ClockFit()))
        return batches


def _rows(calls: list[Call], device: Device, clock: ClockFit) -> Batch:
    records = [device.backend.to_host(call.blocks) for call in calls if call.blocks is not None]
    counts = np.array([len(blocks) for blocks in records], np.int64)
    of_call = np.repeat(np.arange(len(calls)), counts)
    every = np.concatenate(records).astype(np.int64)
    count = len(every)

    def text(values: Sequence[str | None]) -> pa.Array:
        return arrow.texts(values).take(pa.array(of_call))

    correlations = np.array([call.correlation for call in calls], np.int64)
    places = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    streams = np.array([call.stream.id if call.stream is not None else -1 for call in calls])
    columns = {
        "id": block_row(correlations[of_call], places),
        "parent": work_row(correlations)[of_call],
        "kind": arrow.constant("block", count),
        "name": text([call.name for call in calls]),
        "start_ns": clock.to_unix(every[:, 0]),
        "end_ns": clock.to_unix(every[:, 1]),
        "device": np.full(count, device.info.index, np.int16),
        "device_uuid": arrow.constant(device.info.uuid, count),
        "partition": text([partition_name(call.stream) for call in calls]),
        "intended_partition": text([partition_name(call.intended) for call in calls]),
        "stream": streams[of_call],
        "sm": every[:, 2].astype(np.int16),
        "category": text([call.workload for call in calls]),
        "source": arrow.constant("blocks", count),
    }
    return Batch(arrow.table(columns, count))
