"""A device's calls: what observers are told of them, and which call was made inside which.

The way of recording: everything that watches a device subscribes to its :class:`CallLog`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, Unpack

from gpuscope._fork import free_in_children

if TYPE_CHECKING:
    from gpuscope.device.event import Event
    from gpuscope.device.graph import Graph
    from gpuscope.device.raw import Backend, NativeArray
    from gpuscope.device.stream import Stream


class CallFacts(TypedDict, total=False):
    """What is known of some kinds of calls only; see :class:`Call`."""

    flop_count: int | None
    nbytes: int | None
    launch_config: str | None
    event: Event | None
    graph: Graph | None
    blocks: NativeArray


@dataclass(slots=True, eq=False)
class Call:
    """One host call that a device made, from its entry to its return.

    Attributes
    ----------
    kind
        ``"launch"``, ``"copy"``, ``"host_call"``, ``"record"``, ``"wait"``, ``"sync"``,
        ``"handle"`` or ``"setup"``: memory being filled before anything is measured.
    name
        Kernel, function or call name.
    correlation
        Number of this call, unique on its device.
    start_ns, end_ns
        On the device's host clock; ``end_ns`` is ``None`` until the call returns.
    intended
        The stream that the caller meant, whatever stream is used.
    parent, workload
        Correlation and name of the handle whose ``execute()`` made this call.
    superseded
        Whether launches inside this one were seen, and tell of its work better than it does.
    blocks
        Where the launch writes when and where its thread blocks ran: an array of the device,
        shape (blocks, 3), uint64, of start and end by ``%globaltimer`` in ns, and SM id.
        Read it when the launch is done. ``None`` where it writes nothing of the kind.
    """

    kind: str
    name: str
    device_key: str
    correlation: int
    thread: int
    start_ns: int
    stream: Stream | None
    intended: Stream | None
    flop_count: int | None = None
    nbytes: int | None = None
    launch_config: str | None = None
    event: Event | None = None
    graph: Graph | None = None
    blocks: NativeArray = None
    end_ns: int | None = None
    parent: int | None = None
    workload: str | None = None
    superseded: bool = False


class Release(NamedTuple):
    """A kernel that released SMs which another got that waited for them.

    Attributes
    ----------
    correlation, node
        Which kernel, as :class:`Activity` has them.
    by_priority
        Whether it was ready later than the one that waited, and only its stream's priority
        let it go first.
    """

    correlation: int
    node: int | None
    by_priority: bool


@dataclass(frozen=True, slots=True)
class Activity:
    """Work that a device knows it did: only simulated devices report these themselves.

    Attributes
    ----------
    correlation
        Of the host call that queued it.
    queued_ns, start_ns, end_ns
        When it was queued, started and ended, on the device's clock.
    waited_for
        Correlations of the event records that held it back.
    node
        Which node of a launched graph it is; ``None`` for what is none.
    context
        Number of the partition's context that it ran in; ``None`` for the whole GPU's.
    after
        Nodes of the same launch that it followed.
    released_by
        Of a kernel that waited for SMs: who released those that its first blocks got.
    engine, nbytes
        Of a copy: the copy engine that carried it, and the bytes that it moved in device memory.
    """

    kind: str
    name: str
    correlation: int
    queued_ns: int
    start_ns: int
    end_ns: int
    waited_for: tuple[int, ...] = ()
    node: int | None = None
    context: int | None = None
    after: tuple[int, ...] = ()
    released_by: tuple[Release, ...] = ()
    engine: str | None = None
    nbytes: int | None = None


class Observer(Protocol):
    """Who watches a device: recorders subscribe with :meth:`CallLog.observe`."""

    def call_begins(self, call: Call) -> None:
        """Take note that ``call`` is about to reach the device."""

    def call_ends(self, call: Call) -> None:
        """Take note that ``call`` returned; its ``end_ns`` is set."""

    def activity(self, activity: Activity) -> None:
        """Take note of work that the device says it did."""


class _Nesting(threading.local):
    """What the calls of a thread are made inside of.

    Attributes
    ----------
    handle
        The call of the handle whose ``execute()`` runs.
    around
        A call that launches inside it supersede.
    meant
        The stream that the caller means, whatever stream a call names.
    """

    handle: Call | None = None
    around: Call | None = None
    meant: Stream | None = None


class CallLog:
    """Numbers a device's calls and tells observers of them.

    Parameters
    ----------
    correlations
        Where numbers come from. Devices that share a clock share their numbers, so that one
        trace can hold both.

    Attributes
    ----------
    observers
        Who watches the device. Where nobody does, a launch needs a number and nothing else.
    next_correlation
        Returns the next call's number.
    """

    def __init__(self, backend: Backend, correlations: Iterator[int] | None = None) -> None:
        self.observers: tuple[Observer, ...] = ()
        self.next_correlation = (correlations or itertools.count(1)).__next__
        self._backend = backend
        self._key = backend.info.key
        self._lock = free_in_children(threading.RLock())
        self._nesting = _Nesting()

    def observe(self, observer: Observer) -> None:
        """Let ``observer`` watch every call on this device until :meth:`unobserve`."""
        with self._lock:
            self.observers = (*self.observers, observer)
            self._backend.set_activity_sink(self.report)

    def unobserve(self, observer: Observer) -> None:
        """Stop telling ``observer``."""
        with self._lock:
            self.observers = tuple(other for other in self.observers if other is not observer)
            if not self.observers:
                self._backend.set_activity_sink(None)

    def report(self, activity: Activity) -> None:
        """Tell observers of finished work."""
        for observer in self.observers:
            observer.activity(activity)

    def begin(
        self,
        kind: str,
        name: str,
        stream: Stream | None,
        intended: Stream | None,
        **facts: Unpack[CallFacts],
    ) -> Call:
        """Tell observers that a call begins; returns its record for :meth:`end`."""
        backend = self._backend
        call = Call(
            kind, name, self._key, self.next_correlation(), backend.process_and_thread()[1],
            backend.now_ns(), stream, intended, **facts,
        )  # fmt: skip
        if stream is not None and stream.capturing:
            return call  # it becomes part of a graph: nothing happens now
        nesting = self._nesting
        if nesting.meant is not None and intended is not None:
            call.intended = nesting.meant
        handle = nesting.handle
        if handle is not None and kind != "setup":
            call.parent, call.workload = handle.correlation, handle.name
        if kind == "launch" and nesting.around is not None:
            nesting.around.superseded = True
        for observer in self.observers:
            observer.call_begins(call)
        return call

    def end(self, call: Call) -> None:
        """Tell observers that a call returned."""
        if call.stream is not None and call.stream.capturing:
            return
        call.end_ns = self._backend.now_ns()
        for observer in self.observers:
            observer.call_ends(call)

    @contextlib.contextmanager
    def observed(
        self,
        kind: str,
        name: str,
        stream: Stream | None,
        intended: Stream | None,
        **facts: Unpack[CallFacts],
    ) -> Iterator[Call]:
        """Tell observers that a call begins and ends with the block."""
        call = self.begin(kind, name, stream, intended, **facts)
        try:
            yield call
        finally:
            self.end(call)

    def during(
        self, kind: str, name: str, stream: Stream | None = None, **facts: Unpack[CallFacts]
    ) -> AbstractContextManager[object]:
        """As :meth:`observed` for a call that needs no number where nobody watches."""
        if not self.observers:
            return nullcontext()
        return self.observed(kind, name, stream, stream, **facts)

    def enter_handle(self, call: Call | None) -> Call | None:
        """Let calls of this thread name ``call``'s handle as theirs; returns the one before."""
        before, self._nesting.handle = self._nesting.handle, call
        return before

    def launch_around(self, call: Call | None) -> Call | None:
        """Let a launch of this thread supersede ``call``; returns the one before."""
        before, self._nesting.around = self._nesting.around, call
        return before

    @contextlib.contextmanager
    def meant_for(self, stream: Stream) -> Iterator[None]:
        """Let this thread's calls count as given to ``stream``, whatever stream they name."""
        self._nesting.meant = stream
        try:
            yield
        finally:
            self._nesting.meant = None
