"""Where a forecast's streams go, and what a replay gave as a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from gpuscope._checks import closest, given, require_kind
from gpuscope._types import Array
from gpuscope.device.carve import SmLayout, plan_carve
from gpuscope.device.sizes import Rounding, Sizes
from gpuscope.errors import InvalidArgument
from gpuscope.simulator.forecast.program import Program, ReplayedWork, StreamPlace
from gpuscope.simulator.forecast.replay import Replayed
from gpuscope.simulator.forecast.seen import ends_seen
from gpuscope.trace.columns import rows_of
from gpuscope.trace.facts import PartitionFacts, StreamFacts
from gpuscope.trace.metadata import NO_THREAD
from gpuscope.trace.model import Trace
from gpuscope.trace.schema import SAMPLED

Change: TypeAlias = Mapping[str, Any]
"""What becomes of a stream."""

_WARPED = ("api", "sync", "range", "mark", "event", "handle", "host function")
_DROPPED_EDGES = ("SMs", "priority", "event wait")
_FRESH = ("start_uncertainty_ns", "end_uncertainty_ns", "green_context", "submitted_ns", "sm")


# -- partitions and streams ----------------------------------------------------------------
@dataclass(eq=False)
class Carving:
    """Partitions, and where each stream's work goes.

    Attributes
    ----------
    partitions
        Name → what metadata holds of it.
    masks
        Name → its SMs.
    of
        Stream → name of its partition, and its priority.
    names
        Stream → name.
    """

    layout: SmLayout
    partitions: Mapping[str, PartitionFacts]
    masks: Mapping[str, int]
    of: dict[int, tuple[str | None, int]]
    names: dict[int, str]

    @classmethod
    def recorded(cls, trace: Trace, program: Program, sm_counts: Mapping[str, int]) -> Carving:
        """Return the recording's; partitions whose SMs are unknown lie beside each other."""
        layout, metadata = program.profile.layout, trace.metadata
        names_of = {name for work in program.works if (name := work.row["partition"])}
        for name, given_count in sm_counts.items():
            if name not in names_of or not 0 < given_count <= layout.sm_count:
                raise InvalidArgument(
                    f"recorded_sms[{name!r}] is {given(given_count)}{closest(name, names_of)}: it "
                    f"takes partitions in which work was recorded, {sorted(names_of)}, and 1 to "
                    f"{layout.sm_count} SMs of each"
                )
        of: dict[int, tuple[str | None, int]] = {}
        names: dict[int, str] = {}
        for work in program.works:
            number = work.row["stream"]
            facts = metadata.stream(number)
            of[number] = work.row["partition"], (facts.priority if facts else None) or 0
            names[number] = trace.stream_name(number)
        partitions, masks, free = {}, {}, layout.sm_count
        for name in dict.fromkeys(name for name, _ in of.values() if name is not None):
            partition = metadata.partition(name)
            count = sm_counts.get(name) or partition.sm_count
            partitions[name] = msgspec.structs.replace(partition, sm_count=count)
            if partition.sm_ids and max(partition.sm_ids) < layout.sm_count:
                masks[name] = sum(1 << number for number in partition.sm_ids)
                continue
            count = min(count or layout.sm_count, layout.sm_count)
            shift = free - count if free >= count else 0
            free -= count if free >= count else 0
            masks[name] = ((1 << count) - 1) << shift
        return cls(layout, partitions, masks, of, names)

    @property
    def places(self) -> dict[int, StreamPlace]:
        """Stream → SMs and priority."""
        whole = (1 << self.layout.sm_count) - 1
        return {
            number: StreamPlace(whole if name is None else self.masks[name], priority)
            for number, (name, priority) in self.of.items()
        }

    def number(self, name: str) -> int:
        """Return the stream of a name.

        Raises
        ------
        InvalidArgument
            There is none, or there are several.
        """
        same = [
            number
            for number, stream_name in self.names.items()
            if name in (stream_name, str(number))
        ]
        if len(same) != 1:
            raise InvalidArgument(
                f"{'no' if not same else len(same)} streams of the trace are called {given(name)}"
                f"{closest(name, self.names.values())}; there are "
                + ", ".join(
                    f"{stream_name!r} ({number})" for number, stream_name in self.names.items()
                )
            )
        return same[0]

    def changed(
        self, sizes: Sizes | None, rounding: Rounding, streams: Mapping[str, Change]
    ) -> Carving:
        """Return it with other partitions, and streams elsewhere."""
        partitions, masks = dict(self.partitions), dict(self.masks)
        if sizes is not None:
            plan = plan_carve(self.layout, sizes, rounding=rounding)
            partitions, masks = {}, {}
            for part in plan.partitions:
                mask = masks[part.name] = self.layout.sm_mask(part.parts)
                ids = tuple(sm for sm in range(self.layout.sm_count) if mask >> sm & 1)
                partitions[part.name] = PartitionFacts(
                    asked=part.asked, sm_count=part.sm_count, sm_ids=ids
                )
        after = Carving(self.layout, partitions, masks, dict(self.of), dict(self.names))
        for stream, change in streams.items():
            require_kind("a stream in streams", stream, str, int)
            number = self.number(str(stream))
            require_kind(f"streams[{stream!r}]", change, dict)
            unknown = [given(key) for key in change if key not in ("partition", "priority")]
            if unknown:
                raise InvalidArgument(
                    f"streams[{stream!r}] has {unknown[0]}: it takes partition and priority"
                )
            old, was = after.of[number]
            home, priority = change.get("partition", old), change.get("priority", was)
            require_kind(f"streams[{stream!r}]['partition']", home, str, None)
            require_kind(f"streams[{stream!r}]['priority']", priority, int)
            after.of[number] = home, int(priority)
        for number, (home, _) in after.of.items():
            if home is not None and home not in masks:
                raise InvalidArgument(
                    f"stream {self.names[number]!r} is in partition {home!r}, of which there is "
                    f"none: the partitions are {list(masks)}. Say where it goes: "
                    f"streams={{{self.names[number]!r}: {{'partition': …}}}}"
                )
        if sizes is not None and not any(home in partitions for home, _ in after.of.values()):
            raise InvalidArgument(
                f"no stream is in {' or '.join(map(repr, partitions))}: say which are, "
                f"streams={{{next(iter(self.names.values()))!r}: "
                f"{{'partition': {next(iter(partitions))!r}}}}}; the trace has "
                f"{', '.join(map(repr, self.names.values()))}"
            )
        return after

    def check_sizes(self, after: Carving, sent: Mapping[ReplayedWork, int]) -> None:
        """Refuse to move work of a partition whose size is not known.

        Raises
        ------
        InvalidArgument
            There is such work: how it goes on other SMs hangs on those it had.
        """
        moved = {work.row["stream"] for work in sent}
        moved |= {number for number in self.of if self.places[number] != after.places[number]}
        homes = {name for number, (name, _) in self.of.items() if number in moved}
        unknown = sorted(name for name in homes if name and not self.partitions[name].sm_count)
        if unknown:
            raise InvalidArgument(
                f"the trace does not say how many SMs {', '.join(map(repr, unknown))} had: give "
                f"them, recorded_sms={{{unknown[0]!r}: …}}"
            )

    def untouched(self, after: Carving, program: Program) -> frozenset[int]:
        """Return the streams whose SMs nobody else uses otherwise than before."""
        old_places, new_places = self.places, after.places
        touched = {number for number in old_places if old_places[number] != new_places[number]}
        masks = [old_places[number].sms | new_places[number].sms for number in touched]
        streams = {work.row["stream"] for work in program.works}
        return frozenset(
            number for number in streams if not any(new_places[number].sms & mask for mask in masks)
        )


