"""The tracks of a trace: which rows a timeline shows, and on which track each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from gpuscope._types import Array
from gpuscope.timeline.calls import TrackedCalls
from gpuscope.timeline.columns import Missing, Row, missing_in, seen_in
from gpuscope.timeline.counter_lanes import CounterLane, LaneFacts, counter_lanes
from gpuscope.timeline.grown import Coded, Grown
from gpuscope.timeline.index import OPEN_NS, Index
from gpuscope.timeline.labels import LAYOUT, Class, Places, Track, in_order, labelled
from gpuscope.timeline.live_lanes import LiveLanes
from gpuscope.timeline.readings import BESIDE, as_bars
from gpuscope.timeline.style import KIND_STYLES
from gpuscope.timeline.waits import WaitColumns
from gpuscope.trace.columns import codes, combined, outside
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.model import Trace
from gpuscope.trace.naming import named, plain_names
from gpuscope.trace.tracks import Group, TrackKey

MOST_STREAMS = 16
"""Streams that have colours of their own, where a trace has no partitions."""
_INSTANTS = ("mark", "event")
_COUNTER = "counter"
"""The kind of rows that lanes show; those of clocks and power are bars."""
_MOST_SAMPLES = 1 << 32
_CODED = (
    "kind",
    "name",
    "partition",
    "intended_partition",
    "stream",
    "status",
    "source",
    "site",
    "process",
    "thread",
    "device",
    "category",
    "sm",
)
_TELLING = (
    "source",
    "intended_partition",
    "process",
    "thread",
    "device",
    "partition",
    "stream",
    "category",
    "sm",
)
"""Columns that tell tracks or groups apart, beside the kind and, of some kinds, the name."""


@dataclass(frozen=True)
class Tracks:
    """What a timeline can show of a trace, ready to be asked for any window; immutable.

    Make one by ``Tracks.of(trace)``; :meth:`extended` adds the rows of a batch.

    Attributes
    ----------
    names
        A trace without rows: the metadata, and what it calls things.
    tracks
        In the order in which they are drawn.
    index
        The spans by group; rows of kinds that a timeline does not draw are left out.
    groups
        Group → the number of its track, and what bars its spans are.
    start_ns, end_ns
        Row → times; an open span ends at ``OPEN_NS``, a mark where it starts.
    track
        Row → number of its track, −1 for kinds that a timeline does not draw.
    coded
        Column → its values, by number.
    classes
        What bars there can be, in the order of the legend → the sources that told of them.
    busy_ns
        Track number → sum of its spans' widths, open ones left out.
    escaped
        Rows of kernels that ran outside the partition they were intended for.
    waits
        Which rows waited for which, by events and in collectives.
    calls
        What calls waited for; ``None`` while rows still come.
    counters
        Lanes of counters.
    live
        What they are made of while rows still come; ``None`` while :meth:`of` sorts a trace.
    """

    names: Trace
    tracks: tuple[Track, ...]
    index: Index
    groups: dict[tuple[int, Class], int]
    classes: dict[Class, tuple[str, ...]]
    busy_ns: Array
    escaped: Array
    coded: dict[str, Coded]
    waits: WaitColumns
    _columns: dict[str, Grown]
    _keys: dict[TrackKey, int]
    _sole_process: int | None
    calls: TrackedCalls | None = None
    counters: tuple[CounterLane, ...] = ()
    live: LiveLanes | None = None

    @classmethod
    def of(cls, trace: Trace) -> Tracks:
        """Sort the rows of a trace."""
        nothing = np.zeros(0, np.int64)
        columns = {
            name: Grown(nothing.astype(np.int32 if name in ("track", "group") else np.int64))
            for name in ("start", "end", "id", "early", "late", "samples", "track", "group")
        }
        empty = cls(
            Trace.from_columns({}, metadata=trace.metadata),
            (),
            Index(nothing, nothing, nothing),
            {},
            {},
            nothing,
            nothing,
            {name: Coded.empty() for name in _CODED},
            WaitColumns.none(),
            columns,
            {},
            None,
        )
        tracks = empty.extended(trace.spans, trace.edges, named(trace).metadata)
        lanes = counter_lanes(trace) if _COUNTER in tracks.elsewhere() else ()
        calls = TrackedCalls(trace, tracks.track)
        return replace(tracks, calls=calls, counters=lanes, live=LiveLanes())

    def __len__(self) -> int:
        """Rows, also those that are not drawn."""
        return len(self.start_ns)

    @property
    def start_ns(self) -> Array:
        """Row → start."""
        return self._columns["start"].values

    @property
    def end_ns(self) -> Array:
        """Row → end."""
        return self._columns["end"].values

    @property
    def track(self) -> Array:
        """Row → track number."""
        return self._columns["track"].values

    @property
    def group(self) -> Array:
        """Row → group; that of rows without a track means nothing."""
        return self._columns["group"].values

    @cached_property
    def rows(self) -> dict[int, Row]:
        """Track number → its groups, in the order in which they are stacked."""
        order = {bar_class: at for at, bar_class in enumerate(self.classes)}
        groups: dict[int, list[tuple[int, bool]]] = {track.number: [] for track in self.tracks}
        for track, bar_class in sorted(self.groups, key=lambda pair: order[pair[1]]):
            groups[track].append((self.groups[track, bar_class], bar_class.escaped))
        return {
            track: Row(*(zip(*members, strict=True) if members else ((), ())))
            for track, members in groups.items()
        }

    def row_of(self, track: Track) -> Row:
        """Return the groups of a track that is drawn."""
        if not track.folded:
            return self.rows[track.number]
        rows = [self.rows[number] for number in track.folded]
        return Row(sum((row.groups for row in rows), ()), sum((row.escaped for row in rows), ()))

    @cached_property
    def _mixed(self) -> Index:
        """The spans of tracks with several groups that overlap, by track."""
        is_mixed = np.isin(self.track, [*filter(self._overlaps, self.rows)])
        return Index(self.start_ns, self.end_ns, np.where(is_mixed, self.track, -1))

    def _overlaps(self, track: int) -> bool:
        """Whether a track, all rows of which are here, has several groups and spans at once."""
        return len(self.rows[track].groups) > 1 and self.index.depths(np.array([track]))[0] > 1

    def busy_in(self, tracks: Sequence[int], window_ns: tuple[int, int]) -> int:
        """Return for how many of the ns that ``seen_ns`` counts something was on some tracks."""
        seen = seen_in(window_ns, self.missing_in(window_ns))
        if not seen:
            return 0
        return int(self.busy_between(tracks, np.array(seen).ravel())[::2].sum())

    def busy_between(self, tracks: Sequence[int], edges: Array) -> Array:
        """Return for how many ns between each two edges something was on any of some tracks."""
        groups = sum((self.rows[track].groups for track in tracks), ())
        is_whole = self.calls is not None and len(tracks) == 1
        if len(groups) == 1 or (is_whole and not self._overlaps(tracks[0])):
            index: Index = self.index
        elif is_whole:
            index, groups = self._mixed, tuple(tracks)
        else:  # together, or all of the rows change soon
            start, end = self.index.times((int(edges[0]), int(edges[-1])), groups)
            index, groups = Index(start, end, np.zeros(len(start), np.int64)), (0,)
        busy: Array = index.columns(edges, groups)[0].sum(axis=0)
        return busy

    def missing_in(self, window_ns: tuple[int, int]) -> list[Missing]:
        """Return the stretches of a window of which rows are missing, and why."""
        metadata = self.names.metadata
        facts = metadata.kept
        since_ns = facts.since_ns if facts is not None and facts.rows_left_out else None
        return missing_in(window_ns, metadata.windows_ns, since_ns)

    def seen_ns(self, window_ns: tuple[int, int]) -> int:
        """Return how much of a window no rows are missing of: of it busy shares are shares."""
        seen = seen_in(window_ns, self.missing_in(window_ns))
        return sum(high - low for low, high in seen)

    @cached_property
    def waiting(self) -> set[int]:
        """Numbers of the tracks with a lane of waits."""
        return self.calls.tracks if self.calls is not None else set()

    @cached_property
    def narrow(self) -> set[int]:
        """Numbers of the tracks on which all that ran had escaped."""
        return {track for track, row in self.rows.items() if row.escaped and all(row.escaped)}

    def placed(self, rows: Sequence[Track], lines: Sequence[int], top: int = 4) -> Places:
        """Place rows one under the other."""
        return Places.of(
            rows,
            lines,
            self.marked,
            top,
            escaped=self.narrow,
            waiting=self.waiting,
            counted=self._counted(rows),
        )

    def _counted(self, rows: Sequence[Track]) -> dict[int, list[tuple[int, LaneFacts]]]:
        """Return the lanes below rows: below a partition's first, memory's below a GPU's last."""
        device_of = {number: key.device for key, number in self._keys.items()}
        work = [row for row in rows if row.group == Group.STREAM]
        below: dict[int, list[tuple[int, LaneFacts]]] = {}
        for number, lane in enumerate(self.counters):
            facts = lane.facts
            on_device = [row for row in work if device_of[row.number] == facts.device]
            if facts.is_memory:
                homes = on_device[-1:]
            else:
                homes = [row for row in on_device if row.partition == facts.partition][:1]
            for row in homes:
                below.setdefault(row.number, []).append((number, facts))
        return below

    @property
    def ids(self) -> Array:
        """Row → the span's id."""
        return self._columns["id"].values

    @cached_property
    def hazards(self) -> tuple[Array, Array]:
        """Rows of work that nothing orders, the first and the second of each hazard."""
        facts = self.names.metadata.hazards
        hazards = facts.found if facts is not None else ()
        ids = [(hazard.first, hazard.second) for hazard in hazards]
        pairs = [pair for pair in ids if None not in pair]
        rows = np.flatnonzero(np.isin(self.ids, np.array(pairs, np.int64)))
        row_of = dict(zip(self.ids[rows].tolist(), rows.tolist(), strict=True))
        row_pairs = [
            [row_of[span] for span in pair] for pair in pairs if row_of.keys() >= set(pair)
        ]
        first, second = np.array(row_pairs, np.int64).reshape(-1, 2).T
        return first, second

    @cached_property
    def marked(self) -> set[int]:
        """Numbers of the tracks with escapes or works of hazards."""
        works = np.concatenate([self.escaped, *self.hazards])
        return set(np.unique(self.track[works]).tolist())

    def uncertainties(self, rows: Array) -> tuple[Array, Array]:
        """Return how much later spans may have started and how much earlier ended, ns."""
        return self._columns["early"].values[rows], self._columns["late"].values[rows]

    def samples(self, rows: Array) -> Array:
        """Return how many samples told each of some stacks; 0 of other spans."""
        return self._columns["samples"].values[rows]

    def partitions(self) -> set[str]:
        """Return the partitions in which something ran; without any, the streams."""
        names = {bar_class.stream for _, bar_class in self.groups} - {""}
        return names | {name for name in self.coded["partition"].values if name is not None}

    def elsewhere(self) -> dict[str, int]:
        """Kind → rows that a timeline does not draw (blocks, counters)."""
        kinds = self.coded["kind"]
        counts = np.bincount(kinds.codes, minlength=len(kinds.values)).tolist()
        return {
            str(kind): count
            for kind, count in zip(kinds.values, counts, strict=True)
            if count and kind not in (*KIND_STYLES, BESIDE, *([_COUNTER] if self.counters else []))
        }

    def extended(self, spans: pa.Table, edges: pa.Table, metadata: TraceMetadata) -> Tracks:
        """Return it with more rows behind, as a recording's batches bring them.

        Of one object only the newest descendant may be extended, as they share memory.
        """
        count = len(self)
        knew_process = len(self.coded["process"].values) > 1
        plain = as_bars(
            spans.set_column(spans.schema.get_field_index("name"), "name", plain_names(spans))
        )
        coded = {name: column.extended(plain.column(name)) for name, column in self.coded.items()}
        columns_of = {name: (column.codes[count:], column.values) for name, column in coded.items()}
        start, end, is_open = _times(spans, *columns_of["kind"])
        first, alike, fresh = _alike(columns_of, is_open)
        one_each = {name: (code, columns_of[name][1]) for name, code in fresh.items()}
        group = LAYOUT.grouped(one_each)
        processes = coded["process"].values[1:]
        sole = processes[0] if len(processes) == 1 else None
        if knew_process:
            sole = self._sole_process
        keys = dict(self._keys)
        track = LAYOUT.assigned(group, one_each, keys, sole)
        more = {
            "start": start,
            "end": end,
            "track": track[alike],
            "id": _integers(spans, "id"),
            "early": _integers(spans, "start_uncertainty_ns"),
            "late": _integers(spans, "end_uncertainty_ns"),
            "samples": _samples(spans, (group == Group.STACKS)[alike]),
        }
        shown = track >= 0
        width = np.where(is_open, 0, end - start) if is_open.any() else end - start
        widths = np.bincount(alike, width, len(first))
        busy = np.bincount(track[shown], widths[shown], len(keys)).astype(np.int64)
        busy[: len(self.busy_ns)] += self.busy_ns
        columns = {name: self._columns[name].extended(more[name]) for name in more}
        escaped = _escaped(coded, fresh) & shown
        live = None if self.live is None else self.live.extended(spans, metadata)
        names = self.names
        if metadata is not names.metadata:
            names = Trace.from_columns({}, metadata=metadata)
        groups = dict(self.groups)
        classes = {bar_class: set(sources) for bar_class, sources in self.classes.items()}
        streams = coded["stream"].values
        if not _is_by_stream(metadata, {name: column.values for name, column in coded.items()}):
            streams = []
        number = _grouped(
            groups,
            classes,
            coded,
            fresh,
            track,
            is_open[first],
            escaped,
            np.isin(group, (Group.STREAM, Group.SM)),
            [names.stream_name(stream) for stream in streams],
        )
        columns["group"] = self._columns["group"].extended(number[alike])
        rows = np.flatnonzero(escaped[alike]) if escaped.any() else np.zeros(0, np.int64)
        return replace(
            self,
            names=names,
            tracks=labelled(names, keys, sole),
            index=self.index.extended(start, end, more["track"], columns["group"].values[count:]),
            groups=groups,
            classes={
                bar_class: tuple(sorted(classes[bar_class]))
                for bar_class in in_order(classes, metadata.partitions)
            },
            busy_ns=busy,
            escaped=np.r_[self.escaped, rows + count],
            coded=coded,
            waits=self.waits.extended(columns["id"].values, edges),
            _columns=columns,
            _keys=keys,
            _sole_process=sole,
            calls=None,
            counters=() if live is None else live.lanes,
            live=live,
        )


