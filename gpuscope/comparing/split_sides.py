"""What the time of one side consists of: of calls, of a background, of a program's steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from gpuscope._types import Floats, Ints
from gpuscope.analysis import idle_analysis as idle
from gpuscope.analysis.counters_analysis import partition_use
from gpuscope.analysis.intervals import Groups
from gpuscope.analysis.part import Part, PartKind, cut
from gpuscope.analysis.span_rows import OPEN
from gpuscope.analysis.steps_analysis import steps
from gpuscope.analysis.trace_parts import TraceParts, trace_parts
from gpuscope.comparing.split import SHOWN, Cause, SplitSide, Sum, Sums, Used, What
from gpuscope.errors import MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, launch_calls, rows_of
from gpuscope.trace.joins import innermost
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, range_labels, ranges_around
from gpuscope.trace.schema import GPU_WORK
from gpuscope.trace.sites import lines_of

_OF_PARTS: dict[PartKind, Cause] = {
    "launch call": "launch",
    "on the way": "launch",
    "stream order": "waits",
    "event wait": "waits",
    "graph order": "waits",
    "legacy default stream": "waits",
    "copy engine": "waits",
    "request queue": "waits",
    "collective": "waits",
    "SMs held": "SMs",
    "priority": "SMs",
    "not looking": "host",
    "host": "host",
    "unexplained": "gaps",
}
_OF_IDLE: dict[str, Cause] = {
    idle.LAUNCH: "launch",
    idle.ON_ITS_WAY: "launch",
    idle.COPY: "waits",
    idle.EVENT: "waits",
    idle.DATA: "waits",
    idle.THREAD: "waits",
    idle.NEXT: "gaps",
    idle.AFTER: "gaps",
    idle.UNKNOWN: "gaps",
}
_INPUTS = 3
"""Of an operator's inputs, how many shapes are told."""
_MOST_CALLS = 10_000
"""Calls that are taken apart: of more, evenly many are left out."""


