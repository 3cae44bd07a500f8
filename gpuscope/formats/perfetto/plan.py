"""What each row of a trace becomes in Perfetto's protobuf, in which order, on which track."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gpuscope._types import Bools, Ints
from gpuscope.formats.perfetto import interned as tables
from gpuscope.formats.perfetto.interned import Interned, OtherTracks
from gpuscope.formats.tracks import OPEN, layout, nested, times
from gpuscope.trace.columns import codes, combined
from gpuscope.trace.joins import match
from gpuscope.trace.model import Trace
from gpuscope.trace.tracks import Group, TrackKey

STAGE, SLICE, INSTANT, GPU_COUNTER, COUNTER = range(5)
"""What a row becomes: a render stage, a track event with a begin, one of a moment, a sample."""
_INSTANTS = ("mark", "event", "counter")
"""Kinds of rows that are moments where they have no end."""


class TracePlan:
    """Rows in order of time, each with its track, context and arrows.

    Attributes
    ----------
    what
        Row → what it becomes.
    starts, ends, values
        Row → its times, ``OPEN`` where the end is unknown; its value.
    event, is_end
        Rows and the ends of slices in order of time: position → row, and whether it is its end.
    name, texts
        Row → code of its name; code → text.
    track
        Row → number of its queue, its track or, of a sample, its GPU's counters.
    context
        Row → number of its context.
    waits, wait_kinds
        Row → ids of the render stages that a render stage waited for; kinds of these edges. Null
        stands for none, here and below.
    submitted, waited
        Row → ids of the render stages that a track event submitted, or waited for.
    flows
        Row → numbers of the flows that begin at a track event; that end at it.
    lost_edges
        How many edges are in none of them.
    """

    def __init__(self, trace: Trace, interned: Interned, tracks: OtherTracks) -> None:
        self.trace = trace
        self.starts, self.ends = times(trace, 0)
        keys, track = layout(trace).of(trace)
        self._classify(np.array([key.group for key in keys], np.int64)[track])
        lasts = np.where(self.what >= INSTANT, self.starts, self.ends)
        order, lane = nested(track, self.starts, lasts)
        self._order(order)
        self._edges(tracks.base)
        first, lane_of = combined(track, lane)
        lanes = [(keys[track[row]], int(lane[row])) for row in first.tolist()]
        self.name, self.texts = codes(trace.spans.column("name"))
        self._places(lanes, lane_of, interned, tracks)

    def _classify(self, group: Ints) -> None:
        """Decide what each row becomes; a sample without a finite number is an instant."""
        kind, kinds = codes(self.trace.spans.column("kind"))
        value = self.trace.spans.column("value").cast(pa.float64()).fill_null(np.nan)
        self.values = np.asarray(value.combine_chunks())
        moment = np.isin(kind, [kinds.index(name) for name in _INSTANTS if name in kinds])
        what = np.where(moment & (self.ends == OPEN), INSTANT, SLICE)
        what[group == Group.STREAM] = STAGE
        device = self.trace.array("device", fill=-1)
        sample = (group == Group.COUNTER) & np.isfinite(self.values)
        self.what = np.where(sample, np.where(device < 0, COUNTER, GPU_COUNTER), what)

    def _order(self, order: Ints) -> None:
        """Put rows, and the ends of slices, in order of time.

        On each track what ends comes before what begins, the inner before the outer; what begins
        and ends at once does both before the next.
        """
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        ended = np.flatnonzero((self.what == SLICE) & (self.ends != OPEN))
        lasting = self.ends[ended] > self.starts[ended]
        row = np.r_[np.arange(len(order)), ended]
        at = np.r_[self.starts, self.ends[ended]]
        closes = np.r_[np.zeros(len(order), bool), lasting]
        within = np.r_[2 * rank, np.where(lasting, -rank[ended], 2 * rank[ended] + 1)]
        sorted_events = np.lexsort((within, ~closes, at))
        self.event = row[sorted_events]
        self.is_end = sorted_events >= len(order)

    def _edges(self, base: int) -> None:
        """Sort edges by what tells them; one from or to a sample, or to no row, is counted."""
        trace, count = self.trace, len(self.trace)
        ids = trace.array("id")
        source, target = (
            match(np.asarray(trace.edges.column(name), np.int64), ids) for name in ("from", "to")
        )
        is_drawn = (source >= 0) & (target >= 0)
        is_drawn[is_drawn] = (self.what[source[is_drawn]] < GPU_COUNTER) & (
            self.what[target[is_drawn]] < GPU_COUNTER
        )
        edge = np.flatnonzero(is_drawn)
        self.lost_edges = len(is_drawn) - len(edge)
        source, target = source[edge], target[edge]
        from_stage, to_stage = (self.what[rows] == STAGE for rows in (source, target))

        def attached(chosen: Bools, rows: Ints, values: Ints | pa.Array) -> pa.LargeListArray:
            order = np.argsort(rows[chosen], kind="stable")
            number = np.bincount(rows[chosen], minlength=count)
            bounds = pa.array(np.r_[0, np.cumsum(number)])
            attached_values = pa.array(values).take(np.flatnonzero(chosen)[order])
            return pa.LargeListArray.from_arrays(
                bounds, attached_values, mask=pa.array(number == 0)
            )

        waits = from_stage & to_stage
        kinds = trace.edges.column("kind").take(edge).cast(pa.string()).combine_chunks()
        self.waits = attached(waits, target, ids[source])
        self.wait_kinds = attached(waits, target, kinds)
        self.submitted = attached(~from_stage & to_stage, source, ids[target])
        self.waited = attached(from_stage & ~to_stage, target, ids[source])
        # Perfetto knows no way back in time: a flow begins at the row that began first.
        flow = base + 1 + edge
        turned = self.starts[source] > self.starts[target]
        ends = (np.where(turned, target, source), np.where(turned, source, target))
        between = ~from_stage & ~to_stage
        self.flows = [attached(between, rows, flow) for rows in ends]

    def _places(
        self,
        lanes: list[tuple[TrackKey, int]],
        lane_of: Ints,
        interned: Interned,
        tracks: OtherTracks,
    ) -> None:
        """Give each lane of a track its queue or its track, and each sample its counter."""
        trace, count = self.trace, len(lanes)
        is_event = np.isin(self.what, (SLICE, INSTANT))
        used = np.bincount(lane_of[is_event], minlength=count) > 0
        numbers = np.zeros(count, np.int64)
        for at in sorted(range(count), key=lambda at: lanes[at][1]):
            key, lane = lanes[at]
            if key.group == Group.STREAM:
                numbers[at] = tables.queue(key, lane, trace, interned)
            elif used[at]:
                numbers[at] = tracks.of(key, lane)
        self.track = numbers[lane_of]
        self.context = tables.contexts(trace, self.what == STAGE, interned)
        rows = np.flatnonzero(self.what == GPU_COUNTER)
        device = trace.array("device", fill=-1)[rows]
        self.track[rows] = tables.counters(device, self.name[rows], self.texts, interned)
        rows = np.flatnonzero(self.what == COUNTER)
        first, code = combined(lane_of[rows], self.name[rows])
        made = [
            tracks.counter(lanes[lane_of[row]][0], self.texts[self.name[row]])
            for row in rows[first].tolist()
        ]
        self.track[rows] = np.array(made, np.int64)[code]
