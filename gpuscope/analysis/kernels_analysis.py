"""Kernels and copies by name: how often each ran, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuscope._checks import door
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.result import Result, about
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import plain_names, stream_names
from gpuscope.trace.schema import GPU_WORK


@dataclass(frozen=True)
class KernelTime:
    """What a kernel, copy or memset took on one stream.

    Attributes
    ----------
    share
        Of the time of all such work; of what runs at once, both count.
    """

    name: Annotated[str, "kernel or copy"]
    stream: Annotated[str, "stream"]
    n: Annotated[int, "n"]
    median_ns: Annotated[float, "median (µs)"]
    total_ns: Annotated[int, "total (ms)"]
    share: Annotated[float, "share"]


@dataclass(frozen=True)
class KernelsResult(Result):
    """Kernels and copies, those that took most first."""

    kernels: tuple[KernelTime, ...]
    entries = "kernels"
    weight = "total (ms)"


@door(trace=Trace)
def top_kernels(trace: Trace) -> KernelsResult:
    """Sum the times of kernels, copies and memsets by name and stream.

    Raises
    ------
    MissingEvidence
        No such work was seen to end.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
    ...     _ = gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=stream)
    >>> [(each.n, each.stream) for each in gs.analysis.top_kernels(recording.trace).kernels]
    [(1, 's')]
    """
    rows = rows_of(trace, *GPU_WORK)
    rows = rows[~is_open(trace)[rows]]
    if not len(rows):
        raise MissingEvidence("no kernel and no copy was seen to end")
    name, names = codes(plain_names(trace.spans))
    stream, streams = codes(trace.spans.column("stream"))
    of_stream = stream_names(trace)
    first, combination = combined(name[rows], stream[rows])
    titles = [
        (str(names[name[row]]), of_stream.get(streams[stream[row]], "no stream"))
        for row in rows[first].tolist()
    ]
    groups = Groups(combination, titles)
    lasted_ns = (trace.array("end_ns", fill=0) - trace.array("start_ns"))[rows]
    totals, medians = groups.sums(lasted_ns), groups.quantiles(lasted_ns, (0.5,))[:, 0]
    all_ns = max(int(lasted_ns.sum()), 1)
    columns = (column.tolist() for column in (groups.counts, medians, totals))
    kernels = [
        KernelTime(name, stream, n, median_ns, total_ns, total_ns / all_ns)
        for (name, stream), n, median_ns, total_ns in zip(titles, *columns, strict=True)
    ]
    kernels.sort(key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.stream))
    return KernelsResult(tuple(kernels), **about(trace))