# -- calls --------------------------------------------------------------------------------
def of_calls(trace: Trace, ids: Ints) -> SplitSide:
    """Return what calls or requests consist of.

    Raises
    ------
    MissingEvidence
        The trace does not tell.
    """
    breakdown, sums = trace_parts(trace), Sums()
    names = _Names(breakdown, trace)
    chosen = ids[:: -(-len(ids) // _MOST_CALLS) or 1].tolist()
    for span in chosen:
        for part in breakdown.parts(breakdown.rows.position(span)):
            names.add(sums, part)
    rows = breakdown.rows
    workloads = {rows.text("category", rows.position(span)) for span in chosen}
    return SplitSide(sums, len(chosen), _used(trace, workloads))


def of_background(trace: Trace, workload: str) -> SplitSide:
    """Return what the time of a workload that is never waited for consists of.

    From the first to the last of its kernels in each window: what ran, and of each gap what the
    kernel that ended it was doing.

    Raises
    ------
    MissingEvidence
        The trace does not tell.
    """
    breakdown, sums = trace_parts(trace), Sums()
    names, rows = _Names(breakdown, trace), breakdown.rows
    of = rows.is_work & rows.having("category", (workload,)) & (rows.ends != OPEN)
    work = np.flatnonzero(of)
    work = work[np.argsort(rows.starts[work], kind="stable")]
    windows = np.array([low for low, _ in trace.metadata.windows_ns], np.int64)
    turn = np.searchsorted(windows, rows.starts[work], "right")
    done, before = 0, -1
    for row, window in zip(work.tolist(), turn.tolist(), strict=True):
        start, end = int(rows.starts[row]), int(rows.ends[row])
        since = start if window != before else done
        at = since
        if start > since:
            for part in cut(breakdown.work.parts(row), since, start):
                if part.start_ns > at:
                    names.add(sums, Part("host", at, part.start_ns))
                names.add(sums, part)
                at = part.end_ns
            if at < start:
                names.add(sums, Part("host", at, start))
        if end > max(start, since):
            names.add(sums, Part("running", max(start, since), end, int(rows.ids[row])))
        done, before = max(end, since), window
    calls = int((rows.having("kind", ("handle",)) & rows.having("category", (workload,))).sum())
    return SplitSide(sums, calls or len(work), _used(trace, {workload}))


class _Names:
    """What parts are called."""

    def __init__(self, breakdown: TraceParts, trace: Trace) -> None:
        self._rows = breakdown.rows
        plans = (trace.metadata.experiment or {}).get("workloads", {})
        self._shapes = {name: shape_of(plan) for name, plan in plans.items()}

    def add(self, sums: Sums, part: Part) -> None:
        """Add a part to what is alike."""
        rows = self._rows
        at = None if part.span is None else rows.position(part.span)
        spans = [] if part.span is None else [(float(part.duration_ns), part.span)]
        who = "" if at is None else rows.text("category", at) or ""
        if part.kind == "running" and at is not None:
            name = kernel_name(rows.text("name", at) or "")
            shape = (configuration(rows.text("launch_config", at)), self._shapes.get(who, ""))
            cause: Cause = "copies" if rows.kind(at) in ("memcpy", "memset") else "kernels"
            what = What(cause, name, "; ".join(filter(None, shape)))
        else:
            holder = f" ({who})" if who and part.kind not in ("launch call", "on the way") else ""
            what = What(_OF_PARTS.get(part.kind, "kernels"), f"{part.kind}{holder}")
        sums.setdefault(what, Sum()).add(part.duration_ns, 1, spans)


def _used(trace: Trace, workloads: Collection[str | None] = ()) -> dict[str, Used]:
    """Return what kernels of these workloads used by counters; of all, unless any is given.

    Of kernels of one name it is the one that ran alone for longest.
    """
    try:
        kernels = partition_use(trace).kernels
    except MissingEvidence:
        return {}
    used: dict[str, Used] = {}
    for kernel in kernels:
        if workloads and kernel.workload not in workloads:
            continue
        rate, took_ns = kernel.rate, kernel.alone_ns
        nbytes = None if rate is None or took_ns is None else rate * took_ns
        used.setdefault(kernel.kernel, Used(kernel.busy, nbytes))
    return used


def shape_of(plan: Mapping[str, object]) -> str:
    """Return the shape that a workload's description tells: ``"512×512×512 float16"``."""
    sides = [str(plan[name]) for name in ("m", "n", "k", "rows", "columns") if plan.get(name)]
    return f"{'×'.join(sides)} {plan.get('dtype', '')}".strip() if sides else ""


def configuration(text: str | None) -> str:
    """Return a launch configuration in words: ``"grid 132, block 128"``."""
    try:
        launch = msgspec.json.decode(text or "{}", type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):  # a foreign file may hold anything
        return ""
    words = []
    for name in ("grid", "block"):
        if isinstance(sides := launch.get(name), list) and sides:
            while len(sides) > 1 and sides[-1] == 1:
                sides.pop()
            words.append(f"{name} {'×'.join(map(str, sides))}")
    return ", ".join(words)


# -- programs -----------------------------------------------------------------------------
def of_program(trace: Trace) -> SplitSide:
    """Return what a GPU's steady time consists of, by range and line: what ran, and idle causes.

    What runs at once shares its time equally. Of several GPUs the times are added up.

    Raises
    ------
    MissingEvidence
        The trace holds no kernel, copy or memset.
    """
    steady = steps(trace).steady
    idle_time = idle.idle_causes(trace)
    sums: Sums = {}
    for cause in idle_time.causes:
        kind = _OF_IDLE.get(cause.cause)
        if kind is None:
            kind = "waits" if cause.cause.startswith(idle.HOST_WAIT) else "host"
        what = What(kind, cause.cause, "", cause.range or "", cause.line or "")
        sums.setdefault(what, Sum()).add(cause.idle_ns, cause.gaps, _ranked(cause.spans))
    for what, ns, count, spans in _work(trace, *idle_time.window_ns):
        sums.setdefault(what, Sum()).add(ns, count, spans)
    return SplitSide(sums, len(steady) or 1, _used(trace))


def _ranked(spans: Sequence[int]) -> list[tuple[float, int]]:
    return [(float(len(spans) - at), span) for at, span in enumerate(spans)]


def _work(
    trace: Trace, low: int, high: int
) -> Iterator[tuple[What, float, int, list[tuple[float, int]]]]:
    """Yield what ran in a window by name, configuration, range and line."""
    rows = rows_of(trace, *GPU_WORK)
    starts = np.clip(trace.array("start_ns")[rows], low, high)
    ends = np.clip(trace.array("end_ns", fill=0)[rows], low, high)
    inside = (ends > starts) & ~is_open(trace)[rows]
    rows, starts, ends = rows[inside], starts[inside], ends[inside]
    shares = _shares(trace.array("device", fill=-1)[rows], starts, ends)
    calls = launch_calls(trace)[rows]
    owner, begun = trace.array("thread", fill=-1), trace.array("start_ns")
    launched = np.where(calls >= 0, owner[calls], -1), np.where(calls >= 0, begun[calls], 0)
    around = ranges_around(trace, *launched)
    label, labels = range_labels(trace)
    range_code = np.where(around >= 0, label[around], 0)
    name, names = codes(trace.spans.column("name"))
    config, configs = codes(trace.spans.column("launch_config"))
    site, sites = codes(trace.spans.column("site"))
    site_code = np.where(calls >= 0, site[calls], site[rows])
    shape, shapes = _operator_shapes(trace, *launched)
    is_kernel = np.isin(rows, rows_of(trace, "kernel", "graph"))
    columns = (name[rows], config[rows], site_code, range_code, is_kernel.astype(np.int64), shape)
    first, group = combined(*columns)
    groups = Groups(group, list(range(len(first))))
    totals, ids = groups.sums(shares), trace.array("id")
    for at, row in enumerate(first.tolist()):
        of = groups.rows(at)
        longest = of[np.argsort(shares[of])[::-1][:SHOWN]]
        line = lines_of(sites[site_code[row]])
        what = What(
            "kernels" if is_kernel[row] else "copies",
            kernel_name(str(names[name[rows[row]]])),
            "; ".join(
                filter(None, (configuration(configs[config[rows[row]]]), shapes[shape[row]]))
            ),
            labels[range_code[row]] or "",
            str(line[0]) if line else "",
        )
        spans = [(float(shares[index]), int(ids[rows[index]])) for index in longest.tolist()]
        yield what, float(totals[at]), len(of), spans


class _Operator(msgspec.Struct):
    """What torch.profiler tells of an operator, with ``record_shapes=True``."""

    dims: list[object] = msgspec.field(name="Input Dims", default_factory=list)


def _operator_shapes(trace: Trace, threads: Ints, times: Ints) -> tuple[Ints, list[str]]:
    """Return for each launch the number of its operator's shapes, and the shapes."""
    payload, texts = codes(trace.spans.column("payload"))
    ranges = rows_of(trace, "range")
    owner, starts = trace.array("thread", fill=-1)[ranges], trace.array("start_ns")[ranges]
    ends = trace.array("end_ns", fill=0)[ranges]
    inner = innermost(threads, times, owner, starts, ends - 1)
    code = np.where(inner >= 0, np.r_[payload[ranges], -1][inner], -1)
    numbers = {"": 0}
    number_of = np.zeros(len(texts) + 1, np.int64)
    for used in np.unique(code[code >= 0]).tolist():
        number_of[used] = numbers.setdefault(_dims(texts[used]), len(numbers))
    return number_of[code], list(numbers)


def _dims(payload: str | None) -> str:
    try:
        dims = msgspec.json.decode(payload or "{}", type=_Operator).dims
    except (msgspec.MsgspecError, RecursionError):  # a range's payload may be anything
        return ""
    sides = [shape for shape in dims if isinstance(shape, list) and shape]
    return ", ".join("×".join(map(str, shape)) for shape in sides[:_INPUTS])


def _shares(device: Ints, starts: Ints, ends: Ints) -> Floats:
    """Return how long each work ran, where what ran at once on a device shares its time."""
    shares = np.zeros(len(starts))
    for number in np.unique(device).tolist():
        of = device == number
        times = np.r_[starts[of], ends[of]]
        steps_of = np.r_[np.ones(of.sum(), np.int64), -np.ones(of.sum(), np.int64)]
        order = np.argsort(times, kind="stable")
        edges, running = times[order], np.cumsum(steps_of[order])
        pace = np.divide(1.0, running, where=running > 0, out=np.zeros(len(running)))
        since = np.r_[0.0, np.cumsum(np.diff(edges) * pace[:-1])]
        low, high = (np.searchsorted(edges, moments[of]) for moments in (starts, ends))
        shares[of] = since[high] - since[low]
    return shares
