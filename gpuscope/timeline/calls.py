"""The calls of a trace by track: when they were made and over, and what their time consists of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from gpuscope._types import Array
from gpuscope.analysis.call_parts import handles_of, last_of_handles
from gpuscope.analysis.part import Part, PartKind
from gpuscope.analysis.span_rows import OPEN, SpanRows
from gpuscope.analysis.trace_parts import TraceParts, trace_parts
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace

LINES = 4
"""Of calls that overlap, in a lane; calls that find no line are drawn in columns."""


class SeenCalls(NamedTuple):
    """Calls, and the parts of their time in order.

    Attributes
    ----------
    call
        Positions in :class:`TrackedCalls`.
    first
        Call → its first part; and the number of parts.
    length_ns, kind, cause
        Part → how long it lasts; what it is; the row that caused it, −1 for none.
    """

    call: Array
    first: Array
    length_ns: Array
    kind: list[PartKind]
    cause: Array


class TrackedCalls:
    """Calls in order of their tracks and starts.

    A call is that of a handle, from entering ``execute()`` until the host saw it done, on the track
    of its work that ended last. Work that no finished call of a handle launched is a call of its
    own, from entering the call that launched it to its end.

    Parameters
    ----------
    track
        Row of the trace → its track, negative: none.

    Attributes
    ----------
    row, work, track, start_ns, end_ns
        One a call; ``work`` is the row of what ended last.
    waited_ns
        Call → how long its work waited, from the return of its launch until it began.
    line
        Call → its line in a lane; −1 where none is free when it begins.
    """

    def __init__(self, trace: Trace, track: Array) -> None:
        self._trace = trace
        self._parts: dict[int, tuple[Part, ...]] = {}
        rows = self._told.rows
        row, last = _calls(rows)
        start = np.where(row == last, _begins(rows, row), rows.starts[row])
        is_drawn = (track[last] >= 0) & (start < rows.ends[row])
        row, last, start = row[is_drawn], last[is_drawn], start[is_drawn]
        order = np.lexsort((row, start, track[last]))
        self.row, self.work, self.start_ns = row[order], last[order], start[order]
        self.track = track[self.work]
        queued = rows.queued[self.work]
        waited = np.maximum(rows.starts[self.work] - np.maximum(queued, self.start_ns), 0)
        self.waited_ns = np.where(queued < 0, 0, waited)
        self.end_ns = rows.ends[self.row]

    @classmethod
    @cache
    def none(cls) -> TrackedCalls:
        """Return those of a trace without rows."""
        return cls(Trace.from_columns({}), np.zeros(0, np.int64))

    @cached_property
    def _told(self) -> TraceParts:
        return trace_parts(self._trace)

    @cached_property
    def tracks(self) -> set[int]:
        """Numbers of the tracks that have calls."""
        return set(np.unique(self.track).tolist())

    def of(self, track: int) -> slice:
        """Return where the calls of a track are."""
        low, high = np.searchsorted(self.track, [track, track + 1]).tolist()
        return slice(low, high)

    @cached_property
    def line(self) -> Array:
        """Call → line: in turn, as calls of a stream end in the order in which they begin."""
        line = np.zeros(len(self.row), np.int8)
        for track in self.tracks:
            calls = self.of(track)
            start, end = self.start_ns[calls], self.end_ns[calls]
            at = np.arange(len(start))
            most_at_once = int((at + 1 - np.searchsorted(np.sort(end), start, "right")).max())
            lines = min(most_at_once, LINES)
            line[calls] = at % lines
            for first in range(lines):
                on_line = slice(first, None, lines)
                free = np.r_[0, np.maximum.accumulate(end[on_line])[:-1]]
                taken = free > start[on_line]
                line[calls][on_line][taken] = -1
        return line

    @cached_property
    def lines(self) -> dict[int, int]:
        """Track → how many lines its calls have."""
        return {track: max(1, int(self.line[self.of(track)].max()) + 1) for track in self.tracks}

    @cached_property
    def by_wait(self) -> Array:
        """The calls by how long their work waited, the longest first."""
        return np.lexsort((self.start_ns, -self.waited_ns))

    def inside(self, track: int, window_ns: tuple[int, int]) -> Array:
        """Return the calls of a track that are seen in a window."""
        calls = self.of(track)
        until = int(np.searchsorted(self.start_ns[calls], window_ns[1]))
        inside: Array = np.flatnonzero(self.end_ns[calls][:until] > window_ns[0]) + calls.start
        return inside

    def longest(self, track: int, edges: Array) -> Array:
        """Return the longest call that starts in each column between edges, the first of equals."""
        calls = self.of(track)
        start = self.start_ns[calls]
        first = np.searchsorted(start, edges)
        columns = np.flatnonzero(np.diff(first))
        if not len(columns):
            return np.zeros(0, np.int64)
        low, high = first[columns[0]], first[columns[-1] + 1]
        length = self.end_ns[calls][low:high] - start[low:high]
        begins = first[columns] - low
        most = np.maximum.reduceat(length, begins)
        is_most = np.flatnonzero(length == np.repeat(most, np.diff(np.r_[begins, len(length)])))
        of_column = np.searchsorted(begins, is_most, "right")
        _, at = np.unique(of_column, return_index=True)
        chosen: Array = is_most[at] + low + calls.start
        return chosen

    def _parts_of(self, call: int, *, keep: bool) -> tuple[Part, ...]:
        parts = self._parts.get(call)
        if parts is None:
            parts = self._told.parts(int(self.row[call]))
            if keep:
                self._parts[call] = parts
        return parts

    def seen(self, calls: Sequence[Array], *, keep: bool = True) -> SeenCalls:
        """Return calls with their parts.

        Parameters
        ----------
        keep
            Whether the parts are asked for again.
        """
        call = np.concatenate([np.zeros(0, np.int64), *calls])
        parts = [self._parts_of(at, keep=keep) for at in call.tolist()]
        every = [part for of_call in parts for part in of_call]
        causes = np.array([-1 if part.span is None else part.span for part in every], np.int64)
        return SeenCalls(
            call,
            np.r_[0, np.cumsum([len(of_call) for of_call in parts], dtype=np.int64)],
            np.array([part.duration_ns for part in every], np.int64),
            [part.kind for part in every],
            match(causes, self._told.rows.ids),
        )


def _begins(rows: SpanRows, row: Array) -> Array:
    """Return when the call that launched each of some rows was entered, or its launch returned."""
    call = rows.calls[row]
    entered = np.where(call >= 0, rows.starts[call], rows.queued[row])
    begins: Array = np.minimum(rows.starts[row], entered)
    return begins


def _calls(rows: SpanRows) -> tuple[Array, Array]:
    """Return rows of calls, and of each call the work that ended last."""
    handle = handles_of(rows, innermost=False)
    last, call = last_of_handles(rows, handle)
    queued = np.flatnonzero(rows.queued >= 0)
    alone = rows.is_work[queued] & (rows.ends[queued] != OPEN) & (handle[queued] < 0)
    standing_alone = queued[alone]
    return np.r_[call, standing_alone], np.r_[last, standing_alone]
