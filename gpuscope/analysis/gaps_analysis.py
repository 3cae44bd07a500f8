"""Gaps: when a stream, partition or device did nothing, and between what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from gpuscope._checks import door
from gpuscope._types import Array
from gpuscope.analysis.intervals import Groups, merged, stretch_sums, union
from gpuscope.analysis.result import Result, Row, about, row_of
from gpuscope.analysis.result import named as item_named
from gpuscope.analysis.steps_analysis import steady_part
from gpuscope.errors import InvalidArgument, MissingEvidence
from gpuscope.trace.columns import codes, combined, is_open, rows_of
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import kernel_name, named
from gpuscope.trace.schema import GPU_WORK

LONGEST = 5
"""Gaps of each track that are told one by one."""


def track_labels(trace: Trace, rows: Array, by: str) -> tuple[Array, list[str]]:
    """Return the track of each row in ``rows`` and the labels of the tracks, in order.

    Raises
    ------
    ValueError
        ``by`` is neither ``"stream"`` nor ``"partition"`` nor ``"device"``.
    """
    if by not in ("stream", "partition", "device"):
        raise InvalidArgument(f"by is 'stream', 'partition' or 'device', not {by!r}")
    device, devices = codes(trace.spans.column("device"))
    value_code, values = codes(trace.spans.column(by))
    first, code = combined(device[rows], value_code[rows])
    keys = [(devices[device[rows[row]]], values[value_code[rows[row]]]) for row in first]
    where = {number: _device_name(trace, number) for number, _ in keys}
    labels, trace = [], named(trace)
    for number, value in keys:
        if by == "device":
            label = where[number]
        else:
            label = trace.stream_name(value) if by == "stream" else str(value or "whole GPU")
            label += f" on {where[number]}" if len(where) > 1 else ""
        labels.append(label)
    sortable = [[(part is not None, 0 if part is None else part) for part in key] for key in keys]
    order = sorted(range(len(keys)), key=sortable.__getitem__)
    position = np.empty(len(keys), np.int64)
    position[order] = np.arange(len(keys))
    return position[code], [labels[index] for index in order]


def _device_name(trace: Trace, number: int | None) -> str:
    for key, facts in trace.metadata.devices.items():
        if facts.index == number:
            return key
    return "unknown device" if number is None else f"device {number}"


@dataclass(frozen=True)
class Gap:
    """One idle time of a track, in ns on the trace's clock.

    Attributes
    ----------
    before, after
        Names of the span that ended last before it and of the one that ended it.
    spans
        Ids of these two.
    """

    start_ns: int
    end_ns: int
    before: str
    after: str
    spans: tuple[int, int] = field(default=(-1, -1), repr=False)

    @property
    def length_ns(self) -> int:
        """How long it was, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class TrackGaps:
    """The idle time of one track, ns.

    Attributes
    ----------
    spans
        Kernels, copies and memsets.
    busy_ns
        Union of its spans.
    busy_fraction
        Busy time / (busy time + all gaps, also those shorter than ``min_ns``).
    number
        Gaps of at least ``min_ns``. The following fields describe these; ``None`` without gaps.
    unlaunched_ns
        The part of ``total_ns`` before the span that ended the gap had been launched: the host was
        late. ``None`` where no launch time is known.
    launched_ns
        The part after it had been launched; like that, without gaps whose launch is unknown.
    longest
        The longest gaps, the longest first, at most :data:`LONGEST`.
    """

    name: str
    spans: Annotated[int, "spans"]
    busy_ns: Annotated[int, "busy (ms)"]
    busy_fraction: Annotated[float, "busy share"]
    number: Annotated[int, "gaps"]
    total_ns: Annotated[int, "total (ms)"]
    median_ns: Annotated[float | None, "median (µs)"]
    p90_ns: Annotated[float | None, "p90 (µs)"]
    max_ns: Annotated[int | None, "max (µs)"]
    unlaunched_ns: Annotated[int | None, "not launched (ms)"]
    longest: tuple[Gap, ...]
    launched_ns: int = 0


