"""A device's calls: what observers are told of them, and which call was made inside which.

The way of recording: everything that watches a device subscribes to its :class:`CallLog`.

Long because what a call is, who is told of it and what it is made inside of belong together.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import (
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    runtime_checkable,
)

from msgspec import Struct

from gpuscope._fork import free_in_children
from gpuscope.device.accesses import Access, Accessing, accesses_of
from gpuscope.device.api import Activity, NativeArray
from gpuscope.device.captured import Captured, Node
from gpuscope.device.raw import AnyBackend
from gpuscope.device.views import EventView, GraphView, StreamView

QUEUES_WORK = ("launch", "copy", "host_call")
"""Kinds of calls that queue work."""


@dataclass(slots=True, eq=False)
class HostRun:
    """One run of a host function.

    Attributes
    ----------
    accesses
        What it read and wrote of page-locked memory, up to now.
    is_over
        Whether it has ended.
    """

    accesses: list[Access] = field(default_factory=list)
    is_over: bool = False


class _OfFunction(threading.local):
    run: HostRun | None = None


of_function = _OfFunction()


class _OfBackend(threading.local):
    is_calling = False


of_backend = _OfBackend()
"""Whether what this thread calls of other libraries is part of a call of ours, and told of."""


@contextlib.contextmanager
def calling_for_us() -> Iterator[None]:
    """Let nobody tell twice of what the block calls of another library."""
    before, of_backend.is_calling = of_backend.is_calling, True
    try:
        yield
    finally:
        of_backend.is_calling = before


"""The run of a host function that this thread is in."""


class HostFunction:
    """A host function that notes what each of its runs accesses.

    Attributes
    ----------
    runs
        Those that are queued, in order.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "host function")
        self.runs: deque[HostRun] = deque()

    def __call__(self) -> None:
        """Run it."""
        before, run = of_function.run, self.runs.popleft() if self.runs else HostRun()
        of_function.run = run
        try:
            self.function()
        finally:
            of_function.run = before
            run.is_over = True

    def give_up(self, run: HostRun) -> None:
        """Wait for no run whose call failed."""
        run.is_over = True
        if run in self.runs:
            self.runs.remove(run)


_NO_RUNS: Mapping[int, HostRun] = {}


class CallFacts(TypedDict, total=False):
    """What is known of some kinds of calls only; see :class:`Call`."""

    flop_count: int | None
    nbytes: int | None
    launch_config: str | None
    event: EventView[object] | None
    graph: GraphView | None
    payload: str | None
    blocks: NativeArray | None
    accesses: tuple[Accessing, ...] | None
    runs: Mapping[int, HostRun]


class Call(Struct, eq=False, gc=False):
    """One host call that a device made, from its entry to its return.

    The collector does not follow it, which thousands of calls that wait for a reader would let
    run: nothing that a call names may lead back to it.

    Attributes
    ----------
    kind
        ``"launch"``, ``"copy"``, ``"host_call"``, ``"record"``, ``"wait"``, ``"sync"``,
        ``"handle"`` or ``"setup"``: what is done beside what is measured, such as filling memory
        or reading it, while nothing else runs. Watchers are
        also told of what is no call: ``"seen"``, ``"freed"``, ``"given"`` and ``"host access"``.
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
    accesses
        What its work reads and writes, where a :class:`Watcher` asked; ``None``: not seen.
    runs
        Of its host functions, by their node in a graph, else 0: what they access once they ran.
    payload
        More on a handle's call, as JSON for its row.
    """

    kind: str
    name: str
    device_key: str
    correlation: int
    thread: int
    start_ns: int
    stream: StreamView[object] | None
    intended: StreamView[object] | None
    flop_count: int | None = None
    nbytes: int | None = None
    launch_config: str | None = None
    event: EventView[object] | None = None
    graph: GraphView | None = None
    blocks: NativeArray | None = None
    end_ns: int | None = None
    parent: int | None = None
    workload: str | None = None
    superseded: bool = False
    accesses: tuple[Accessing, ...] | None = None
    runs: Mapping[int, HostRun] = _NO_RUNS
    payload: str | None = None


