"""What devices tell of their calls, as notes for the detector of hazards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import cast
from weakref import WeakKeyDictionary

from gpuscope._fork import free_in_children
from gpuscope._threads import thread_number
from gpuscope._types import Untyped
from gpuscope.device.accesses import Access, accesses_of
from gpuscope.device.calls import QUEUES_WORK, Call, Execution, HostRun, Noted, note_captured
from gpuscope.device.captured import Captured, Node
from gpuscope.device.event import Event
from gpuscope.device.select import open_devices
from gpuscope.device.views import StreamKind, StreamView
from gpuscope.races.hazard_notes import (
    FreedMemory,
    HostAccess,
    HostMark,
    HostWait,
    Note,
    Queue,
    Record,
    Returned,
    Wait,
    Work,
)
from gpuscope.races.hazards import Detector
from gpuscope.races.outside import OutsideCalls
from gpuscope.record.observers import Happened
from gpuscope.record.rows import move, node_row, work_row
from gpuscope.record.window import OVERFULL
from gpuscope.trace.facts import HazardFacts

_AT_ONCE = 1024
_NO_CALLS = ("seen", "freed", "given", "host access", "mark")


class HazardLog:
    """Finds hazards among what devices and others tell.

    What is launched waits for it, so it only takes note; :meth:`read` does the rest. Where nobody
    reads for long, who makes a note reads a few.
    """

    def __init__(self) -> None:
        self._detector = Detector()
        self._noted: deque[Note | Noted] = deque()
        self._taken: deque[Note | Noted] = deque()
        """Notes that were taken from the queue and not read."""
        self._reading = free_in_children(Lock())
        self._full = OVERFULL
        self._relieve: Callable[[], object] = self._read_some
        self.outside = OutsideCalls()
        """Those of other libraries."""
        self.captures: dict[Queue, Captured] = {}
        """What streams are being captured into by other libraries."""
        self.graphs: WeakKeyDictionary[Untyped, Captured] = WeakKeyDictionary()
        """Graphs of other libraries → what was captured into them."""

    def note(self, note: Note | Noted) -> None:
        """Note what devices and libraries tell, in the order of the host's calls."""
        if self.captures and type(note) is Call and note.kind not in _NO_CALLS:
            captured = self._captured(note)
            if captured is not None:
                note_captured(note, captured)
                note.accesses = ()  # its end does not count it, too
                return
        self._noted.append(note)
        if len(self._noted) >= self._full:
            self._relieve()

    def relieve_at(self, full: int, relieve: Callable[[], object]) -> None:
        """Have so many notes read by who makes one."""
        self._full, self._relieve = full, relieve

    def _captured(self, call: Call) -> Captured | None:
        """Return what a call becomes part of, if that is another library's graph."""
        stream = call.stream if self.captures else None
        if stream is None:
            return None
        queue = queue_of(stream, call.thread)
        if call.kind == "wait":
            self.may_join(queue, call.event)
        return self.captured(queue)

    def may_join(self, queue: Queue, event: object) -> None:
        """Let a stream that waits for an event of another library's capture become part of it."""
        for captured in [*self.captures.values()]:
            if event in captured.events:
                self.captures.setdefault(queue, captured)

    def captured(self, queue: Queue) -> Captured | None:
        """Return what a stream is being captured into by another library, if it is."""
        captured = self.captures.get(queue)
        if captured is None or captured.is_open:
            return captured
        self.captures.pop(queue, None)  # one of ours, which the stream had joined
        return None

    def capture_of(self, queue: Queue) -> Captured | None:
        """Return what a stream is being captured into, by another library or by us."""
        captured = self.captured(queue)
        for device in open_devices() if captured is None else ():
            stream = device.find_stream(queue.handle) if device.info.key == queue.device else None
            if stream is not None and stream.graph is not None:
                return stream.graph.captured
        return captured

    def add_work(
        self,
        queue: Queue,
        name: str,
        accesses: tuple[Access, ...],
        start_ns: int,
        *,
        is_copy: bool = False,
    ) -> None:
        """Note another library's work, by a call that has just returned; or make it a node."""
        captured = self.capture_of(queue)
        if captured is not None:
            node = Node(name, accesses, (), is_copy, f"stream {queue.handle:#x}")
            captured.add(queue.handle, node)
        else:
            row = self.outside.add(start_ns, time.time_ns())
            self.note(Work(queue, name, accesses, (row,), is_copy))

    def add_record(self, queue: Queue, event: object) -> Captured | None:
        """Note another library's record of an event; returns what it was captured into."""
        captured = self.capture_of(queue)
        if captured is None:
            self.note(Record(queue, event))
        else:
            captured.record(queue.handle, event)
        return captured

    def read(self, *, over: bool = True) -> None:
        """Look for hazards in what was noted by now.

        Until it is ``over``, what comes behind a host function waits for that to run.
        """
        with self._reading:
            self._look(len(self._noted), over=over)

    def _read_some(self) -> None:
        """Read a few notes, on the launch path, unless somebody reads."""
        if self._reading.acquire(blocking=False):
            try:
                self._look(_AT_ONCE, over=False)
            finally:
                self._reading.release()

    def _look(self, most: int, *, over: bool) -> None:
        """Read so many notes."""
        detector, taken = self._detector, self._taken
        move(self._noted, taken, most)
        while taken:
            noted = taken[0]
            if isinstance(noted, str):
                detector.count_unseen(noted)
            elif isinstance(noted, int):
                detector.take(Returned(noted))
            elif isinstance(noted, Event):
                detector.take(HostWait(noted))
            elif not isinstance(noted, Call):
                detector.take(cast("Note", noted))
            elif over or all(run.is_over for run in noted.runs.values()):
                for note in notes_of(noted):
                    detector.take(note)
            else:
                break
            taken.popleft()

    def facts(self) -> HazardFacts:
        """Return what was found in what was read."""
        with self._reading:
            return self._detector.facts()

    def happened(self) -> list[Happened]:
        """Return all pieces from the first mark on, of what was read."""
        with self._reading:
            return self._detector.happened()