@dataclass(frozen=True)
class GapsResult(Result):
    """Idle time by track."""

    by: str
    min_ns: int
    tracks: tuple[TrackGaps, ...]
    is_steady: bool = False
    weight = "total (ms)"

    def __getitem__(self, name: str) -> TrackGaps:
        return item_named(self.tracks, name, self.by)

    def _rows(self) -> list[Row]:
        """One row per track."""
        rows = []
        for track in self.tracks:
            longest = next((f"{gap.before} and {gap.after}" for gap in track.longest), None)
            rows.append({self.by: track.name, **row_of(track), "longest is between": longest})
        return rows

    @property
    def definition(self) -> str:
        """What a gap is."""
        least = f" of at least {self.min_ns} ns" if self.min_ns else ""
        return (
            f"gap{least}: idle time of a {self.by} between two spans of GPU work, inside one "
            "recording window" + self.is_steady * "; start-up and warm-up are left out"
        )


@door(trace=Trace, by=str, min_ns=int, whole=bool)
def gaps(trace: Trace, *, by: str = "stream", min_ns: int = 0, whole: bool = False) -> GapsResult:
    """Find the idle time of each track between its kernels, copies and memsets.

    A gap lies inside one recording window. Idle time before a track's first span, after its last,
    or between windows is not a gap. A span whose end is unknown counts as busy until the end of
    the last window.

    Parameters
    ----------
    by
        What forms a track: ``"stream"``, ``"partition"`` or ``"device"``.
    min_ns
        Gaps shorter than this are not counted.
    whole
        Whether start-up and warm-up of a recorded program count (see :func:`steps`).

    Raises
    ------
    MissingEvidence
        The trace holds no kernel, copy or memset.
    ValueError
        ``by`` has another value, or ``min_ns`` is negative.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.trace import Trace
    >>> trace = Trace.from_columns({
    ...     "id": [1, 2], "kind": ["kernel", "kernel"], "name": ["one", "two"], "stream": [7, 7],
    ...     "start_ns": [0, 130], "end_ns": [100, 160], "source": ["cupti", "cupti"],
    ... })
    >>> gs.analysis.gaps(trace)["stream 7"].longest[0]
    Gap(start_ns=100, end_ns=130, before='one', after='two')
    """
    if min_ns < 0:
        raise InvalidArgument(f"min_ns is at least 0, not {min_ns}")
    part = trace if whole else steady_part(trace)
    tracks = _tracks(part, _Work.of(part, by), min_ns)
    return GapsResult(by, min_ns, tracks, part is not trace, **about(trace))


@dataclass(frozen=True)
class _Work:
    """The GPU work of a trace by track, and the times between.

    Attributes
    ----------
    rows, starts, ends
        Of each piece of work, its row and times in ns.
    busy_ns
        Track → union of its work.
    before, after
        Of each gap inside one recording window, by track, the work that ended last before it and
        the one that ended it.
    """

    groups: Groups[str]
    rows: Array
    starts: Array
    ends: Array
    busy_ns: Array
    before: Array
    after: Array

    @classmethod
    def of(cls, trace: Trace, by: str) -> _Work:
        """Find the work and the gaps of a trace."""
        rows = rows_of(trace, *GPU_WORK)
        if not len(rows):
            raise MissingEvidence(
                "the trace holds no kernel, copy or memset: record with profile() while work is "
                "launched on a device of ours"
            )
        groups = Groups(*track_labels(trace, rows, by))
        starts = trace.array("start_ns")[rows]
        ends = trace.array("end_ns", fill=np.iinfo(np.int64).min)[rows]
        windows = np.array(trace.metadata.windows_ns, np.int64).reshape(-1, 2)
        if not len(windows):
            windows = np.array([[starts.min(), max(starts.max(), ends.max())]], np.int64)
        windows = union(windows[:, 0], windows[:, 1])
        ends = np.where(is_open(trace)[rows], np.maximum(starts, windows[-1, 1]), ends)
        opened_by, closed_by = merged(groups, starts, ends)
        group = groups.code[opened_by]
        first = np.searchsorted(group, np.arange(len(groups) + 1))
        busy_ns = stretch_sums(ends[closed_by] - starts[opened_by], first)
        follows = group[1:] == group[:-1]
        before, after = closed_by[:-1][follows], opened_by[1:][follows]
        window = np.searchsorted(windows[:, 0], ends[before], "right") - 1
        inside = (window >= 0) & (starts[after] <= windows[window, 1])
        return cls(groups, rows, starts, ends, busy_ns, before[inside], after[inside])


