"""From when to when a trace is, and which of it a timeline shows first."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns import rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import SAMPLED


def default_window_ns(trace: Trace) -> tuple[int, int]:
    """Return the first of several recording windows, else the whole trace.

    Readings of GPUs and sampled stacks, which begin and end with the recording, count only where
    there is nothing else.
    """
    windows = trace.metadata.windows_ns
    if len(windows) > 1:
        return int(windows[0][0]), int(windows[0][1])
    samples = rows_of(trace, *SAMPLED)
    if 0 < len(samples) < len(trace):
        trace = trace.where(~np.isin(np.arange(len(trace)), samples))
    return whole_ns(trace)


def whole_ns(trace: Trace) -> tuple[int, int]:
    """Return start and end of all that is in a trace."""
    windows = trace.metadata.windows_ns
    if not len(trace):
        low = int(windows[0][0]) if windows else 0
        return low, low + 1
    starts = trace.array("start_ns")
    ends = trace.array("end_ns", fill=np.iinfo(np.int64).min)
    closing = [int(windows[-1][1])] if windows and trace.spans.column("end_ns").null_count else []
    # An instant at the very end is in the window, too.
    return int(starts.min()), max(int(starts.max()) + 1, int(ends.max()), *closing)
