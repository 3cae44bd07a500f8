"""What both kinds of report have: windows to look at, definitions, latency figures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope import figures
from gpuscope.analysis.intervals import by_stream, kernels
from gpuscope.errors import MissingEvidence
from gpuscope.figures.tracks import default_window_ns
from gpuscope.report import page
from gpuscope.trace.columns import codes
from gpuscope.trace.model import Trace

_CLOSE_NS = 2_000_000
_KERNELS_IN_VIEW = 10
_MAX_LATENCY_FIGURES = 6
_NAMED = 20
"""Handles without a figure that are named."""

DEFINITIONS = {
    "Kernel time": "From a kernel's start to its end on the GPU. The median is over all kernels "
    "of the workload.",
    "Busy, overlap": "busy(X) is the union of the kernel spans of X. Overlap of A and B is the "
    "time in which both are busy, over the shorter of the two busy times: 1 means that the shorter "
    "one never ran without the other. Of more than two workloads, the largest pair is shown. Where "
    "kernel times come from bracketing events, waiting for SMs counts as running: the tight value "
    "takes every span as short as its stated uncertainty allows.",
    "Gain": "The sum of the kernel times alone, on the same partitions, over the time from the "
    "first start to the last end of them together. Two workloads that overlap fully and each take "
    "twice as long have overlap 1 and gain 1: overlapping won nothing. Unknown without solo times.",
    "Latency": "Host time from entering execute() until its completion is seen. A percentile "
    "states its number of calls, n; no p99 is given below 1,000 calls.",
    "TFLOP/s": "Floating-point operations of the workload's kernels over the time from the first "
    "start to the last end, within the recording windows, in 10¹² a second. A workload that waits "
    "for its next call scores low, however fast its kernels are.",
    "Target": "How many SMs a GEMM library is told to plan for: those of the partition on which "
    "clusters of thread blocks fit. With no target it plans for the whole GPU.",
    "Share of alone": "That rate over the workload's rate alone, back to back, on the whole GPU.",
}


def first_window_ns(trace: Trace) -> tuple[int, int]:
    """Return the first recording window, else the whole trace."""
    windows = trace.metadata.windows_ns
    if windows:
        low, high = (int(edge) for edge in windows[0])
        return low, max(high, low + 1)
    return default_window_ns(trace)


def close_windows_ns(traces: Mapping[str, Trace]) -> dict[str, tuple[int, int]]:
    """Return a window near the middle of each first window, where single kernels can be seen.

    It is centred on a kernel of the workload that has the fewest, so that each is in view.
    """
    longest = max(_median_kernel_ns(trace) for trace in traces.values())
    length = max(_CLOSE_NS, _KERNELS_IN_VIEW * longest // 1_000_000 * 1_000_000)
    windows = {}
    for name, trace in traces.items():
        low, high = first_window_ns(trace)
        middle = _rarest_kernel_ns(trace, low, high)
        start = max(low, min(middle - length // 2, high - length))
        windows[name] = (start, min(high, start + length))
    return windows


def _rarest_kernel_ns(trace: Trace, low: int, high: int) -> int:
    """Return the start, nearest the middle, of a kernel of the workload that has the fewest."""
    middle = (low + high) // 2
    found = trace.where(kind="kernel")
    starts = found.array("start_ns")
    inside = (starts >= low) & (starts < high)
    if not inside.any():
        return middle
    label, labels = codes(found.spans.column("category"))
    counts = np.bincount(label[inside], minlength=len(labels))
    there = np.flatnonzero(counts).tolist()
    least = min(there, key=lambda workload: (counts[workload], str(labels[workload])))
    rarest = starts[inside & (label == least)]
    return int(rarest[np.abs(rarest - middle).argmin()])


def _median_kernel_ns(trace: Trace) -> int:
    """Return the longest of the streams' median kernel times."""
    try:
        found = kernels(trace)
    except MissingEvidence:
        return 0
    took = found.array("end_ns") - found.array("start_ns")
    return int(by_stream(found).quantiles(took, (0.5,)).max())


def latency_figures(traces: Mapping[str, Trace], handles: list[str]) -> list[str]:
    """Return one distribution a handle, as HTML."""
    parts = []
    for index, handle in enumerate(handles[:_MAX_LATENCY_FIGURES]):
        try:
            drawn = figures.latency(traces, handle)
        except MissingEvidence as error:
            parts.append(page.paragraph(str(error), "muted"))
        else:
            parts.append(page.figure(drawn, f"latency-{index}"))
    left = handles[_MAX_LATENCY_FIGURES:]
    if left:
        more = f" and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
        names = ", ".join(left[:_NAMED])
        told = f"Without a figure: {names}{more}. figures.latency(traces, name) draws any."
        parts.append(page.paragraph(told, "muted"))
    return parts


def ending(traces: Mapping[str, Trace]) -> list[str]:
    """Return the definitions and where the times come from."""
    return [
        "<h2>What the words mean</h2>",
        page.terms(DEFINITIONS),
        "<h2>Where the times come from</h2>",
        page.provenance(traces),
    ]
