"""Calls that devices make, as rows of a recording, and the edges that follow from their order."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gpuscope.device.api import Activity, DeviceInfo
from gpuscope.device.calls import Call, Execution, Noted
from gpuscope.device.device import Device
from gpuscope.device.views import PartitionView, StreamView
from gpuscope.record.blocks import BlockSource
from gpuscope.record.facts import partition_facts, stream_facts
from gpuscope.record.order import CallOrder, Found
from gpuscope.record.ranges import RangeLog
from gpuscope.record.rows import Row, Rows, call_row, keep, move, of_call, together, work_columns
from gpuscope.record.source import Ended, NoteJournal, Source
from gpuscope.trace.facts import PartitionFacts, StreamFacts

_KINDS = {"handle": "handle", "record": "event", "sync": "sync"}
"""Kinds of calls whose rows are not of kind ``"api"``."""


class CallRecorder:
    """Observes devices: notes their calls, tells sources of them, and makes rows of them.

    Parameters
    ----------
    sources
        Device key → what times that device's work; filled before it observes.
    ranges
        Tells the range around a call.
    process
        Number of the process, as rows have it.
    take_note
        Takes what devices tell of accesses and their order, where that is asked for.

    Attributes
    ----------
    streams, partitions
        Facts of what calls were made on.
    received
        How many calls are rows.
    forgotten
        Handles' calls, begun before what is kept, whose completion nobody looked for.
    blocks
        What traced launches wrote about their thread blocks.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        ranges: RangeLog,
        process: int,
        take_note: Callable[[Noted], object] | None = None,
    ) -> None:
        self.take_note = take_note
        self._devices: dict[str, DeviceInfo] = {}
        self._sources = sources
        self._ranges = ranges
        self._thread_names = ranges.thread_names
        self._process = process
        self.streams: dict[int, StreamFacts] = {}
        self.partitions: dict[str, PartitionFacts] = {}
        self.received = 0
        self.blocks = BlockSource()
        self._open: dict[int, Call] = {}
        self._open_handles: dict[int, Call] = {}
        """Apart from the others: a handle whose completion nobody looks for stays."""
        self._around: dict[int, int] = {}  # call → row of the range around it, if one was
        self._met: set[tuple[str, int, int]] = set()
        """Streams, by device and number, and the threads that used them."""
        self._ended: deque[Call] = deque()
        """An execution comes twice: when the launch returned, and when its end was seen."""
        # What follows is the reader's alone.
        self._taken: list[Call] = []
        self._noted = 0
        """How many of them are in the journal."""
        self._read: list[int] = []
        """Calls that are rows, and may still be among the open."""
        self._last_parents: set[int | None] = set()
        """Executions, by their handles' calls, that were told last: each comes twice in a row."""
        self._order = CallOrder()
        self._theirs = False
        """Whether the column ``correlation`` holds a source's numbers."""
        self.forgotten = 0
        self._forgotten_from = 0
        """Number of the first of them: what began before may be none of the recording's."""
        self._forgetting: list[int] = []
        """Those of them that may still be among the open."""
        self._read_before: set[int] = set()
        """Calls that became rows in the latest reading."""
        self._full = sys.maxsize
        self._relieve: Callable[[], object] = lambda: None

    def watch(self, device: Device) -> None:
        """Observe a device."""
        self._devices[device.info.key] = device.info
        device.calls.observe(self)
        self.note_partitions(device.partitions)

    def relieve_at(self, full: int, relieve: Callable[[], object]) -> None:
        """Have so many ended calls read by who makes one."""
        self._full, self._relieve = full, relieve

    # What is launched waits for what devices say, so that is only noted: rows are made when read.
    def call_begins(self, call: Call) -> None:
        """Note a call that is about to reach the device."""
        source = self._sources[call.device_key]
        timed = call.kind in source.timed_kinds
        if not timed and call.kind == "setup":
            return  # nobody sees what it does
        if call.parent is None and self._ranges.used:
            self._note_range(call.correlation)
        self._note_places(call)
        if call.kind == "handle":
            self._open_handles[call.correlation] = call
        else:
            self._open[call.correlation] = call
        if timed:
            source.before(call)

    def execution_begins(self, execution: Execution) -> None:
        """Note a launch that is about to reach the device, and its handle's call."""
        handle = execution.parent
        assert handle is not None  # noqa: S101 - it is of one
        if execution.outer is None and self._ranges.used:
            self._note_range(handle)
        self._note_places(execution)
        self._open_handles[handle] = self._open[execution.correlation] = execution
        self._sources[execution.device_key].before(execution)

    def _note_range(self, number: int) -> None:
        """Note which range a call of this thread is made in."""
        if (row := self._ranges.current()) is not None:
            self._around[number] = row

    def _note_places(self, call: Call) -> None:
        """Note a call's thread and streams while they are alive."""
        key, thread, stream, intended = call.device_key, call.thread, call.stream, call.intended
        if stream is None:
            self._note_thread(thread)
        elif (key, stream.id, thread) not in self._met:
            self._meet(call, stream)
        if intended is stream or intended is None:
            return
        if (key, intended.id, thread) not in self._met:
            self._meet(call, intended)

    def _note_thread(self, thread: int) -> None:
        if thread not in self._thread_names:
            self._thread_names[thread] = threading.current_thread().name

    def _meet(self, call: Call, stream: StreamView[object]) -> None:
        """Note a stream that a thread uses for the first time."""
        self._note_thread(call.thread)
        if stream.partition is not None:
            self.note_partitions([stream.partition])
        self.streams.setdefault(stream.id, stream_facts(stream))
        self._sources[call.device_key].meet(call, stream)
        self._met.add((call.device_key, stream.id, call.thread))

    def call_ends(self, call: Call) -> None:
        """Note a call that returned."""
        source = self._sources[call.device_key]
        if call.kind in source.timed_kinds:
            source.after(call)
            if call.blocks is not None:
                self.blocks.take(call)
        elif call.kind == "setup":
            return
        self._ended.append(call)
        if len(self._ended) >= self._full:
            self._relieve()

    def execution_seen(self, execution: Execution) -> None:
        """Note that the host saw the end of an execution."""
        if execution.waited_ns is not None and self._ranges.used:
            self._note_range(execution.wait_number)
        self._ended.append(execution)
        if len(self._ended) >= self._full:
            self._relieve()

    def activity(self, activity: Activity) -> None:
        """Pass on work that a device says it did."""
        for source in self._sources.values():
            source.activity(activity)

    def note_partitions(self, partitions: Iterable[PartitionView]) -> None:
        """Note the facts of partitions."""
        for partition in partitions:
            self.partitions[partition.name] = partition_facts(partition)

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        move(self._ended, self._taken)
        forgotten = keep(self, "forgotten", "_forgotten_from", "_forgetting")
        read = keep(self, "_taken", "_noted", "_read", "received", "blocks", "_read_before")
        return together(forgotten, read, self._order.keep(), self.blocks.begin_reading())

    def note_ended(self, journal: NoteJournal) -> None:
        """Put the calls that ended and are no rows yet into a journal, each once.

        Of timed calls their source tells.
        """
        move(self._ended, self._taken)
        upto = len(self._taken)
        journal.note(self._ended_calls(dict.fromkeys(self._taken[self._noted : upto])))
        self._noted = upto

    def _ended_calls(self, new: Iterable[Call]) -> Ended:
        """Return what another process is told of calls."""
        seen = [
            call
            for call in new
            if isinstance(call, Execution)
            and call.seen_ns is not None
            and call.parent not in self._last_parents
        ]
        self._last_parents = {call.parent for call in seen}
        ended = Ended(self._process, [], [])
        for seen_call in seen:
            stream = seen_call.stream.id if seen_call.stream is not None else None
            times, thread = (seen_call.start_ns, seen_call.seen_ns), seen_call.thread
            waited = seen_call.waited_ns, seen_call.wait_thread
            ended.executions.append((seen_call.workload, *times, thread, *waited, stream))
        for call in new:
            own_event = call.kind == "record" and call.workload is not None
            if isinstance(call, Execution) or self._is_timed(call) or call.superseded or own_event:
                continue
            stream = call.stream.id if call.stream is not None else None
            times = call.start_ns, call.end_ns
            handle = call.name if call.kind == "handle" else call.workload
            kind = _KINDS.get(call.kind, "api")
            ended.host_calls.append((kind, call.name, *times, call.thread, stream, handle))
        return ended

    def settle(self) -> None:
        """Forget what was handed out; continues where it was interrupted."""
        while self._read:
            for notes in (self._open, self._open_handles, self._around):
                notes.pop(self._read[-1], None)
            self._read.pop()
        while self._forgetting:
            for notes in (self._open_handles, self._around):
                notes.pop(self._forgetting[-1], None)
            self._forgetting.pop()

    @property
    def open_count(self) -> int:
        """How many calls have no row yet."""
        done = len(self._read) + len(self._forgetting)
        return max(0, len(self._open) + len(self._open_handles) - done)

    def drain(self, rows: Rows) -> None:
        """Add the calls that ended, in the order in which they did, or at the end all."""
        self._theirs = any(source.numbers_calls for source in self._sources.values())
        taken, self._taken, self._noted = self._taken, [], 0
        read: set[int] = set()
        for call in taken:  # one that is not open began before this recording did, or came twice
            number, handle = call.correlation, call.parent
            if number not in read and (number in self._open or number in self._open_handles):
                read.add(number)
                self._add_returned(call, rows)
            elif (
                isinstance(call, Execution) and handle in self._open_handles and handle not in read
            ):
                read.add(handle)
                self._add_seen(call, rows)
            elif self.forgotten and self._is_forgotten(call, read):
                self.forgotten -= 1
                if isinstance(call, Execution):
                    self._add_seen(call, rows)
                else:
                    self._add_returned(call, rows)
        self._read_before = read
        self._forget(rows.since_ns, read)
        still_open = [call for number, call in self._open.copy().items() if number not in read]
        open_since = (call.start_ns for call in still_open if self._is_timed(call))
        rows.open_since_ns = min([rows.open_since_ns, *open_since])
        rows.own_since_ns = min([rows.own_since_ns, *(call.start_ns for call in still_open)])
        if rows.over:
            handles, done = self._open_handles.copy().items(), {*read, *self._forgetting}
            for call in still_open:
                self._add_open(call, rows)
            for call in [call for number, call in handles if number not in done]:
                if isinstance(call, Execution):
                    self._add_seen(call, rows)
                else:
                    self._add_open(call, rows)

    def _is_forgotten(self, call: Call, read: set[int]) -> bool:
        """Whether it is a handle's that was forgotten, which ends all the same."""
        if not isinstance(call, Execution) and call.kind != "handle":
            return False
        number = call.parent if isinstance(call, Execution) else call.correlation
        if number is None or _seen_ns(call) is None or number < self._forgotten_from:
            return False
        new = number not in read and number not in self._read_before  # two threads may see one end
        read.add(number)
        return new

    def _forget(self, since_ns: int, read: set[int]) -> None:
        """Hold the calls of handles no longer whose end nobody may ever see."""
        for number, call in self._open_handles.copy().items() if since_ns else ():
            if call.start_ns >= since_ns:
                break  # they are in order
            if _seen_ns(call) is None and number not in read:
                self._forgotten_from = self._forgotten_from or number
                self._forgetting.append(number)
        self.forgotten += len(self._forgetting)

    def _add_returned(self, call: Call, rows: Rows) -> None:
        rows.cut()
        self._count(call)
        if not call.superseded:  # else launches inside it tell better
            self._add_call(call, rows)
        if isinstance(call, Execution) and call.event is not None:
            self.received += 1
            self._order.record(call)

    def _add_open(self, call: Call, rows: Rows) -> None:
        """Add an open call as an open row: nothing that was seen vanishes."""
        if call.end_ns is not None:  # who made it was interrupted before telling us
            self._add_returned(call, rows)
            return
        self._count(call)
        status = "completion not seen" if call.kind == "handle" else "not returned"
        rows.spans.append({**self._columns(call), "end_ns": None, "status": status})

    def _add_seen(self, execution: Execution, rows: Rows) -> None:
        """Add the call of an execution's handle, and the wait that saw its end, if one did."""
        for call in execution.around():
            self._add_open(call, rows)

    def _count(self, call: Call) -> None:
        self.received += 1
        self._read.append(call.correlation)

    def add_unfinished(self, call: Call, source: str, rows: Rows) -> None:
        """Add the open row of the work of a call that returned."""
        status = {"start_ns": call.end_ns, "status": "not finished", "source": source}
        rows.spans.append({**work_columns(call, self._devices[call.device_key]), **status})

    def _is_timed(self, call: Call) -> bool:
        return call.kind in self._sources[call.device_key].timed_kinds

    def _add_call(self, call: Call, rows: Rows) -> None:
        """Add a call's row, and the edges from what it follows."""
        if self._is_timed(call):
            self._add_edges(call, self._order.work(call), rows)
            self._sources[call.device_key].hold(call, self._columns(call), rows)
            return
        if call.kind == "record":
            self._order.record(call)
            if call.workload is not None:
                return  # a handle's completion event is its own business
        elif call.kind == "wait":
            self._order.wait(call)
        elif call.kind == "sync":
            self._add_edges(call, self._order.behind(call), rows)
        rows.spans.append(self._columns(call))

    def _add_edges(self, call: Call, edges: Found, rows: Rows) -> None:
        """Add edges from work; those from graphs' launches where their source knows the nodes."""
        of_work, of_graphs = edges
        rows.edges += of_work
        if of_graphs:
            self._sources[call.device_key].hold_edges(of_graphs, rows)

    def _columns(self, call: Call) -> Row:
        device, number = self._devices[call.device_key], call.correlation
        parent = self._around.get(number) if call.parent is None else call_row(call.parent)
        states = call.kind == "handle"  # of launches, the rows of their work do
        return {
            **of_call(call, device),
            "id": call_row(number),
            "parent": parent,
            "kind": _KINDS.get(call.kind, "api"),
            "start_ns": call.start_ns,
            "end_ns": call.end_ns,
            "process": self._process,
            "thread": call.thread,
            # In a trace from CUPTI, correlation is CUPTI's number, and ours is outside it.
            "correlation": None if self._theirs else number,
            "external_correlation": number if self._theirs else None,
            "nbytes": call.nbytes if states else None,
            "flop_count": call.flop_count if states else None,
            "payload": call.payload,
            "category": call.name if call.kind == "handle" else call.workload,
            "source": "simulated" if device.kind == "sim" else "host",
        }


def _seen_ns(call: Call) -> int | None:
    """Return when the end of a handle's call was seen."""
    return call.seen_ns if isinstance(call, Execution) else call.end_ns
