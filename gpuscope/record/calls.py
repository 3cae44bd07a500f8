"""Calls that devices make, as rows of a recording, and the edges that follow from their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gpuscope.device.api import DeviceInfo
from gpuscope.device.calls import Activity, Call
from gpuscope.device.partition import Partition
from gpuscope.device.stream import Stream
from gpuscope.record.blocks import BlockSource
from gpuscope.record.facts import partition_facts, stream_facts
from gpuscope.record.order import Order
from gpuscope.record.ranges import RangeLog
from gpuscope.record.rows import Row, Rows, call_row, keep, move, of_call, together, work_columns
from gpuscope.record.source import Source
from gpuscope.trace.metadata import PartitionFacts, StreamFacts

_KINDS = {"handle": "handle", "record": "event", "sync": "sync"}
"""Kinds of calls whose rows are not of kind ``"api"``."""

_Entry = tuple[Call, int | None]
"""A call, and the row of what it was made in."""


class CallLog:
    """Observes devices: notes their calls, tells sources of them, and makes rows of them.

    Parameters
    ----------
    devices
        Key → facts of the devices that it will observe.
    sources
        Device key → what times that device's work; filled before it observes.
    ranges
        Tells the range around a call.
    process
        Number of the process, as rows have it.

    Attributes
    ----------
    streams, partitions
        Facts of what calls were made on.
    received
        How many calls are rows.
    blocks
        What traced launches wrote about their thread blocks.
    """

    def __init__(
        self,
        devices: Mapping[str, DeviceInfo],
        sources: Mapping[str, Source],
        ranges: RangeLog,
        process: int,
    ) -> None:
        self._devices = devices
        self._sources = sources
        self._ranges = ranges
        self._thread_names = ranges.thread_names
        self._process = process
        self.streams: dict[int, StreamFacts] = {}
        self.partitions: dict[str, PartitionFacts] = {}
        self.received = 0
        self.blocks = BlockSource()
        self._open: dict[int, _Entry] = {}
        self._open_handles: dict[int, _Entry] = {}
        """Apart from the others: a handle whose completion nobody looks for stays."""
        self._ended: deque[Call] = deque()
        # What follows is the reader's alone.
        self._taken: list[Call] = []
        self._read: list[Call] = []
        """Calls that are rows, and may still be among the open."""
        self._order = Order()
        self._theirs = False
        """Whether the column ``correlation`` holds a source's numbers."""

    # -- what devices say -------------------------------------------------------------
    # What is launched waits for these, so they only take note: rows are made when read.
    def call_begins(self, call: Call) -> None:
        """Note a call that is about to reach the device."""
        source = self._sources[call.device_key]
        timed = call.kind in source.timed_kinds
        if call.kind == "setup" and not timed:
            return  # nobody sees what it does
        parent = call_row(call.parent) if call.parent is not None else self._ranges.current()
        if call.thread not in self._thread_names:
            self._thread_names[call.thread] = threading.current_thread().name
        self._calls_like(call)[call.correlation] = (call, parent)
        if timed:
            source.before(call)

    def _calls_like(self, call: Call) -> dict[int, _Entry]:
        return self._open_handles if call.kind == "handle" else self._open

    def call_ends(self, call: Call) -> None:
        """Note a call that returned."""
        source = self._sources[call.device_key]
        if call.kind in source.timed_kinds:
            source.after(call)
            if call.blocks is not None:
                self.blocks.take(call)
        elif call.kind == "setup":
            return
        for stream in (call.stream, call.intended):
            if stream is not None and stream.id not in self.streams:
                self._note_stream(stream)
        self._ended.append(call)

    def activity(self, activity: Activity) -> None:
        """Pass on work that a device says it did."""
        for source in self._sources.values():
            source.activity(activity)

    def note_partitions(self, partitions: Iterable[Partition]) -> None:
        """Note the facts of partitions."""
        for partition in partitions:
            self.partitions[partition.name] = partition_facts(partition)

    def _note_stream(self, stream: Stream) -> None:
        if stream.partition is not None:
            self.note_partitions([stream.partition])
        self.streams[stream.id] = stream_facts(stream)

    # -- rows -------------------------------------------------------------------------
    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        move(self._ended, self._taken)
        return together(keep(self, "_taken", "_read", "received", "blocks"), self._order.keep())

    def settle(self) -> None:
        """Forget what was handed out; continues where it was interrupted."""
        while self._read:
            self._calls_like(self._read[-1]).pop(self._read[-1].correlation, None)
            self._read.pop()

    @property
    def open_count(self) -> int:
        """How many calls have no row yet."""
        return max(0, len(self._open) + len(self._open_handles) - len(self._read))

    def drain(self, rows: Rows) -> None:
        """Add the calls that ended, in the order in which they did, or at the end all."""
        self._theirs = any(source.numbers_calls for source in self._sources.values())
        taken, self._taken = self._taken, []
        for call in taken:
            entry = self._calls_like(call).get(call.correlation)
            if entry is not None:  # else it began before this recording did
                self._add_returned(*entry, rows)
        still_open = self._still_open(handles=rows.over)
        open_since = (call.start_ns for call, _ in still_open if self._is_timed(call))
        rows.open_since_ns = min([rows.open_since_ns, *open_since])
        if rows.over:
            for call, parent in still_open:
                self._add_open(call, parent, rows)

    def _still_open(self, *, handles: bool) -> list[_Entry]:
        """Return the calls that have no row."""
        read = {call.correlation for call in self._read}
        every = {**self._open_handles.copy(), **self._open.copy()} if handles else self._open.copy()
        return [entry for number, entry in every.items() if number not in read]

    def _add_returned(self, call: Call, parent: int | None, rows: Rows) -> None:
        rows.cut()
        self.received += 1
        self._read.append(call)
        if not call.superseded:  # else launches inside it tell better
            self._add_call(call, parent, rows)

    def _add_open(self, call: Call, parent: int | None, rows: Rows) -> None:
        """Add an open call as an open row: nothing that was seen vanishes."""
        if call.end_ns is not None:  # who made it was interrupted before telling us
            self._add_returned(call, parent, rows)
            return
        self.received += 1
        self._read.append(call)
        status = "completion not seen" if call.kind == "handle" else "not returned"
        rows.spans.append({**self._columns(call, parent), "end_ns": None, "status": status})

    def add_unfinished(self, call: Call, source: str, rows: Rows) -> None:
        """Add the open row of the work of a call that returned."""
        work = work_columns(call, self._devices[call.device_key])
        status = {"start_ns": call.end_ns, "status": "not finished", "source": source}
        rows.spans.append({**work, **status})

    def _is_timed(self, call: Call) -> bool:
        return call.kind in self._sources[call.device_key].timed_kinds

    def _add_call(self, call: Call, parent: int | None, rows: Rows) -> None:
        """Add a call's row, and the edges from what it follows."""
        if self._is_timed(call):
            rows.edges += self._order.work(call)
            self._sources[call.device_key].hold(call, self._columns(call, parent), rows)
            return
        if call.kind == "record":
            self._order.record(call)
            if call.workload is not None:
                return  # a handle's completion event is its own business
        elif call.kind == "wait":
            self._order.wait(call)
        elif call.kind == "sync":
            row = call_row(call.correlation)
            rows.edges += [(before, row, "host wait") for before in self._order.behind(call)]
        rows.spans.append(self._columns(call, parent))

    def _columns(self, call: Call, parent: int | None) -> Row:
        device = self._devices[call.device_key]
        return {
            **of_call(call, device),
            "id": call_row(call.correlation),
            "parent": parent,
            "kind": _KINDS.get(call.kind, "api"),
            "start_ns": call.start_ns,
            "end_ns": call.end_ns,
            "process": self._process,
            "thread": call.thread,
            # In a trace from CUPTI, correlation is CUPTI's number, and ours is outside it.
            "correlation": None if self._theirs else call.correlation,
            "external_correlation": call.correlation if self._theirs else None,
            "category": call.name if call.kind == "handle" else call.workload,
            "source": "simulated" if device.kind == "sim" else "host",
        }
