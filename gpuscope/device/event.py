"""Events: points in a stream's work that others wait for and time."""

from __future__ import annotations

import contextlib
from typing import cast

from gpuscope import _interrupts
from gpuscope._checks import given
from gpuscope.device.owner import Owner
from gpuscope.device.unique import Unique
from gpuscope.device.views import GraphView
from gpuscope.errors import ClosedError, StreamError


class EventQueue:
    """What events are recorded on: a stream of ours."""

    def record(self, event: Event | None = None, *, timing: bool = True) -> Event:
        """Record ``event``, or a new one, after the queued work, and return it."""
        raise NotImplementedError


class Event(Unique):
    """A point in a stream's work, to wait for or to measure time between.

    Recording an event queues a marker after the work already in a stream; the event is *done*
    when that work is. A wait refers to the latest record before it. Recording again does not
    affect waits already queued. Waiting for an event that was never recorded has no effect.

    Notes
    -----
    An event that nobody holds is destroyed, by its raw event: a finalizer of its own could run
    before that of a handle which still waits for it, where the collector finds both at once.

    Timing is on by default. CUDA returns the time between two events as a float in milliseconds,
    accurate to about 0.5 µs, worse over long spans.

    Attributes
    ----------
    device
        The device it was made on.
    timing
        Whether time can be measured between it and another.
    closed
        Whether it was closed.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, gpu.create_stream() as other:
    ...     start = stream.record()
    ...     stream.launch(kernel, 50_000, grid=1, block=32)
    ...     end = stream.record()
    ...     other.wait(end)
    >>> end.is_done, end.elapsed_ns(since=start) >= 50_000
    (True, True)
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "closed",
        "correlation",
        "device",
        "graph",
        "handle",
        "raw",
        "timing",
    )

    def __init__(self, device: Owner, *, timing: bool = True) -> None:
        self.closed = True
        self.device = device
        self._backend = device.backend
        self.timing = timing
        self.raw = self._backend.make_event(timing=timing)
        self.handle = 0
        """Where a backend keeps the driver's handle once it asked for it; 0 if it is closed."""
        self.correlation: int | None = None
        """Number of the call that recorded it last, or ``None``."""
        self.graph: GraphView | None = None
        """The graph that its latest record became part of."""
        self.closed = False

    def usable(self) -> object:
        """Return what the backend takes for it; refuses if it is closed."""
        if self.closed:
            raise ClosedError("this event is closed: create a new one, or record before closing")
        return self.raw

    @property
    def is_done(self) -> bool:
        """Whether its latest record is done; true if it was never recorded.

        What the work behind it raised is raised here, once it is done.
        """
        raw, done = self.usable(), True
        try:
            done = self._backend.event_done(raw)
        finally:
            if done and self.device.calls.watchers:
                self.device.calls.tell("seen", "event.is_done", event=self)
        if _interrupts.pending:
            _interrupts.deliver()
        return done

    def record(self, stream: EventQueue) -> None:
        """Record in ``stream``, after the work queued there."""
        if not isinstance(stream, EventQueue):
            raise StreamError(
                f"stream is {given(stream)}: an event is recorded on a stream of the event's "
                "device, made with create_stream() or wrap_stream()"
            )
        stream.record(self)

    def synchronize(self) -> None:
        """Wait on the host until the latest record is done."""
        raw, calls, call = self.usable(), self.device.calls, None
        if calls.observers:
            call = calls.begin("sync", "event.synchronize", None, None, event=self)
        try:
            self._backend.sync_event(raw)
        finally:
            if call is not None:
                calls.end(call)
        if _interrupts.pending:
            _interrupts.deliver()

    def elapsed_ns(self, *, since: Event) -> int:
        """Nanoseconds from the record of ``since`` to the record of this event.

        Both must be done and have timing. Resolution: about 0.5 µs on a GPU (the driver's
        float of milliseconds), 1 ns on a simulated one.

        Raises
        ------
        StreamError
            One was made with ``timing=False``, belongs to another device, or is not done.
        """
        require_event(self.device, since, "since")
        if not (self.timing and since.timing):
            raise StreamError("elapsed_ns needs two events made with timing=True")
        return self._backend.elapsed_ns(since.usable(), self.usable())

    def close(self) -> None:
        """Destroy the event. Idempotent. Never raises, even if the device is lost."""
        if not self.closed:
            self.closed = True
            self.handle = 0
            with contextlib.suppress(Exception):
                self._backend.close_event(self.raw)

    def __repr__(self) -> str:
        return f"Event({'closed' if self.closed else f'device={self.device.info.key!r}'})"


def require_event(device: Owner, event: object, name: str, *, across: bool = False) -> None:
    """Refuse what is no event of ``device``, or ``across``, none it can wait for."""
    if not isinstance(event, Event):
        raise StreamError(
            f"{name} is {given(event)}: an event made with create_event() or a stream's "
            "record() is needed"
        )
    both_cuda = device.info.kind == event.device.info.kind == "cuda"
    if event.device is not device and not (across and both_cuda):
        raise StreamError(
            f"{name} is an event of {event.device.told_from(device)}, not of "
            f"{device.told_from(event.device)}: create one with this device's create_event()"
        )


def take_event(device: Owner) -> Event:
    """Return an event without timing for a handle's completion: a spare one, or new."""
    try:
        return cast("Event", device.registry.spare_events.pop())
    except IndexError:  # none is left, or another thread took the last one
        return Event(device, timing=False)
