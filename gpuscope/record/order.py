"""What follows what, by CUDA's rules, from a program's calls alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from gpuscope.device.calls import Call
from gpuscope.device.views import EventView, GraphView
from gpuscope.record.rows import Edge, call_row, keep, together, work_row

_Queue = tuple[str, int, int]
"""Device, stream, and thread where each thread has its own; the legacy default stream is 0."""


class _Behind(NamedTuple):
    """What a moment comes after.

    Attributes
    ----------
    row
        Of the work; of a graph's launch, of its first node.
    rule
        By which the moment comes after it.
    is_graph
        Whether it is a graph's launch: its last node ends it.
    """

    row: int
    rule: str = ""
    is_graph: bool = False


Found = tuple[list[Edge], list[Edge]]
"""The edges from work, and those from graphs' launches."""
_Front = dict[_Queue, _Behind]
"""Stream → its last work."""

_LEGACY = "legacy default stream"


class CallOrder:
    """Follows the calls of a program, in the order in which they were made.

    Of each stream it knows its *front*: what work must end before what is queued next starts.
    Work ends a front; an event keeps a copy of one, and a wait for it adds that to another. What
    is queued in the legacy default stream, records and waits included, adds the fronts of all
    blocking streams to its own, and what is queued in these then adds its.
    """

    def __init__(self) -> None:
        self._fronts: dict[_Queue, _Front] = {}
        self._at_event: weakref.WeakKeyDictionary[EventView[object], _Front] = (
            weakref.WeakKeyDictionary()
        )
        self._at_graph: weakref.WeakKeyDictionary[GraphView, _Front] = weakref.WeakKeyDictionary()
        # So that a barrier costs and tells no more than what is new to it:
        self._changed: dict[str, dict[_Queue, None]] = {}  # blocking streams, by device
        self._barriers: dict[str, int] = {}  # calls in the legacy default stream, by device
        self._passed: dict[_Queue, int] = {}  # of these, the last that a blocking stream follows
        self._undone: dict[str, _Front] = {}  # what a wait for a device has not seen, by device

    def keep(self) -> Callable[[], None]:
        """Return what undoes all that is noted next."""
        fronts = {queue: front.copy() for queue, front in self._fronts.items()}
        changed = {device: queues.copy() for device, queues in self._changed.items()}
        undone = {device: front.copy() for device, front in self._undone.items()}
        return together(
            keep(self, "_at_event", "_at_graph", "_barriers", "_passed"),
            lambda: vars(self).update(_fronts=fronts, _changed=changed, _undone=undone),
        )

    def work(self, call: Call) -> Found:
        """Queue a call's work; returns the edges from work of other streams that it follows."""
        queue, row = _queue_of(call), work_row(call.correlation)
        if queue is None:
            return [], []
        front, graph = self._enter(call, queue), call.graph
        behind = _Behind(row, is_graph=graph is not None)
        if graph is not None:
            _merge(front, self._at_graph.get(graph, {}), "graph")
            self._at_graph[graph] = dict(front) if graph.is_empty else {queue: behind}
            if graph.is_empty:
                return [], []
        self._fronts[queue] = {queue: behind}
        self._undone.setdefault(queue[0], {})[queue] = behind
        predecessors = [last for source, last in front.items() if source != queue]
        return _edges([(last, row, last.rule) for last in predecessors])

    def record(self, call: Call) -> None:
        """Note a record of an event."""
        queue = _queue_of(call)
        if queue is not None and call.event is not None:
            self._at_event[call.event] = dict(self._enter(call, queue))

    def wait(self, call: Call) -> None:
        """Let a stream follow an event's latest record."""
        queue = _queue_of(call)
        if queue is not None and call.event is not None:
            front = self._enter(call, queue)
            _merge(front, self._at_event.get(call.event, {}), "event wait")

    def behind(self, call: Call) -> Found:
        """Return the edges to a wait of the host from the work that ends before it does."""
        queue = _queue_of(call)
        if call.event is not None:
            front = self._at_event.get(call.event, {})
        elif queue is not None:
            front = self._fronts.get(queue, {})
        else:
            front = self._undone.pop(call.device_key, {})
        row = call_row(call.correlation)
        # Another thread may have queued more while this one waited.
        return _edges([(last, row, "host wait") for last in front.values() if last.row < row])

    def _enter(self, call: Call, queue: _Queue) -> _Front:
        """Return a stream's front, the legacy default stream's barrier passed."""
        front, device = self._fronts.setdefault(queue, {}), queue[0]
        assert call.stream is not None  # noqa: S101 - it has a queue
        if call.stream.kind == "legacy default":
            self._barriers[device] = self._barriers.get(device, 0) + 1
            for other in self._changed.pop(device, ()):
                _merge(front, self._fronts[other], _LEGACY)
        elif call.stream.blocking:
            self._changed.setdefault(device, {})[queue] = None
            barriers = self._barriers.get(device, 0)
            if self._passed.get(queue, 0) < barriers:
                self._passed[queue] = barriers
                _merge(front, self._fronts[device, 0, 0], _LEGACY)
        return front


def _queue_of(call: Call) -> _Queue | None:
    stream = call.stream
    if stream is None:
        return None
    if stream.kind == "legacy default":
        return call.device_key, 0, 0
    return call.device_key, stream.id, call.thread if stream.kind == "per-thread default" else 0


def _merge(front: _Front, other: _Front, rule: str) -> None:
    """Add another front: of one stream, later work implies what was before it."""
    for source, last in other.items():
        if source not in front or front[source].row < last.row:
            front[source] = last._replace(rule=rule)


def _edges(links: list[tuple[_Behind, int, str]]) -> Found:
    """Return edges, those from graphs' launches apart."""
    of_work, of_graphs = (
        [(last.row, row, rule) for last, row, rule in links if last.is_graph is is_graph]
        for is_graph in (False, True)
    )
    return of_work, of_graphs
