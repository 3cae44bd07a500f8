"""Ranges on the GPU: when the work that a range launched really ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pyarrow as pa

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Busy, Groups
from gpuscope.analysis.latency_analysis import launched
from gpuscope.analysis.result import Result, Row, about, named, row_of, sentences
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.joins import enclosing, union
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import range_labels
from gpuscope.trace.schema import GPU_WORK

_PAIRS_AT_ONCE = 4_000_000
_SUMS = ("launches", "kernels", "copies", "graphs", "host_ns", "projected_ns", "busy_ns", "idle_ns")
_NEVER = np.iinfo(np.int64).max


def launched_inside(trace: Trace, ranges: Array, calls: Array) -> tuple[Array, Array, Array]:
    """Say which calls each range's thread made inside the range.

    Parameters
    ----------
    ranges, calls
        Positions in the trace. A range is open at its end: a call that starts there is not in
        it, and one that starts where the range starts is.

    Returns
    -------
    order, low, high
        Range i made the calls ``order[low[i]:high[i]]``, in the order of their starts.
    """
    thread, _ = codes(trace.spans.column("thread"))
    process, processes = codes(trace.spans.column("process"))
    if not (process[ranges].all() and process[calls].all()):
        process = np.zeros(len(trace), np.int64)  # who says none cannot be told apart by it
    key = thread * len(processes) + process
    starts = trace.array("start_ns")
    ends = np.where(is_open(trace), _NEVER, trace.array("end_ns", fill=0))
    order = np.lexsort((starts[calls], key[calls]))
    keys, times = key[calls][order], starts[calls][order]
    low, high = np.zeros(len(ranges), np.int64), np.zeros(len(ranges), np.int64)
    for thread_key in np.unique(keys[thread[calls][order] > 0]):
        first, last = np.searchsorted(keys, [thread_key, thread_key + 1])
        of_thread = key[ranges] == thread_key
        low[of_thread] = first + np.searchsorted(times[first:last], starts[ranges[of_thread]])
        high[of_thread] = first + np.searchsorted(times[first:last], ends[ranges[of_thread]])
    return order, low, np.maximum(low, high)


def pairs(low: Array, high: Array) -> Iterator[tuple[Array, Array]]:
    """Yield every (i, position in [low[i], high[i])), some millions at a time, i ascending."""
    count = high - low
    total = np.r_[0, np.cumsum(count)]
    first = 0
    while first < len(low):
        last = int(np.searchsorted(total, total[first] + _PAIRS_AT_ONCE, "right")) - 1
        last = max(first + 1, min(last, len(low)))
        number = np.repeat(np.arange(first, last), count[first:last])
        shift = low[first:last] - (total[first:last] - total[first])
        yield number, np.arange(len(number)) + np.repeat(shift, count[first:last])
        first = last


@dataclass(frozen=True)
class NamedProjection:
    """All ranges of one name and domain, or of one path, ns.

    Attributes
    ----------
    n
        Finished and unfinished ranges.
    launches
        Calls inside that queued work.
    launched
        Those that launched work whose end was seen; the GPU's times are of these.
    graphs
        Launches of graphs that were recorded as a whole.
    host_ns
        Sum of the durations on the host, of ranges whose end is known.
    projected_ns
        Sum of the times from the first start to the last end of the work; its median is
        ``None`` where nothing was launched.
    busy_ns
        Sum of each range's union of spans.
    idle_ns
        Sum of how long the range's GPU, that of its first work, did nothing at all between the
        first start and the last end of the range's work.
    """

    name: Annotated[str, "range"]
    domain: Annotated[str | None, "domain"]
    n: Annotated[int, "calls"]
    host_ns: Annotated[int, "host (ms)"]
    busy_ns: Annotated[int, "GPU busy (ms)"]
    launches: Annotated[int, "launches"]
    idle_ns: Annotated[int, "idle inside (ms)"]
    launched: Annotated[int, "with GPU work"]
    kernels: Annotated[int, "kernels"]
    copies: Annotated[int, "copies"]
    graphs: Annotated[int, "graphs"]
    host_median_ns: Annotated[float | None, "host median (µs)"]
    projected_ns: Annotated[int, "on GPU (ms)"]
    projected_median_ns: Annotated[float | None, "on GPU median (µs)"]


@dataclass(frozen=True)
class ProjectionResult(Result):
    """Ranges projected on the GPU.

    Attributes
    ----------
    names
        One a name and domain.
    paths
        One a path and domain: the names of the ranges around it and its own, without numbers at
        their ends, as ``"step › forward"``. The rows are these.
    ranges
        One row a range: id, name, domain, thread, start_ns, end_ns, host_ns and launches of the
        host; path; gpu_start_ns, gpu_end_ns, projected_ns, busy_ns, idle_ns (null where it
        launched nothing whose end was seen), kernels, copies, graphs.
    left_out
        Launches of graphs that ``whole_graphs=False`` left out.
    unmatched
        Kernels, copies and memsets whose launch call is unknown: in no range.
    """

    names: tuple[NamedProjection, ...]
    paths: tuple[NamedProjection, ...]
    ranges: pa.Table = field(repr=False)
    unmatched: int
    left_out: int
    weight = "on GPU (ms)"

    def __getitem__(self, name: str) -> NamedProjection:
        return named((*self.names, *self.paths), name, "range")

    def _rows(self) -> list[Row]:
        """One row per path and domain."""
        nothing = {"on GPU (ms)": None, "GPU busy (ms)": None, "idle inside (ms)": None}
        return [
            row_of(projection)
            | {"graphs": projection.graphs or None, **({} if projection.launched else nothing)}
            for projection in self.paths
        ]

    @property
    def definition(self) -> str:
        """What the times on the GPU are of, and what is in no range."""
        lost, graphs = self.unmatched, self.left_out
        return sentences(
            "on GPU: first start to last end of the kernels, copies and memsets that the range's "
            "thread launched inside it; busy: union of their spans; idle inside: of that time, "
            "when their GPU ran nothing at all",
            f"{lost:,} rows of GPU work without a known launch call are in no range"
            if lost
            else "",
            f"{graphs:,} launches of graphs recorded as a whole are left out, as nsys does"
            if graphs
            else "",
        )


@door(trace=Trace, name=(str, None), domain=(str, None), whole_graphs=bool)
def range_projection(
    trace: Trace, *, name: str | None = None, domain: str | None = None, whole_graphs: bool = True
) -> ProjectionResult:
    """Project ranges onto the GPU: when the work that they launched ran, and for how long.

    Work belongs to every range on the thread of its launch call in which the call began, so an
    outer range includes the work of inner ranges. A range that ends on another thread includes
    what its starting thread launched until then. Work without a recorded end is left out; a range
    without a recorded end stays open.

    Parameters
    ----------
    name, domain
        Only ranges with exactly this name, in this NVTX domain.
    whole_graphs
        Whether launches of graphs that were recorded as a whole count as work, from the start
        of their first node to the end of their last. ``nsys stats`` leaves them out of its
        projection, nvtx_gpu_proj_sum; ``False`` gives its figures.

    Raises
    ------
    MissingEvidence
        The trace holds no such range, no finished GPU work, or none is linked to its launch
        call.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gs.profile(gpu) as recording:
    ...     with gs.annotate("step"):
    ...         stream.launch(kernel, 100_000, grid=1, block=32)
    >>> step = gs.analysis.range_projection(recording.trace)["step"]
    >>> step.kernels, step.busy_ns >= 100_000, step.host_ns < step.busy_ns
    (1, True, True)
    """
    ranges = _ranges(trace, name, domain)
    unknown = is_open(trace)
    graphs = rows_of(trace, "graph")
    rows = rows_of(trace, *GPU_WORK)
    rows = rows[~unknown[rows]]
    if not whole_graphs:
        rows = rows[~np.isin(rows, graphs)]
    if not len(rows):
        raise MissingEvidence(
            "the trace holds no finished kernel, copy or memset: record with profile() while "
            "work is launched"
        )
    work, calls = launched(trace, rows)
    order, low, high = launched_inside(trace, ranges, calls)
    work, calls = work[order], calls[order]
    launches = np.r_[0, np.cumsum(np.r_[True, calls[1:] != calls[:-1]])]
    kernels, in_graphs = (
        np.r_[0, np.cumsum(np.isin(work, these))] for these in (rows_of(trace, "kernel"), graphs)
    )
    kernels, in_graphs = kernels[high] - kernels[low], in_graphs[high] - in_graphs[low]
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    first, last, busy = _extents(starts[work], ends[work], low, high)
    nothing = low == high
    of = work[np.minimum(low, len(work) - 1)]
    idle = last - first - _busy_inside(trace, rows, of, first, last)
    host = ends[ranges] - starts[ranges]
    spans = trace.spans.select(["id", "name", "domain", "thread", "start_ns", "end_ns"])
    table = spans.take(ranges)
    for label, values, missing in (
        ("host_ns", host, unknown[ranges]),
        ("gpu_start_ns", first, nothing),
        ("gpu_end_ns", last, nothing),
        ("projected_ns", last - first, nothing),
        ("busy_ns", busy, nothing),
        ("idle_ns", idle, nothing),
        ("launches", launches[high] - launches[low], None),
        ("kernels", kernels, None),
        ("copies", high - low - kernels - in_graphs, None),
        ("graphs", in_graphs, None),
    ):
        table = table.append_column(label, pa.array(values, mask=missing))
    table = table.append_column("path", _paths(trace, ranges))
    unmatched, left_out = len(rows) - len(work), 0 if whole_graphs else len(graphs)
    names, paths = _by(table, "name"), _by(table, "path")
    return ProjectionResult(names, paths, table, unmatched, left_out, **about(trace))


def _ranges(trace: Trace, name: str | None, domain: str | None) -> Array:
    rows = rows_of(trace, "range")
    if not len(rows):
        raise MissingEvidence("the trace holds no range: name the host's work with annotate()")
    for column, wanted in (("name", name), ("domain", domain)):
        if wanted is None:
            continue
        code, values = codes(trace.spans.column(column))
        matching = rows[np.array([value == wanted for value in values])[code[rows]]]
        if not len(matching):
            present = [values[at] for at in np.unique(code[rows])[:20]]
            raise MissingEvidence(f"no range with {column} {wanted!r}; there are {present}")
        rows = matching
    return rows


def _extents(starts: Array, ends: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """First start, last end and length of the union of the spans [low, high), for each pair."""
    first, last, busy_ns = (np.zeros(len(low), np.int64) for _ in range(3))
    for number, positions in pairs(low, high):
        numbers, code = np.unique(number, return_inverse=True)
        busy = Busy.of(Groups(code, numbers.tolist()), starts[positions], ends[positions])
        first[numbers] = busy.start[busy.first[:-1]]
        last[numbers] = busy.end[busy.first[1:] - 1]
        busy_ns[numbers] = busy.ns
    return first, last, busy_ns


def _busy_inside(trace: Trace, rows: Array, of: Array, first: Array, last: Array) -> Array:
    """Return for how long of each stretch the GPU was busy that one of its works ran on."""
    device = trace.array("device", fill=-1)
    starts, ends = trace.array("start_ns"), trace.array("end_ns", fill=0)
    inside = np.zeros(len(of), np.int64)
    for number in np.unique(device[of]):
        on_it, here = rows[device[rows] == number], device[of] == number
        busy = union(starts[on_it], ends[on_it])
        before_ns = np.r_[0, np.cumsum(busy[:, 1] - busy[:, 0])]
        for sign, times in ((1, last[here]), (-1, first[here])):
            at = np.searchsorted(busy[:, 1], times)
            begun = np.r_[busy[:, 0], _NEVER][at]
            inside[here] += sign * (before_ns[at] + np.maximum(0, times - begun))
    return inside


def _paths(trace: Trace, ranges: Array) -> pa.Array:
    """Return the names of the ranges around each, and its own, without numbers at their ends."""
    of_row, labels = range_labels(trace)
    label = of_row[ranges]
    thread, start = (trace.array(key, fill=-1)[ranges] for key in ("thread", "start_ns"))
    above = enclosing(thread, start, trace.array("end_ns", fill=_NEVER)[ranges])
    path, level = np.zeros(len(label), np.int64), np.flatnonzero(above < 0)
    texts = [""]
    while len(level):
        outer = np.where(above[level] >= 0, path[above[level]], 0)
        first, code = combined(outer, label[level])
        path[level] = code + len(texts)
        texts += [
            " › ".join(filter(None, (texts[outer[at]], labels[label[level[at]]]))) for at in first
        ]
        is_level = np.zeros(len(label), bool)
        is_level[level] = True
        level = np.flatnonzero((above >= 0) & is_level[above])
    return pa.DictionaryArray.from_arrays(path, texts)


def _by(table: pa.Table, column: str) -> tuple[NamedProjection, ...]:
    """Sum ranges by name or by path, and by domain."""
    name, names = codes(table.column(column))
    domain, domains = codes(table.column("domain"))
    first, code = combined(domain, name)
    groups = Groups(code, first.tolist())
    counts = {
        column: groups.sums(np.asarray(table.column(column).fill_null(0))).tolist()
        for column in _SUMS
    }
    validity = {
        column: np.asarray(table.column(column).is_valid(), dtype=bool)
        for column in ("host_ns", "projected_ns")
    }
    medians = {
        column: groups.medians(np.asarray(table.column(column).fill_null(0)), is_valid)
        for column, is_valid in validity.items()
    }
    launched = groups.sums(validity["projected_ns"].astype(np.int64)).tolist()
    return tuple(
        NamedProjection(
            names[name[row]],
            domains[domain[row]],
            n=int(groups.counts[index]),
            launched=launched[index],
            host_median_ns=medians["host_ns"][index],
            projected_median_ns=medians["projected_ns"][index],
            **{column: values[index] for column, values in counts.items()},
        )
        for index, row in enumerate(first)
    )