class Streams:
    """Finds the queues of other libraries' streams, as calls of ours on the same ones have them."""

    def __init__(self) -> None:
        self._wrapped: dict[tuple[int, int], StreamView[object]] = {}
        """Those that no device of ours made, by GPU and handle."""

    def stream(self, gpu: int, handle: int) -> StreamView[object] | None:
        """Return a stream by its GPU's ordinal and its handle; ``None`` where no device has it."""
        for device in open_devices():
            if device.info.key == f"cuda:{gpu}":
                stream = device.find_stream(handle) or self._wrapped.get((gpu, handle))
                if stream is None:
                    stream = self._wrapped[gpu, handle] = device.wrap_stream(handle)
                return stream
        return None

    def queue(self, gpu: int, handle: int) -> Queue:
        """Return the queue of a stream, by its GPU's ordinal and its handle."""
        stream = self.stream(gpu, handle)
        if stream is not None:
            return queue_of(stream, thread_number())
        kind: StreamKind = "non-blocking" if handle else "legacy default"
        return Queue(f"cuda:{gpu}", handle, kind=kind)


def queue_of(stream: StreamView[object], thread: int) -> Queue:
    """Return the queue that a stream is, or is for a thread."""
    kind = stream.kind
    return Queue(
        stream.device.info.key,
        stream.queue_number,
        thread if kind == "per-thread default" else 0,
        kind,
    )


def _of(run: HostRun) -> tuple[Access, ...] | None:
    return tuple(run.accesses) if run.is_over else None


def notes_of(call: Call) -> list[Note]:  # noqa: PLR0911 - one return for each kind
    """Return what a call means for the order of work, and for memory."""
    stream, kind, event = call.stream, call.kind, call.event
    queue = queue_of(stream, call.thread) if stream is not None else None
    accesses = accesses_of(call.accesses or ())
    if kind in ("freed", "given"):
        given = kind == "given"
        return [
            FreedMemory(access.start, access.stop, queue, is_given=given) for access in accesses
        ]
    if kind in ("mark", "host access"):
        return [HostMark(call.name) if kind == "mark" else HostAccess(call.name, accesses)]
    if kind == "seen":
        return [HostWait(event, queue, call.device_key, graph=call.graph)]
    if kind == "sync":
        return [HostWait(event, queue, call.device_key, call.correlation)]
    if queue is None:
        return []
    if kind == "wait":
        return [Wait(queue, event)] if event is not None else []
    if kind == "record":
        return [Record(queue, event)]
    seen = call.accesses is not None or call.graph is not None or call.runs
    if kind not in QUEUES_WORK or not seen:
        return []  # of what is not seen, the end tells
    assert stream is not None  # noqa: S101 - it has a queue
    number, graph = call.correlation, call.graph
    if graph is not None:
        nodes = tuple(graph.captured.nodes)
        for index, run in call.runs.items():
            nodes = (*nodes[:index], nodes[index]._replace(accesses=_of(run)), *nodes[index + 1 :])
        if not nodes and not graph.is_empty:
            nodes = (Node(call.name, None),)
        spans = tuple(node_row(number, node) for node in range(len(nodes)))
        return [Work(queue, call.name, None, spans, graph=graph, nodes=nodes, stream=stream.name)]
    did = _of(call.runs[0]) if call.runs else accesses
    work = Work(queue, call.name, did, (work_row(number),), kind == "copy", stream=stream.name)
    if isinstance(call, Execution) and event is not None:
        return [work, Record(queue, event)]
    return [work]