def ended_gaps(trace: Trace) -> tuple[Array, Array]:
    """Return the rows of work that ended an idle time of its GPU, and how long that was, ns."""
    if not len(rows_of(trace, *GPU_WORK)):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    work = _Work.of(trace, "device")
    return work.rows[work.after], work.starts[work.after] - work.ends[work.before]


def _tracks(trace: Trace, work: _Work, min_ns: int) -> tuple[TrackGaps, ...]:
    """Describe the gaps of all tracks."""
    groups, rows, busy_ns = work.groups, work.rows, work.busy_ns
    before, after = work.before, work.after
    low, high = work.ends[before], work.starts[after]
    bounds = np.arange(len(groups) + 1)
    idle_ns = stretch_sums(high - low, np.searchsorted(groups.code[after], bounds)).tolist()
    counted = high - low >= min_ns
    before, after, low, high = (values[counted] for values in (before, after, low, high))
    lengths, track = high - low, groups.code[after]
    launched = trace.array("queued_ns", fill=-1)[rows[after]]
    late = np.where(launched < 0, 0, np.clip(launched, low, high) - low)
    first = np.searchsorted(track, bounds)
    is_told = (stretch_sums(launched >= 0, first) > 0).tolist()
    early = np.where(launched < 0, 0, lengths - late)
    total_ns, unlaunched_ns, launched_ns = (
        stretch_sums(ns, first).tolist() for ns in (lengths, late, early)
    )
    some = Groups.of(track, range(len(groups)))
    quantiles = some.quantiles(lengths, (0.5, 0.9)).tolist()
    spread = dict(zip(some.labels, quantiles, strict=True))
    by_length = np.lexsort((-lengths, track))
    name, names = codes(trace.spans.column("name"))
    name, ids = name[rows], trace.array("id")[rows]

    def gap_of(gap: int) -> Gap:
        ends = before[gap], after[gap]
        first_name, second_name = (kernel_name(str(names[name[row]])) for row in ends)
        spans = int(ids[ends[0]]), int(ids[ends[1]])
        return Gap(int(low[gap]), int(high[gap]), first_name, second_name, spans)

    def track_of(index: int, label: str, spans: int) -> TrackGaps:
        order = by_length[first[index] : first[index + 1]]
        median_ns, p90_ns = spread.get(index, (None, None))
        spent_ns = int(busy_ns[index]) + idle_ns[index]
        return TrackGaps(
            name=label,
            spans=spans,
            busy_ns=int(busy_ns[index]),
            busy_fraction=int(busy_ns[index]) / spent_ns if spent_ns else 0.0,
            number=len(order),
            total_ns=total_ns[index],
            median_ns=median_ns,
            p90_ns=p90_ns,
            max_ns=int(lengths[order[0]]) if len(order) else None,
            unlaunched_ns=unlaunched_ns[index] if is_told[index] else None,
            longest=tuple(map(gap_of, order[:LONGEST])),
            launched_ns=launched_ns[index],
        )

    counts = groups.counts.tolist()
    return tuple(map(track_of, range(len(groups)), groups.labels, counts))
