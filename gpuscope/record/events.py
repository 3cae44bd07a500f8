"""The events source: bracketing events around every launch, where nothing better is there.

Two events on the launch's own stream bound the work from outside, so they overstate it.
What they do not know is stated, one-sided: the work began at ``start`` or up to
``start_uncertainty`` later, and ended at ``end`` or up to ``end_uncertainty`` earlier.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct

from gpuscope._fork import free_in_children
from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.device.event import Event
from gpuscope.errors import GpuscopeError
from gpuscope.record.clock import EventClock
from gpuscope.record.rows import Rows, keep, move, work_columns
from gpuscope.record.source import Calibration, DeviceSource

_TRIES = 31
_ENOUGH = 2
"""Spare events that a call takes."""
_EMPTY_SOURCE = 'extern "C" __global__ void gpuscope_empty() {}'


# What follows was found by CUPTI's records of 5,300 launches of all kinds beside their events, on
# an H200 (benchmarks/recording.py judges it): products, copies, graphs and other kernels, alone, in
# queues, behind events of other streams and on two streams at once.
LATENCY_NS = 3_000
"""From a launch call's return until its work starts on SMs that are free, at most; seen: -5 to
2.7 µs."""
QUEUED_NS = 4_000
"""From the opening event until work starts that was launched before it was reached, at most; seen:
2.3 to 3.5 µs."""
SUBMITTED_AFTER = 0.4
"""A launch call hands its work to the GPU late: no work began in this share of its call, or sooner;
that of 99 % began when 79 % or more had passed."""
DONE_AFTER = 0.75
"""Nor did work end in this share of its call, but for 0.4 % of them, whose calls were held up."""
BEHIND_NS = 4_000
"""An event reached so much later than its record call returned had work before it; one that
had none was reached after 0.8 to 3.1 µs."""
CLOSING_NS = 3_000
"""From the end of work until the event behind it is reached, at most; seen: 0.4 to 2.7 µs."""


_FAR = np.iinfo(np.int64).max


class _Bracket(Struct, eq=False, gc=False):
    call: Call
    before: Event
    after: Event | None = None
    launching_ns: int = 0
    launched_ns: int = 0
    recorded_ns: int = 0
    opened_ns: int = 0
    closed_ns: int | None = None
    """By the device's clock; set where both events were read, and may be others' by now."""

    @property
    def kind(self) -> Hashable:
        """Equal for work that takes equally long; ``None`` where nothing tells.

        A product's name has its sizes, and a graph does the same work each time. How long a kernel
        takes depends on arguments that nobody tells, and a copy on where both sides are.
        """
        call, stream = self.call, self.call.stream
        if call.kind != "launch" or call.launch_config is not None:
            return None
        graph = call.graph.id if call.graph is not None else None
        sm_count_target = stream.sm_count_target if stream is not None else 0
        return call.name, call.nbytes, call.flop_count, graph, sm_count_target

    def seen(self, opened: int, closed: int, key: Hashable) -> Bracketed:
        stream = self.call.stream.id if self.call.stream is not None else None
        times = (self.launching_ns, self.launched_ns, self.recorded_ns)
        return Bracketed(opened, closed, *times, key, stream)


@dataclass(frozen=True)
class Bracketed:
    """What is known of one launch, on the host's clock, ns.

    Attributes
    ----------
    opened, closed
        When the GPU reached the events before and after.
    launching, launched
        The launch call's beginning and return.
    recorded
        When the call that recorded the closing event returned.
    key
        Equal for work that takes equally long; ``None`` where nothing tells how long it takes.
    stream
        The launch's stream.
    """

    opened: int
    closed: int
    launching: int
    launched: int
    recorded: int
    key: Hashable
    stream: Hashable


def bounds(
    launches: Sequence[Bracketed],
    shortest_ns: dict[Hashable, int],
    others: Sequence[Bracketed] = (),
) -> list[dict[str, int]]:
    """Return start, end and their one-sided uncertainties of bracketed launches.

    Work starts after the opening event, and not before its launch call is well under way; it ends
    when that call is nearly over, or later. It ends before the closing event; shortly before, where
    the GPU reached that event long after the host had recorded it, else anywhere between. It lasts
    at least as long as the shortest run of its kind of which both ends were seen well. Where
    nothing else of ours was on the GPU, it starts soon after its launch call returned and the
    opening event was reached.

    Parameters
    ----------
    shortest_ns
        Shortest run of each kind so far; updated.
    others
        More launches that may have been on the GPU.
    """
    contended = _contended([*launches, *others])[: len(launches)]
    times = []
    for launch, beside in zip(launches, contended, strict=True):
        call_ns = launch.launched - launch.launching
        start, done = (
            min(max(launch.opened, launch.launching + int(share * call_ns)), launch.closed)
            for share in (SUBMITTED_AFTER, DONE_AFTER)
        )
        behind = launch.closed > launch.recorded + BEHIND_NS
        begun = max(launch.launched + LATENCY_NS, launch.opened + QUEUED_NS)
        if behind and not beside and launch.key is not None:  # then both ends are known well
            longest = max(0, launch.closed - CLOSING_NS - begun)
            shortest_ns[launch.key] = min(shortest_ns.get(launch.key, longest), longest)
        shortest = min(shortest_ns.get(launch.key, 0), launch.closed - start)
        latest = launch.closed - shortest
        if not beside:
            latest = max(start, min(latest, begun))
        room = launch.closed - max(done, start + shortest)
        early = {"end_uncertainty_ns": min(room, CLOSING_NS) if behind else room}
        late = {"start_uncertainty_ns": latest - start}
        times.append({"start_ns": start, "end_ns": launch.closed, **late, **early})
    return times


def _contended(launches: Sequence[Bracketed]) -> list[bool]:
    """Whether work on another stream was on the GPU during each bracket, as far as we know."""
    opened = np.array([launch.opened for launch in launches], np.int64)
    closed = np.array([launch.closed for launch in launches], np.int64)
    streams: dict[Hashable, list[int]] = {}
    for index, launch in enumerate(launches):
        streams.setdefault(launch.stream, []).append(index)
    contended = np.zeros(len(launches), bool)
    for stream, of_stream in streams.items():
        on_other_streams = [
            index for other, places in streams.items() if other != stream for index in places
        ]
        if not on_other_streams:
            continue
        order = np.argsort(opened[on_other_streams], kind="stable")
        begins = opened[on_other_streams][order]
        latest_end = np.maximum.accumulate(closed[on_other_streams][order])
        at = np.searchsorted(begins, closed[of_stream], "right") - 1
        contended[of_stream] = (at >= 0) & (latest_end[np.maximum(at, 0)] > opened[of_stream])
    return contended.tolist()


def _enveloped(launches: Sequence[Bracketed], since_ns: int) -> list[Bracketed]:
    """Join those of each stream that were over before a moment: the stream was busy throughout."""
    old: dict[Hashable, Bracketed] = {}
    new = []
    for launch in launches:
        if launch.closed >= since_ns:
            new.append(launch)
            continue
        envelope = old.setdefault(launch.stream, launch)
        first, last = min(envelope.opened, launch.opened), max(envelope.closed, launch.closed)
        old[launch.stream] = replace(envelope, opened=first, closed=last)
    return [*old.values(), *new]


class EventSource(DeviceSource):
    """Times launches and copies of one device by events around them."""

    name = "events"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._clock: EventClock | None = None
        self._record, self._now_ns = device.backend.record, device.backend.now_ns
        self._cost: Calibration = {}
        self._spare: list[Event] = []
        self._open: dict[int, _Bracket] = {}
        self._closed: deque[_Bracket] = deque()
        self._unread: deque[_Bracket] = deque()
        """Those of them whose events who launches may read and use again."""
        self._reusing = free_in_children(threading.RLock())
        self._behind = 2
        """So many launches behind, the GPU is taken to be done."""
        self._waiting: list[_Bracket] = []
        """Those of them that were looked at, and that the GPU had not reached the end of."""
        self._read_out: list[_Bracket] = []
        """What became rows, and whose events can be used again."""
        self._shortest_ns: dict[Hashable, int] = {}
        self._past: list[Bracketed] = []
        """What was read already and may have been on the GPU with what is not."""

    def start(self) -> None:
        """Open the clock, and measure what brackets cost."""
        self._clock = EventClock(self._device)
        self._cost = self._measure()

    def _take(self) -> Event:
        try:
            return self._spare.pop()
        except IndexError:  # none is left, or another thread took the last one
            return Event(self._device)

    def _measure(self) -> Calibration:
        """Measure two events around nothing, and around an empty kernel, on an idle stream, ns."""
        backend = self._device.backend
        raw, handle = backend.make_stream(None, 0)
        kernel = backend.compile(_EMPTY_SOURCE, "gpuscope_empty", None)
        before, after = self._take(), self._take()
        readings: dict[bool, list[int]] = {False: [], True: []}
        for attempt in range(2 * _TRIES):
            with_kernel = bool(attempt % 2)
            backend.record(before.raw, raw, 0)
            if with_kernel:
                backend.launch(raw, kernel, 1, 1, (), 0)
            backend.record(after.raw, raw, 0)
            backend.sync_event(after.raw)
            readings[with_kernel].append(backend.elapsed_ns(before.raw, after.raw))
        backend.close_stream(raw, handle)
        self._spare += [before, after]
        nothing, some = (float(round(statistics.median(times))) for times in readings.values())
        return {"empty_bracket_ns": nothing, "empty_kernel_bracket_ns": max(nothing, some)}

    @property
    def _running_clock(self) -> EventClock:
        assert self._clock is not None  # noqa: S101 - it was started
        return self._clock

    def before(self, call: Call) -> None:
        """Record the opening event on the call's stream."""
        assert call.stream is not None  # noqa: S101 - launches and copies have one
        event = self._take()
        self._record(event.raw, call.stream.raw, 0)
        bracket = self._open[call.correlation] = _Bracket(call, event)
        bracket.launching_ns = self._now_ns()

    def after(self, call: Call) -> None:
        """Record the closing event."""
        assert call.stream is not None  # noqa: S101 - launches and copies have one
        bracket = self._open.get(call.correlation)
        if bracket is None:  # it began before the recording did
            return
        if call.superseded:
            del self._open[call.correlation]
            self._spare.append(bracket.before)
            return
        bracket.after = event = self._take()
        self._record(event.raw, call.stream.raw, 0)
        bracket.launched_ns = ended_ns = call.end_ns or bracket.launching_ns
        bracket.recorded_ns = self._now_ns()
        self._unread.append(bracket)  # first: what a reader took is not reused
        self._closed.append(bracket)
        self._open.pop(call.correlation, None)  # what stays there was never closed
        if len(self._spare) < _ENOUGH and len(self._unread) >= self._behind:
            self._reuse()
        clock = self._clock
        if clock is not None and ended_ns >= clock.stale_ns:
            clock.keep_fresh(ended_ns)

    def _reuse(self) -> None:
        """Read the oldest bracket, if it is over, so that the next call needs no new events.

        The GPU has work by now, so that who waits for it does not wait for this.
        """
        with self._reusing:
            if not self._unread:
                return
            bracket = self._unread.popleft()
            try:  # asking whether it is over would spoil a capture of this thread
                bracket.opened_ns, bracket.closed_ns = self._times(bracket)
            except GpuscopeError:
                self._unread.appendleft(bracket)
                self._behind = 2 * len(self._unread)
                return
        self._give_back(bracket)

    @property
    def unfinished(self) -> list[Call]:
        """The calls that returned and whose work has no row."""
        calls = [bracket.call for bracket in [*self._open.copy().values(), *self._waiting]]
        return [call for call in calls if call.end_ns is not None]

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that :meth:`drain` does next."""
        self.settle()
        with self._device.backend.among_captures():
            self._running_clock.look_again()
        with self._reusing:
            move(self._closed, self._waiting)
            self._unread.clear()
        return keep(self, "_waiting", "_read_out", "_shortest_ns", "_past")

    def settle(self) -> None:
        """Give the events back of what was handed out."""
        while self._read_out:
            bracket = self._read_out.pop()
            if bracket.closed_ns is None:
                self._give_back(bracket)

    def _give_back(self, bracket: _Bracket) -> None:
        self._spare += [event for event in (bracket.before, bracket.after) if event is not None]

    def drain(self, rows: Rows) -> None:
        """Turn the brackets that are done into rows."""
        done: list[_Bracket] = []
        still: list[_Bracket] = []
        times: list[tuple[int, int]] = []
        event_done = self._device.backend.event_done
        with self._device.backend.among_captures():
            for bracket in self._waiting:
                opened_ns, closed_ns = bracket.opened_ns, bracket.closed_ns
                if closed_ns is None:
                    if bracket.after is None or not event_done(bracket.after.raw):
                        still.append(bracket)
                        continue
                    opened_ns, closed_ns = self._times(bracket)
                done.append(bracket)
                times.append((opened_ns, closed_ns))
                self._read_out.append(bracket)
        self._waiting = still
        running = [bracket.seen(bracket.launching_ns, _FAR, None) for bracket in still]
        unix = self._running_clock.to_unix(np.array(times, np.int64).reshape(-1, 2)).tolist()
        read = [
            bracket.seen(opened_ns, closed_ns, bracket.kind)
            for bracket, (opened_ns, closed_ns) in zip(done, unix, strict=True)
        ]
        spans = bounds(read, self._shortest_ns, [*self._past, *running])
        since = min((bracket.launching_ns for bracket in still), default=_FAR)
        self._past = [launch for launch in [*self._past, *read] if launch.closed > since]
        if rows.since_ns > since:
            self._past = _enveloped(self._past, rows.since_ns)
        for bracket, bounded in zip(done, spans, strict=True):
            rows.cut()
            columns = work_columns(bracket.call, self._device.info)
            rows.spans.append({**columns, **bounded, "source": self.name})

    def _times(self, bracket: _Bracket) -> tuple[int, int]:
        """Read when the GPU reached both events, by its clock."""
        assert bracket.after is not None  # noqa: S101 - set before it was queued
        opened = self._running_clock.device_ns(bracket.before, bracket.call.start_ns)
        length = self._device.backend.elapsed_ns(bracket.before.raw, bracket.after.raw)
        return opened, opened + length

    def finish(self, *, wait: bool) -> None:
        """Compare the clocks once more."""
        del wait
        if self._clock is not None:
            with self._device.backend.among_captures():
                self._clock.look()

    def close(self) -> dict[str, Calibration]:
        """Destroy the events; returns the clock's calibration and the bracket's cost."""
        if self._clock is None:
            return {}
        facts = self._clock.close()
        for event in self._spare:
            event.close()
        self._spare.clear()
        return {self._device.info.key: {**facts, **self._cost}}
