"""A device's calls, and who is told of them: what observers see."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypedDict, runtime_checkable

from msgspec import Struct

from gpuscope.device.accesses import Access, Accessing, accesses_of
from gpuscope.device.api import Activity, NativeArray
from gpuscope.device.captured import Captured, Node
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


class _OfThread(threading.local):
    """What a thread is in the midst of.

    Attributes
    ----------
    run
        The run of a host function that it is in.
    calls_for_us
        Whether what it calls of other libraries is part of a call of ours, and told of.
    """

    run: HostRun | None = None
    calls_for_us = False


of_thread = _OfThread()


@contextlib.contextmanager
def calling_for_us() -> Iterator[None]:
    """Let nobody tell twice of what the block calls of another library."""
    before, of_thread.calls_for_us = of_thread.calls_for_us, True
    try:
        yield
    finally:
        of_thread.calls_for_us = before


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
        before, run = of_thread.run, self.runs.popleft() if self.runs else HostRun()
        of_thread.run = run
        try:
            self.function()
        finally:
            of_thread.run = before
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
        also told of what is no call: ``"seen"``, ``"freed"``, ``"given"``, ``"host access"`` and
        ``"mark"``.
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
    is_around
        Whether it stands for what a function of the user's launches, which may be nothing.
    accesses
        What its work reads and writes, where a :class:`Watcher` asked; ``None``: not seen.
    runs
        Of its host functions, by their node in a graph, else 0: what they access once they ran.
    payload
        More on a handle's call, as JSON for its row.
    site
        Number of the lines that made it (:mod:`gpuscope._sites`); 0: not known.
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
    is_around: bool = False
    accesses: tuple[Accessing, ...] | None = None
    runs: Mapping[int, HostRun] = _NO_RUNS
    payload: str | None = None
    site: int = 0


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
    waited_ns, wait_number, wait_thread, wait_site
        When the host began to wait for the event, if it did, and which call of which thread
        and lines that is; such a wait ends when the completion is seen.
    seen_ns
        When the completion was seen.
    """

    outer: Call | None = None
    waited_ns: int | None = None
    wait_number: int = 0
    wait_thread: int = 0
    wait_site: int = 0
    seen_ns: int | None = None

    def around(self) -> list[Call]:
        """Return the wait that saw its end, if one did, and the handle's call."""
        begun = (self.device_key, self.parent or 0, self.thread, self.start_ns)
        handle = Call("handle", self.workload or "", *begun, self.stream, self.intended)
        handle.end_ns, handle.site = self.seen_ns, self.site
        if self.outer is not None:
            handle.parent, handle.workload = self.outer.correlation, self.outer.name
        return [handle] if self.waited_ns is None else [self.wait(), handle]

    def wait(self) -> Call:
        """Return the wait for its event."""
        begun = (self.device_key, self.wait_number, self.wait_thread, self.waited_ns or 0)
        wait = Call("sync", "event.synchronize", *begun, None, None, event=self.event)
        wait.end_ns, wait.site = self.seen_ns, self.wait_site
        return wait


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