# -- as a trace ----------------------------------------------------------------------------
def as_trace(
    trace: Trace,
    program: Program,
    done: Replayed,
    carving: Carving,
    sent: Mapping[ReplayedWork, int],
    forecast: str,
) -> Trace:
    """Return the recording's rows at the times of a replay, marked as a forecast."""
    ids, kinds = trace.array("id"), np.array(trace.texts("kind"), dtype=object)
    start, end = trace.array("start_ns").copy(), trace.array("end_ns", fill=-1).copy()
    row_of = {int(number): position for position, number in enumerate(ids)}
    keep = np.isin(kinds, _WARPED) & (trace.array("thread", fill=-1) != NO_THREAD)
    unused = [call for number, call in enumerate(program.calls) if number not in done.calls_ns]
    keep &= ~np.isin(
        ids, [number for call in unused for number in (call.row, call.handle) if number is not None]
    )
    _warp(trace, program, done, start, end)
    recorded_start, recorded_end = trace.array("start_ns"), trace.array("end_ns", fill=-1)
    seen_ns = ends_seen(program, done)
    for number, works in program.handles.items():
        if works[0] not in done.times_ns:
            continue
        row = row_of[number]
        first = min((work.call for work in works if work.call is not None), default=None)
        if first is not None:  # as long before its first launch as it was
            before_ns = program.calls[first].start_ns - int(recorded_start[row])
            start[row] = done.calls_ns[first][0] - before_ns
        if end[row] >= 0:
            end[row] = seen_ns(number, works, int(recorded_end[row]), int(end[row]))
    stream, queued = trace.array("stream", fill=-1).copy(), trace.array("queued_ns", fill=-1).copy()
    partition = np.array(trace.texts("partition"), dtype=object)
    for work, (start_ns, end_ns) in done.times_ns.items():
        row = row_of[work.id]
        keep[row], start[row], end[row] = True, start_ns, end_ns
        stream[row] = sent.get(work, work.row["stream"])
        if work.call is not None:
            queued[row] = done.calls_ns[work.call][1]
    for number, (name, _) in carving.of.items():
        partition[stream == number] = name
    payload = trace.spans.column("payload").to_pylist() if done.requests else []
    for number, request in done.requests.items():
        row = row_of[number]
        keep[row], start[row], end[row] = True, request.arrival_ns, request.tokens_ns[-1]
        payload[row] = request.facts.to_json()
    table = trace.spans
    home = pa.array(partition, pa.string()).dictionary_encode()
    columns = {
        "start_ns": pa.array(start),
        "end_ns": pa.array(end, mask=end < 0),
        "stream": pa.array(stream, mask=stream < 0),
        "queued_ns": pa.array(queued, mask=queued < 0),
        "partition": home,
        "intended_partition": home,
        "source": pa.array(["simulated"] * len(trace)).dictionary_encode(),
        **dict.fromkeys(_FRESH, pa.nulls(len(trace))),
    }
    if payload:
        columns["payload"] = pa.array(payload, table.schema.field("payload").type)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    table = table.filter(pa.array(keep))
    edges = [edge for edge in trace.edges.to_pylist() if edge["kind"] not in _DROPPED_EDGES]
    edges += [
        {"from": before.id, "to": work.id, "kind": "event wait"}
        for work in done.times_ns
        for before in work.after
    ]
    row_ids = set(table.column("id").to_pylist())
    edges = [edge for edge in edges if edge["from"] in row_ids and edge["to"] in row_ids]
    streams = dict(trace.metadata.streams)
    for number, (name, priority) in carving.of.items():
        facts = trace.metadata.stream(number) or StreamFacts(name=carving.names[number])
        streams[str(number)] = msgspec.structs.replace(facts, partition=name, priority=priority)
    metadata = msgspec.structs.replace(
        trace.metadata,
        simulated=True,
        forecast=forecast,
        partitions=dict(carving.partitions),
        streams=streams,
        windows_ns=_windows(trace, start, end, keep),
        gpu_states=(),
        sampling=None,
        kept=None,
        clocks={},
        solo={},
        setting=None,
    )
    columns_of_edges = {name: [edge[name] for edge in edges] for name in ("from", "to", "kind")}
    return Trace(table, Trace.from_columns({}, columns_of_edges).edges, metadata)


