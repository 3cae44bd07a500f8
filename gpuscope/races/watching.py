"""Watching a program: its work is recorded, its time bounded, and what it knew is noted."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Condition, current_thread, local, main_thread
from threading import Event as ThreadEvent
from types import FrameType, FunctionType, ModuleType
from typing import Self

from gpuscope._checks import door, length_ns
from gpuscope._interrupts import is_deferred
from gpuscope._threads import thread_number
from gpuscope._types import Untyped
from gpuscope.device.caller import innermost_guard
from gpuscope.device.calls import QUEUES_WORK, Call
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.device.stream import Stream
from gpuscope.errors import StreamError
from gpuscope.experiments.profiling import profile
from gpuscope.races.turns import ThreadTurns
from gpuscope.record.recorder import Recording

_LATER_S, _MOST_LATE_S = 0.005, 1.0
"""Until a program is stopped that is inside of gpuscope when its time is over; at most."""
_TICK_S, _IDLE_TICKS, _PASSES_NS = 0.05, 5, 2_000_000
"""How often it is looked whether a program waits for nothing of the GPU; so many times in a row,
and from then on so much of the simulated GPU's time passes each time."""
_SOON_NS = 100_000
"""How long after a host function a program that polls goes on, at most, and how long before one
that spins queued nothing, at least; kernels take ms."""
_LEAST_ADDRESS = 1 << 16
"""From here on a number may be an address, as C++ hands it to a host function."""


class Misbehaved(BaseException):
    """A program that is watched did not end in time, or left a guard that it entered.

    Its text is for whoever wrote the program. No ``Exception``: no ``except`` of the program takes
    it for an error of its own.

    Examples
    --------
    >>> from gpuscope.races import Misbehaved
    >>> str(Misbehaved.late(10))[:37]
    'It did not end within 10 s, so it was'
    """

    @classmethod
    def late(cls, seconds: float) -> Self:
        """Return what says that a program was stopped after so many seconds."""
        question = "Is there a loop, or a wait, that nothing ends?"
        return cls(f"It did not end within {seconds:g} s, so it was stopped. {question}")


@dataclass
class Watched:
    """A program that is watched, by :func:`watch`.

    Attributes
    ----------
    recording
        Of its work, with hazards.
    measured_ns
        What events said of the time between them.
    """

    recording: Recording
    measured_ns: list[int]

    @door(name=str)
    def mark(self, name: str) -> int:
        """Mark this moment of the program; returns it, on the trace's clock."""
        (device,) = self.recording.devices
        now_ns = device.now_ns()
        device.calls.tell("mark", name)
        return now_ns


@door(device=Device, seconds=float)
@contextlib.contextmanager
def watch(device: Device, seconds: float = 10.0) -> Iterator[Watched]:
    """Watch the block: record it, and note by which waits, events and accesses it is ordered.

    Threads that wait for a simulated device take turns: a wait lets time pass when no other thread
    would launch first. Where the block waits for anything but the device, its time is let pass.

    Parameters
    ----------
    device
        What the block runs on.
    seconds
        How long it may take on the host's clock, where signals can stop it: in a main thread, not
        on Windows.

    Raises
    ------
    Misbehaved
        It did not end in time, or left a guard entered.
    InvalidArgument
        It may take no such time.

    Examples
    --------
    >>> import gpuscope as gs
    >>> from gpuscope.races import watch
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> kernel = gs.workloads.spin_kernel(gpu)
    >>> with gpu.create_stream() as stream, watch(gpu) as watched:
    ...     stream.launch(kernel, 5_000, grid=1, block=32)
    ...     stream.synchronize()
    ...     _ = watched.mark("end")
    >>> [(piece.name, sorted(piece.known)) for piece in watched.recording.happened()]
    [('began', []), ('spin', [0]), ('end', [0, 1])]
    """
    functions = HostFunctions(device)
    with (
        profile(device, hazards=True) as recording,
        ThreadTurns(device) as turns,
        Bounded(length_ns("seconds", seconds) / 1e9, functions, turns),
        functions.noting(),
        measuring() as measured_ns,
        leaving_guards(),
    ):
        watched = Watched(recording, measured_ns)
        watched.mark("began")
        yield watched


