"""What a handle keeps of its calls: contexts in a ring, and the completions it hands out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpuscope._checks import count
from gpuscope._types import Array
from gpuscope.device.api import NativeArray
from gpuscope.device.calls import Call, CallFacts
from gpuscope.device.event import Event
from gpuscope.device.graph import Graph
from gpuscope.device.stream import Stream
from gpuscope.device.unique import Unique
from gpuscope.errors import InvalidOperand

Passed: TypeAlias = object
"""What a handle's ``execute()`` passes on to its own ``_prepare()`` and ``_launch()``."""
Upload: TypeAlias = tuple[NativeArray, Array]
"""An array of the device, and the NumPy array that is copied to it."""
Download: TypeAlias = tuple[Array, Array, NativeArray]
"""The NumPy array that was given, a C-contiguous one, and the device's array copied to that."""


_MOST = 2**62
NOTHING: Final = object()
"""Is no stream and no operand, not even ``None``."""


def stated_facts(flop_count: int | None, nbytes: int | None) -> CallFacts:
    """Return what a call amounts to, as far as it is stated.

    Raises
    ------
    InvalidOperand
        One is not a whole number, or is negative or too large.
    """
    facts: CallFacts = {}
    if flop_count is not None:
        facts["flop_count"] = count("flop_count", flop_count, most=_MOST, error=InvalidOperand)
    if nbytes is not None:
        facts["nbytes"] = count("nbytes", nbytes, most=_MOST, error=InvalidOperand)
    return facts


class _OfThread(threading.local):
    """What tells this thread from all others; the system's numbers come again for later ones."""

    def __init__(self) -> None:
        self.token = object()


of_thread = _OfThread()


class Completion(Unique):
    """The end of one ``execute()``, to query or to wait for.

    The call's latency ends when the host first sees it done.
    """

    __slots__ = ("_call", "_event", "_seen", "_spare")

    def __init__(self, event: Event, call: Call | None, *, seen: bool, spare: bool) -> None:
        self._event = event
        self._call = call
        self._seen = seen
        self._spare = spare

    @property
    def event(self) -> Event:
        """The event recorded after the work; later calls do not reuse it."""
        self._spare = False  # whoever asks may keep it, so nobody else may record it
        return self._event

    @property
    def seen(self) -> bool:
        """Whether the host has seen it done; does not query the device."""
        return self._seen

    @property
    def is_done(self) -> bool:
        """Whether the work is done."""
        if not self._seen and self._event.is_done:
            self._see()
        return self._seen

    def wait(self) -> None:
        """Wait on the host until the work is done."""
        if self._seen:
            return
        try:
            self._event.synchronize()
        except BaseException:
            self._spare = False
            raise
        self._see()

    def settle(self) -> None:
        """Wait as :meth:`wait` does, but not as a call that recordings show."""
        if not self._seen:
            self._event.device.backend.sync_event(self._event.usable())
            self._event.device.calls.tell("seen", "settle", event=self._event)
            self._see()

    def _see(self) -> None:
        self._seen = True
        if self._call is not None:
            self._event.device.calls.see(self._call)

    def __del__(self) -> None:
        if getattr(self, "_spare", False):  # an interrupt may have left it half made
            self._event.device.registry.give_event(self._event)


@dataclass(slots=True, eq=False)
class CallWork:
    """What one call does.

    Attributes
    ----------
    operands
        What the handle's ``_launch`` takes.
    result
        What ``execute()`` returns.
    keep
        Device arrays whose addresses a graph of this work holds.
    uploads
        (array of the device, NumPy array to copy there) before the launch.
    downloads
        (NumPy array, C-contiguous one to copy to, array of the device) after it; where the
        two on the host differ, the second is copied to the first when the work is done.
    follows
        Arrays of other libraries: where they name a stream, the work waits for it.
    """

    operands: Passed
    result: object = None
    keep: tuple[NativeArray, ...] = ()
    uploads: list[Upload] = field(default_factory=list)
    downloads: list[Download] = field(default_factory=list)
    follows: Sequence[NativeArray] = ()


@dataclass(slots=True, eq=False)
class Context:
    """What belongs to one of the calls that a handle may have in flight.

    Attributes
    ----------
    next
        The next context in the ring.
    event
        Recorded behind the context's latest call. The context owns it until a completion
        does.
    completion
        Of that call, once somebody asked for it.
    call
        Of that call, where it was observed.
    stream, thread
        Where that call was queued, and by which thread: its token.
    in_flight
        A number of that call's own until a wait for it has ended; then 0.
    waits
        How many waits for its event go on: nobody else may record it meanwhile.
    ready
        The stream for which everything is as it was at the latest call; :data:`NOTHING`
        where the next call has to look again.
    graph, graph_arrays
        Its launch as a graph, and the arrays whose addresses that holds.
    arrays, staging
        Arrays of its own: operands, and device copies of host operands by name.
    """

    next: Context = field(init=False)
    event: Event | None = None
    completion: Completion | None = None
    call: Call | None = None
    stream: Stream | None = None
    thread: object = None
    in_flight: int = 0
    waits: int = 0
    ready: object = NOTHING
    graph: Graph | None = None
    graph_arrays: tuple[NativeArray, ...] = ()
    arrays: object = None
    staging: dict[str, NativeArray] = field(default_factory=dict)

    def runs(self) -> bool:
        """Whether its latest call is still running, as far as the host can see now."""
        call = self.call  # first: a later call's event tells of this one, too
        event, completion = self.event, self.completion
        if not self.in_flight or event is None:
            return False
        if completion is not None:
            return not completion.is_done
        done = event.is_done
        if done and call is not None:
            event.device.calls.see(call)
        return not done

    def queued(self, number: int, event: Event, call: Call | None) -> None:
        """Take a call that was queued, with ``event`` behind it."""
        if event is not self.event:
            self.event, self.waits = event, 0
        self.completion, self.call, self.in_flight = None, call, number

    def follows_in_order(self, stream: Stream, thread: object) -> bool:
        """Whether ``stream`` orders a new call behind the latest one by itself.

        A stream that is not ours may be the per-thread one, another on each thread.
        """
        return stream is self.stream and (stream.owned or thread is self.thread)

    def let_follow(self, stream: Stream) -> None:
        """Let ``stream`` wait for the latest call, unless the host saw it done."""
        completion, event = self.completion, self.event
        if event is not None and not (completion is not None and completion.seen):
            stream.wait(event)

    def hand_out(self) -> Completion | None:
        """Return the completion of the latest call, with its event; the handle's lock is held."""
        if self.completion is None and self.event is not None:
            seen, spare = not self.in_flight, not self.waits
            self.completion = Completion(self.event, self.call, seen=seen, spare=spare)
        return self.completion

    def forget(self) -> None:
        """Let go of everything: the handle is closed."""
        if self.completion is None and self.event is not None and not self.waits:
            self.event.device.registry.give_event(self.event)
        self.ready = NOTHING
        self.event = self.completion = self.call = self.stream = self.arrays = None
        self.staging = {}