def _windows(trace: Trace, start: Array, end: Array, keep: Array) -> tuple[tuple[int, int], ...]:
    """Return the recording windows: as far before and behind what they recorded as they were."""
    windows = sorted(trace.metadata.windows_ns)
    old_start = trace.array("start_ns")
    old_end = np.maximum(old_start, trace.array("end_ns", fill=-1))
    of = np.searchsorted([low for low, _ in windows], old_start, "right") - 1
    of[rows_of(trace, *SAMPLED)] = -1
    moved: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(windows):
        was = of == number
        is_kept = was & keep
        if not is_kept.any():
            continue
        begin_ns = int(start[is_kept].min()) - max(0, int(old_start[was].min()) - low)
        end_ns = int(max(start[is_kept].max(), end[is_kept].max()))
        if moved and moved[-1][1] > begin_ns:  # the round before lasts longer
            begin_ns = max(moved[-1][0], begin_ns)
            moved[-1] = moved[-1][0], begin_ns
        moved.append((begin_ns, end_ns + max(0, high - int(old_end[was].max()))))
    return tuple(moved)


def described(program: Program, changes: Mapping[str, Any], ends_ns: Sequence[int]) -> str:
    """Say what a forecast is: its end and the band, from what, and what was assumed."""
    first_ns = min(work.start_ns for work in program.works)
    was_ns = max(work.end_ns for work in program.works) - first_ns
    ends_ms = [(end_ns - first_ns) / 1e6 for end_ns in ends_ns]
    band = f"{ends_ms[0]:,.4g} ms (band {min(ends_ms):,.4g} to {max(ends_ms):,.4g})"
    kernels = [work.kernel for work in program.works if work.kernel is not None]
    two = any(len(kernel.times_ns) > 1 for kernel in kernels)
    plain = sum(kernel.launch is None and kernel.known is None for kernel in kernels)
    assumed = {
        "kernels and graphs have no launch configuration: each taken to fill its SMs": plain,
        "launches unknown: their work starts as late as it did": program.unexplained,
    }
    source = f"{'two recordings' if two else 'one recording'} of the GPU with the profile"
    parts = [
        f"forecast: all work ends after {band}, recorded {was_ns / 1e6:,.4g}",
        f"from {source} {program.profile.key} ({', '.join(changes) or 'nothing changed'})",
        *(f"{count:,} {text}" for text, count in assumed.items() if count),
    ]
    return "; ".join(parts)


