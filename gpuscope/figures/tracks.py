"""Which spans of a trace a timeline draws, and on which track."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analysis.columns import codes
from gpuscope.figures.style import KIND_STYLES
from gpuscope.figures.text import clean
from gpuscope.trace.model import Trace

MAX_TRACKS = 100
"""Tracks that a page can show legibly; the busiest stay."""
LANES = 8
"""Rows inside a track for spans that overlap or nest; what is deeper shares the last."""

_RANGES, _HANDLES, _CALLS, _SYNC, _STREAM = range(5)
_GROUPS = {
    "range": _RANGES, "mark": _RANGES, "handle": _HANDLES, "api": _CALLS, "sync": _SYNC,
    "kernel": _STREAM, "memcpy": _STREAM, "memset": _STREAM, "host function": _STREAM,
    "event": _STREAM, "graph": _STREAM,
}  # fmt: skip
_HOST_LABELS = {_RANGES: "ranges", _CALLS: "API calls", _SYNC: "synchronisation"}
_INSTANTS = ("mark", "event")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Track:
    """One row of a timeline.

    Attributes
    ----------
    label
        Plain text, not escaped.
    process
        The process's name, or ``None`` where the trace has only one.
    """

    label: str
    group: int
    partition: str | None
    process: str | None

    @property
    def is_host(self) -> bool:
        """Whether it shows what the host did."""
        return self.group != _STREAM

    @property
    def has_texts(self) -> bool:
        """Whether its bars bear their names."""
        return self.group == _RANGES


@dataclass(frozen=True)
class View:
    """The spans of one trace in one window, by track.

    Attributes
    ----------
    trace
        The rows in the window, of the kinds that a timeline draws.
    start_ns, end_ns
        One per row; an open span ends at the window's end, a mark where it starts.
    is_open
        Rows whose end is unknown.
    track
        Row → position in ``tracks``; −1 where its track is not drawn.
    drawn
        Rows to draw, widest first.
    hidden_tracks
        Tracks beyond what a page shows.
    elsewhere
        Kind → rows in the trace that a timeline does not draw (blocks, counters).
    """

    trace: Trace
    window_ns: tuple[int, int]
    tracks: tuple[Track, ...]
    start_ns: Array
    end_ns: Array
    is_open: Array
    track: Array
    drawn: Array
    hidden_tracks: int
    elsewhere: dict[str, int]

    @property
    def omitted(self) -> Array:
        """Rows with a track that are not drawn one by one."""
        rest = self.track >= 0
        rest[self.drawn] = False
        return np.flatnonzero(rest)


def default_window_ns(trace: Trace) -> tuple[int, int]:
    """Return the first of several recording windows, else the whole trace."""
    windows = trace.metadata.windows_ns
    if len(windows) > 1:
        return int(windows[0][0]), int(windows[0][1])
    if not len(trace):
        return 0, 1
    starts = trace.array("start_ns")
    ends = trace.array("end_ns", fill=np.iinfo(np.int64).min)
    closing = [int(pair[1]) for pair in windows] if trace.spans.column("end_ns").null_count else []
    low, high = int(starts.min()), max(int(starts.max()), int(ends.max()), *closing, 0)
    return low, max(high, low + 1)


def view(trace: Trace, window_ns: tuple[int, int] | None, max_spans: int) -> View:
    """Choose the spans and tracks of a timeline.

    Raises
    ------
    ValueError
        The window is empty, or no span may be drawn.
    """
    if max_spans < 1:
        raise ValueError(f"max_spans is at least 1, not {max_spans}")
    low, high = default_window_ns(trace) if window_ns is None else window_ns
    if low >= high:
        raise ValueError(f"the window ends at {high} ns, not after its start at {low} ns")
    elsewhere = {
        kind: count for kind, count in trace.kind_counts().items() if kind not in KIND_STYLES
    }
    rows = trace.where(kind=tuple(KIND_STYLES))
    starts, ends, is_open = _times(rows, high)
    inside = ((ends > low) & (starts < high)) | (
        (starts == ends) & (starts >= low) & (starts <= high)
    )
    rows = rows.where(inside)
    starts, ends, is_open = starts[inside], ends[inside], is_open[inside]
    tracks, track = _tracks(rows)
    shown, hidden = _busiest(track, len(tracks), ends - starts)
    position = np.full(len(tracks) + 1, -1)
    position[shown] = np.arange(len(shown))
    track = position[track]
    width = np.minimum(ends, high) - np.maximum(starts, low)
    order = np.lexsort((starts, -width))
    drawn = order[track[order] >= 0][:max_spans]
    return View(
        rows, (low, high), tuple(tracks[index] for index in shown), starts, ends, is_open, track,
        drawn, hidden, elsewhere,
    )  # fmt: skip


def _times(rows: Trace, high: int) -> tuple[Array, Array, Array]:
    starts = rows.array("start_ns")
    unknown = np.asarray(rows.spans.column("end_ns").is_null(), dtype=bool)
    kinds, names = codes(rows.spans.column("kind"))
    instant = np.array([name in _INSTANTS for name in names])[kinds] & unknown
    ends = np.where(unknown, np.maximum(starts, high), rows.array("end_ns", fill=0))
    return starts, np.where(instant, starts, ends), unknown & ~instant


def _busiest(track: Array, count: int, width: Array) -> tuple[Array, int]:
    if count <= MAX_TRACKS:
        return np.arange(count), 0
    busy = np.bincount(track, weights=width, minlength=count)
    shown = np.sort(np.argsort(-busy, kind="stable")[:MAX_TRACKS])
    return shown, count - MAX_TRACKS


def _tracks(rows: Trace) -> tuple[list[Track], Array]:
    """Return the tracks in the order in which they are drawn, and each row's position."""
    kinds, kind_names = codes(rows.spans.column("kind"))
    group = np.array([_GROUPS.get(kind, _STREAM) for kind in kind_names])[kinds]
    is_event = np.array([kind == "event" for kind in kind_names])[kinds]
    seen_by_host = is_event & (codes(rows.spans.column("thread"))[0] > 0)
    group = np.where(seen_by_host, _CALLS, group)
    on_stream = group == _STREAM
    is_handle = group == _HANDLES
    columns = {name: codes(rows.spans.column(name)) for name in _KEYS}
    parts: list[Array] = [group]
    for name, applies in (
        ("process", np.True_), ("thread", ~on_stream), ("device", on_stream),
        ("partition", on_stream), ("stream", on_stream), ("category", is_handle),
    ):  # fmt: skip
        parts.append(np.where(applies, columns[name][0], 0))
    nameless = is_handle & (parts[-1] == 0)
    parts.append(np.where(nameless, columns["name"][0], 0))
    processes = set(np.unique(parts[1])) - {0}
    if len(processes) == 1:
        parts[1] = np.full(len(rows), processes.pop())
    code = np.zeros(len(rows), np.int64)
    for part in parts:
        _, dense = np.unique(part, return_inverse=True)
        _, code = np.unique(code * (int(dense.max(initial=0)) + 1) + dense, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    keys = [
        (int(group[row]), *(columns[name][1][part[row]] for name, part in zip(
            _KEYS, parts[1:], strict=True)))
        for row in first
    ]  # fmt: skip
    order = sorted(range(len(keys)), key=lambda index: _sort_key(rows, keys[index]))
    position = np.empty(len(keys), np.int64)
    position[order] = np.arange(len(keys))
    return _labelled(rows, [keys[index] for index in order]), position[code]


_KEYS = ("process", "thread", "device", "partition", "stream", "category", "name")


def _sort_key(rows: Trace, key: tuple[Any, ...]) -> tuple[Any, ...]:
    group, process, thread, device, partition, stream, category, name = key
    known = list(rows.metadata.partitions)
    place = known.index(partition) if partition in known else len(known)
    number = [-1 if value is None else value for value in (process, thread, device, stream)]
    block = 0 if group == _RANGES else 2 if group == _STREAM else 1
    return (
        number[0], block, number[1], group, category or name or "",
        number[2], partition is not None, place, partition or "", number[3],
    )  # fmt: skip


def _labelled(rows: Trace, keys: list[tuple[Any, ...]]) -> list[Track]:
    processes = {key[1] for key in keys}
    threads = {key[2] for key in keys if key[0] != _STREAM}
    devices = {key[3] for key in keys if key[0] == _STREAM}
    tracks: list[Track] = []
    seen: set[tuple[str | None, str]] = set()
    for group, process, thread, device, partition, stream, category, name in keys:
        owner = None
        if len(processes) > 1:
            owner = _named(rows.metadata.process_names, process, "process")
        if group == _STREAM:
            label = f"{partition_label(rows, partition)} · {clean(rows.stream_name(stream), 18)}"
            if len(devices) > 1:
                label = f"GPU {'?' if device is None else device} · {label}"
            if (owner, label) in seen:
                label = f"{label} #{stream}"
        else:
            what = _HOST_LABELS.get(group) or f"handle {clean(category or name, 18)}"
            where = _named(rows.metadata.thread_names, thread, "thread")
            label = f"{what} · {where}" if len(threads) > 1 else what
        seen.add((owner, label))
        tracks.append(Track(label, group, partition, owner))
    return tracks


def _named(names: Any, number: int | None, what: str) -> str:
    if number is None:
        return f"unknown {what}"
    return clean(names.get(str(number), f"{what} {number}"), 22)


def partition_label(trace: Trace, partition: str | None) -> str:
    """Return a partition's name and its SM count, where known, in plain text."""
    if partition is None:
        return "whole GPU"
    facts = trace.metadata.partitions.get(partition, {})
    count = facts.get("granted", facts.get("sm_count"))
    name = clean(partition, 18)
    return name if count is None else f"{name} ({clean(count, 8)} SMs)"
