"""What surrounds a learner's program that is watched: a limit on its time, and what it noticed."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from types import FrameType, FunctionType, ModuleType

from gpuscope._interrupts import is_deferred
from gpuscope._types import Untyped
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.device.stream import Stream
from gpuscope.errors import StreamError
from gpuscope.learn.attempt import too_long

_LATER_S, _MOST_LATE_S = 0.005, 1.0
"""Until a program is stopped that is inside of gpuscope when its time is over; at most."""
_TICK_S, _IDLE_TICKS, _PASSES_NS = 0.05, 5, 2_000_000
"""How often it is looked whether a program waits for nothing of the GPU; so many times in a row,
and from then on so much of the simulated GPU's time passes each time."""
_SOON_NS = 100_000
"""How long after a host function a program that polls goes on, at most; kernels take ms."""
_LEAST_ADDRESS = 1 << 16
"""From here on a number may be an address, as C++ hands it to a host function."""


@contextlib.contextmanager
def measuring() -> Iterator[list[int]]:
    """Note what events say of the time between them.

    Who is refused, and asks again until there is an answer, knows that both are done.
    """
    measured, refused, usual = list[int](), set[Event](), Event.elapsed_ns

    def elapsed_ns(self: Event, *, since: Event) -> int:
        try:
            measured.append(usual(self, since=since))
        except StreamError:
            refused.add(self)
            raise
        for event in (since, self) if self in refused else ():
            self.device.calls.tell("seen", "event.elapsed_ns", event=event)
        return measured[-1]

    Event.elapsed_ns = elapsed_ns  # type: ignore[method-assign]
    try:
        yield measured
    finally:
        Event.elapsed_ns = usual  # type: ignore[method-assign]


@dataclass
class _HostFunction:
    """A host function of a program; the event stands for the work before it."""

    event: Event
    shared: set[int]
    ran_ns: int | None = None


@dataclass
class HostFunctions:
    """The host functions of a program, by which it may know of the work before them.

    Nothing tells that a program saw what a host function did. It is taken to have if it returned,
    or accessed memory, as soon as the last one had run, whatever the durations; and to have seen
    the others that act on the same object as that one: a list, an event of :mod:`threading`,
    memory of C++.
    """

    device: Device
    _functions: list[_HostFunction] = field(default_factory=list)

    @property
    def ran(self) -> list[_HostFunction]:
        """Those that have run."""
        return [each for each in self._functions if each.ran_ns is not None]

    def tell(self) -> None:
        """Tell of the work that the program knows by them to be done now."""
        now_ns, ran = self.device.now_ns(), self.ran
        last = max(ran, key=lambda each: each.ran_ns or 0, default=None)
        if last is None or now_ns - (last.ran_ns or 0) > _SOON_NS:
            return
        for function in ran:
            if function.shared & last.shared:
                self.device.calls.tell("seen", "host function", event=function.event)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note the host functions that are queued in the block, and tell of them in time."""
        calls = self.device.calls
        usual, usual_tell = Stream.host_call, calls.tell

        def tell(kind: str, *what: Untyped, **facts: Untyped) -> None:
            if kind in ("host access", "mark"):
                self.tell()
            usual_tell(kind, *what, **facts)

        def host_call(stream: Stream, function: Callable[[], None]) -> None:
            if stream.device is not self.device or stream.graph or not callable(function):
                usual(stream, function)
                return
            noted = _HostFunction(self.device.create_event(timing=False), _shared(function))
            self.device.calls.tell("record", "host function", stream, event=noted.event)
            self._functions.append(noted)

            @functools.wraps(function, updated=())
            def noting() -> None:
                try:
                    function()
                finally:
                    noted.ran_ns = self.device.now_ns()

            usual(stream, noting)

        Stream.host_call = host_call  # type: ignore[method-assign,assignment]
        calls.tell = tell  # type: ignore[method-assign]
        try:
            yield
        finally:
            Stream.host_call = usual  # type: ignore[method-assign]
            calls.tell = usual_tell  # type: ignore[method-assign]


def _shared(function: Callable[[], object]) -> set[int]:
    """Return the identities, or addresses, of what a function and its program may share."""
    while isinstance(function, functools.partial):
        function = function.func
    within = getattr(function, "__func__", function)
    held = [getattr(function, "__self__", None)]
    if isinstance(within, FunctionType):
        names = within.__code__.co_names
        held += [within.__globals__[name] for name in names if name in within.__globals__]
        for cell in within.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty by now
                held.append(cell.cell_contents)
    shared = set()
    for value in held:
        if type(value) is int:
            shared |= {value} if value >= _LEAST_ADDRESS else set()
        elif not (
            value is None
            or isinstance(value, bool | float | str | bytes | type | ModuleType | FunctionType)
            or type(value).__module__.startswith("gpuscope")
        ):
            shared.add(id(value))
    return shared


class Bounded:
    """A block that is stopped after some time, where signals can: in a main thread, not on Windows.

    On a simulated device, time passes by what a program calls: where it waits for something else,
    such as what a host function does, it is let pass.
    """

    def __init__(self, seconds: float, functions: HostFunctions | None = None) -> None:
        self._seconds = seconds
        self._idle = _Idle(functions) if functions and functions.device.is_simulated else None
        self._can_stop = hasattr(signal, "setitimer") and current_thread() is main_thread()

    def __enter__(self) -> None:
        if self._can_stop:
            self._before, self._began = signal.signal(signal.SIGALRM, self._tick), time.monotonic()
            often_s = min(_TICK_S, self._seconds)
            self._left_s, _ = signal.setitimer(signal.ITIMER_REAL, often_s, often_s)

    def __exit__(self, *_raised: object) -> None:
        if self._can_stop:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            if self._left_s:  # somebody else's, set before
                rest_s = self._left_s - (time.monotonic() - self._began)
                signal.setitimer(signal.ITIMER_REAL, max(rest_s, 0.001))

    def _tick(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in _AROUND_BLOCK:
            return  # to raise would leave the handler there, another tick would end the process
        late_s = time.monotonic() - self._began - self._seconds
        if late_s < _MOST_LATE_S and is_deferred(frame):  # it would leave something half done
            if late_s >= 0:
                signal.setitimer(signal.ITIMER_REAL, _LATER_S)
        elif late_s >= 0:
            raise too_long(self._seconds)
        elif self._idle is not None:
            self._idle.look(frame)


_AROUND_BLOCK = {Bounded.__enter__.__code__, Bounded.__exit__.__code__}


class _Idle:
    """Lets a simulated GPU's time pass while the program stands still."""

    def __init__(self, functions: HostFunctions) -> None:
        self._functions = functions
        self._event = functions.device.create_event(timing=False)
        self._at: tuple[object, ...] = ()
        self._ticks = 0

    def look(self, frame: FrameType | None) -> None:
        """Note where the program is; where it has been for some time, let time pass."""
        device = self._functions.device
        began_ns, ran = device.now_ns(), self._functions.ran
        at = (id(frame), frame.f_lasti if frame else 0, began_ns)
        self._ticks = self._ticks + 1 if at == self._at else 0
        if self._ticks >= _IDLE_TICKS:
            self._ticks = _IDLE_TICKS - 1
            while device.now_ns() - began_ns < _PASSES_NS and self._functions.ran == ran:
                device.backend.event_done(self._event.raw)  # which takes its time
        self._at = (*at[:2], device.now_ns())