class Execution(Call, eq=False, gc=False):
    """A launch that is all that a handle's call does: one note for the launch and the call.

    Of the handle's call, ``parent`` is the number and ``workload`` the name; it began with the
    launch, and ended when its completion was seen.

    Attributes
    ----------
    event
        Recorded behind the launch.
    outer
        The handle's call that this one was made in.
    waited_ns, wait_number, wait_thread
        When the host began to wait for the event, if it did, and which call of which thread
        that is; such a wait ends when the completion is seen.
    seen_ns
        When the completion was seen.
    """

    outer: Call | None = None
    waited_ns: int | None = None
    wait_number: int = 0
    wait_thread: int = 0
    seen_ns: int | None = None

    def around(self) -> list[Call]:
        """Return the wait that saw its end, if one did, and the handle's call."""
        key, outer = self.device_key, self.outer
        handle = Call(
            "handle",
            self.workload or "",
            key,
            self.parent or 0,
            self.thread,
            self.start_ns,
            self.stream,
            self.intended,
            end_ns=self.seen_ns,
            parent=outer.correlation if outer is not None else None,
            workload=outer.name if outer is not None else None,
        )
        if self.waited_ns is None:
            return [handle]
        wait = Call(
            "sync",
            "event.synchronize",
            key,
            self.wait_number,
            self.wait_thread,
            self.waited_ns,
            None,
            None,
            event=self.event,
            end_ns=self.seen_ns,
        )
        return [wait, handle]


Noted: TypeAlias = "Call | EventView[object] | int | str"
"""What a :class:`Watcher` is told: a call that begins, or what is no call; an event that the host
saw done; the number of a wait that returned; the name of work whose accesses nobody saw."""


class Observer(Protocol):
    """Who watches a device: recorders subscribe with :meth:`CallLog.observe`."""

    def call_begins(self, call: Call) -> None:
        """Take note that ``call`` is about to reach the device."""

    def call_ends(self, call: Call) -> None:
        """Take note that ``call`` returned; its ``end_ns`` is set."""

    def activity(self, activity: Activity) -> None:
        """Take note of work that the device says it did."""


@runtime_checkable
class Recorder(Observer, Protocol):
    """An observer that takes a handle's call and its launch as one note."""

    def execution_begins(self, execution: Execution) -> None:
        """Take note of a launch that is about to reach the device, and of its handle's call."""

    def execution_seen(self, execution: Execution) -> None:
        """Take note that a completion was seen; its ``seen_ns`` is set."""


@runtime_checkable
class Watcher(Observer, Protocol):
    """An observer that asks what work reads and writes, and what orders it."""

    @property
    def take_note(self) -> Callable[[Noted], object] | None:
        """What takes the notes, in the order of the calls; ``None``: nobody asks."""


@runtime_checkable
class CaptureObserver(Observer, Protocol):
    """An observer that is told of calls that become part of a graph, too."""

    def call_captured(self, call: Call) -> None:
        """Take note of a call that is about to become part of ``call.stream``'s graph."""


