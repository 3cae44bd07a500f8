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
    second = np.maximum.accumulate(np.where(records, at, -1))
    first = np.where(second > 0, second[np.maximum(second - 1, 0)], -1)
    is_measured = waits & (first >= 0) & (at - first <= _NEAR) & (first < latest)
    is_measured &= latest < second
    thread = rows.threads[calls]
    site = rows.coded("site")[0][calls]
    is_measured &= thread[first] == thread
    ends = np.flatnonzero(is_measured)
    begins = first[ends]
    tried = np.full(len(rows.ids), -1)
    if len(ends) < _FEWEST:
        return tried
    follows = (begins[1:] - ends[:-1] <= _NEAR) & (begins[1:] >= ends[:-1])
    follows &= (site[ends[1:]] == site[ends[:-1]]) & (thread[ends[1:]] == thread[ends[:-1]])
    series = np.cumsum(np.r_[True, ~follows])
    kinds, _ = combined(series, name[kernel[latest[ends]]])
    is_choice = np.bincount(series[kinds])[series] > 1
    since = np.where(np.r_[False, follows], np.r_[0, ends[:-1]], begins)[is_choice]
    ends = ends[is_choice]
    number = np.minimum(ends.searchsorted(at), max(len(ends) - 1, 0))
    if len(ends):
        inside = (at > since[number]) & (at <= ends[number])
        tried[calls[inside]] = number[inside]
    return tried