def is_by_stream(trace: Trace) -> bool:
    """Whether a timeline of a trace colours work by stream: no partition is known, nor many."""
    names = ("partition", "intended_partition", "stream")
    return _is_by_stream(
        trace.metadata, {name: codes(trace.spans.column(name))[1] for name in names}
    )


def _is_by_stream(metadata: TraceMetadata, values: Mapping[str, Sequence[object]]) -> bool:
    """Whether work is coloured by stream; ``values`` of columns begin with that of none."""
    has_partitions = any(len(values[name]) > 1 for name in ("partition", "intended_partition"))
    return not (metadata.partitions or has_partitions) and len(values["stream"]) <= MOST_STREAMS


def _alike(
    columns: Mapping[str, tuple[Array, Sequence[Any]]], is_open: Array
) -> tuple[Array, Array, dict[str, Array]]:
    """Return the first of the rows that are alike in all that tells tracks and groups apart.

    Returns
    -------
    tuple
        Rows; row → which of these it is like; column → their codes.
    """
    kind, kinds = columns["kind"]
    with_names = [kind for kind, group in LAYOUT.groups.items() if "name" in LAYOUT.columns[group]]
    is_named = np.array([name in with_names for name in kinds])
    codes_of = [columns[name][0] for name in _TELLING]
    if is_named.any():
        codes_of.append(np.where(is_named[kind], columns["name"][0], 0))
    first, alike = combined(kind, is_open, *codes_of)
    return first, alike, {name: code[first] for name, (code, _) in columns.items()}


