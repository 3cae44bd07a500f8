"""What recording costs a program: measured in its process when it is over, so nothing is missing.

It is of the host's threads that make calls: where the GPU waits for these, the program is that much
slower, elsewhere less. What CUPTI adds on the GPU, as between the nodes of a graph, is not in it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gpuscope import _sites
from gpuscope.device.device import Device
from gpuscope.record.cupti.collector import Collector, get_collector
from gpuscope.record.cupti.records import CANARY, CANARY_SOURCE
from gpuscope.trace.columns import rows_of
from gpuscope.trace.facts import RecordingCost
from gpuscope.trace.model import Trace

_PAIRS, _LAUNCHES = 24, 200
_LOW, _HIGH = 6, 17
"""Of so many pairs in order, counted from 0: between these is the median in 95 % of all cases
(H. A. David and H. N. Nagaraja, *Order Statistics*, 2003, section 7.1)."""
_LIMIT = 256 << 20
"""Bytes of buffers meanwhile."""
_FEWEST, _SHORTEST_NS = 100, 100_000_000
"""Calls of a thread, and the time from its first to its last, of which a share is told."""


class TimeAdded(NamedTuple):
    """What recording adds to a call: median, and half its 95 % interval, ns."""

    ns: float
    within_ns: float


def paired(pause: Callable[[bool], None], launch_ns: Callable[[], float]) -> TimeAdded:
    """Return how much longer a launch takes where recording is not paused.

    Parameters
    ----------
    launch_ns
        Returns the time of a launch now, ns.
    """
    added = []
    for number in range(_PAIRS):
        took_ns = {}
        for paused in (number % 2 == 0, number % 2 == 1):
            pause(paused)
            took_ns[paused] = launch_ns()
        added.append(took_ns[False] - took_ns[True])
    ordered = sorted(added)
    return TimeAdded(statistics.median(added), (ordered[_HIGH] - ordered[_LOW]) / 2)


def time_added(
    device: Device, detail: Literal["launches", "full"], *, stacks: bool
) -> TimeAdded | None:
    """Return what recording adds to a call of this process; ``None`` while something is recorded.

    Launches of a kernel that does nothing are timed with recording and without, in turns. What
    noting a call takes is that of the program's calls instead: they are made deeper in it, and
    what noting touches has left the caches by then.

    Parameters
    ----------
    detail, stacks
        As of :class:`Options`.

    Raises
    ------
    GpuscopeError
        CUPTI or the GPU refuses.
    """
    collector = get_collector()
    with collector.flights:  # none begins meanwhile
        if collector.is_recording:
            return None
        return _time_added(collector, device, detail, stacks=stacks)


def _time_added(
    collector: Collector, device: Device, detail: Literal["launches", "full"], *, stacks: bool
) -> TimeAdded:
    backend, noting = device.backend, collector.library.time_of_noting()
    kernel = backend.compile(CANARY_SOURCE, CANARY, None)
    out = backend.empty((2,), np.dtype(np.uint64))
    stream, handle = backend.make_stream(None, 0)

    def launch_ns() -> float:
        took_ns = []
        for _ in range(_LAUNCHES):
            began_ns = time.perf_counter_ns()
            backend.launch(stream, kernel, 1, 32, (out,), 0)
            took_ns.append(time.perf_counter_ns() - began_ns)
        backend.sync_stream(stream)
        return statistics.median(took_ns)

    owner = id(launch_ns)
    try:
        _sites.ask_for_sites(stacks)
        apis = "all" if detail == "full" else "launches"
        collector.begin(owner, lambda _number, _records: None, apis=apis, limit=_LIMIT)
        try:
            added = paired(lambda paused: collector.pause(paused=paused), launch_ns)
            collector.collect(forced=True)  # and nobody has it
        finally:
            collector.end(owner, taken_over=False)
    finally:
        _sites.ask_for_sites(-stacks)
        backend.close_stream(stream, handle)
    of_these = collector.library.time_of_noting()
    if noting is None or of_these is None:
        return added
    ns = added.ns + noting[0] - of_these[0]
    within_ns = math.hypot(added.within_ns, 1.96 * noting[1], 1.96 * of_these[1])
    return TimeAdded(max(ns, 0.0), within_ns)


def recording_cost(trace: Trace, added: TimeAdded) -> RecordingCost | None:
    """Return what recording cost a program, by the calls of the thread that made most.

    ``None`` where these were few, or in a short time. Polls that saw nothing have no row.
    """
    rows = rows_of(trace, "api", "sync")
    _, of_thread = np.unique(trace.array("thread", fill=-1)[rows], return_inverse=True)
    counts = np.bincount(of_thread, minlength=1)
    starts = trace.array("start_ns")[rows][of_thread == counts.argmax()]
    lasted_ns = int(np.ptp(starts)) if len(starts) >= _FEWEST else 0
    if lasted_ns < _SHORTEST_NS:
        return None
    per_ns = (len(starts) - 1) / lasted_ns
    shares = per_ns * added.ns, per_ns * added.within_ns
    return RecordingCost(added.ns, added.within_ns, *shares)
