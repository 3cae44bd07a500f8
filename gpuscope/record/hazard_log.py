"""What devices tell of their calls, as notes for the detector of hazards."""

from __future__ import annotations

from collections import deque
from copy import copy
from threading import get_native_id

from gpuscope.device.accesses import Access
from gpuscope.device.calls import QUEUES_WORK, Activity, Call, Execution, HostRun
from gpuscope.device.graph import Captured, Node
from gpuscope.device.raw import StreamKind
from gpuscope.device.select import open_devices
from gpuscope.device.stream import Stream
from gpuscope.record.hazard_notes import (
    HostAccess,
    HostWait,
    Memory,
    Note,
    Queue,
    Record,
    Returned,
    Wait,
    Work,
)
from gpuscope.record.hazards import Detector
from gpuscope.record.outside import Calls
from gpuscope.record.rows import move, node_row, work_row
from gpuscope.trace.metadata import HazardFacts


class HazardLog:
    """Watches devices, and finds hazards among what they and others tell.

    What is launched waits for it, so it only takes note; :meth:`read` does the rest.
    """

    def __init__(self) -> None:
        self._read: tuple[Detector, list[Note | Call | str]] = Detector(), []
        """What was read, and notes that were taken from the queue and not read."""
        self._noted: deque[Note | Call | str] = deque()
        """In the order of the host's calls. A text is the name of work that was not seen."""
        self.outside = Calls()
        """Those of other libraries."""
        self.captures: dict[Queue, Captured] = {}
        """What streams are being captured into by other libraries."""

    def note(self, note: Note) -> None:
        """Take a note of something that no device of ours tells, when it happens."""
        self._noted.append(note)

    def note_unseen(self, name: str) -> None:
        """Count work of which nobody knows what it accesses."""
        self._noted.append(name)

    # -- what devices say -------------------------------------------------------------
    def call_begins(self, call: Call) -> None:
        """Note a call that is about to reach the device."""
        captured = self._captured(call)
        if captured is not None:
            captured.take(call)
        elif call.kind in QUEUES_WORK:
            if call.accesses is not None or call.graph is not None or call.runs:
                self._noted.append(call)
        elif call.kind in ("record", "wait", "sync"):
            self._noted.append(call)

    def call_ends(self, call: Call) -> None:
        """Note a call that returned."""
        if call.kind == "sync":
            self._noted.append(Returned(call.correlation))
        elif (
            call.kind in QUEUES_WORK
            and call.accesses is None
            and call.graph is None
            and not (call.runs or call.superseded)
            and self._captured(call) is None
        ):
            self._noted.append(call.name)

    def _captured(self, call: Call) -> Captured | None:
        """Return what a call becomes part of, if that is another library's graph."""
        stream = call.stream if self.captures else None
        if stream is None:
            return None
        queue = queue_of(stream, call.thread)
        if call.kind == "wait":  # the stream may join by this
            for captured in [*self.captures.values()]:
                if call.event in captured.events:
                    self.captures.setdefault(queue, captured)
        return self.captured(queue)

    def captured(self, queue: Queue) -> Captured | None:
        """Return what a stream is being captured into by another library, if it is."""
        captured = self.captures.get(queue)
        if captured is None or captured.is_open:
            return captured
        self.captures.pop(queue, None)  # one of ours, which the stream had joined
        return None

    def execution_begins(self, execution: Execution) -> None:
        """Note a launch and the event behind it."""
        self._noted.append(execution)

    def execution_seen(self, execution: Execution) -> None:
        """Note that the host saw the end of an execution."""
        if execution.event is not None:
            self._noted.append(HostWait(execution.event))

    def noted(self, call: Call) -> None:
        """Note what is no call."""
        self._noted.append(call)

    def activity(self, activity: Activity) -> None:
        """Pass over what a device says it did: calls tell it."""

    # -- notes ------------------------------------------------------------------------
    def read(self, *, over: bool = True) -> None:
        """Look for hazards in what was noted.

        Until it is ``over``, what comes behind a host function waits for that to run. All else is
        read at one moment, by one assignment: interrupted, it begins anew.
        """
        detector, taken = self._read
        move(self._noted, taken)
        detector, waits = copy(detector), len(taken)
        for place, noted in enumerate(taken):
            if isinstance(noted, str):
                detector.count_unseen(noted)
                continue
            if not over and isinstance(noted, Call) and not _have_run(noted):
                waits = place
                break
            for note in notes_of(noted) if isinstance(noted, Call) else (noted,):
                detector.take(note)
        self._read = detector, taken[waits:]

    def facts(self) -> HazardFacts:
        """Return what was found in what was read."""
        return self._read[0].facts()


class Streams:
    """Finds the queues of other libraries' streams, as calls of ours on the same ones have them."""

    def __init__(self) -> None:
        self._wrapped: dict[tuple[int, int], Stream] = {}
        """Those that no device of ours made, by GPU and handle."""

    def stream(self, gpu: int, handle: int) -> Stream | None:
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
            return queue_of(stream, get_native_id())
        kind: StreamKind = "non-blocking" if handle else "legacy default"
        return Queue(f"cuda:{gpu}", handle, kind=kind)

    def captured(self, queue: Queue) -> Captured | None:
        """Return what a stream is being captured into, if that is a graph of ours."""
        for device in open_devices():
            stream = device.find_stream(queue.handle) if device.info.key == queue.device else None
            if stream is not None and stream.graph is not None:
                return stream.graph.captured
        return None


def queue_of(stream: Stream, thread: int) -> Queue:
    """Return the queue that a stream is, or is for a thread."""
    kind = stream.kind
    return Queue(
        stream.device.info.key, stream.queue_number,
        thread if kind == "per-thread default" else 0, kind,
    )  # fmt: skip


def _have_run(call: Call) -> bool:
    return all(run.is_over for run in call.runs.values())


def _of(run: HostRun) -> tuple[Access, ...] | None:
    return tuple(run.accesses) if run.is_over else None


def notes_of(call: Call) -> list[Note]:  # noqa: PLR0911 - one return for each kind
    """Return what a call means for the order of work, and for memory."""
    stream, kind, event = call.stream, call.kind, call.event
    queue = queue_of(stream, call.thread) if stream is not None else None
    accesses = call.accesses or ()
    if kind in ("freed", "given"):
        given = kind == "given"
        return [Memory(one.start, one.stop, queue, is_given=given) for one in accesses]
    if kind == "host access":
        return [HostAccess(call.name, accesses)]
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
    assert stream is not None  # noqa: S101 - it has a queue
    number, graph = call.correlation, call.graph
    if graph is not None:
        nodes = tuple(graph.captured.nodes)
        for place, run in call.runs.items():
            nodes = (*nodes[:place], nodes[place]._replace(accesses=_of(run)), *nodes[place + 1 :])
        if not nodes and not graph.is_empty:
            nodes = (Node(call.name, None),)
        spans = tuple(node_row(number, node) for node in range(len(nodes)))
        return [Work(queue, call.name, None, spans, graph=graph, nodes=nodes, stream=stream.name)]
    did = _of(call.runs[0]) if call.runs else call.accesses
    work = Work(queue, call.name, did, (work_row(number),), kind == "copy", stream=stream.name)
    if isinstance(call, Execution) and event is not None:
        return [work, Record(queue, event)]
    return [work]