def _times(spans: pa.Table, kind: Array, kinds: Sequence[Any]) -> tuple[Array, Array, Array]:
    """Return start, end and whether it is open of each row."""
    start = _integers(spans, "start_ns")
    if not spans.column("end_ns").null_count:
        return start, _integers(spans, "end_ns"), np.zeros(len(start), bool)
    unknown = np.asarray(spans.column("end_ns").is_null(), dtype=bool)
    instant = np.array([name in _INSTANTS for name in kinds])[kind] & unknown
    end = np.where(unknown, OPEN_NS, _integers(spans, "end_ns"))
    return start, np.where(instant, start, end), unknown & ~instant


def _integers(spans: pa.Table, name: str) -> Array:
    column = spans.column(name)
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(), np.int64)


def _samples(spans: pa.Table, is_stack: Array) -> Array:
    """Return how many samples told each stack, a foreign file's value bounded; 0 of other rows."""
    column = spans.column("value")
    if pa.types.is_null(column.type) or not is_stack.any():
        return np.zeros(len(column), np.int64)
    values = np.nan_to_num(np.where(is_stack, column.fill_null(0).to_numpy(), 0))
    return values.clip(0, _MOST_SAMPLES).astype(np.int64)


def _escaped(coded: dict[str, Coded], code: dict[str, Array]) -> Array:
    """Return which of new rows are kernels that ran outside the partition intended for them."""
    is_kernel = np.array([kind == "kernel" for kind in coded["kind"].values])[code["kind"]]
    intended, partition = (
        (code[name], coded[name].values) for name in ("intended_partition", "partition")
    )
    return is_kernel & outside(intended, partition)