def _warp(trace: Trace, program: Program, done: Replayed, start: Array, end: Array) -> None:
    """Move the host's rows with the calls of their threads."""
    process, thread = trace.array("process", fill=0), trace.array("thread", fill=0)
    anchors: dict[tuple[int, int], dict[int, int]] = {}
    made_ns: dict[int, tuple[int, int]] = {}
    for call_number, (start_ns, end_ns) in done.calls_ns.items():
        call = program.calls[call_number]
        if call.thread[2]:  # its place among the thread's calls may be another one
            if call.row is not None:
                made_ns[call.row] = start_ns, end_ns
            if done.requests:
                continue
        moved_ns = anchors.setdefault(call.thread[:2], {})
        moved_ns[call.start_ns] = start_ns
        moved_ns[call.end_ns] = max(end_ns, moved_ns.get(call.end_ns, 0))
    for (process_id, thread_id), moved_ns in anchors.items():
        rows = (process == process_id) & (thread == thread_id)
        old = np.array(sorted(moved_ns))
        new = np.maximum.accumulate(np.array([moved_ns[time_ns] for time_ns in old]))
        for times in (start, end):
            times[rows] = np.where(times[rows] < 0, -1, _moved_times(times[rows], old, new))
    for row, number in enumerate(trace.array("id").tolist() if made_ns else ()):
        if number in made_ns:
            start[row], end[row] = made_ns[number]
    end[:] = np.where(end < 0, -1, np.maximum(start, end))


def _moved_times(times: Array, old: Array, new: Array) -> Array:
    """Return times between anchors as far between them; outside, as far from the nearest."""
    shift = np.interp(times.astype(float), old.astype(float), (new - old).astype(float))
    return np.asarray(times + np.rint(shift).astype(np.int64))