@contextlib.contextmanager
def measuring() -> Iterator[list[int]]:
    """Note what events say of the time between them: told after a refusal, both are done."""
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


@contextlib.contextmanager
def leaving_guards() -> Iterator[None]:
    """Leave the guards that the block entered and did not leave, which is refused."""
    outer = innermost_guard()
    try:
        yield
        if innermost_guard() is not outer:
            raise Misbehaved(
                "It entered a guard and never left it: later work is in its stream, too."
            )
    finally:
        while (guard := innermost_guard()) is not None and guard is not outer:
            guard.__exit__(None, None, None)


@dataclass
class _HostFunction:
    """A host function of a program; the event stands for the work before it.

    The locks are those of conditions that it entered while it ran.
    """

    event: Event
    shared: set[int]
    ran_ns: int = 0
    locks: list[object] = field(default_factory=list)


class _OfThread(local):
    """The host function that a thread runs."""

    running: _HostFunction | None = None


@dataclass
class HostFunctions:
    """The host functions of a program, by which it may know of the work before them.

    A program is taken to have seen what a host function did if it returned, or accessed memory, as
    soon as the last one had run. So it is if it queues work at any time after one that ran while it
    queued nothing for some time, in no wait, and without an answer since then that busy work is
    done: who spins does that. It has seen the others that act on the same object, too: a list, an
    event of :mod:`threading`, memory of C++. It has seen, besides, whatever entered a condition of
    :mod:`threading` before it did itself, as events, queues and semaphores do, and whose event it
    found set.

    Attributes
    ----------
    ran
        Those that have run, in their order.
    """

    device: Device
    ran: list[_HostFunction] = field(default_factory=list)
    _of_thread: _OfThread = field(default_factory=_OfThread)

    def tell(self, seen: Iterable[_HostFunction]) -> None:
        """Tell of the work that the program knows by some host functions to be done now."""
        shared = {value for function in seen for value in function.shared}
        for function in self.ran:
            if function.shared & shared:
                self.device.calls.tell("seen", "host function", event=function.event)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note the host functions that are queued in the block, and tell of them in time."""
        calls, asked, busy = self.device.calls, list[_HostFunction](), set[object]()
        usual, usual_tell, usual_begin = Stream.host_call, calls.tell, calls.begin
        begun: dict[bool, Call] = {}  # the last call that queued work, and the last other one

        def tell(kind: str, *what: Untyped, **facts: Untyped) -> None:
            if kind in ("host access", "mark"):
                since_ns = self.device.now_ns() - _SOON_NS
                self.tell(function for function in self.ran[-1:] if function.ran_ns >= since_ns)
            elif kind == "seen" and (done := busy & {*what, *facts.values()}):
                busy.difference_update(done)
                asked.clear()
            usual_tell(kind, *what, **facts)

        def begin(kind: str, *what: Untyped, **facts: Untyped) -> Call:
            queues, used = kind in QUEUES_WORK, {what[1], facts.get("event")} - {None}
            if queues:
                self.tell(asked)
                asked.clear()
            busy.update(used if queues or used & busy else ())
            begun[queues] = usual_begin(kind, *what, **facts)
            return begun[queues]

        def host_call(stream: Stream, function: Callable[[], None]) -> None:
            if stream.device is not self.device or stream.graph or not callable(function):
                usual(stream, function)
                return
            noted = _HostFunction(self.device.create_event(timing=False), _shared(function))
            self.device.calls.tell("record", "host function", stream, event=noted.event)

            @functools.wraps(function, updated=())
            def noting() -> None:
                self._of_thread.running = noted
                try:
                    function()
                finally:
                    self._of_thread.running = None
                    noted.ran_ns = self.device.now_ns()
                    self.ran.append(noted)
                    call = begun.get(False)
                    waits = call is not None and call.kind == "sync" and call.end_ns is None
                    stood_ns = noted.ran_ns - begun[True].start_ns
                    if self.device.is_simulated and not waits and stood_ns > _SOON_NS:
                        asked.append(noted)

            usual(stream, noting)

        Stream.host_call = host_call  # type: ignore[method-assign,assignment]
        calls.tell, calls.begin = tell, begin  # type: ignore[method-assign]
        try:
            with self._noting_conditions():
                yield
        finally:
            Stream.host_call = usual  # type: ignore[method-assign]
            calls.tell, calls.begin = usual_tell, usual_begin  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _noting_conditions(self) -> Iterator[None]:
        """Note which conditions host functions enter, and tell of them when the program does."""
        enter, wait, is_set = Condition.__enter__, Condition.wait, ThreadEvent.is_set

        def note(condition: Untyped) -> None:
            running, lock = self._of_thread.running, condition.acquire.__self__
            if running is not None:
                running.locks.append(lock)
                return
            for function in self.ran:
                if any(held_lock is lock for held_lock in function.locks):
                    self.device.calls.tell("seen", "host function", event=function.event)

        def entering(condition: Condition) -> bool:
            entered = enter(condition)
            note(condition)
            return entered

        def waiting(condition: Condition, timeout: float | None = None) -> bool:
            came = wait(condition, timeout)
            note(condition)
            return came

        def asking(event: Untyped) -> bool:
            is_now_set = is_set(event)
            if is_now_set:
                note(event._cond)
            return is_now_set

        Condition.__enter__, Condition.wait = entering, waiting  # type: ignore[method-assign,assignment]
        ThreadEvent.is_set = asking  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Condition.__enter__, Condition.wait = enter, wait  # type: ignore[method-assign]
            ThreadEvent.is_set = is_set  # type: ignore[method-assign]


def _shared(function: Callable[[], object]) -> set[int]:
    """Return the identities, or addresses, of what a function and its program may share."""
    while isinstance(function, functools.partial):
        function = function.func
    within = getattr(function, "__func__", function)
    reachable = [getattr(function, "__self__", None)]
    if isinstance(within, FunctionType):
        names = within.__code__.co_names
        reachable += [within.__globals__[name] for name in names if name in within.__globals__]
        for cell in within.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty by now
                reachable.append(cell.cell_contents)
    shared = set()
    for value in reachable:
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

    Where a program waits for anything but its calls, a simulated device's time is let pass.
    """

    def __init__(self, seconds: float, functions: HostFunctions, turns: ThreadTurns) -> None:
        self._seconds = seconds
        self._idle = _Idle(functions, turns) if functions.device.is_simulated else None
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
        if _is_around_block(frame):
            return  # to raise would leave the handler there, another tick would end the process
        late_s = time.monotonic() - self._began - self._seconds
        if late_s < _MOST_LATE_S and is_deferred(frame):  # it would leave something half done
            if late_s >= 0:
                signal.setitimer(signal.ITIMER_REAL, _LATER_S)
        elif late_s >= 0:
            raise Misbehaved.late(self._seconds)
        elif self._idle is not None:
            self._idle.look(frame)