def _grouped(
    groups: dict[tuple[int, Class], int],
    classes: dict[Class, set[str]],
    coded: dict[str, Coded],
    code: dict[str, Array],
    track: Array,
    is_open: Array,
    escaped: Array,
    on_stream: Array,
    streams: Sequence[str],
) -> Array:
    """Return new rows' groups; new groups, classes and their sources are added.

    ``streams`` names the values of the column, if classes are told apart by it.
    """
    group = np.zeros(len(track), np.int32)
    shown = np.flatnonzero(track >= 0)
    columns = [code[name][shown] for name in ("kind", "partition", "source")]
    first, combination = combined(*columns, is_open[shown], escaped[shown], track[shown])
    number = np.zeros(len(first), np.int32)
    for new, (row, at) in enumerate(zip(first.tolist(), shown[first].tolist(), strict=True)):
        kind, partition, source = (
            coded[name].values[column[row]]
            for name, column in zip(("kind", "partition", "source"), columns, strict=True)
        )
        if partition is None and on_stream[at]:
            partition = ""
        stream = streams[code["stream"][at]] if partition == "" and streams else ""
        bar_class = Class(kind, partition, bool(is_open[at]), bool(escaped[at]), stream)
        classes.setdefault(bar_class, set()).add(source)
        number[new] = groups.setdefault((int(track[at]), bar_class), len(groups))
    group[shown] = number[combination]
    return group
