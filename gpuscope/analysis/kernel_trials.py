"""Kernels that a library measures one after another, to choose the fastest."""

from __future__ import annotations

import numpy as np

from gpuscope._types import Ints
from gpuscope.analysis.standstill import ProgramView
from gpuscope.trace.columns import combined
from gpuscope.trace.schema import CALLS

_NEAR = 16
"""Calls, at most, in which a kernel is measured, and from one that is measured to the next."""
_FEWEST = 5
"""Kernels that are measured, at least."""


def measured_kernels(view: ProgramView) -> Ints:
    """Return row → number of the kernel that a call is there to measure; −1 for none.

    An event is recorded, kernels are launched, another event is recorded, and that is waited for.
    Soon the same line measures another kernel; what is in between is there for that.
    """
    rows = view.rows
    calls = np.flatnonzero(rows.having("kind", CALLS))
    calls = calls[np.lexsort((rows.starts[calls], rows.threads[calls]))]
    name, names = rows.coded("name")
    records, waits = (
        np.array([called in str(text) for text in names])[name[calls]]
        for called in ("EventRecord", "EventSynchronize")
    )
    at = np.arange(len(calls))
    kernel = np.r_[view.launched, -1][calls]
    latest = np.maximum.accumulate(np.where(kernel >= 0, at, -1))
    stop = np.maximum.accumulate(np.where(records, at, -1))
    start = np.where(stop > 0, stop[np.maximum(stop - 1, 0)], -1)
    thread = rows.threads[calls]
    site = rows.coded("site")[0][calls]
    is_measured = waits & (start >= 0)
    is_measured &= at - start <= _NEAR
    is_measured &= (start < latest) & (latest < stop)
    is_measured &= thread[start] == thread
    ends = np.flatnonzero(is_measured)
    begins = start[ends]
    tried = np.full(len(rows.ids), -1)
    if len(ends) < _FEWEST:
        return tried
    calls_between = begins[1:] - ends[:-1]
    follows = (calls_between >= 0) & (calls_between <= _NEAR)
    of_end = site[ends]
    follows &= of_end[1:] == of_end[:-1]
    of_end = thread[ends]
    follows &= of_end[1:] == of_end[:-1]
    series = np.cumsum(np.r_[True, ~follows])
    kinds, _ = combined(series, name[kernel[latest[ends]]])
    is_choice = np.bincount(series[kinds])[series] > 1
    end_before = np.r_[0, ends[:-1]]
    since = np.where(np.r_[False, follows], end_before, begins)[is_choice]
    ends = ends[is_choice]
    if not len(ends):
        return tried
    number = np.minimum(ends.searchsorted(at), len(ends) - 1)
    inside = (at > since[number]) & (at <= ends[number])
    tried[calls[inside]] = number[inside]
    return tried