class _Nesting:
    """What the calls of a thread are made inside of.

    Attributes
    ----------
    thread
        Number of the thread, once it made a call.
    handle
        The call of the handle whose ``execute()`` runs.
    around
        A call that launches inside it supersede.
    meant
        The stream that the caller means, whatever stream a call names.
    """

    __slots__ = ("around", "handle", "meant", "thread")

    def __init__(self) -> None:
        self.thread = 0
        self.handle: Call | None = None
        self.around: Call | None = None
        self.meant: StreamView[object] | None = None


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.nesting = _Nesting()


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
    recorders
        The observers, where each takes an execution as one note; else empty.
    watchers
        What takes the notes of those observers that ask for accesses.
    next_correlation
        Returns the next call's number.
    """

    def __init__(self, backend: AnyBackend, correlations: Iterator[int] | None = None) -> None:
        self.observers: tuple[Observer, ...] = ()
        self.recorders: tuple[Recorder, ...] = ()
        self.watchers: tuple[Callable[[Noted], object], ...] = ()
        self.next_correlation = (correlations or itertools.count(1)).__next__
        self._backend = backend
        self._now_ns, self._key = backend.now_ns, backend.info.key
        self._lock = free_in_children(threading.RLock())
        self._of_thread = _OfThread()

    def observe(self, observer: Observer) -> None:
        """Let ``observer`` watch every call on this device until :meth:`unobserve`."""
        with self._lock:
            self._set_observers((*self.observers, observer))
            self._backend.set_activity_sink(self.report)

    def unobserve(self, observer: Observer) -> None:
        """Stop telling ``observer``."""
        with self._lock:
            self._set_observers(tuple(other for other in self.observers if other is not observer))
            if not self.observers:
                self._backend.set_activity_sink(None)

    def _set_observers(self, observers: tuple[Observer, ...]) -> None:
        recorders = tuple(observer for observer in observers if isinstance(observer, Recorder))
        self.recorders = recorders if len(recorders) == len(observers) else ()
        takers = [observer.take_note for observer in observers if isinstance(observer, Watcher)]
        self.watchers = tuple(take_note for take_note in takers if take_note is not None)
        self.observers = observers

    def tell(
        self,
        kind: str,
        name: str,
        stream: StreamView[object] | None = None,
        *,
        event: EventView[object] | None = None,
        graph: GraphView | None = None,
        accesses: tuple[Accessing, ...] = (),
    ) -> None:
        """Tell watchers of what is no call, of this moment.

        ``"seen"``: the host saw that an event, the work of a stream or a graph's latest launch, or
        else the device's work, is done. ``"freed"``: memory was freed in the order of a stream.
        ``"given"``: it was given out, in the order of a stream, or else when everything that used
        it was done. ``"host access"``: the host accessed memory.
        """
        if not self.watchers:
            return
        nesting = self._of_thread.nesting
        call = Call(
            kind,
            name,
            self._key,
            self.next_correlation(),
            nesting.thread or self._thread(nesting),
            self._now_ns(),
            stream,
            None,
            event=event,
            graph=graph,
            accesses=accesses,
        )
        self._note(call)

    def report(self, activity: Activity) -> None:
        """Tell observers of finished work."""
        for observer in self.observers:
            observer.activity(activity)

    def _thread(self, nesting: _Nesting) -> int:
        nesting.thread = self._backend.process_and_thread()[1]
        return nesting.thread

    def begin(
        self,
        kind: str,
        name: str,
        stream: StreamView[object] | None,
        intended: StreamView[object] | None,
        **facts: Unpack[CallFacts],
    ) -> Call:
        """Tell observers that a call begins; returns its record for :meth:`end`."""
        nesting = self._of_thread.nesting
        call = Call(
            kind,
            name,
            self._key,
            self.next_correlation(),
            nesting.thread or self._thread(nesting),
            self._now_ns(),
            stream,
            intended,
            **facts,
        )
        if stream is not None:
            if stream.capturing:
                if stream.graph is not None:  # it becomes part of it: nothing happens now
                    for observer in self.observers:
                        if isinstance(observer, CaptureObserver):
                            observer.call_captured(call)
                    note_captured(call, stream.graph.captured)
                return call
            if nesting.meant is not None and intended is not None:
                call.intended = nesting.meant
        handle = nesting.handle
        if handle is not None and kind != "setup":
            call.parent, call.workload = handle.correlation, handle.name
        if nesting.around is not None and kind == "launch":
            nesting.around.superseded = True
        for observer in self.observers:
            observer.call_begins(call)
        for take_note in self.watchers:
            take_note(call)
        return call

    def end(self, call: Call) -> None:
        """Tell observers that a call returned."""
        if call.stream is not None and call.stream.capturing:
            return
        call.end_ns = self._now_ns()
        for observer in self.observers:
            observer.call_ends(call)
        if self.watchers and call.accesses is None:
            if call.kind == "sync":
                self._note(call.correlation)
            elif (
                call.kind in QUEUES_WORK
                and call.graph is None
                and not (call.runs or call.superseded)
            ):
                self._note(call.name)

    def _note(self, note: Noted) -> None:
        for take_note in self.watchers:
            take_note(note)

    def begin_execution(
        self,
        handle: str,
        launch: tuple[str, int, int],
        stream: StreamView[object],
        event: EventView[object],
        accesses: tuple[Accessing, ...] | None,
    ) -> Execution:
        """Tell recorders of a handle's call that is one launch; :meth:`end` ends the launch.

        Parameters
        ----------
        launch
            Its name, its floating-point operations, and the bytes that it reads and writes.
        event
            What is recorded behind it.
        accesses
            What it reads and writes, if a watcher asks.
        """
        nesting = self._of_thread.nesting
        name, flop_count, nbytes = launch
        number, next_correlation = self.next_correlation(), self.next_correlation
        execution = Execution(
            "launch",
            name,
            self._key,
            next_correlation(),
            nesting.thread or self._thread(nesting),
            self._now_ns(),
            stream,
            nesting.meant or stream,
            flop_count,
            nbytes,
            event=event,
            parent=number,
            workload=handle,
            outer=nesting.handle,
            accesses=accesses,
        )
        if nesting.around is not None:
            nesting.around.superseded = True
        for recorder in self.recorders:
            recorder.execution_begins(execution)
        for take_note in self.watchers:
            take_note(execution)
        return execution

    def wait_for(self, call: Call | None, event: EventView[object], *, alone: bool) -> None:
        """Wait for the event behind a handle's call, ``alone`` or beside others; tell its end."""
        if call is None:
            event.synchronize()
            return
        nesting = self._of_thread.nesting
        if (
            not isinstance(call, Execution)
            or not (alone and self.recorders and call.waited_ns is call.seen_ns is None)
            or nesting.handle is not None
        ):
            event.synchronize()
            self.see(call)
            return
        call.wait_number = self.next_correlation()
        call.wait_thread = nesting.thread or self._thread(nesting)
        call.waited_ns = self._now_ns()
        try:
            self._backend.sync_event(event.usable())
        except BaseException:
            self._end_wait(call)
            raise
        self.see(call)

    def _end_wait(self, execution: Execution) -> None:
        """Tell observers of a wait that saw no completion."""
        call = Call(
            "sync",
            "event.synchronize",
            self._key,
            execution.wait_number,
            execution.wait_thread,
            execution.waited_ns or 0,
            None,
            None,
            event=execution.event,
        )
        execution.waited_ns = None
        for observer in self.observers:
            observer.call_begins(call)
        self.end(call)

    def see(self, call: Call) -> None:
        """Tell observers that the completion of a handle's call was seen; again does nothing."""
        if not isinstance(call, Execution):
            if call.end_ns is None:
                self.end(call)
        elif call.seen_ns is None:
            call.seen_ns = self._now_ns()
            for recorder in self.recorders:
                recorder.execution_seen(call)
            if call.event is not None:
                for take_note in self.watchers:
                    take_note(call.event)

    @contextlib.contextmanager
    def observed(
        self,
        kind: str,
        name: str,
        stream: StreamView[object] | None,
        intended: StreamView[object] | None,
        **facts: Unpack[CallFacts],
    ) -> Iterator[Call]:
        """Tell observers that a call begins and ends with the block."""
        call = self.begin(kind, name, stream, intended, **facts)
        try:
            yield call
        finally:
            self.end(call)

    def during(
        self,
        kind: str,
        name: str,
        stream: StreamView[object] | None = None,
        **facts: Unpack[CallFacts],
    ) -> AbstractContextManager[object]:
        """As :meth:`observed` for a call that needs no number where nobody watches."""
        if not self.observers:
            return nullcontext()
        return self.observed(kind, name, stream, stream, **facts)

    def enter_handle(self, call: Call | None) -> Call | None:
        """Let calls of this thread name ``call``'s handle as theirs; returns the one before."""
        nesting = self._of_thread.nesting
        before, nesting.handle = nesting.handle, call
        return before

    def launch_around(self, call: Call | None) -> Call | None:
        """Let a launch of this thread supersede ``call``; returns the one before."""
        nesting = self._of_thread.nesting
        before, nesting.around = nesting.around, call
        return before

    @contextlib.contextmanager
    def meant_for(self, stream: StreamView[object]) -> Iterator[None]:
        """Let this thread's calls count as given to ``stream``, whatever stream they name."""
        nesting = self._of_thread.nesting
        nesting.meant = stream
        try:
            yield
        finally:
            nesting.meant = None


def note_captured(call: Call, captured: Captured) -> None:
    """Note a call of ours that becomes part of a graph."""
    stream = call.stream
    assert stream is not None  # noqa: S101 - one that is captured
    if call.kind in QUEUES_WORK:
        accesses = None if call.accesses is None else accesses_of(call.accesses)
        node = Node(call.name, accesses, (), call.kind == "copy", stream.name)
        captured.add(stream.handle, node)
    elif call.kind == "record":
        captured.record(stream.handle, call.event)
    elif call.kind == "wait":
        captured.wait(stream.handle, call.event)
