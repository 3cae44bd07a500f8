"""Sets of time intervals as sorted, disjoint ``(n, 2)`` arrays of ns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope.errors import MissingEvidence
from gpuscope.trace.model import Trace

Intervals = np.ndarray[Any, np.dtype[np.int64]]


def union(starts: Intervals, ends: Intervals) -> Intervals:
    """Merge spans that touch or overlap."""
    if len(starts) == 0:
        return np.zeros((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.r_[True, starts[1:] > ends[:-1]]
    last = np.r_[first[1:], True]
    return np.stack([starts[first], ends[last]], axis=1)


def length(intervals: Intervals) -> int:
    """Total ns."""
    return int(np.sum(intervals[:, 1] - intervals[:, 0]))


def intersection_ns(one: Intervals, other: Intervals) -> int:
    """Ns that are in both: inclusion and exclusion over the union."""
    both = union(np.r_[one[:, 0], other[:, 0]], np.r_[one[:, 1], other[:, 1]])
    return length(one) + length(other) - length(both)


def kernels(trace: Trace) -> Trace:
    """Return the finished kernels of a trace.

    Raises
    ------
    MissingEvidence
        There is none.
    """
    found = trace.where(kind="kernel")
    found = found.where(~np.asarray(found.spans.column("end_ns").is_null()))
    if not len(found):
        raise MissingEvidence(
            "the trace holds no finished kernel: record with profile() while work is launched on a "
            "device of ours"
        )
    return found


def grouped(trace: Trace, by: str) -> dict[str, np.ndarray[Any, Any]]:
    """Label → row mask of the kernels in a trace, by partition, stream or workload.

    Raises
    ------
    ValueError
        ``by`` is none of these.
    """
    if by == "partition":
        labels = [name if name is not None else "whole GPU" for name in trace.texts("partition")]
    elif by == "stream":
        labels = stream_labels(trace)
    elif by == "workload":
        categories, names = trace.texts("category"), trace.texts("name")
        labels = [category or str(name) for category, name in zip(categories, names, strict=True)]
    else:
        raise ValueError(f"by is 'partition', 'stream' or 'workload', not {by!r}")
    return masks(labels)


def masks(labels: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Label → which rows have it, in order of first appearance."""
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([number[label] for label in labels], np.int64)
    return {label: codes == index for label, index in number.items()}


def stream_labels(trace: Trace) -> list[str]:
    """Name of each row's stream, with its number where several streams share a name."""
    streams: list[Any] = trace.texts("stream")
    names = {stream: trace.stream_name(stream) for stream in dict.fromkeys(streams)}
    shared = Counter(names.values())
    labels = {
        stream: name if shared[name] == 1 else f"{name} (stream {stream})"
        for stream, name in names.items()
    }
    return [labels[stream] for stream in streams]


def makespan_ns(trace: Trace, starts: Intervals, ends: Intervals) -> int:
    """First start to last end, summed over the trace's recording windows."""
    windows = trace.metadata.windows_ns or [[int(starts.min()), int(ends.max())]]
    total = 0
    for low, high in windows:
        inside = (starts >= low) & (starts <= high)
        if inside.any():
            total += int(ends[inside].max() - starts[inside].min())
    return total