_AROUND_BLOCK = {Bounded.__enter__.__code__, Bounded.__exit__.__code__}


def _is_around_block(frame: FrameType | None) -> bool:
    """Whether the handler is being set or reset, by the standard library's Python, too."""
    while frame is not None and frame.f_code not in _AROUND_BLOCK:
        frame = frame.f_back
    return frame is not None


class _Idle:
    """Lets a simulated GPU's time pass while the program stands still."""

    def __init__(self, functions: HostFunctions, turns: ThreadTurns) -> None:
        self._functions, self._turns = functions, turns
        self._event = functions.device.create_event(timing=False)
        self._at: tuple[object, ...] = ()
        self._ticks = 0

    def look(self, frame: FrameType | None) -> None:
        """Note where the program is; where it has been for some time, let time pass."""
        device = self._functions.device
        began_ns, ran = device.now_ns(), len(self._functions.ran)
        at = (id(frame), frame.f_lasti if frame else 0, began_ns)
        self._ticks = self._ticks + 1 if at == self._at else 0
        if self._ticks >= _IDLE_TICKS:
            self._ticks = _IDLE_TICKS - 1
            if self._others_go_on():
                return
            while device.now_ns() - began_ns < _PASSES_NS and len(self._functions.ran) == ran:
                device.backend.event_done(self._event.raw)  # which takes its time
        self._at = (*at[:2], device.now_ns())

    def _others_go_on(self) -> bool:
        """Whether other threads of the program do: they let time pass, or launch first."""
        turns = self._turns
        if not turns.are_several:
            return False
        return turns.is_waited_for or not turns.others_stand(thread_number())
