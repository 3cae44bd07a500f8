"""Rows of hardware counters, and those that a simulated GPU's would have by its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gpuscope._types import Array, Floats, Ints
from gpuscope.device.api import Activity, DeviceInfo
from gpuscope.record.rows import Batch, counter_row, keep
from gpuscope.trace import arrow, schema
from gpuscope.trace.counters import BUSY, MOVED

_OF_DEVICE = 1 << 36
"""Numbers of the values of one simulated GPU."""
_DIGITS = 6
"""Of GB/s: what is added and taken away again leaves nothing."""


class Steps(NamedTuple):
    """Values of one quantity, each from when to when, ns; NaN: not had."""

    starts: Ints
    ends: Ints
    values: Floats


def counter_rows(
    steps: Mapping[str, Steps], device: int, uuid: str | None, source: str, first: int
) -> Batch:
    """Return a row for each value of each quantity, numbered from ``first`` on."""
    had = [np.flatnonzero(~np.isnan(step.values)) for step in steps.values()]
    count = sum(map(len, had))

    def gathered(field: int) -> Array:
        parts = [step[field][rows] for step, rows in zip(steps.values(), had, strict=True)]
        return np.concatenate(parts)

    name = np.repeat(np.arange(len(steps)), [len(rows) for rows in had])
    columns = {
        "id": pa.array(counter_row(first + np.arange(count, dtype=np.int64))),
        "kind": arrow.constant("counter", count),
        "name": arrow.text_column(name, [*steps]),
        "start_ns": pa.array(gathered(0)),
        "end_ns": pa.array(gathered(1)),
        "device": pa.array(np.full(count, device, np.int16)),
        "device_uuid": pa.nulls(count) if uuid is None else arrow.constant(uuid, count),
        "value": pa.array(gathered(2)),
        "source": arrow.constant(source, count),
    }
    arrays = [columns.get(column, pa.nulls(count)) for column in schema.SPAN_TYPES]
    return Batch(pa.table(dict(zip(schema.SPAN_TYPES, arrays, strict=True))))


class _Change(NamedTuple):
    """From a moment on, one more or less holds some SMs, or bytes move faster by a rate."""

    at_ns: int
    holders: int
    mask: int
    rate: float


class ModelledCounters:
    """What counters of a simulated GPU would tell, by its model: steps instead of samples.

    Busy SMs are exact. A kernel's bytes, and a copy's, are spread evenly over its time; the model
    does not tell those read from those written, and has no tensor pipes.
    """

    def __init__(self) -> None:
        self._done: list[Activity] = []
        self._told_ns: int | None = None  # until when there are rows
        self._count = 0

    def add(self, activity: Activity) -> None:
        """Take in work that is done."""
        if activity.sm_occupancy or activity.nbytes:
            self._done.append(activity)

    def forget(self, since_ns: int) -> None:
        """Forget what ended before."""
        self._done = [activity for activity in self._done if activity.end_ns >= since_ns]

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that comes."""
        return keep(self, "_done", "_told_ns", "_count")

    def _changes(self, until_ns: int | None) -> list[_Change]:
        """Return by time what began or ended, and when rows go on and stop."""
        ends = [at_ns for at_ns in (self._told_ns, until_ns) if at_ns is not None]
        changes = [_Change(at_ns, 0, 0, 0.0) for at_ns in ends] if self._is_begun else []
        for activity in self._done:
            for mask, start_ns, end_ns in activity.sm_occupancy:
                changes.append(_Change(start_ns, 1, mask, 0.0))
                changes.append(_Change(end_ns, -1, mask, 0.0))
            lasted_ns = activity.end_ns - activity.start_ns
            if activity.nbytes and lasted_ns > 0:
                rate = activity.nbytes / lasted_ns
                changes.append(_Change(activity.start_ns, 0, 0, rate))
                changes.append(_Change(activity.end_ns, 0, 0, -rate))
        return sorted(changes, key=lambda change: change.at_ns)

    @property
    def _is_begun(self) -> bool:
        return bool(self._done) or self._told_ns is not None

    def rows(self, device: DeviceInfo, until_ns: int | None) -> Batch | None:
        """Return rows, of each time between two changes, and forget what they tell.

        Parameters
        ----------
        until_ns
            All that ran before is known; ``None``: all is, and rows end with the last change.

        Returns
        -------
        Batch
            ``None``: there is nothing new.
        """
        changes = self._changes(until_ns)
        if not changes:
            return None
        since_ns = changes[0].at_ns if self._told_ns is None else self._told_ns
        if until_ns is None:
            until_ns = changes[-1].at_ns
        busy = _held(changes)
        rates = np.array([change.rate for change in changes])
        moved = np.round(np.cumsum(rates), _DIGITS)
        starts = np.array([change.at_ns for change in changes], np.int64)
        ends = np.minimum(np.r_[starts[1:], starts[-1:]], until_ns)
        starts = np.maximum(starts, since_ns)
        lasts = np.flatnonzero(ends > starts)  # of changes at one time the last one counts
        if not len(lasts):
            return None
        steps = {
            name: Steps(starts[lasts], ends[lasts], values[lasts])
            for name, values in ((BUSY, busy), (MOVED, moved))
        }
        first = device.index * _OF_DEVICE + self._count
        batch = counter_rows(steps, device.index, device.uuid, "simulated", first)
        self._count += batch.spans.num_rows
        self._told_ns = until_ns
        self.forget(until_ns)
        return batch


def _held(changes: Sequence[_Change]) -> Floats:
    """Return behind each change of who holds SMs how many anybody holds."""
    sizes = [change.mask.bit_length() for change in changes]
    holders = np.zeros(max(sizes, default=0), np.int64)
    counts = np.zeros(len(changes))
    for number, change in enumerate(changes):
        if change.holders:
            bits = range(change.mask.bit_length())
            sms = [sm for sm in bits if change.mask >> sm & 1]
            holders[sms] += change.holders
        counts[number] = np.count_nonzero(holders)
    return counts
