"""Samples of GPUs' hardware counters: rows of kind ``counter``, and the same as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope._types import Bools, Floats, Ints
from gpuscope.trace.columns import codes, once, rows_of
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace

BUSY = "busy SMs"
TENSOR = "busy tensor pipes (SMs)"
READ, WRITTEN, MOVED = "DRAM read (GB/s)", "DRAM written (GB/s)", "DRAM (GB/s)"
QUANTITIES = (BUSY, TENSOR, READ, WRITTEN, MOVED)
"""Names of what a sample tells, as the mean over it: SMs that ran a warp; SMs times the share of
their tensor pipes' cycles; bytes by ns, of a simulated GPU those read and written as one."""
_MOST = 1e12
"""SMs or GB/s that no GPU has."""
LOST = "samples lost"
"""The name of a row that lasts for as long as samples are missing."""


@dataclass(frozen=True)
class Samples:
    """The samples of one GPU's counters, by time.

    Attributes
    ----------
    device
        Index of the GPU.
    sms
        How many SMs it has; 0 where that is unknown.
    peak
        GB/s that copies on such a GPU read and wrote, as ``gpuscope calibrate`` measured it;
        ``None``: it did not.
    starts, ends
        Sample → ns.
    values
        Name of a quantity → its value in each sample, NaN where it was not had.
    lost
        Stretches without samples, ``(n, 2)``, ns.
    """

    device: int
    sms: int
    peak: float | None
    starts: Ints
    ends: Ints
    values: dict[str, Floats]
    lost: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Ints:
        """Sample → how long it is, ns."""
        return self.ends - self.starts


@once
def samples_of(trace: Trace) -> tuple[Samples, ...]:
    """Return the samples of each GPU whose counters a trace has.

    Of samples that overlap, as those of two recordings of one GPU may, the first one counts.
    """
    rows = rows_of(trace, "counter")
    name, names = codes(trace.spans.column("name"))
    is_sample = np.isin(name[rows], [names.index(text) for text in (BUSY, LOST) if text in names])
    if not is_sample.any():
        return ()
    devices = trace.array("device", fill=-1)[rows].astype(np.int64)
    return tuple(
        _of_device(trace, int(device), rows[devices == device], name, names)
        for device in np.unique(devices[is_sample]).tolist()
    )


def _of_device(
    trace: Trace, device: int, rows: Ints, name: Ints, names: list[str | None]
) -> Samples:
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    number = {text: code for code, text in enumerate(names)}
    of_name = {
        text: rows[name[rows] == number[text]] for text in (*QUANTITIES, LOST) if text in number
    }
    value = _plausible(trace)
    nothing = np.zeros(0, np.int64)
    busy, lost = of_name.get(BUSY, nothing), of_name.pop(LOST, nothing)
    busy = busy[~np.isnan(value[busy])]
    busy = busy[np.argsort(starts[busy], kind="stable")]
    busy = busy[_apart(starts[busy], ends[busy])]
    values = {}
    for text in QUANTITIES:
        of_quantity = of_name.get(text, nothing)
        at = match(starts[busy], starts[of_quantity])
        with_none = np.r_[value[of_quantity], np.nan]  # which the last one, −1, is
        values[text] = with_none[at]
    facts = trace.metadata.device(device)
    rate = facts.memory_bytes_per_us
    return Samples(
        device,
        facts.sm_count or 0,
        rate / 1e3 if rate else None,
        starts[busy],
        ends[busy],
        values,
        np.stack([starts[lost], ends[lost]], axis=1),
    )


def _plausible(trace: Trace) -> Floats:
    """Return the values of rows, NaN where a file says what no counter can."""
    value = np.array(trace.spans.column("value").to_numpy(), np.float64)
    is_plausible = (value >= 0) & (value < _MOST)
    value[~is_plausible] = np.nan
    return value


def _apart(starts: Ints, ends: Ints) -> Bools:
    """Return of intervals by start those which begin when the last one of these has ended."""
    is_apart = np.asarray(ends > starts, bool)
    if (starts[1:] >= ends[:-1]).all():
        return is_apart
    last_ns = 0
    for number, (start_ns, end_ns) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        is_apart[number] &= start_ns >= last_ns
        last_ns = end_ns if is_apart[number] else last_ns
    return is_apart
