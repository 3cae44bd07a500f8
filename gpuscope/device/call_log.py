"""A device's log of calls: numbers them, and tells observers which was made inside which.

The way of recording: everything that watches a device subscribes to its :class:`CallLog`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Unpack

from gpuscope._fork import free_in_children
from gpuscope._sites import site_here
from gpuscope.device.accesses import Accessing
from gpuscope.device.api import Activity
from gpuscope.device.calls import (
    QUEUES_WORK,
    Call,
    CallFacts,
    CaptureObserver,
    Execution,
    Noted,
    Observer,
    Recorder,
    Watcher,
    note_captured,
)
from gpuscope.device.raw import AnyBackend
from gpuscope.device.views import EventView, StreamView


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
        **facts: Unpack[CallFacts],
    ) -> None:
        """Tell watchers of what is no call, of this moment.

        ``"seen"``: the host saw that an event, the work of a stream or a graph's latest launch, or
        else the device's work, is done. ``"freed"``: memory was freed in the order of a stream.
        ``"given"``: it was given out, in the order of a stream, or else when everything that used
        it was done. ``"host access"``: the host accessed memory. ``"mark"``: a moment of the
        host's, from which on an observer may remember what happens before what.
        """
        if not self.watchers:
            return
        nesting = self._of_thread.nesting
        number, thread = self.next_correlation(), nesting.thread or self._thread(nesting)
        facts.setdefault("accesses", ())
        call = Call(kind, name, self._key, number, thread, self._now_ns(), stream, None, **facts)
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
        number, thread = self.next_correlation(), nesting.thread or self._thread(nesting)
        now_ns = self._now_ns()
        call = Call(kind, name, self._key, number, thread, now_ns, stream, intended, **facts)
        call.site = site_here()
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
            elif call.kind in QUEUES_WORK and not (call.graph or call.runs or call.superseded):
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
            site=site_here(),
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
        nesting = self._of_thread.nesting
        if (
            not isinstance(call, Execution)
            or not (alone and self.recorders and call.waited_ns is call.seen_ns is None)
            or nesting.handle is not None
        ):
            event.synchronize()
            if call is not None:
                self.see(call)
            return
        call.wait_number = self.next_correlation()
        call.wait_thread = nesting.thread or self._thread(nesting)
        call.wait_site, call.waited_ns = site_here(), self._now_ns()
        try:
            self._backend.sync_event(event.usable())
        except BaseException:  # the wait saw no completion
            wait, call.waited_ns = call.wait(), None
            for observer in self.observers:
                observer.call_begins(wait)
            self.end(wait)
            raise
        self.see(call)

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

    def during(self, kind: str, name: str) -> AbstractContextManager[object]:
        """As :meth:`observed`, of no stream, for what needs no number where nobody watches."""
        return self.observed(kind, name, None, None) if self.observers else nullcontext()

    def enter_handle(self, call: Call | None) -> Call | None:
        """Let calls of this thread name ``call``'s handle as theirs; returns the one before."""
        nesting = self._of_thread.nesting
        before, nesting.handle = nesting.handle, call
        return before

    def launch_around(self, call: Call | None) -> Call | None:
        """Let a launch of this thread supersede ``call``; returns the one before."""
        nesting = self._of_thread.nesting
        if call is not None:
            call.is_around = True
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
